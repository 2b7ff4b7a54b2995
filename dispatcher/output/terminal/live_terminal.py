"""A terminal with a footer below the lines, which is replaced and never scrolls.

One thread writes everything. Each write takes the footer away, adds whole lines and puts the footer
back, so no line is torn; no mode of the terminal is changed. A line end that the terminal echoes
for Enter moves the footer up, and FIONREAD shows how many such lines wait. One line too few is
wiped rather than one too many, which would be a rank's. In the background of the terminal there is
no footer, because the rows belong to the program in front.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Callable, Mapping

from dispatcher.model.paths import in_front
from dispatcher.output.terminal.asking import OURS, TtyLock
from dispatcher.output.terminal.screen import Live, Writer

#: seconds between two pictures, and before the first: a short run needs none
EVERY, FIRST = 0.25, 0.4

#: rows that stay for the lines; columns and rows below which there is no footer
ROWS_LEFT, LEAST = 4, 20

#: a pause this long (s) means that dispatch was stopped (^Z): the lines above are the shell's
STOPPED = 2.0


def typed(fd: int) -> int:
    """Bytes of the whole lines that were typed at the terminal ``fd``, echoed, and not yet read.

    0 where that is not known.
    """
    line_wise = termios.ICANON | termios.ECHO
    try:
        if termios.tcgetattr(fd)[3] & line_wise != line_wise:
            return 0
        return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0])
    except (OSError, termios.error):
        return 0


class Terminal(Writer):
    """A ``Writer`` with a footer; ``streams`` are those that lead to the terminal ``fd``.

    size: gives (columns, rows). typed, in_front: see these functions. tty_lock: keeps the footer
    away from questions on the terminal.
    """

    def __init__(
        self,
        streams: frozenset[int],
        fd: int,
        fds: Mapping[int, int] | None = None,
        on_broken: Callable[[], None] = lambda: None,
        on_full: Callable[[], None] = lambda: None,
        *,
        size: Callable[[int], tuple[int, int]] = os.get_terminal_size,
        typed: Callable[[int], int] = typed,
        in_front: Callable[[int], bool] = in_front,
        tty_lock: TtyLock = OURS,
    ) -> None:
        super().__init__(fds, on_broken, on_full)
        self._streams = streams
        self._fd = fd
        self._size = size
        self._typed = typed
        self._in_front = in_front
        self._tty_lock = tty_lock
        self._known = 0  # bytes typed when the footer was drawn
        self._drawn: list[tuple[bytes, int]] = []  # lines of the footer and their columns
        self._next: float | None = None
        self._last = 0.0

    def write(self, stream: int, batch: bytes) -> None:
        if stream in self._streams and self._drawn:
            self._replace(stream, batch)
        else:
            super().write(stream, batch)

    def refresh(self, now: float, live: Live) -> bool:
        """Draw the footer when it is time; True: call again. now: seconds, monotonic."""
        if self._next is None:
            self._next = now + FIRST
        if now - self._last > STOPPED:
            self._drawn = []  # other lines are below it now
        self._last = now
        if not (self._in_front(self._fd) and self._tty_lock.draws()):
            self.close()
            return True
        if self._drawn and self._typed(self._fd) > self._known:
            self._put(self._drawn, again=True)
        if now >= self._next:
            self._next = now + EVERY
            self._draw(live)
        return True

    def close(self) -> None:
        self._put([])
        self._tty_lock.taken_away()

    def _draw(self, live: Live) -> None:
        try:
            columns, rows = self._size(self._fd)
        except OSError:
            return
        fits = columns >= LEAST and rows > ROWS_LEFT
        # a full line may leave the cursor in either of two places
        self._put(live(columns - 1)[: rows - ROWS_LEFT] if fits else [])

    def _put(self, lines: list[tuple[bytes, int]], *, again: bool = False) -> None:
        if lines == self._drawn and not again:
            return
        self._replace(min(self._streams, default=0), b"", lines)

    def _replace(
        self, stream: int, batch: bytes, lines: list[tuple[bytes, int]] | None = None
    ) -> None:
        """Put ``batch`` in place of the footer, and the footer below it; ``lines`` if it changes.

        Keys typed just now may be echoed before our bytes or after them: then a line of the old
        footer stays, but no line of a rank is taken away.
        """
        if not self._in_front(self._fd):  # moved to the background, with the footer on the screen
            self._drawn, lines = [], None
        wipe = self._wipe()
        if lines is not None:
            self._drawn = lines
        super().write(stream, wipe + batch + b"".join(line + b"\n" for line, _ in self._drawn))
        self._known = self._typed(self._fd)

    def _wipe(self) -> bytes:
        """Bytes that take the footer away; a terminal made narrower has wrapped its lines."""
        if not self._drawn:
            return b""
        try:
            columns = max(1, self._size(self._fd)[0])
        except OSError:
            columns = 1 << 16
        rows = sum(max(1, -(-width // columns)) for _, width in self._drawn)
        rows += self._typed(self._fd) > self._known  # at least one Enter; two so soon are rare
        return b"\r\x1b[%dA\x1b[J" % rows
