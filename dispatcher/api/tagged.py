"""One look at the processes of runs on many hosts, and its result in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from signal import Signals

from dispatcher.core.visits import is_good
from dispatcher.jobs import tags
from dispatcher.plan.errand import Errand, ErrandLimits
from dispatcher.plan.host import Host
from dispatcher.plan.hostset import fold
from dispatcher.runner.errand import HANDLED, ErrandRunner
from dispatcher.sinks.base import Sink
from dispatcher.sinks.errand import describe
from dispatcher.sinks.harmless import harmless_text
from dispatcher.transport.base import Transport

#: a host that does not even say who it is would hold everybody up
LIMITS = ErrandLimits(command=60.0)
#: bytes of a host's answer that are kept
MOST = 1 << 20


class Answers(Sink):
    """What every host has answered; ``text`` by its number."""

    def __init__(self) -> None:
        self.text: dict[int, bytearray] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        text = self.text.setdefault(rank, bytearray())
        if stream == 1 and len(text) < MOST:
            text += data


class Look:
    """Processes by host name, and the lines about hosts that could not be asked."""

    def __init__(self, found: Mapping[str, list[tags.Tagged]], failures: list[str]) -> None:
        self.found = found
        self.failures = failures


def look_by(
    transport_for: Callable[[Host], Transport],
    hosts: Sequence[Host],
    run_ids: Sequence[str],
    *,
    kill: bool,
    limits: ErrandLimits = LIMITS,
    handled: Sequence[Signals] = HANDLED,
) -> Look:
    """Find (``kill``: and kill) the processes of ``run_ids`` on ``hosts``; [] for any run's.

    handled: the signals that end the look; () outside the main thread.
    """
    errand = Errand(tuple(hosts), tags.words(run_ids, kill=kill), limits=limits)
    answers = Answers()
    outcomes = ErrandRunner(errand, transport_for, [answers]).run(handled)
    found = {
        name: tags.parse(bytes(answers.text.get(node, b"")))
        for node, name in enumerate(errand.names)
    }
    failures = [] if all(map(is_good, outcomes)) else describe(outcomes, errand.names)
    return Look(found, failures)


def summary(found: Mapping[str, list[tags.Tagged]], what: str, verb: str) -> list[str]:
    """``n[1-2]: killed 3 processes: python 2, agent 1`` for each kind of host; [] for none."""
    groups: dict[str, list[str]] = {}
    for host, tagged in found.items():
        counts: dict[str, int] = {}
        for one in tagged:
            if one.what == what:
                counts[one.name] = counts.get(one.name, 0) + 1
        if counts:
            total = sum(counts.values())
            names = ", ".join(f"{harmless_text(name)} {n}" for name, n in sorted(counts.items()))
            noun = "process" if total == 1 else "processes"
            groups.setdefault(f"{verb} {total} {noun}: {names}", []).append(host)
    return [f"{fold(hosts)}: {text}" for text, hosts in groups.items()]
