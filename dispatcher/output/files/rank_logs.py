"""A file a rank, or a file a host: exactly the bytes that were written.

Per-rank files: exactly the bytes each rank wrote, whatever they are.

``rank-00012.out`` and ``rank-00012.err`` in the run's folder, ``rank-1.00000.out``
for rank 0 of the first world that ranks have spawned, opened at the first byte,
mode 0600. Ranks that were started again have ``restart-1``, ``restart-2`` there.
A disk that refuses is reported once and the bytes that are missing
from the files are counted; the job goes on. What was left out on request, by a
bound on sizes (``rotation``) or on waiting, is marked where it is missing.

Per-host files (``-o DIR -e DIR``): exactly the bytes each host's command wrote.

A file has its host's name, which was checked when it was read and holds no
``/``; it is made at the first byte, mode 0600, and what an earlier command left
under that name is removed first. Links are never followed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dispatcher.core.events.run_events import OutputEnded, RanksPlaced
from dispatcher.core.events.sink import Counts, Sink, Stamped
from dispatcher.model.errors import UsageError
from dispatcher.output.files.journal import create, write_all
from dispatcher.output.files.rotation import LogFile, Rotation, mark
from dispatcher.plan.job import placement
from dispatcher.remote.protocol.frames import STDOUT

#: files open at once; a run may have more ranks than a process may have files
MOST_OPEN = 256


class RankFiles(Sink):
    """Writes into ``folder``; ``warn`` is called with a text when a file cannot be written."""

    def __init__(
        self, folder: Path, warn: Callable[[str], None], rotation: Rotation | None = None
    ) -> None:
        self._folder = self._now = folder
        self._warn = warn
        self._rotation = rotation or Rotation()
        self._files: dict[tuple[int, int], LogFile] = {}
        self._open: dict[tuple[int, int], None] = {}  # the least recently written first
        self.missing = 0  # bytes that could not be written

    def path(self, rank: int, stream: int) -> Path:
        world, own = placement.place(rank)
        which = f"{world}." if world else ""
        return self._now / f"rank-{which}{own:05d}.{'out' if stream == STDOUT else 'err'}"

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self._write((rank, stream), data, len(data))

    def gap(self, missing: Counts) -> None:
        for key, count in missing.items():
            self._write(key, mark(count), 0)
            self.missing += count

    def event(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, OutputEnded):
            self._close_file((event.rank, event.stream))
        elif isinstance(event, RanksPlaced) and event.restart:
            self._begin(event.restart)

    def _begin(self, restart: int) -> None:
        """From here on the output is of ranks that were started again."""
        for key in list(self._files):
            self._close_file(key)
        self._now = self._folder / f"restart-{restart}"
        try:
            self._now.mkdir(mode=0o700)
        except OSError as error:
            self._warn(f"{self._now}: cannot be made: {error.strerror}")

    def close(self) -> None:
        for key in list(self._files):
            self._close_file(key)
        if self.missing:
            self._warn(
                f"{self._folder}: {self.missing:,} bytes of output are missing from the files"
            )

    def _write(self, key: tuple[int, int], data: bytes, nbytes: int) -> None:
        try:
            file = self._files.get(key)
            if file is None:
                file = self._files[key] = LogFile(self.path(*key), self._rotation)
            file.write(data)
        except OSError as error:
            if not self.missing:
                self._warn(f"{self.path(*key)}: cannot be written: {error.strerror}")
            self.missing += nbytes
        self._open.pop(key, None)
        self._open[key] = None
        if len(self._open) > MOST_OPEN:
            oldest = next(iter(self._open))
            del self._open[oldest]
            if oldest in self._files:
                self._files[oldest].release()

    def _close_file(self, key: tuple[int, int]) -> None:
        self._open.pop(key, None)
        file = self._files.pop(key, None)
        if file is not None:
            file.close()


class HostFiles(Sink):
    """Writes stream ``n`` of every host into the folder ``folders[n]``.

    warn: called with a text when a file cannot be written; the command goes on.
    Raises: UsageError when a folder cannot be made.
    """

    def __init__(
        self, folders: Mapping[int, Path], names: Sequence[str], warn: Callable[[str], None]
    ) -> None:
        self._folders = folders
        self._names = names
        self._warn = warn
        self._files: dict[tuple[int, int], int] = {}
        self.missing = 0  # bytes that could not be written
        for folder in folders.values():
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        (folder / name).unlink()
            except OSError as error:
                raise UsageError(f"{folder}: {(error.strerror or '').lower()}") from None

    def output(self, rank: int, stream: int, data: bytes) -> None:
        folder = self._folders.get(stream)
        if folder is None:
            return
        try:
            if (rank, stream) not in self._files:
                self._files[rank, stream] = create(folder / self._names[rank])
            write_all(self._files[rank, stream], data)
        except OSError as error:
            if not self.missing:
                self._warn(f"error: {folder / self._names[rank]}: {(error.strerror or '').lower()}")
            self.missing += len(data)

    def event(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, OutputEnded):
            fd = self._files.pop((event.rank, event.stream), None)
            if fd is not None:
                os.close(fd)

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        if self.missing:
            self._warn(f"error: {self.missing} bytes of output are missing from the files")
