"""What hosts, links and the launcher's SSH take: numbers with their sources, and how hosts differ.

Each host draws its own times once, by the seed and its number, so that a host stays what it is
whatever the others do.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field, fields
from typing import Any

#: the page on which most numbers are found
_BUDGET = "docs/design/budget.md"


def number(value: float, unit: str, what: str, source: str) -> Any:
    """A field of ``Model``."""
    return field(default=value, metadata={"unit": unit, "what": what, "source": source})


@dataclass(frozen=True)
class Model:
    """Seconds unless said otherwise. ``cpu`` of hosts is theirs alone unless ``cores`` is given."""

    login: float = number(0.018, "s", "processor time of a host's sshd for a login", _BUDGET)
    boot: float = number(0.022, "s", "processor time until the agent's first word", _BUDGET)
    check: float = number(0.004, "s", "processor time to gather facts", _BUDGET)
    probe: float = number(0.001, "s", "processor time to reach host 0", _BUDGET)
    spawn: float = number(0.0035, "s", "processor time to start a rank", _BUDGET)
    start: float = number(0.005, "s", "from a rank's start to its first line", _BUDGET)
    react: float = number(0.005, "s", "from a signal to the rank's end", _BUDGET)
    sweep: float = number(0.004, "s", "processor time of the last look for leftovers", _BUDGET)
    trips: float = number(8.0, "trips", "round trips of a login", "docs/design/tree.md")
    trip: float = number(0.0005, "s", "a round trip", "one room")
    spread: float = number(0.3, "", "sigma of the logarithm of each time, host to host", "stated")
    slow: float = number(0.002, "share", "hosts that are slow in all they do", "stated")
    slowness: float = number(10.0, "times", "what these take", "stated")
    dropped: float = number(0.0, "share", "logins that sshd drops at random", "stated")
    launcher_login: float = number(
        0.0047, "s", "processor time of the launcher for a login", "docs/design/tree.md"
    )
    launcher_turn: float = number(
        0.00015, "s", "processor time of the launcher for a wake-up of a host", "its own profile"
    )
    launcher_byte: float = number(
        1.2e-8, "s", "processor time of the launcher for a byte sent", "docs/design/tree.md"
    )
    first: float = number(0.06, "s", "paramiko's import, once", _BUDGET)
    inner_trip: float = number(0.0002, "s", "a round trip among the hosts", "docs/design/tree.md")
    relay: float = number(0.019, "s", "processor time until a relay's first word", "measured alone")
    inner_login: float = number(
        0.015, "s", "processor time of a host for the ssh by which it opens another",
        "docs/design/tree.md",
    )  # fmt: skip
    inner_cores: int = number(4, "", "cores that an inner host has for these", "stated")
    launcher_behind: float = number(
        0.0022, "s", "processor time of the launcher for a host behind another",
        "docs/design/tree.md",
    )  # fmt: skip
    keys: float = number(100.0, "bytes", "of a rank's keys in an MPI barrier", "stated")
    cores: int = number(0, "", "cores that launcher and hosts share; 0: each has its own", "")


def table(model: Model) -> list[str]:
    """A line for each number of ``model``."""
    return [
        f"{one.name:15} {getattr(model, one.name):>9g} {one.metadata['unit']:7} "
        f"{one.metadata['what']} ({one.metadata['source'] or 'stated'})"
        for one in fields(model)
    ]


@dataclass(frozen=True)
class Host:
    """What one host takes, in seconds; drawn."""

    login: float
    boot: float
    check: float
    probe: float
    spawn: float
    start: float
    react: float
    sweep: float


def drawn(model: Model, seed: int, number: int) -> Host:
    """Host ``number`` of the cluster that has this ``seed``."""
    chance = random.Random(f"{seed}/{number}")
    factor = model.slowness if chance.random() < model.slow else 1.0

    def around(middle: float) -> float:
        return middle * factor * math.exp(model.spread * chance.gauss(0.0, 1.0))

    times = {one.name: around(getattr(model, one.name)) for one in fields(Host)}
    return Host(**times)


def written(model: Model) -> str:
    """``model`` as a line that ``read`` takes."""
    return json.dumps({one.name: getattr(model, one.name) for one in fields(model)})


def read(text: str) -> Model:
    """The model that was ``written``."""
    return Model(**json.loads(text))
