"""A log file that is cut into pieces of bounded size, written and read.

``rank-00003.out`` is the piece being written; before it came ``rank-00003.out.1``,
``.2`` and so on, oldest first, cut at a line end where there is one. The pieces in
that order are exactly the bytes. With a bound on their number the oldest go, and
the oldest that is left is a mark that says how many bytes stood there::

    [dispatch: 20,971,520 bytes left out here]

Reading while the file is being cut. A position counts all bytes that were ever written to the
file, those of removed pieces included, so that "read on from here" has a meaning whatever the
writer did in between. A full piece never changes its name, it can only go; the file that is
written to is renamed. So names are looked up first, and when that one, once opened, is no longer
the file it was then, they are looked up anew. What went before it was read is told as a count.

Not covered: names that stay inconsistent, because a launcher was killed in the middle
of a cut; then what is there is read, without a count.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from dispatcher.model.frozen import Value, value
from dispatcher.model.paths import create, write_all


def mark(count: int) -> bytes:
    """The line that stands for ``count`` bytes which are not in a file."""
    return f"[dispatch: {count:,} bytes left out here]\n".encode()


@value
class Rotation(Value):
    """size: bytes of a piece at most, None for one file. keep: full pieces kept, None for all."""

    size: int | None = None
    keep: int | None = None


class LogFile:
    """A new file ``path``, mode 0600. Raises: OSError, here and when written.

    With ``release`` the descriptor is given back until the next write, for runs with
    more ranks than files may be open.
    """

    def __init__(self, path: Path, rotation: Rotation) -> None:
        self._path = path
        self._rotation = rotation
        self._fd: int | None = create(path)
        self._size = 0
        self._pieces = 0  # full pieces made so far
        self._gone: int = 0  # bytes of pieces removed
        self._sizes: list[int] = []  # of the full pieces that are there

    def make_room(self, size: int) -> None:
        """Begin a new piece if ``size`` bytes that belong together do not fit into this one."""
        limit = self._rotation.size
        if limit is not None and self._size and self._size + size > limit:
            self._rotate()

    def write(self, data: bytes) -> None:
        """Append ``data``, in pieces where the bound says so. Raises: OSError."""
        limit = self._rotation.size
        while limit is not None and self._size + len(data) > limit:
            room = limit - self._size
            cut = data.rfind(b"\n", 0, room) + 1 if room > 0 else 0
            if not cut and not self._size:
                cut = room  # a line longer than a piece
            self._append(data[:cut])
            data = data[cut:]
            self._rotate()
        self._append(data)

    def release(self) -> None:
        """Give the descriptor back; the next write opens the same file again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        """Let go of the file; writing opens it again."""
        self.release()

    def _append(self, data: bytes) -> None:
        if not data:
            return
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        write_all(self._fd, data)
        self._size += len(data)

    def _rotate(self) -> None:
        self.release()
        self._pieces += 1
        os.rename(self._path, self._piece(self._pieces))
        self._sizes.append(self._size)
        keep = self._rotation.keep
        if keep is not None and len(self._sizes) > keep:
            self._gone += self._sizes.pop(0)
            oldest = self._pieces - len(self._sizes)
            os.unlink(self._piece(oldest))
            if oldest > 1:
                os.unlink(self._piece(oldest - 1))  # the mark that stood there
            fd = create(self._piece(oldest))
            try:
                write_all(fd, mark(self._gone))
            finally:
                os.close(fd)
        self._fd = create(self._path)
        self._size = 0

    def _piece(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


CHUNK = 1 << 16
#: looks at the names until they fit together, and seconds between two
TRIES, PAUSE = 50, 0.002

_MARK = re.compile(rb"\[dispatch: ([0-9]{1,3}(?:,[0-9]{3}){0,6}) bytes left out here\]\n")


@dataclass
class Names:
    """What a log file's folder has of it. inode: of the file being written, None if absent."""

    inode: int | None = None
    pieces: list[int] = field(default_factory=list)


def names_in(folder: Path) -> dict[str, Names]:
    """The log files in ``folder`` by their names without a number; any other files, too."""
    found: dict[str, Names] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            name, _, number = entry.name.rpartition(".")
            if name and number.isascii() and number.isdigit() and len(number) < 10:
                found.setdefault(name, Names()).pieces.append(int(number))
            else:
                found.setdefault(entry.name, Names()).inode = entry.inode()
    return found


class RotatedReader:
    """The log file ``path`` from its first byte on; ``position`` is how far it has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.position = 0
        self.trimmed = False  # whether pieces had been removed by the time of the last read

    def read(
        self, most: int | None = None, names: Names | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """What is new, ``most`` bytes: (bytes that were removed before, the bytes that follow).

        names: as ``names_in`` gave them a moment ago, to look them up once for many files.
        Raises: OSError for a file that is there and cannot be read.
        """
        stop = None if most is None else self.position + most
        with ExitStack() as stack:
            last, numbers, base = self._opened(stack, names)
            self.trimmed = base > 0
            missing = (base if stop is None else min(base, stop)) - self.position
            if missing > 0:
                self.position += missing
                yield missing, b""
            for number in numbers:
                if self.position == stop:
                    return
                try:
                    file = stack.enter_context(open(self._piece(number), "rb"))
                except FileNotFoundError:  # removed since: the rest is for the next look
                    return
                size = os.fstat(file.fileno()).st_size
                is_mark = size == 0 or _count(file) is not None
                if is_mark and number <= min(self._look().pieces, default=0):
                    return  # removed since, and the mark has its name now
                if self.position < base + size:
                    yield from self._rest(file, base, stop)
                file.close()
                base += size
            if last is not None and self.position != stop:
                yield from self._rest(last, base, stop)

    def _rest(self, file: BinaryIO, base: int, stop: int | None) -> Iterator[tuple[int, bytes]]:
        """What ``file``, which begins at ``base``, holds beyond the position."""
        file.seek(self.position - base)
        while stop is None or self.position < stop:
            data = file.read(CHUNK if stop is None else min(CHUNK, stop - self.position))
            if not data:
                return
            self.position += len(data)
            yield 0, data

    def _opened(
        self, stack: ExitStack, seen: Names | None
    ) -> tuple[BinaryIO | None, list[int], int]:
        """The file being written, the numbers of the full pieces, where the first begins."""
        for attempt in range(TRIES):
            names = seen or self._look()
            seen, last = None, None
            if not names.pieces and names.inode is None:
                return None, [], 0
            with suppress(FileNotFoundError):  # between two pieces
                file = open(self._path, "rb")  # noqa: SIM115 - the stack closes it
                last = stack.enter_context(file)
            pieces = sorted(names.pieces)
            removed = self._mark(pieces[0]) if pieces else None
            first = 1 if removed is None else pieces[0]
            whole = pieces == list(range(first, first + len(pieces)))
            same = last is not None and os.fstat(last.fileno()).st_ino == names.inode
            if (whole and same) or attempt == TRIES - 1:
                break
            if last is not None:
                last.close()
            if attempt:
                time.sleep(PAUSE)
        return last, pieces if removed is None else pieces[1:], removed or 0

    def _look(self) -> Names:
        return names_in(self._path.parent).get(self._path.name, Names())

    def _mark(self, number: int) -> int | None:
        """How many bytes the piece says were removed; None if it is no such mark."""
        try:
            with open(self._piece(number), "rb") as file:
                return _count(file)
        except FileNotFoundError:
            return None

    def _piece(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _count(file: BinaryIO) -> int | None:
    """What the mark in ``file`` says; None if it is no mark."""
    match = _MARK.fullmatch(file.read(80))
    return None if match is None else int(match[1].replace(b",", b""))
