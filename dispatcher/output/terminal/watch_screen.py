"""``--watch``: the table of all ranks in place of their lines, until the user goes back to those.

It comes when the ranks are started: connecting may need a passphrase, which is asked for below
the lines. While the table stands, the ranks' lines are not shown; they are counted, and the
files have them. What dispatch itself has to say stands below the table, and again above the
verdict. The table is a fold that the sinks' thread feeds (``table``); this only draws it, on
the screen's thread, and never waits for the terminal.
"""

from __future__ import annotations

import termios
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dispatcher.core.events.run_events import RanksPlaced
from dispatcher.core.events.sink import Counts, Sink, Stamped
from dispatcher.output.monitor.live_table import Shot
from dispatcher.output.terminal.alt_screen import Canvas
from dispatcher.output.terminal.screen import Screen

if TYPE_CHECKING:
    from dispatcher.output.terminal.watch_table import Look, Watch

#: seconds between two pictures; and a pause that means that dispatch was stopped
EVERY, STOPPED = 0.5, 2.0
#: notes that are kept for the time after
NOTES_KEPT = 200


class View:
    """Draws ``shot`` on ``canvas`` and follows the keys. hosts: node -> name."""

    def __init__(self, canvas: Canvas, hosts: Sequence[str], shot: Callable[[], Shot]) -> None:
        self.canvas = canvas
        self._hosts = hosts
        self._shot = shot
        self._watch: Watch | None = None
        self._look: Look | None = None
        self._next = 0.0

    def turn(self, now: float, notes: Sequence[str]) -> bool:
        """Look at the keys and draw when it is time; False when the user has left.

        Raises: OSError, termios.error when the terminal is gone.
        """
        from dispatcher.output.terminal import watch_table

        if self._watch is None or self._look is None:
            self._watch, self._look = watch_table.Watch(self._hosts), watch_table.Look()
        if not self.canvas.is_ours:
            return True
        if not self.canvas.taken:
            self.canvas.enter()
            self._next = now
        for key in watch_table.keys(self.canvas.typed()):
            self._look = self._look.pressed(key, self._watch.page)
            self._next = now
        if self._look.over:
            return False
        if now >= self._next:
            self._next = now + EVERY
            columns, rows = self.canvas.size
            wide = max(1, columns - 1)  # a full line may leave the cursor in either of two places
            shot = self._shot()
            lines, self._look = self._watch.lines(shot, self._look, notes, wide, rows)
            from dispatcher.output.terminal.footer import drawn

            self.canvas.draw([line for line, _ in drawn(lines, wide)])
        return True


class Watching(Sink):
    """``screen``, which shows lines, and ``view`` over it from the start of the ranks."""

    def __init__(self, view: View, screen: Screen) -> None:
        self._view = view
        self._screen = screen
        self._on = False
        self._left = False
        self._lent = False
        self._last = 0.0
        self._missing: dict[tuple[int, int], int] = {}
        self._notes: deque[str] = deque(maxlen=NOTES_KEPT)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if not self._on:
            self._screen.output(rank, stream, data)
        else:
            self.gap({(rank, stream): len(data)})

    def event(self, stamped: Stamped) -> None:
        self._screen.event(stamped)
        if isinstance(stamped.event, RanksPlaced) and not self._left:
            self._screen.hide()
            self._on = True

    def gap(self, missing: Counts) -> None:
        if not self._on:
            self._screen.gap(missing)
            return
        for key, count in missing.items():
            self._missing[key] = self._missing.get(key, 0) + count

    def say(self, line: str) -> None:
        if self._on:
            self._notes.append(line)
        else:
            self._screen.say(line)

    def tick(self, now: float) -> bool:
        if not self._on:
            return self._screen.tick(now)
        if self._lent:
            return True
        try:
            if now - self._last > STOPPED and self._last:
                self._view.canvas.leave()  # we were stopped, and somebody else drew meanwhile
            self._last = now
            if not self._view.turn(now, list(self._notes)):
                self._leave()
        except (OSError, termios.error):
            self._leave()
        return True

    def close(self) -> None:
        self._leave()
        self._screen.close()
        self._view.canvas.close()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The terminal is the shell's for so long; from any thread."""
        self._lent = True
        self._view.canvas.leave()
        try:
            yield
        finally:
            self._lent = False

    def give_back(self) -> None:
        """Whatever stands still: leave the terminal as it was. From any thread."""
        self._lent = True
        self._view.canvas.leave()

    def _leave(self) -> None:
        """Back to lines."""
        if not self._on:
            return
        self._view.canvas.leave()
        self._on, self._left = False, True
        missing, self._missing = self._missing, {}
        if missing:
            self._screen.gap(missing)
        while self._notes:
            self._screen.say(self._notes.popleft())
