"""A terminal's other screen, and who may draw while a secret is asked for.

The terminal that is drawn on is also where secrets are asked for: never both at once.

Who asks waits until what is drawn was taken away; until the answer nothing is drawn. Lines are
shown all the same. A process has one terminal, so there is one curtain, ``OURS``.

A terminal's other screen: taken, drawn on, and given back as it was, whatever happens.

Theory. The descriptor is our own (the terminal opened once more by its name), so it can be
made non-blocking without changing the user's shell: a paused terminal costs pictures, and
holds nobody. Echo and line mode are off while we draw, signals stay on, so Ctrl-C, Ctrl-Z
and Ctrl-S do what they always do. Only a process in the terminal's foreground may draw.

What was changed is given back by ``leave``, which may be called by any thread, any number
of times. Only SIGKILL leaves the terminal changed, as with any full-screen program: reset(1).
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import threading
from collections.abc import Iterator, Sequence
from typing import Any

#: seconds that whoever asks waits for a painter who may be stuck in a paused terminal
PATIENCE = 1.0


class Curtain:
    """Between those who ask, on any threads, and the painter on its own."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._asking = 0
        self._drawn = False

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Nothing is drawn below the lines, and nothing will be, in this context."""
        with self._state:
            self._asking += 1
            self._state.wait_for(lambda: not self._drawn, PATIENCE)
        try:
            yield
        finally:
            with self._state:
                self._asking -= 1

    def draws(self) -> bool:
        """Whether the painter may draw; if so, something is drawn from now on."""
        with self._state:
            self._drawn = self._drawn or not self._asking
            return not self._asking

    def taken_away(self) -> None:
        """Nothing is drawn any more."""
        with self._state:
            self._drawn = False
            self._state.notify_all()


OURS = Curtain()


#: the other screen, no cursor; and back
ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l\x1b[2J", b"\x1b[?25h\x1b[?1049l"
#: seconds that a terminal may take for the last bytes
LAST = 1.0


class Canvas:
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
