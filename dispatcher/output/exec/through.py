"""The output of one host's terminal on our own, byte for byte, as ``ssh -t`` shows it.

Nothing is made harmless here: a full-screen program is what was asked for, and it
needs the whole terminal.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.core.events.sink import Sink
from dispatcher.output.files.files import write_all


class Through(Sink):
    """Writes to ``fd``; on_broken: called once when nobody reads any more."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd: int | None = fd
        self._on_broken = on_broken

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if self._fd is None:
            return
        try:
            write_all(self._fd, data)
        except OSError:
            self._fd = None
            self._on_broken()
