"""The journal, written and read back.

The journal has every event as one JSON line, in the order in which the run saw them (see
``core.events.codec``)::

    {"seq": 41, "t": 9.0, "name": "rank.exited", "context": {"rank": 2, "status": 3, ...}}

``t`` is seconds since the run began. Output is not in it, its counts are. A run's journal begins
with ``run.began`` and ends with ``run.closed``, and tells all that its report says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dispatcher.core.events import codec
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.errors import JournalUnusable
from dispatcher.model.paths import create, write_all


class Journal(Sink):
    """Writes to a new file ``path`` (mode 0600); ``warn`` hears once of a disk that refuses.

    Raises: OSError if the file cannot be created.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._fd = create(path)
        self._broken = False

    def event(self, entry: Entry) -> None:
        try:
            if not self._broken:
                write_all(self._fd, codec.encode(entry))
        except OSError as error:
            self._broken = True
            self._warn(f"{self._path}: journal cannot be written: {error.strerror}")

    def close(self) -> None:
        os.close(self._fd)


def append(path: Path, entry: Entry) -> None:
    """Add ``entry`` to the journal at ``path``, which its ``Journal`` has closed.

    Raises: OSError, also where ``path`` is a link or gone.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        write_all(fd, codec.encode(entry))
    finally:
        os.close(fd)


def read(path: Path) -> Iterator[Entry]:
    """The events of the journal at ``path``, in order.

    Raises: DispatchError, with file and line, for what cannot be read or is no event.
    """
    number = 1
    try:
        with open(path, "rb") as file:
            while line := file.readline(codec.LINE_LIMIT + 1):
                yield codec.decode(line)
                number += 1
    except codec.Malformed as error:
        raise JournalUnusable(f"{path}:{number}: {error}") from None
    except OSError as error:
        raise JournalUnusable(f"{path}: {(error.strerror or '').lower()}") from None
