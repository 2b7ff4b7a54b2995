"""The share of a CPU that each rank uses, from what two samples of it counted. Pure."""

from __future__ import annotations

from dispatcher.core.events.monitor_events import NodeSampled

#: share (%) below which a rank computes nothing; a heartbeat or a poll costs that much
NOTHING = 1.0


class Shares:
    """``of``: rank -> % of one CPU between its last two samples."""

    def __init__(self) -> None:
        self.of: dict[int, float] = {}
        self._seen: dict[int, tuple[float, float]] = {}  # rank -> when (s), CPU time (s)

    def take(self, sample: NodeSampled) -> None:
        for rank in sample.ranks:
            then, before = self._seen.get(rank.rank, (sample.at, 0.0))
            if sample.at > then:
                # a tree may lose time that it had: of a child that nobody waited for
                used = max(0.0, rank.cpu - before)
                self.of[rank.rank] = 100 * used / (sample.at - then)
            self._seen[rank.rank] = (sample.at, rank.cpu)

    def forget(self, rank: int) -> None:
        """``rank`` is another process from now on, or none."""
        self.of.pop(rank, None)
        self._seen.pop(rank, None)

    def is_idle(self, rank: int) -> bool:
        """Whether ``rank`` was seen to use no CPU."""
        return self.of.get(rank, NOTHING) < NOTHING
