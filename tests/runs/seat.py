"""A person before a terminal, for tests of what they see."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable

from emulator import Emulator

from .conftest import Desk

COLUMNS, ROWS = 100, 24
#: seconds without a byte, of a footer that tells the time: after two dispatch takes it that it was
#: stopped, and leaves the footer where it is; what is seen here may come late, too
STOOD_STILL = 1.5


class Seat:
    """A person before a terminal: sees what it shows, and its modes."""

    def __init__(self, desk: Desk, **environ: str) -> None:
        self._desk = desk
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._environ = {**os.environ, "TERM": "xterm-256color", **environ}
        for name in ("CI", "NO_COLOR"):
            if name not in environ:
                self._environ.pop(name, None)
        self._before = termios.tcgetattr(self._slave)
        self.emulator = Emulator(COLUMNS, ROWS)
        self._heard: float | None = None
        self.silence = 0.0  # the longest, in seconds

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """``dispatch run`` before the terminal."""
        return self.take(*self._desk.argv(*words))

    def take(self, *argv: str | bytes) -> subprocess.Popen[bytes]:
        """Any program before the terminal."""
        self.process = subprocess.Popen(
            argv, cwd=self._desk.folder, env=self._environ,
            stdin=subprocess.DEVNULL, stdout=self._slave, stderr=self._slave,
        )  # fmt: skip
        self._desk._started.append(self.process)
        return self.process

    def watch(self, seconds: float = 0.05) -> None:
        """Take what comes in this time."""
        while select.select([self._master], [], [], seconds)[0]:
            self.emulator.feed(os.read(self._master, 1 << 16))
            before, self._heard = self._heard, time.monotonic()
            self.silence = max(self.silence, 0.0 if before is None else self._heard - before)

    def kept(self, lines: list[str], *live: str) -> list[str]:
        """``lines`` without what may stand there of footers; live: lines that they had."""
        if self.silence < STOOD_STILL:
            return lines
        return [line for line in lines if not line.startswith((SIGN, *live))]

    def until(self, seen: Callable[[list[str]], bool], limit: float = 60.0) -> list[str]:
        end = time.monotonic() + limit
        while not seen(lines := self.emulator.lines()):
            assert time.monotonic() < end, f"not seen: {lines}"
            self.watch()
        return lines

    def end(self) -> tuple[int, list[str]]:
        """(exit code, all lines) once it has ended, and nothing of the terminal was changed."""
        end = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < end
            self.watch()
        self.watch(0.2)
        assert termios.tcgetattr(self._slave) == self._before
        assert self.emulator.screen.cursor.hidden is False
        assert self.emulator.screen.cursor.x == 0
        return self.process.returncode, self.emulator.lines()

    def close(self) -> None:
        os.close(self._master)
        os.close(self._slave)


class Chair(Seat):
    """A seat with a keyboard: the terminal controls what is started."""

    def take(self, *argv: str | bytes) -> subprocess.Popen[bytes]:
        def own() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            argv, cwd=self._desk.folder, env=self._environ, stdin=self._slave,
            stdout=self._slave, stderr=self._slave, preexec_fn=own,
        )  # fmt: skip
        self._desk._started.append(self.process)
        return self.process

    def press(self, data: bytes) -> None:
        os.write(self._master, data)

    def resize(self, columns: int, rows: int) -> None:
        self.emulator.resize(columns, rows)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def is_as_before(self) -> bool:
        other, hidden = self.emulator.on_other_screen, self.emulator.screen.cursor.hidden
        return termios.tcgetattr(self._slave) == self._before and not other and not hidden


SIGN = "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}"


def status_of(lines: list[str]) -> str:
    """The footer's last line, if it is there."""
    return lines[-1] if lines and lines[-1].startswith(SIGN) else ""
