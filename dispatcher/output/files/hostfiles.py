"""Per-host files (``-o DIR -e DIR``): exactly the bytes each host's command wrote.

A file has its host's name, which was checked when it was read and holds no
``/``; it is made at the first byte, mode 0600, and what an earlier errand left
under that name is removed first. Links are never followed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dispatcher.core.events.run_events import OutputEnded
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.model.errors import UsageError
from dispatcher.output.files.files import create, write_all


class HostFiles(Sink):
    """Writes stream ``n`` of every host into the folder ``folders[n]``.

    warn: called with a text when a file cannot be written; the errand goes on.
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
