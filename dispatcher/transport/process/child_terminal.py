"""A local process on a pseudo-terminal of its own as a ``Link``.

The shell opens the terminal by name: a session leader without one gets the first
that it opens as its controlling terminal, so nothing need run between fork
and exec. What it writes to standard error comes with its output.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import struct
import subprocess
import termios
from collections.abc import Sequence

from dispatcher.transport.base import Failure, Kind, Link, Window
from dispatcher.transport.process.child import ChildLink
from dispatcher.transport.process.pump import Pump


class TerminalLink(ChildLink):
    """``end_input`` only stops our writing: a terminal has no end but the key for it.

    master, slave: the two sides of the terminal, ours from here on.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], pump: Pump, master: int, slave: int
    ) -> None:
        errors, unused = os.pipe()
        os.close(unused)
        self._size_of = os.dup(master)
        self._slave = slave  # a terminal that nobody has open reads as ended: until the child has
        super().__init__(process, pump, (os.dup(master), master, errors))

    def read(self, limit: int) -> bytes | None:
        data = super().read(limit)
        if data:
            self._let_go()
        return data

    def gone(self) -> bool:
        gone = super().gone()
        if gone:
            self._let_go()
        return gone

    def resize(self, window: Window) -> None:
        if self._size_of >= 0:
            _set_size(self._size_of, window)

    def close(self) -> None:
        super().close()
        self._let_go()
        if self._size_of >= 0:
            os.close(self._size_of)
            self._size_of = -1

    def _let_go(self) -> None:
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1


def on_terminal(argv: Sequence[str], pump: Pump, window: Window) -> Link | Failure:
    """A link to ``argv`` run in its own session on a new terminal, or why it could not be."""
    try:
        master, slave = os.openpty()
    except OSError as error:
        return Failure(Kind.CONFIG, f"no terminal: {error.strerror}", retryable=True)
    _set_size(master, window)
    take = f'exec <>{shlex.quote(os.ttyname(slave))} >&0 2>&1 && exec "$@"'
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", take, "sh", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        os.close(master)
        os.close(slave)
        return Failure(Kind.CONFIG, f"{argv[0]}: {error.strerror}", retryable=True)
    return TerminalLink(process, pump, master, slave)


def _set_size(fd: int, window: Window) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", window.rows, window.columns, 0, 0))
