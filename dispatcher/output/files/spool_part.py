"""A bounded first-in first-out of bytes in a nameless file of this machine's own disk.

For log files on a file system that is slow for a while. The file has no name, so
it is gone with the process, and nobody else can open it.
"""

from __future__ import annotations

import os
import tempfile

from dispatcher.output.files.files import write_all

LIMIT = 4 << 30


class Spool:
    """Takes up to ``limit`` bytes. Not thread-safe. Raises: OSError where nothing can be kept."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._file = tempfile.TemporaryFile(prefix="dispatch-", buffering=0)  # noqa: SIM115
        self._head = 0  # where the oldest byte is
        self._tail = 0

    @property
    def empty(self) -> bool:
        return self._head == self._tail

    def put(self, data: bytes) -> bool:
        """Append ``data``; False if there is no room for it."""
        if self._tail + len(data) > self._limit:
            return False
        os.lseek(self._file.fileno(), self._tail, os.SEEK_SET)
        try:
            write_all(self._file.fileno(), data)
        except OSError:  # a full disk is a full spool
            return False
        self._tail += len(data)
        return True

    def take(self, size: int) -> bytes:
        """The oldest ``size`` bytes, which must have been put. Raises: OSError."""
        parts = []
        while size:
            part = os.pread(self._file.fileno(), size, self._head)
            if not part:
                raise OSError(5, "the spool was cut short")
            parts.append(part)
            size -= len(part)
            self._head += len(part)
        if self.empty:
            os.ftruncate(self._file.fileno(), 0)
            self._head = self._tail = 0
        return b"".join(parts)

    def close(self) -> None:
        self._file.close()
