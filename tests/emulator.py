"""A terminal emulator that tells what it was made to do beyond showing text."""

from __future__ import annotations

import pyte


class Emulator:
    """rows x columns; ``feed`` it what dispatch writes, then look at it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=100_000, ratio=0.01)
        self.screen.set_mode(pyte.modes.LNM)  # a line feed returns, as the tty driver makes it
        self.answers: list[str] = []
        self.screen.write_process_input = self.answers.append  # type: ignore[method-assign]
        self._stream = pyte.ByteStream(self.screen)

    def feed(self, data: bytes) -> None:
        self._stream.feed(data)

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
