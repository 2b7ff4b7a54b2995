"""Reads the output of a run's ranks from its folder, also while the run goes on; see ``rank_logs``.

Both readers go on from where their last ``read`` ended, through restarts and pieces; ``skip``
leaves out the output so far. A full piece keeps its name until it is removed; only the file being
written is renamed. docs/design/output.md has the limits.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dispatcher.core.events.run_events import Sink
from dispatcher.output.files.rank_logs import time_stamp
from dispatcher.plan.job import placement

_RANK = r"(?:([0-9]{1,6})\.)?"
_FILE = re.compile(rf"rank-{_RANK}([0-9]{{5,7}})\.(out|err)")
_RESTART = re.compile(r"restart-([1-9][0-9]{0,5})")
_LINE = re.compile(rb"([0-9TZ:.-]{27}) " + _RANK.encode() + rb"([0-9]{1,7}) (out|err) ([FPX]) ")
_LEFT_OUT = re.compile(rb"\.\.\. ([0-9]{1,3}(?:,[0-9]{3}){0,6}) bytes of rank [0-9.]+ left out")
_STREAMS = {"out": 1, "err": 2, b"out": 1, b"err": 2}

Key = tuple[int, int]

#: bytes of a line that are held until its end is known
LONG = 64 << 10

CHUNK = 1 << 16

#: attempts to list names that are consistent, and seconds between two
TRIES, PAUSE = 50, 0.002

_MARK = re.compile(rb"\[dispatch: ([0-9]{1,3}(?:,[0-9]{3}){0,6}) bytes left out here\]\n")


@dataclass
class Names:
    """The pieces of a log file. inode: of the file being written, None if absent."""

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

    def skip(self) -> None:
        """Go to the present end."""
        with ExitStack() as stack:
            last, numbers, self.position = self._opened(stack, None)
            for number in numbers:
                with suppress(FileNotFoundError):  # removed since
                    self.position += self._piece(number).stat().st_size
            if last is not None:
                self.position += os.fstat(last.fileno()).st_size

    def read(self, names: Names | None = None) -> Iterator[tuple[int, bytes]]:
        """The new bytes: (bytes that were removed before, the bytes that follow).

        names: as ``names_in`` gave them a moment ago, to look them up once for many files.
        Raises: OSError for a file that exists and cannot be read.
        """
        with ExitStack() as stack:
            last, numbers, base = self._opened(stack, names)
            if base > self.position:
                missing, self.position = base - self.position, base
                yield missing, b""
            for number in numbers:
                try:
                    file = stack.enter_context(open(self._piece(number), "rb"))
                except FileNotFoundError:  # removed since: the rest is for the next time
                    return
                size = os.fstat(file.fileno()).st_size
                is_mark = size == 0 or _count(file) is not None
                if is_mark and number <= min(self._list().pieces, default=0):
                    return  # removed since, and the mark has its name now
                if self.position < base + size:
                    yield from self._rest(file, base)
                file.close()
                base += size
            if last is not None:
                yield from self._rest(last, base)

    def _rest(self, file: BinaryIO, base: int) -> Iterator[tuple[int, bytes]]:
        """The bytes of ``file``, which begins at ``base``, after the position."""
        file.seek(self.position - base)
        while data := file.read(CHUNK):
            self.position += len(data)
            yield 0, data

    def _opened(
        self, stack: ExitStack, seen: Names | None
    ) -> tuple[BinaryIO | None, list[int], int]:
        """The file being written, the numbers of the full pieces, where the first begins."""
        for attempt in range(TRIES):
            names = seen or self._list()
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

    def _list(self) -> Names:
        return names_in(self._path.parent).get(self._path.name, Names())

    def _mark(self, number: int) -> int | None:
        """The number of removed bytes in the piece's mark; None if it is not a mark."""
        try:
            with open(self._piece(number), "rb") as file:
                return _count(file)
        except FileNotFoundError:
            return None

    def _piece(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _count(file: BinaryIO) -> int | None:
    match = _MARK.fullmatch(file.read(80))
    return None if match is None else int(match[1].replace(b",", b""))


class RankLogReader:
    """Reads the files of ``RankFiles`` in ``folder``, rank by rank, attempt after attempt.

    An open line of an attempt is ended before the next attempt.
    """

    def __init__(self, folder: Path, only: int | None = None) -> None:
        self._folder = folder
        self._only = only
        self._files: dict[Path, RotatedReader] = {}
        self._begun: dict[Key, Path] = {}  # the files whose last line is not whole

    def skip(self) -> None:
        """Leave out what has been written so far."""
        for folder in self._attempts():
            for _, path, _ in self._streams(folder):
                self._files.setdefault(path, RotatedReader(path)).skip()

    def read(self, sink: Sink) -> bool:
        """Give ``sink`` the new bytes; return whether any came."""
        any_new = False
        for folder in self._attempts():
            for key, path, names in self._streams(folder):
                file = self._files.setdefault(path, RotatedReader(path))
                was = file.position
                for missing, data in file.read(names):
                    if missing:
                        sink.gap({key: missing})
                    if data:
                        if self._begun.pop(key, path) != path:
                            sink.output(*key, b"\n")
                        sink.output(*key, data)
                        if not data.endswith(b"\n"):
                            self._begun[key] = path
                any_new = any_new or file.position > was
        return any_new

    def _attempts(self) -> list[Path]:
        found = [
            (int(match[1]), entry)
            for entry in self._folder.iterdir()
            if (match := _RESTART.fullmatch(entry.name)) and entry.is_dir()
        ]
        return [self._folder, *(path for _, path in sorted(found))]

    def _streams(self, folder: Path) -> list[tuple[Key, Path, Names]]:
        found = []
        for name, names in names_in(folder).items():
            match = _FILE.fullmatch(name)
            if match is None:
                continue
            rank = placement.number(int(match[1] or 0), int(match[2]))
            if self._only in (None, rank):
                found.append(((rank, _STREAMS[match[3]]), folder / name, names))
        return sorted(found, key=lambda one: one[0])


class _Head(NamedTuple):
    """The fields before a line. key: None for a line to skip, whose head may have been removed."""

    key: Key | None = None
    tag: bytes = b""


class MergedLogReader:
    """Reads the lines of ``merged.log``, in the order in which they came.

    since: leave out lines that came before this time (seconds since the epoch).
    """

    def __init__(self, path: Path, only: int | None = None, since: float = 0.0) -> None:
        self._file = RotatedReader(path)
        self._only, self._since = only, time_stamp(since).encode()
        self._rest = b""
        self._head: _Head | None = None  # of the line that is being read

    def skip(self) -> None:
        """Leave out what has been written so far."""
        self._file.skip()

    def read(self, sink: Sink) -> bool:
        """Give ``sink`` the new bytes; return whether any came."""
        was = self._file.position
        removed = 0
        for missing, data in self._file.read():
            removed += missing
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._line(line, sink, ends=True)
            if len(self._rest) > LONG:  # a line may be too long to be held
                self._line(self._rest, sink, ends=False)
                self._rest = b""
        if removed:
            sink.say(f"note: the oldest {removed:,} bytes of the log were removed (--log-keep)")
        return self._file.position > was

    def _line(self, line: bytes, sink: Sink, *, ends: bool) -> None:
        """Take ``line``, or the next part of a line that has begun."""
        if self._head is None:
            match = _LINE.match(line)
            self._head = _Head() if match is None else self._read_head(match)
            line = line if match is None else line[match.end() :]
        head, self._head = self._head, None if ends else self._head
        if head.key is None:
            return
        if head.tag == b"X":
            left_out = _LEFT_OUT.fullmatch(line)
            sink.gap({head.key: int(left_out[1].replace(b",", b"")) if left_out else 0})
            return
        data = line + b"\n" if ends and head.tag == b"F" else line
        if data:
            sink.output(*head.key, data)

    def _read_head(self, match: re.Match[bytes]) -> _Head:
        when, world, number, side, tag = match.groups()
        rank = placement.number(int(world or 0), int(number))
        if self._only not in (None, rank) or when < self._since:
            return _Head()
        return _Head((rank, _STREAMS[side]), tag)


LogReader = RankLogReader | MergedLogReader
