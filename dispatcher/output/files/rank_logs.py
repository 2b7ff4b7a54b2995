"""Writes the output of ranks and hosts to files: one each, or one for all ranks.

Per-rank files (``rank-00012.out``, ``rank-1.00000.err`` for rank 0 of the first spawned world) have
exactly the bytes of the rank, mode 0600; ranks that were started again have ``restart-1`` and so
on. Bytes left out on request are marked in their place. A file of bounded size is cut into pieces,
``.1`` the oldest, at a line end where there is one; if only some are kept, the oldest is a mark
with the number of bytes that were before it (``mark``). Per-host files have the name of the host.

``merged.log`` has one line for each line of a rank, as container runtimes write it (CRI): time of
arrival (UTC), rank, stream, then ``F`` for a whole line, ``P`` for a part that goes on in the next
line of that stream, ``X`` for a note of bytes that were left out::

    2026-01-31T14:25:01.123456Z 12 out F loss 2.31
"""

from __future__ import annotations

import abc
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dispatcher.core.events.run_events import Counts, Entry, OutputEnded, RanksPlaced, Sink
from dispatcher.model.errors import FileUnusable, reason
from dispatcher.model.paths import Rotation, create_file, make_folders, write_all, write_new
from dispatcher.output.text.lines import LongLine, Spill
from dispatcher.plan.job import placement
from dispatcher.plan.job.placement import rank_name
from dispatcher.remote.protocol.frames import STDOUT

#: files open at once; a run may have more ranks than a process may have files
MOST_OPEN = 256


def mark(count: int) -> bytes:
    """The line in place of ``count`` bytes which are not in a file."""
    return f"[dispatch: {count:,} bytes left out here]\n".encode()


class LogFile:
    """A new file ``path``, mode 0600. Raises: OSError, here and when written.

    ``release`` closes the descriptor until the next write, for runs with more ranks than
    files may be open.
    """

    def __init__(self, path: Path, rotation: Rotation) -> None:
        self._path = path
        self._rotation = rotation
        self._fd: int | None = create_file(path)
        self._size = 0
        self._pieces = 0  # full pieces made so far
        self._gone: int = 0  # bytes of pieces removed
        self._sizes: list[int] = []  # of the full pieces that are there

    def reserve(self, size: int) -> None:
        """Begin a new piece if ``size`` bytes that belong together do not fit into this one."""
        limit = self._rotation.size
        if limit is not None and self._size and self._size + size > limit:
            self._rotate()

    def write(self, data: bytes) -> None:
        """Append ``data``, and begin a new piece at the size limit. Raises: OSError."""
        limit = self._rotation.size
        while limit is not None and self._size + len(data) > limit:
            left = limit - self._size
            cut = data.rfind(b"\n", 0, left) + 1 if left > 0 else 0
            if not cut and not self._size:
                cut = left  # a line longer than a piece
            self._append(data[:cut])
            data = data[cut:]
            self._rotate()
        self._append(data)

    def release(self) -> None:
        """Close the descriptor; the next write opens the same file again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes) -> None:
        if not data:
            return
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            write_all(self._fd, data)
        except OSError:  # undo a partial write: the next bytes may be another rank's line
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
                os.lseek(self._fd, self._size, os.SEEK_SET)
            raise
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
                os.unlink(self._piece(oldest - 1))  # the previous mark
            write_new(self._piece(oldest), mark(self._gone))
        self._fd = create_file(self._path)
        self._size = 0

    def _piece(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class StreamFiles(Sink, abc.ABC):
    """Writes each stream into its own file below ``folder``, at ``path``.

    warn: called with a text when a file cannot be written. missing: bytes that were not written.
    """

    def __init__(
        self, folder: Path, warn: Callable[[str], None], rotation: Rotation | None = None
    ) -> None:
        self._folder = folder
        self._warn = warn
        self._rotation = rotation or Rotation()
        self._files: dict[tuple[int, int], LogFile] = {}
        self._open: dict[tuple[int, int], None] = {}  # the least recently written first
        self.missing = 0

    @abc.abstractmethod
    def path(self, rank: int, stream: int) -> Path:
        """The file of that stream."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self._write((rank, stream), data, len(data))

    def gap(self, missing: Counts) -> None:
        for key, count in missing.items():
            self._write(key, mark(count), 0)
            self.missing += count

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, OutputEnded):
            self._close_file((entry.event.rank, entry.event.stream))

    def close(self) -> None:
        self._close_all()
        if self.missing:
            text = f"{self.missing:,} bytes of output are missing from the files"
            self._warn(f"{self._folder}: {text}")

    def _write(self, key: tuple[int, int], data: bytes, nbytes: int) -> None:
        try:
            file = self._files.get(key)
            if file is None:
                file = self._files[key] = LogFile(self.path(*key), self._rotation)
            file.write(data)
        except OSError as error:
            if not self.missing:
                self._warn(f"{self.path(*key)}: cannot be written: {reason(error)}")
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
            file.release()

    def _close_all(self) -> None:
        for key in list(self._files):
            self._close_file(key)


class RankFiles(StreamFiles):
    """The files of a run's ranks; each restart has its own folder."""

    _restarted = ""

    def path(self, rank: int, stream: int) -> Path:
        world, own = placement.place(rank)
        which = f"{world}." if world else ""
        side = "out" if stream == STDOUT else "err"
        return self._folder / self._restarted / f"rank-{which}{own:05d}.{side}"

    def event(self, entry: Entry) -> None:
        super().event(entry)
        if isinstance(entry.event, RanksPlaced) and entry.event.restart:
            self._close_all()
            self._restarted = f"restart-{entry.event.restart}"
            try:
                (self._folder / self._restarted).mkdir(mode=0o700)
            except OSError as error:
                self._warn(f"{self._folder / self._restarted}: cannot be made: {reason(error)}")


class HostFiles(StreamFiles):
    """The files of a command's hosts: stream ``n`` of every host in the folder ``folders[n]``.

    Raises: UsageError when a folder cannot be made.
    """

    def __init__(
        self, folders: Mapping[int, Path], names: Sequence[str], warn: Callable[[str], None]
    ) -> None:
        super().__init__(next(iter(folders.values())), lambda text: warn(f"error: {text}"))
        self._folders = folders
        self._names = names
        for folder in folders.values():
            try:
                make_folders(folder, 0o700)
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        (folder / name).unlink()
            except OSError as error:
                raise FileUnusable(f"{folder}: {reason(error)}") from None

    def path(self, rank: int, stream: int) -> Path:
        return self._folders[stream] / self._names[rank]

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream in self._folders:
            super().output(rank, stream, data)


#: bytes of a line that wait in memory for its end
PART = 64 << 10


class MergedLog(Sink):
    """Writes the new file ``path``, mode 0600; calls ``warn`` once if the disk refuses.

    Raises: OSError if the file cannot be created.
    """

    def __init__(
        self,
        path: Path,
        warn: Callable[[str], None],
        rotation: Rotation | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = LogFile(path, rotation or Rotation())
        self._path = path
        self._warn = warn
        self._clock = clock
        self._spill = Spill()
        self._heads: dict[tuple[int, int], LongLine] = {}  # of lines longer than ``PART``
        self._broken: set[tuple[int, int]] = set()  # whose line is in parts for lack of room
        self._rest: dict[tuple[int, int], bytes] = {}
        self.missing = 0  # bytes that could not be written

    def output(self, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        text = self._rest.pop(key, b"") + data
        end = text.rfind(b"\n") + 1
        whole, rest = text[:end], text[end:]
        if whole and key in self._heads:
            last, _, whole = whole.partition(b"\n")
            self._write_long(key, b"F", last)
        if end:
            self._broken.discard(key)
        if whole:
            full = self._prefix(key, b"F")
            self._write(full + whole[:-1].replace(b"\n", b"\n" + full) + b"\n", len(whole))
        if len(rest) >= PART:
            rest = self._put_aside(key, rest)
        if rest:
            self._rest[key] = rest

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, OutputEnded):
            self._finish((entry.event.rank, entry.event.stream))
        elif isinstance(entry.event, RanksPlaced):
            self._finish_all()  # of a host that was lost; the ranks are started again

    def gap(self, missing: Counts) -> None:
        for (rank, stream), count in missing.items():
            self._finish((rank, stream))
            text = f"... {count:,} bytes of rank {rank_name(rank)} left out".encode()
            self._write(self._prefix((rank, stream), b"X") + text + b"\n", 0)
            self.missing += count

    def close(self) -> None:
        self._finish_all()
        self._file.release()
        self._spill.close()
        for words in self._spill.words():
            self._warn(f"{self._path}: {words}")
        if self.missing:
            self._warn(f"{self._path}: {self.missing:,} bytes of output are missing")

    def _finish_all(self) -> None:
        for key in {**self._heads, **self._rest}:
            self._finish(key)

    def _finish(self, key: tuple[int, int]) -> None:
        rest = self._rest.pop(key, b"")
        if key in self._heads:
            self._write_long(key, b"P", rest)
        elif rest:
            self._write(self._prefix(key, b"P") + rest + b"\n", len(rest))

    def _put_aside(self, key: tuple[int, int], text: bytes) -> bytes:
        """Keep a long line in the spill file until its end; return the part of ``text`` to hold."""
        head = self._heads.get(key) or self._heads.setdefault(key, LongLine(self._spill))
        rest = head.take(text)
        if rest is not None:
            return rest
        self._spill.broken += key not in self._broken
        self._broken.add(key)
        self._write_long(key, b"P", text)
        return b""

    def _write_long(self, key: tuple[int, int], tag: bytes, last: bytes) -> None:
        """Write a long line, or its part so far; ``last`` is its end."""
        head, prefix = self._heads.pop(key), self._prefix(key, tag)
        self._write(prefix, 0, reserve=len(prefix) + len(head) + len(last) + 1)
        for piece in head.pieces():
            self._write(piece, len(piece))
        self._write(last + b"\n", len(last))
        head.drop()

    def _write(self, lines: bytes, nbytes: int, reserve: int = 0) -> None:
        """Write ``lines``, with ``nbytes`` of a rank. reserve: bytes of the line they begin."""
        try:
            self._file.reserve(reserve)
            self._file.write(lines)
        except OSError as error:
            if not self.missing:
                self._warn(f"{self._path}: cannot be written: {reason(error)}")
            self.missing += nbytes

    def _prefix(self, key: tuple[int, int], tag: bytes) -> bytes:
        rank, stream = key
        side = "out" if stream == STDOUT else "err"
        return f"{time_stamp(self._clock())} {rank_name(rank)} {side} ".encode() + tag + b" "


def time_stamp(seconds: float) -> str:
    """The prefix of a line for its time of arrival (since the epoch); sorts as the times do."""
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{when}.{int(seconds % 1 * 1e6):06d}Z"
