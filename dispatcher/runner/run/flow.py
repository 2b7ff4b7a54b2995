"""When ranks last wrote something, as the threads of hosts and sinks see it.

Output that waits here because nobody takes it holds the ranks back, so as long as any waits
they count as writing.
"""

from __future__ import annotations

import time


class Flow:
    """Told by several threads; each number is written by one kind of them only."""

    def __init__(self) -> None:
        self._given: dict[int, int] = {}  # node -> bytes; each written by its own thread
        self._taken = 0
        self._last = 0.0  # when something was given or taken
        self._last_progress = 0.0
        self._told = (0.0, 0.0)

    def given(self, node: int, nbytes: int) -> None:
        self._given[node] = self._given.get(node, 0) + nbytes
        self._last = time.monotonic()

    def taken(self, nbytes: int) -> None:
        self._taken += nbytes
        self._last = time.monotonic()

    def progressed(self) -> None:
        self._last_progress = time.monotonic()

    def news(self, now: float) -> list[tuple[float, bool]]:
        """(seconds before ``now``, whether it was progress) of what came since the last call."""
        waits = sum(list(self._given.values())) > self._taken
        last, progress = now if waits else self._last, self._last_progress
        before, self._told = self._told, (last, progress)
        found = [(max(0.0, now - last), False)] if last > before[0] else []
        return found + ([(max(0.0, now - progress), True)] if progress > before[1] else [])
