"""Where the time went: each phase over all hosts or ranks, and who was slowest."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from dispatcher.output.reading import LAUNCHER, LINK, Timeline


@dataclass(frozen=True)
class Phase:
    """One kind of span: how many there were, and their seconds. slowest: whose took ``longest``."""

    name: str
    count: int
    shortest: float
    median: float
    longest: float
    slowest: str


def phases(timeline: Timeline) -> list[Phase]:
    """Every phase, in the order in which they first begin."""
    found: dict[str, list[tuple[float, str]]] = {}
    for span in timeline.spans:
        found.setdefault(span.name, []).append(
            (span.seconds, owner(timeline, span.process, span.line))
        )
    return [
        Phase(
            name,
            len(took),
            min(seconds for seconds, _ in took),
            statistics.median(seconds for seconds, _ in took),
            *max(took),
        )
        for name, took in found.items()
    ]


def owner(timeline: Timeline, process: int, line: int) -> str:
    """``dispatch``, a host's name, or ``rank 3 on n1``."""
    host = timeline.hosts.get(process, f"process {process}")
    if process == LAUNCHER or line == LINK:
        return host
    return f"{timeline.lines.get((process, line), f'line {line}')} on {host}"
