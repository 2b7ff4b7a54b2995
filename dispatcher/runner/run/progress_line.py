"""Looks for the line that shows a rank's progress, on the threads of the hosts."""

from __future__ import annotations

import re
from collections.abc import Callable

#: bytes of a line that is not yet complete; what is longer is searched in pieces
MOST_PENDING = 64 << 10


class ProgressLine:
    """Calls ``seen`` with (node, rank) for output in which a line contains ``pattern``.

    Each stream is fed by one thread only, so the pieces of its lines need no lock.
    """

    def __init__(self, pattern: str, seen: Callable[[int, int], None]) -> None:
        self._search = re.compile(pattern.encode("utf-8", "surrogateescape")).search
        self._seen = seen
        self._rests: dict[tuple[int, int], bytes] = {}

    def feed(self, node: int, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        *lines, rest = (self._rests.get(key, b"") + data).replace(b"\r", b"\n").split(b"\n")
        if len(rest) > MOST_PENDING:
            lines.append(rest)
            rest = b""
        self._rests[key] = rest
        if any(map(self._search, lines)):
            self._seen(node, rank)
