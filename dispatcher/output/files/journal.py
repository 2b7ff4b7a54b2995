"""The journal: every event as one JSON line, in the order of the spine.

``{"seq": 41, "t": 9.0, "name": "rank.exited", "context": {"rank": 2, "status": 3}}``;
``t`` is seconds since the run began. Output bytes are not in it, their counts are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.output.files.files import create, write_all


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
