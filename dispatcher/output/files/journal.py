"""The journal of a run, written and read back; docs/design/journal.md has its format.

Each event is one JSON line, in the order in which the run saw it, with its time in seconds since
the run began. It has the counts of output, not the output.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dispatcher.core.events import codec
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.errors import JournalUnusable, reason
from dispatcher.model.paths import create_file, write_all
from dispatcher.output.run_state import RunState
from dispatcher.output.text.sanitize import sanitize_text


class Journal(Sink):
    """Writes to a new file ``path`` (mode 0600); calls ``warn`` once if the disk refuses.

    Raises: OSError if the file cannot be created.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._fd = create_file(path)
        self._broken = False

    def event(self, entry: Entry) -> None:
        try:
            if not self._broken:
                _add(self._fd, entry)
        except OSError as error:
            self._broken = True
            self._warn(f"{self._path}: journal cannot be written: {reason(error)}")

    def close(self) -> None:
        os.close(self._fd)


def append_entry(path: Path, entry: Entry) -> None:
    """Add ``entry`` to the journal at ``path``, which its ``Journal`` has closed.

    Raises: OSError, also where ``path`` is a link or gone.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _add(fd, entry)
    finally:
        os.close(fd)


def _add(fd: int, entry: Entry) -> None:
    """Write the line of ``entry`` whole, or none of it where the disk is full. Raises: OSError."""
    size = os.fstat(fd).st_size
    try:
        write_all(fd, codec.encode(entry))
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
            os.lseek(fd, size, os.SEEK_SET)
        raise


def read(path: Path, *, may_break_off: bool = False) -> Iterator[Entry]:
    """The events of the journal at ``path``, in order.

    may_break_off: ignore a last line without an end, which a run may be writing.
    Raises: DispatchError, with file and line, if a line cannot be read or is not an event.
    """
    number = 1
    try:
        with open(path, "rb") as file:
            while line := file.readline(codec.LINE_LIMIT + 1):
                is_cut = not line.endswith(b"\n") and len(line) <= codec.LINE_LIMIT
                if is_cut and may_break_off:
                    return
                yield codec.decode(line)
                number += 1
    except codec.Malformed as error:
        raise JournalUnusable(f"{path}:{number}: {error}") from None
    except OSError as error:
        raise JournalUnusable(f"{path}: {reason(error)}") from None


#: events that say where ranks are, and which of their streams have ended
_OF_RANKS = re.compile(rb'"name": "(ranks\.placed|rank\.spawned|output\.ended)"')


class JournalState(RunState):
    """Where the ranks of a run on ``hosts`` are, by its journal, which may still be written."""

    def __init__(self, journal: Path, hosts: Sequence[str]) -> None:
        super().__init__(hosts)
        self._journal = journal
        self._offset = 0

    def program_of(self, rank: int) -> str:
        return sanitize_text(super().program_of(rank))

    def news(self) -> Iterator[Entry]:
        """The events since the last call that say where ranks are, or end their output."""
        with contextlib.suppress(OSError), open(self._journal, "rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                self._offset += len(line)
                if _OF_RANKS.search(line, 0, 100):
                    with contextlib.suppress(codec.Malformed):  # of another version
                        entry = codec.decode(line)
                        self.event(entry)
                        yield entry
