"""What hosts, links and the launcher's SSH take, and how hosts differ.

Each host draws its own times once, by the seed and its number, so that a host stays what it is
whatever the others do. Most numbers are those of docs/design/budget.md, and of docs/design/tree.md
for links, relays and the launcher's own work.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Model:
    """Seconds unless said otherwise. Each host has its own processors unless ``cores`` is set."""

    # processor time of a host
    login: float = 0.018  # of its sshd for a login
    boot: float = 0.022  # until the agent's first word
    check: float = 0.004  # to gather facts
    probe: float = 0.001  # to reach host 0
    spawn: float = 0.0035  # to start a rank
    sweep: float = 0.004  # of the last look for leftovers
    relay: float = 0.019  # until a relay's first word
    inner_login: float = 0.015  # for the ssh by which it opens another host
    # processor time of the launcher
    launcher_login: float = 0.0047
    launcher_turn: float = 0.00015  # when a host has something for it
    launcher_byte: float = 1.2e-8  # for a byte sent
    launcher_behind: float = 0.0022  # for a host behind another
    first: float = 0.06  # paramiko's import, once
    # time that passes
    start: float = 0.005  # from a rank's start to its first line
    react: float = 0.005  # from a signal to the rank's end
    trips: float = 8.0  # how many round trips a login takes
    trip: float = 0.0005  # a round trip in one room
    inner_trip: float = 0.0002  # a round trip among the hosts
    # shares and counts
    spread: float = 0.3  # sigma of the logarithm of each time, host to host
    slow: float = 0.002  # share of hosts that are slow in all they do
    slowness: float = 10.0  # how many times as long these take
    dropped: float = 0.0  # share of logins that sshd drops at random
    inner_cores: int = 4  # of a host that opens others
    keys: float = 100.0  # bytes of a rank's keys in an MPI barrier
    cores: int = 0  # that launcher and hosts share; 0: each has its own


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

    return Host(**{one.name: around(getattr(model, one.name)) for one in fields(Host)})
