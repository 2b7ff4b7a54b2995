"""What a bench found: the turns of several peers under one load, kept as JSON."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field


@dataclass
class Series:
    """Peers that took turns. what: the load, in words. turns: peer -> its turns, each a
    measure -> its value; the n-th turns of all peers lay close together in time.

    measure: the one that is compared. better: "lower" or "higher". missing: peers that are
    not installed; failed: peer -> why it has no turns.
    """

    bench: str
    what: str
    hosts: int
    turns: dict[str, list[dict[str, float]]]
    measure: str = "wall"
    better: str = "lower"
    missing: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def median(self, peer: str, measure: str | None = None) -> float:
        return statistics.median(turn[measure or self.measure] for turn in self.turns[peer])

    def best_peer(self, ours: str = "dispatch") -> str | None:
        """The peer that did best, ours aside; None when there is none."""
        others = [peer for peer in self.turns if not peer.startswith(ours) and self.turns[peer]]
        choose = min if self.better == "lower" else max
        return choose(others, key=self.median, default=None)

    def ratio(self, peer: str, other: str, measure: str | None = None) -> float | None:
        """The median of ``peer``'s ratios to ``other`` within a turn."""
        what = measure or self.measure
        pairs = zip(self.turns.get(peer, []), self.turns.get(other, []), strict=False)
        found = [mine[what] / its[what] for mine, its in pairs if its[what]]
        return statistics.median(found) if found else None


def write(path: str, found: list[Series]) -> None:
    """Keep ``found`` as JSON."""
    with open(path, "w") as file:
        json.dump([asdict(series) for series in found], file, indent=1)


def read(path: str) -> list[Series]:
    """What ``write`` has kept."""
    with open(path) as file:
        return [Series(**fields) for fields in json.load(file)]
