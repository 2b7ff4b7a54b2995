"""A terminal emulator that tells what it was made to do beyond showing text."""

from __future__ import annotations

import copy
import re
from typing import Any

import pyte

_OTHER = re.compile(rb"\x1b\[\?1049([hl])")
_BEGINNING = b"\x1b[?1049"


class Emulator:
    """rows x columns; ``feed`` it what dispatch writes, then look at it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=100_000, ratio=0.01)
        self.screen.set_mode(pyte.modes.LNM)  # a line feed returns, as the tty driver makes it
        self.answers: list[str] = []
        self.screen.write_process_input = self.answers.append  # type: ignore[method-assign, assignment]
        self._stream = pyte.ByteStream(self.screen)
        self._rest = b""
        self._main: tuple[Any, ...] | None = None

    @property
    def on_other_screen(self) -> bool:
        return self._main is not None

    def feed(self, data: bytes) -> None:
        """Show ``data``; xterm's other screen (mode 1049), which pyte has not, is made here."""
        *parts, self._rest = _OTHER.split(self._rest + data)
        for text, mode in zip(parts[::2], parts[1::2], strict=True):
            self._stream.feed(text)
            self._switch(mode == b"h")
        cut = self._rest.rfind(b"\x1b")
        keep = cut if cut >= 0 and _BEGINNING.startswith(self._rest[cut:]) else len(self._rest)
        text, self._rest = self._rest[:keep], self._rest[keep:]
        self._stream.feed(text)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)

    def _switch(self, other: bool) -> None:
        screen = self.screen
        if other and self._main is None:
            self._main = (copy.deepcopy(screen.buffer), copy.copy(screen.cursor), screen.history)
            screen.erase_in_display(2)
        elif not other and self._main is not None:
            screen.buffer, screen.cursor, screen.history = self._main
            self._main = None

    def lines(self) -> list[str]:
        """All lines from the first, those that have scrolled away too, without trailing blanks."""
        columns = self.screen.columns
        gone = ["".join(row[x].data for x in range(columns)) for row in self.screen.history.top]
        found = [line.rstrip() for line in [*gone, *self.screen.display]]
        while found and not found[-1]:
            found.pop()
        return found

    @property
    def title(self) -> str:
        return str(self.screen.title)
