"""A terminal with something live below the lines: a footer that is replaced, never scrolled.

One thread writes everything, and each write takes the footer away, adds whole
lines and puts the footer back, so a line is never torn. No mode of the terminal
is changed, the cursor stays visible, no other screen is used: so there is nothing
to restore, however dispatch ends, even by SIGKILL. The cursor always stands at the
start of the line below the footer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from dispatcher.sinks.outlet import Live, Outlet

#: seconds between two pictures, and before the first: a short run needs none
EVERY, FIRST = 0.25, 0.4
#: rows that stay for the lines; columns and rows below which there is no footer
ROWS_LEFT, LEAST = 4, 20
#: a pause this long (s) means that dispatch was stopped (^Z): what stands above is the shell's
STOPPED = 2.0


class Terminal(Outlet):
    """Like ``Outlet``; ``streams`` are those that end in the terminal ``fd``.

    size: gives (columns, rows).
    """

    def __init__(
        self,
        streams: frozenset[int],
        fd: int,
        fds: Mapping[int, int] | None = None,
        on_broken: Callable[[], None] = lambda: None,
        size: Callable[[int], tuple[int, int]] = os.get_terminal_size,
    ) -> None:
        super().__init__(fds, on_broken)
        self._streams = streams
        self._fd = fd
        self._size = size
        self._drawn: list[tuple[bytes, int]] = []  # lines of the footer and their columns
        self._next: float | None = None
        self._last = 0.0

    def write(self, stream: int, batch: bytes) -> None:
        if stream in self._streams and self._drawn:
            batch = self._wipe() + batch + self._text()
        super().write(stream, batch)

    def refresh(self, now: float, live: Live) -> bool:
        if self._next is None:
            self._next = now + FIRST
        if now - self._last > STOPPED:
            self._drawn = []  # it is not below us any more
        self._last = now
        if now >= self._next:
            self._next = now + EVERY
            self._draw(live)
        return True

    def close(self) -> None:
        self._put([])

    def _draw(self, live: Live) -> None:
        try:
            columns, rows = self._size(self._fd)
        except OSError:
            return
        if columns < LEAST or rows <= ROWS_LEFT:
            self._put([])
            return
        # a full line may leave the cursor in either of two places
        self._put(live(columns - 1)[: rows - ROWS_LEFT])

    def _put(self, lines: list[tuple[bytes, int]]) -> None:
        if lines == self._drawn:
            return
        wipe, self._drawn = self._wipe(), lines
        stream = min(self._streams, default=0)
        super().write(stream, wipe + self._text())

    def _wipe(self) -> bytes:
        """What takes the footer away; a terminal made narrower has wrapped its lines."""
        if not self._drawn:
            return b""
        try:
            columns = max(1, self._size(self._fd)[0])
        except OSError:
            columns = 1 << 16
        rows = sum(max(1, -(-width // columns)) for _, width in self._drawn)
        return b"\r\x1b[%dA\x1b[J" % rows

    def _text(self) -> bytes:
        return b"".join(line + b"\n" for line, _ in self._drawn)
