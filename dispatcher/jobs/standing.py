"""How far the ranks' output is: what a caller who comes in the middle has to know.

With that and the log files nothing is shown twice or left out: the files are read up to
where each stream stood, the rest comes live. ``merged.log`` takes whole lines only, so
for it the heads of lines that are not whole yet are kept here as well, the last
``HEAD`` bytes of each; what went before in a longer one is told to a caller as missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

HEAD = 64 << 10


class Standing:
    """A fold over output. heads: whether to keep the heads of lines."""

    def __init__(self, heads: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._heads = heads
        self._clock = clock
        self._until = 0.0
        self._world_size: int | None = None
        self._passed: dict[tuple[int, int], int] = {}
        self._ended: dict[tuple[int, int], None] = {}
        self._rests: dict[tuple[int, int], bytes] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        self._passed[key] = self._passed.get(key, 0) + len(data)
        self._until = self._clock()
        if self._heads:
            end = data.rfind(b"\n") + 1
            rest = data[end:] if end else self._rests.get(key, b"") + data
            self._rests[key] = rest[-HEAD:]

    def ended(self, rank: int, stream: int) -> None:
        self._ended[rank, stream] = None
        self._rests.pop((rank, stream), None)

    def placed(self, world_size: int) -> None:
        self._world_size = world_size
        self._ended.clear()

    def hello(self) -> dict[str, Any]:
        """The fields of the first frame; see ``protocol``."""
        return {
            "world_size": self._world_size,
            "passed": [[rank, stream, count] for (rank, stream), count in self._passed.items()],
            "ended": [[rank, stream] for rank, stream in self._ended],
            "until": self._until,
        }

    def rests(self) -> list[tuple[int, int, bytes]]:
        """(rank, stream, what has come of its line) where that is not whole yet."""
        return [(rank, stream, rest) for (rank, stream), rest in self._rests.items() if rest]
