r"""Bars below each other, which a program redraws by moving the cursor up: one block of rows.

tqdm draws its second bar as ``LF CR text ESC [A``; rich goes up to its first row before it draws.
``BarBlock`` follows the cursor as a terminal does, but by whole rows: text after CR replaces its
row. A row above all that the program has ever gone back to is final, and becomes a line.
"""

from __future__ import annotations

import re

#: rows that a program may go back, and bytes of the rows that are held
MOST_UP, MOST_BYTES = 100, 64 << 10

_UP = re.compile(rb"(?:\x1b\[\d{0,3}[AF](?:\x1b\[[0-2]?K|\r)*)+")
_STEP = re.compile(rb"\x1b\[(\d{0,3})[AF]")
#: how often and what; the beginning of that; text, in which other sequences stand
_TOKENS = re.compile(
    rb"\x1b\[(?:(\d{0,3})([A-GJK])|\?25[hl])|([\n\r])|(\x1b(?:\[[?\d]{0,3})?\Z)"
    rb"|((?:[^\n\r\x1b]+|\x1b(?!\[(?:\d{0,3}[A-GJK]|\?25[hl]|[?\d]{0,3}\Z)|\Z))+)"
)


def block_start(text: bytes, known: int, is_bar: bool) -> int | None:
    """Where the rows begin to which ``text`` first goes back; None if it redraws nothing.

    known: bytes before which no block began. A move up inside a line that does not begin with CR
    (``is_bar``) is text.
    """
    up = _UP.search(text, max(0, known - 5))
    if up is None:
        return None
    line = text[text.rfind(b"\n", 0, up.start()) + 1 : up.end()]
    if not is_bar and b"\r" not in line and not line.startswith(b"\x1b["):
        return None
    rows = min(MOST_UP, sum(int(n or 1) for n in _STEP.findall(up[0]))) + 1
    parts = text[: up.start()].rsplit(b"\n", rows)
    return len(parts[0]) + 1 if len(parts) > rows else 0


class BarBlock:
    """The rows, and where the cursor is in them. Bounded; its time is linear in the input."""

    def __init__(self) -> None:
        self._rows = [bytearray()]
        self._at = self._reach = self._new = 0  # new: rows begun since the cursor last went up
        self._replaces = self._rested = False  # replaces: the next text is instead of its row
        self._cut = b""  # the beginning of a sequence

    @property
    def rest(self) -> bytes:
        """The rows that show something."""
        return b"\n".join(row for row in self._rows if row.strip())

    @property
    def is_left(self) -> bool:
        """Whether the program has gone on below the rows, or they are too many bytes."""
        return self._new > self._reach or sum(map(len, self._rows)) > MOST_BYTES

    def has_rested(self) -> bool:
        """Whether the cursor is below all rows, and was when this was last asked."""
        below = self._at == len(self._rows) - 1 and not self._rows[-1].strip()
        before, self._rested = self._rested, below
        return below and before

    def feed(self, data: bytes) -> bytes:
        """The lines that are final after ``data``."""
        data, self._cut, self._rested = self._cut + data, b"", False
        for token in _TOKENS.finditer(data):
            count, key, end, self._cut, text = token.groups(b"")
            if text:
                if self._replaces:
                    self._rows[self._at] = bytearray()
                self._rows[self._at] += text
            self._replaces = not text and self._move(int(count or 1), key or end)
        extra = max(0, len(self._rows) - 1 - self._reach)
        final, self._rows = self._rows[:extra], self._rows[extra:]
        self._at -= extra
        return b"".join(row + b"\n" for row in final if row.strip())

    def leave(self) -> tuple[bytes, bytes]:
        """(the rows as lines, the unfinished row of the cursor)."""
        row = self._rows.pop(self._at)
        return self.rest + b"\n" if self.rest else b"", bytes(row) + self._cut

    def _move(self, count: int, key: bytes) -> bool:
        """Move the cursor by ``key``; return whether the next text begins its row."""
        last = len(self._rows) - 1
        if key in (b"A", b"F"):
            self._at -= min(count, MOST_UP - (last - self._at))
            if self._at < 0:  # to rows that have already become lines
                self._rows[:0] = [bytearray() for _ in range(-self._at)]
                last, self._at = last - self._at, 0
            self._reach, self._new = max(self._reach, last - self._at), 0
        elif key == b"\n":
            self._at += 1
            self._new += self._at > last
            self._rows += [bytearray()] * (self._at > last)
        elif key in (b"B", b"E"):
            self._at = min(self._at + count, last)
        elif key in (b"J", b"K"):
            self._rows[self._at + 1 :] = [] if key == b"J" else self._rows[self._at + 1 :]
            if self._replaces or count == 2:
                self._rows[self._at] = bytearray()
        return key in (b"\n", b"\r", b"E", b"F", b"G") or self._replaces
