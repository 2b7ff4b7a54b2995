"""A person at a terminal: starts a program on it, reads what it shows, types."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

from emulator import Emulator

#: opens the terminal as the controlling one of a new session, and becomes the program
_ON = 'exec <>"$0" >&0 2>&1 && exec "$@"'


class Typist:
    """``argv`` on a terminal of its own; ``quiet_output``: only its standard output is ours."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] = (80, 24),
        stdin: int | None = None,
    ) -> None:
        self.master, slave = pty.openpty()
        self.resize(*size)
        self.screen = Emulator(*size)
        self.seen = b""
        keep = _ON if stdin is None else _ON.replace("<>", "9<>").replace(">&0 2>&1", ">&9 2>&9")
        self.process = subprocess.Popen(
            ["sh", "-c", keep, os.ttyname(slave), *argv],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", **(env or {})},
        )
        self._slave = slave

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def until(self, text: str, seconds: float = 60) -> bytes:
        """Read until ``text`` has been shown since the last call; all shown up to its end."""
        end = time.monotonic() + seconds
        while (at := self.seen.find(text.encode())) < 0:
            assert self._read(end), f"{text!r} is not shown; shown was {self.seen!r}"
        at += len(text.encode())
        before, self.seen = self.seen[:at], self.seen[at:]
        return before

    def _read(self, end: float) -> bool:
        readable, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
        if not readable:
            return False
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:
            return False
        self.screen.feed(data)
        self.seen += data
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self, seconds: float = 60) -> int:
        """Read until the program has ended; its exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end; shown was {self.seen!r}"
            self._read(min(end, time.monotonic() + 0.1))
        while self._read(time.monotonic()):
            pass
        return self.process.returncode

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._slave)[3] & termios.ECHO)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        for fd in (self.master, self._slave):
            os.close(fd)
