"""One look at what runs have left on many hosts, processes and folders, and its result in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from signal import Signals

from dispatcher.bootstrap import tags
from dispatcher.core.events.exec_events import is_good
from dispatcher.core.events.sink import Sink
from dispatcher.model.host_part import Host
from dispatcher.model.hostset import fold
from dispatcher.output.exec.exec_notes import describe
from dispatcher.output.text.sanitize import harmless_text
from dispatcher.plan.exec_plan import Errand, ErrandLimits
from dispatcher.runner.exec.exec_loop import HANDLED, ErrandRunner
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
    """What is left by host name, and the lines about hosts that could not be asked."""

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
    """Find (``kill``: and end) what is left of ``run_ids`` on ``hosts``; [] for any run's.

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


#: what was done -> how it is said
_VERBS = {
    "found": "found",
    "killed": "killed",
    "removed": "removed",
    "left": "error: could not kill",
    "kept": "error: could not remove",
}


def summary(found: Mapping[str, list[tags.Tagged]], *whats: str) -> list[str]:
    """``n[1-2]: killed 3 processes: python 2, agent 1`` for each of ``whats`` and each kind of
    host; ``n3: removed 1 folder in /tmp``. [] for none.
    """
    lines = []
    for what in whats:
        groups: dict[str, list[str]] = {}
        for host, tagged in found.items():
            here = [one for one in tagged if one.what == what]
            for text in filter(None, (_processes(here), _folders(here))):
                groups.setdefault(f"{_VERBS[what]} {text}", []).append(host)
        lines += [f"{fold(hosts)}: {text}" for text, hosts in groups.items()]
    return lines


def _processes(tagged: Sequence[tags.Tagged]) -> str:
    counts = Counter(one.name for one in tagged if one.pid is not None)
    names = ", ".join(f"{harmless_text(name)} {n}" for name, n in sorted(counts.items()))
    total = counts.total()
    return f"{total} process{'es' if total > 1 else ''}: {names}" if total else ""


def _folders(tagged: Sequence[tags.Tagged]) -> str:
    counts = Counter(one.name for one in tagged if one.pid is None)
    places = ", ".join(map(harmless_text, sorted(counts)))
    total = counts.total()
    return f"{total} folder{'s' if total > 1 else ''} in {places}" if total else ""
