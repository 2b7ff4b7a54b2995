"""Lines that are too long to wait in memory for their end: on this machine's own disk.

All of them share one file, so a thousand ranks take no thousand descriptors. The file has no name:
it is gone with the process, and nobody else can open it. It is made of blocks, which are used
again when their line has been written; in memory stays of each line less than one of them. The
file takes ``LIMIT`` at most, and half of what is free. A line that finds no room comes in pieces.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from dispatcher.model.names import size
from dispatcher.model.paths import write_all

LIMIT = 4 << 30


BLOCK = 64 << 10


class Spill:
    """The file; made when it is first needed. Not thread-safe.

    broken: lines that had to be shown in pieces; lost: bytes that could not be read back.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._fd: int | None = None
        self._free: list[int] = []
        self._blocks = 0  # in the file
        self._why = ""
        self.broken = 0
        self.lost = 0

    def put(self, data: bytes) -> list[int] | None:
        """Keep whole blocks; their numbers, or None where there is no room for all of them."""
        numbers: list[int] = []
        try:
            if self._fd is None:
                self._open()
            for at in range(0, len(data), BLOCK):
                numbers.append(self._take())
                self._write(numbers[-1], data[at : at + BLOCK])
        except OSError as error:
            self._why = (error.strerror or "").lower() or str(error)
            self.free(numbers)
            return None
        return numbers

    def read(self, number: int) -> bytes:
        """The block ``number``; where the disk fails, a word about what is lost."""
        assert self._fd is not None
        with contextlib.suppress(OSError):
            data = os.pread(self._fd, BLOCK, number * BLOCK)
            if len(data) == BLOCK:
                return data
        self.lost += BLOCK
        return f"[dispatch: {BLOCK:,} bytes lost here]".encode()

    def free(self, numbers: list[int]) -> None:
        """The blocks are needed no more."""
        self._free += numbers
        if self._fd is not None and len(self._free) == self._blocks:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            self._blocks = 0
            self._free.clear()

    def close(self) -> None:
        """Give up what waits, and its room on disk."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def words(self) -> list[str]:
        """What to say in the end of lines that are not whole."""
        found = []
        if self.broken:
            from tempfile import gettempdir  # which takes its time, and few come here

            lines = "1 line" if self.broken == 1 else f"{self.broken:,} lines"
            found.append(
                f"{lines} of more than {size(BLOCK)} came in pieces, as marked: "
                f"no room in {gettempdir()}: {self._why}"
            )
        if self.lost:
            found.append(f"{self.lost:,} bytes of long lines were lost, as marked")
        return found

    def _open(self) -> None:
        import tempfile

        with tempfile.TemporaryFile(prefix="dispatch-", buffering=0) as file:
            self._fd = os.dup(file.fileno())
        free = os.fstatvfs(self._fd)
        self._limit = min(self._limit, free.f_bavail * free.f_frsize // 2)

    def _take(self) -> int:
        """A block that nobody uses. Raises: OSError."""
        if self._free:
            return self._free.pop()
        if (self._blocks + 1) * BLOCK > self._limit:
            raise OSError(f"{size(self._limit)} are all it may take")
        self._blocks += 1
        return self._blocks - 1

    def _write(self, number: int, data: bytes) -> None:
        assert self._fd is not None
        os.lseek(self._fd, number * BLOCK, os.SEEK_SET)
        write_all(self._fd, data)


class LongLine:
    """The beginning of a line, in ``spill``; whoever holds the line has the rest."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers) * BLOCK

    def take(self, text: bytes) -> bytes | None:
        """Go on with whole blocks of ``text``; what is left of it, None if there is no room."""
        end = len(text) // BLOCK * BLOCK
        numbers = self._spill.put(text[:end])
        if numbers is None:
            return None
        self._numbers += numbers
        return text[end:]

    def pieces(self) -> Iterator[bytes]:
        """What it holds."""
        return map(self._spill.read, self._numbers)

    def drop(self) -> None:
        """Forget what it holds."""
        self._spill.free(self._numbers)
        self._numbers = []
