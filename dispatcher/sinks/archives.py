"""What each host's command writes, in an unlinked file a host, until it is looked at."""

from __future__ import annotations

import os
import tempfile
from typing import BinaryIO

from dispatcher.agent.wire import STDOUT
from dispatcher.sinks.base import Sink


class Archives(Sink):
    """Keeps at most ``limit`` bytes of a host's standard output in the folder ``folder``."""

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._files: dict[int, BinaryIO] = {}
        self.problems: dict[int, str] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream != STDOUT or rank in self.problems:
            return
        try:
            if rank not in self._files:
                self._files[rank] = tempfile.TemporaryFile(  # noqa: SIM115 - closed by take
                    dir=self._folder, prefix=".dispatch-get-"
                )
            file = self._files[rank]
            file.write(data)
            if file.tell() > self._limit:
                self.problems[rank] = f"more than {self._limit} bytes"
        except OSError as error:
            self.problems[rank] = (error.strerror or "").lower()

    def take(self, node: int) -> BinaryIO | None:
        """The host's file at its start, or None if it wrote nothing; the caller closes it."""
        file = self._files.pop(node, None)
        if file is not None:
            file.seek(0, os.SEEK_SET)
        return file

    def close(self) -> None:
        for file in self._files.values():
            file.flush()
