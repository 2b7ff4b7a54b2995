"""Standard output and standard error: whole batches of lines, and readers that leave."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Mapping

from dispatcher.output.files.files import write_all
from dispatcher.remote.protocol.wire import STDERR, STDOUT

#: bytes that a pipe to a reader may hold (pipe-max-size of pipe(7))
PIPE_SIZE = 1 << 20

#: columns -> lines to draw below the others, and how many columns each takes
Live = Callable[[int], list[tuple[bytes, int]]]


class Outlet:
    """Writes batches to the descriptor of their stream.

    on_broken: called once for every stream that nobody reads any more (``| head``,
    a terminal that went away); that stream is silent from then on.
    """

    def __init__(
        self,
        fds: Mapping[int, int] | None = None,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._fds = dict(fds or {STDOUT: 1, STDERR: 2})
        self._on_broken = on_broken
        #: batches written so far: it grows while a long line is written
        self.pace = 0
        for fd in self._fds.values():
            widen(fd)
        #: whether both streams end in the same place, where they must be told apart
        self.together = len(self._fds) == 2 and same_file(*self._fds.values())

    def write(self, stream: int, batch: bytes) -> None:
        """Write ``batch``, whole lines."""
        fd = self._fds.get(stream)
        if fd is None:
            return
        try:
            write_all(fd, batch)
            self.pace += 1
        except OSError:
            del self._fds[stream]
            self._on_broken()

    def refresh(self, now: float, live: Live) -> bool:
        """Time for what is drawn below the lines; False if nothing ever is."""
        return False

    def close(self) -> None:
        """Take away what is not a line."""


def same_file(one: int, other: int) -> bool:
    """Whether two descriptors lead to the same terminal, pipe or file."""
    try:
        a, b = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev)


def widen(fd: int) -> None:
    """Let a pipe hold more: its reader is woken less often. No pipe, or no leave: no harm."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def can_pause(fd: int) -> bool:
    """Whether ``fd`` leads to somebody who may stop reading: a terminal, a pipe, a socket."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
