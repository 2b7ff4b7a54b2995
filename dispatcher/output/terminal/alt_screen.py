"""A terminal's other screen, and the ``--watch`` table on it.

Theory. The descriptor is our own (the terminal opened once more by its name), so it can be
made non-blocking without changing the user's shell: a paused terminal costs pictures, and
holds nobody. Echo and line mode are off while we draw, signals stay on, so Ctrl-C, Ctrl-Z
and Ctrl-S do what they always do. Only a process in the terminal's foreground may draw.
What was changed is given back by ``leave``, which may be called by any thread, any number
of times. Only SIGKILL leaves the terminal changed, as with any full-screen program: reset(1).

The table comes when the ranks are started: connecting may need a passphrase. While it stands, the
ranks' lines are not shown; they are counted, and the files have them. What dispatch itself has to
say stands below the table, and again above the verdict. The sinks' thread feeds the table
(``monitor.live_table``); this only draws it, on the screen's thread, and never waits for the
terminal.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dispatcher.core.events.run_events import Counts, Entry, RanksPlaced, Sink
from dispatcher.output.terminal.screen import Screen

if TYPE_CHECKING:
    from dispatcher.output.monitor.live_table import Snapshot
    from dispatcher.output.terminal.watch_table import ViewState, WatchTable

#: the other screen, no cursor; and back
ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l\x1b[2J", b"\x1b[?25h\x1b[?1049l"
#: seconds that a terminal may take for the last bytes
LAST = 1.0


class AltScreen:
    """The terminal that the descriptor ``fd`` leads to. Raises: OSError if it is none."""

    def __init__(self, fd: int) -> None:
        name = os.ttyname(fd)
        try:
            flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            self._fd = os.open(name, flags)
        except OSError:  # another user's, or of another /dev: then the one we were given
            self._fd = os.dup(fd)
        self._lock = threading.RLock()
        self._before: list[Any] | None = None
        self._rest = b""
        self._size = (0, 0)

    @property
    def taken(self) -> bool:
        """Whether we are on it, and have to give it back."""
        return self._before is not None

    @property
    def is_ours(self) -> bool:
        """Whether we are in the foreground; a terminal that rules no processes is always ours."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return True

    def enter(self) -> bool:
        """Take the terminal; False where that may not be now. Raises: OSError, termios.error."""
        with self._lock:
            if not self.is_ours:
                return False
            if self._before is None:
                self._before = termios.tcgetattr(self._fd)
            modes = termios.tcgetattr(self._fd)
            modes[3] &= ~(termios.ICANON | termios.ECHO)
            modes[6][termios.VMIN], modes[6][termios.VTIME] = 0, 0
            termios.tcsetattr(self._fd, termios.TCSANOW, modes)
            self._rest = ENTER
            self._flush()
            return True

    def leave(self) -> None:
        """Give the terminal back."""
        with self._lock:
            if self._before is None:
                return
            before, self._before = self._before, None
            with contextlib.suppress(OSError, termios.error):  # it may have gone away
                if self.is_ours:
                    # without IXON for a moment, output goes on that Ctrl-S had paused
                    awake = [before[0] & ~termios.IXON, *before[1:]]
                    termios.tcsetattr(self._fd, termios.TCSANOW, awake)
                    termios.tcsetattr(self._fd, termios.TCSANOW, before)
                # what is left of a picture must not stand before it
                self._rest = self._rest[-1:] and b"\x18"  # CAN ends a sequence that is cut
                self._rest += LEAVE
                while self._rest and select.select([], [self._fd], [], LAST)[1]:
                    self._flush()
            self._rest = b""

    def close(self) -> None:
        """Give back the terminal as it was, for good."""
        self.leave()
        os.close(self._fd)

    @property
    def size(self) -> tuple[int, int]:
        """(columns, rows)."""
        try:
            found = os.get_terminal_size(self._fd)
        except OSError:
            return 80, 24
        return max(1, found.columns), max(1, found.lines)

    def draw(self, lines: Sequence[bytes]) -> None:
        """Show these lines and nothing else; dropped while the terminal takes nothing.

        Raises: OSError.
        """
        with self._lock:
            self._flush()
            if self._rest or not self.taken:
                return
            size, self._size = self._size, self.size
            wipe = b"\x1b[2J" if size != self._size else b""
            body = b"\r\n".join(line + b"\x1b[K" for line in lines)
            self._rest = wipe + b"\x1b[H" + body + b"\x1b[J"
            self._flush()

    def typed(self) -> bytes:
        """What was typed since; b"" if nothing. Raises: OSError."""
        with self._lock:
            if not self.taken or not self.is_ours:
                return b""
            try:
                return os.read(self._fd, 1024)
            except BlockingIOError:
                return b""

    def _flush(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BlockingIOError:
            pass


#: seconds between two pictures; and a pause that means that dispatch was stopped
EVERY, STOPPED = 0.5, 2.0
#: a picture comes half a second later for each so many ranks: to draw 512 takes 12 ms
MANY = 256

#: notes that are kept for the time after
MOST_NOTES = 200


class TableView:
    """Draws ``snapshot`` on ``alt_screen`` and follows the keys. hosts: node -> name."""

    def __init__(
        self, alt_screen: AltScreen, hosts: Sequence[str], snapshot: Callable[[], Snapshot]
    ) -> None:
        self.alt_screen = alt_screen
        self._hosts = hosts
        self._shot = snapshot
        self._table: tuple[WatchTable, ViewState] | None = None  # from the first turn on
        self._next = 0.0

    def turn(self, now: float, notes: Sequence[str]) -> bool:
        """Look at the keys and draw when it is time; False when the user has left.

        Raises: OSError, termios.error when the terminal is gone.
        """
        from dispatcher.output.terminal import watch_table

        table, view = self._table or (
            watch_table.WatchTable(self._hosts),
            watch_table.ViewState(),
        )
        if not self.alt_screen.is_ours:
            return True
        if not self.alt_screen.taken:
            self.alt_screen.enter()
            self._next = now
        for key in watch_table.keys(self.alt_screen.typed()):
            view = view.pressed(key, table.page)
            self._next = now
        if view.over:
            return False
        if now >= self._next:
            self._next = now + EVERY
            columns, rows = self.alt_screen.size
            wide = max(1, columns - 1)  # a full line may leave the cursor in either of two places
            shot = self._shot()
            self._next += EVERY * (len(shot.rows) // MANY)
            lines, view = table.lines(shot, view, notes, wide, rows)
            from dispatcher.output.terminal.footer import drawn

            self.alt_screen.draw([line for line, _ in drawn(lines, wide)])
        self._table = table, view
        return True


class WatchScreen(Sink):
    """``screen``, which shows lines, and ``view`` over it from the start of the ranks."""

    def __init__(self, view: TableView, screen: Screen) -> None:
        self._view = view
        self._screen = screen
        self._on = False
        self._left = False
        self._lent = False
        self._last = 0.0
        self._missing: dict[tuple[int, int], int] = {}
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if not self._on:
            self._screen.output(rank, stream, data)
        else:
            self.gap({(rank, stream): len(data)})

    def event(self, entry: Entry) -> None:
        self._screen.event(entry)
        if isinstance(entry.event, RanksPlaced) and not self._left:
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
                self._view.alt_screen.leave()  # we were stopped, and somebody else drew meanwhile
            self._last = now
            if not self._view.turn(now, list(self._notes)):
                self._leave()
        except (OSError, termios.error):
            self._leave()
        return True

    def close(self) -> None:
        self._leave()
        self._screen.close()
        self._view.alt_screen.close()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The terminal is the shell's for so long; from any thread."""
        self._lent = True
        self._view.alt_screen.leave()
        try:
            yield
        finally:
            self._lent = False

    def give_back(self) -> None:
        """Whatever stands still: leave the terminal as it was. From any thread."""
        self._lent = True
        self._view.alt_screen.leave()

    def _leave(self) -> None:
        """Back to lines."""
        if not self._on:
            return
        self._view.alt_screen.leave()
        self._on, self._left = False, True
        missing, self._missing = self._missing, {}
        if missing:
            self._screen.gap(missing)
        while self._notes:
            self._screen.say(self._notes.popleft())
