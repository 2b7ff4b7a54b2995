"""The roll of a job's ranks: where each one is, whether it lives, what is still to come of it.

Rules of the job lean on it (J-4): a rank is done when it exited and both its
streams ended, or when its node was given up.
"""

from __future__ import annotations

from collections import Counter


class Roll:
    """nodes: rank -> node, of every rank ever called. statuses: rank -> how it ended."""

    def __init__(self) -> None:
        self.nodes: dict[int, int] = {}
        self.statuses: dict[int, int] = {}
        self._alive: dict[int, int] = {}  # rank -> node; spawn ordered, not yet exited
        self._streams: dict[int, int] = {}  # rank -> streams not yet ended

    def call(self, rank: int, node: int) -> None:
        """``rank`` is being started on ``node``."""
        self.nodes[rank] = self._alive[rank] = node
        self._streams[rank] = 2

    def is_alive(self, rank: int, node: int) -> bool:
        return self._alive.get(rank) == node

    def absent(self, rank: int, node: int) -> bool:
        """``rank`` could not be started on ``node``; False if nobody waited for that."""
        if not self.is_alive(rank, node):
            return False
        del self._alive[rank]
        self._streams.pop(rank, None)
        return True

    def exited(self, rank: int, node: int, status: int) -> bool:
        """``rank`` was reaped on ``node``; False if nobody waited for that."""
        if not self.is_alive(rank, node):
            return False
        del self._alive[rank]
        self.statuses[rank] = status
        return True

    def stream_ended(self, rank: int) -> bool:
        """One of the rank's streams is complete; False if nobody waited for that."""
        left = self._streams.get(rank, 0)
        if left > 1:
            self._streams[rank] = left - 1
        elif left:
            del self._streams[rank]
        return left > 0

    def lose(self, node: int) -> None:
        """Nothing more will be heard of the ranks on ``node``."""
        self.give_up(node)
        for rank in [rank for rank in self._streams if self.nodes[rank] == node]:
            del self._streams[rank]

    def give_up(self, node: int) -> None:
        """Nobody can wait for the ranks that still live on ``node``."""
        for rank in [rank for rank, place in self._alive.items() if place == node]:
            del self._alive[rank]
            self._streams.pop(rank, None)

    @property
    def is_done(self) -> bool:
        """Whether nothing is to come of any rank."""
        return not self._alive and not self._streams

    def living(self) -> list[int]:
        """The nodes that have living ranks, in order."""
        return sorted(set(self._alive.values()))

    def alive(self) -> list[int]:
        """The living ranks."""
        return list(self._alive)

    def load(self) -> Counter[int]:
        """How many ranks live on each node."""
        return Counter(self._alive.values())
