"""Per-rank files: exactly the bytes each rank wrote, whatever they are.

``rank-00012.out`` and ``rank-00012.err`` in the run's folder, ``rank-1.00000.out``
for rank 0 of the first world that ranks have spawned, opened at the first byte,
mode 0600. A disk that refuses is reported once and the bytes that are missing
from the files are counted; the job goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dispatcher.agent.wire import STDOUT
from dispatcher.core.events import OutputEnded
from dispatcher.plan import worlds
from dispatcher.sinks.base import Sink, Stamped
from dispatcher.sinks.files import create, write_all


class RankFiles(Sink):
    """Writes into ``folder``; ``warn`` is called with a text when a file cannot be written."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._files: dict[tuple[int, int], int] = {}
        self.missing = 0  # bytes that could not be written

    def path(self, rank: int, stream: int) -> Path:
        world, own = worlds.place(rank)
        which = f"{world}." if world else ""
        return self._folder / f"rank-{which}{own:05d}.{'out' if stream == STDOUT else 'err'}"

    def output(self, rank: int, stream: int, data: bytes) -> None:
        try:
            fd = self._files.get((rank, stream))
            if fd is None:
                fd = create(self.path(rank, stream))
                self._files[rank, stream] = fd
            write_all(fd, data)
        except OSError as error:
            if not self.missing:
                self._warn(f"{self.path(rank, stream)}: cannot be written: {error.strerror}")
            self.missing += len(data)

    def event(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, OutputEnded):
            self._close_file(stamped.event.rank, stamped.event.stream)

    def close(self) -> None:
        for rank, stream in list(self._files):
            self._close_file(rank, stream)
        if self.missing:
            self._warn(f"{self._folder}: {self.missing} bytes of output are missing from the files")

    def _close_file(self, rank: int, stream: int) -> None:
        fd = self._files.pop((rank, stream), None)
        if fd is not None:
            os.close(fd)
