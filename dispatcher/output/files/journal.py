"""The journal, and how files of a run are made: new, private, written whole.

Files of a run: made new, private to the user, written whole.

The journal: every event as one JSON line, in the order of the spine.

``{"seq": 41, "t": 9.0, "name": "rank.exited", "context": {"rank": 2, "status": 3}}``;
``t`` is seconds since the run began. Output bytes are not in it, their counts are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from dispatcher.core.events.sink import Sink, Stamped


def create(path: Path) -> int:
    """A descriptor of the new file ``path``, mode 0600. Nothing that lies there is touched.

    Raises: OSError, also when something of that name exists, be it a link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; one write(2) where the descriptor takes it whole."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Journal(Sink):
    """Writes to a new file ``path`` (mode 0600); ``warn`` hears once of a disk that refuses.

    Raises: OSError if the file cannot be created.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._fd = create(path)
        self._broken = False

    def event(self, stamped: Stamped) -> None:
        event = stamped.event
        record = {
            "seq": stamped.seq,
            "t": round(stamped.t, 6),
            "name": event.name,
            "context": event.context(),
        }
        try:
            if not self._broken:
                write_all(self._fd, (json.dumps(record) + "\n").encode())
        except OSError as error:
            self._broken = True
            self._warn(f"{self._path}: journal cannot be written: {error.strerror}")

    def close(self) -> None:
        os.close(self._fd)
