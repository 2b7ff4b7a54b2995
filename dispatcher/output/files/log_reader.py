"""What a run's ranks have written, read back from its folder: the other half of ``logs`` and
``merged``, for other processes, also while the run goes on.

Both readers go on from where their last ``read`` ended, through restarts and pieces. ``most``
bounds what is given of each stream, counted in the rank's own bytes from the beginning, so
that a live stream can follow without a seam; ``taken`` says how far each stream came.

Not covered: marks that ``--log-overflow drop`` left inside a rank's file count as its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from dispatcher.core.events.run_events import Counts, Sink
from dispatcher.output.files.rank_logs import stamp
from dispatcher.output.files.rotation import Names, RotatedReader, names_in
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


class LogReader(Protocol):
    """A reader. taken: (rank, stream) -> bytes given so far, or passed over as removed."""

    taken: dict[Key, int]

    def read(self, sink: Sink, most: Counts | None = None) -> bool:
        """Give ``sink`` what is new, of a stream no more than ``most``; whether anything was."""
        ...


class RankLogReader:
    """The files of ``RankFiles`` in ``folder``: rank by rank, one attempt after the other."""

    def __init__(self, folder: Path, only: int | None = None) -> None:
        self._folder = folder
        self._only = only
        self._files: dict[Path, RotatedReader] = {}
        self.taken: dict[Key, int] = {}

    def read(self, sink: Sink, most: Counts | None = None) -> bool:
        """See ``LogReader``."""
        any_new = False
        for folder in self._attempts():
            for key, path, names in self._streams(folder):
                file = self._files.setdefault(path, RotatedReader(path))
                before = self.taken.setdefault(key, 0)
                room = None if most is None else max(0, most.get(key, 0) - before)
                was = file.position
                for missing, data in file.read(room, names):
                    if missing:
                        sink.gap({key: missing})
                    if data:
                        sink.output(*key, data)
                self.taken[key] = before + file.position - was
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
    """What stands before a line. key: None for a line that is passed over, as one whose own head
    was removed with the pieces before it."""

    when: bytes = b""
    key: Key | None = None
    tag: bytes = b""


class MergedLogReader:
    """The lines of ``merged.log``, in the order in which they came.

    until: where the beginning was removed (``--log-keep``) nobody can count from there; then
    what came after this time (seconds since the epoch) is left to the live stream.
    """

    def __init__(self, path: Path, only: int | None = None, until: float | None = None) -> None:
        self._file = RotatedReader(path)
        self._only = only
        self._until = None if until is None else stamp(until).encode()
        self._rest = b""
        self._head: _Head | None = None  # of the line that is being read
        self.taken: dict[Key, int] = {}

    def read(self, sink: Sink, most: Counts | None = None) -> bool:
        """See ``LogReader``."""
        was = self._file.position
        removed = 0
        for missing, data in self._file.read():
            removed += missing
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._line(line, sink, most, ends=True)
            if len(self._rest) > LONG:  # a line may be too long to be held
                self._line(self._rest, sink, most, ends=False)
                self._rest = b""
        if removed:
            sink.say(f"note: the oldest {removed:,} bytes of the log were removed (--log-keep)")
        return self._file.position > was

    def _line(self, line: bytes, sink: Sink, most: Counts | None, *, ends: bool) -> None:
        """Take ``line``, or what comes next of one that has begun."""
        if self._head is None:
            match = _LINE.match(line)
            self._head = _Head() if match is None else self._read_head(match)
            line = line if match is None else line[match.end() :]
        head, self._head = self._head, None if ends else self._head
        if head.key is None:
            return
        before = self.taken.get(head.key, 0)
        if head.tag == b"X":
            left_out = _LEFT_OUT.fullmatch(line)
            count = int(left_out[1].replace(b",", b"")) if left_out else 0
            sink.gap({head.key: count})
            self.taken[head.key] = before + count
            return
        if self._file.trimmed and self._until is not None:
            if head.when > self._until:
                return
            most = None
        data = line + b"\n" if ends and head.tag == b"F" else line
        if most is not None:
            data = data[: max(0, most.get(head.key, 0) - before)]
        if data:
            sink.output(*head.key, data)
        self.taken[head.key] = before + len(data)

    def _read_head(self, match: re.Match[bytes]) -> _Head:
        when, world, number, side, tag = match.groups()
        rank = placement.number(int(world or 0), int(number))
        if self._only not in (None, rank):
            return _Head()
        return _Head(when, (rank, _STREAMS[side]), tag)

    @property
    def is_trimmed(self) -> bool:
        """Whether ``taken`` does not count from the beginning."""
        return self._file.trimmed


def rest_of(rests: Mapping[Key, bytes], key: Key, missing: int) -> bytes:
    """The last ``missing`` bytes of an unfinished line, which no file has yet."""
    rest = rests.get(key, b"")
    return rest[max(0, len(rest) - missing) :] if missing > 0 else b""
