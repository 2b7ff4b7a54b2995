"""``merged.log``: the lines of all ranks in one file, from which each rank's bytes can be had.

One line of the file is one line of a rank, as container runtimes write it (CRI)::

    2026-01-31T14:25:01.123456Z 12 out F loss 2.31

Time of arrival (UTC), rank, stream, then ``F`` for a whole line, or ``P`` for a
part: a line longer than 64 KiB goes on in the next part of that rank and stream, and
a last ``P`` stands where a stream ended without a line end. So the rank's
bytes are the contents in order, with a line end behind each ``F``. ``X`` is a
word of dispatch about bytes that were left out. Every line is written in one piece.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from dispatcher.agent.wire import STDOUT
from dispatcher.core.events import OutputEnded, RanksPlaced
from dispatcher.plan.worlds import name
from dispatcher.sinks.base import Counts, Sink, Stamped
from dispatcher.sinks.rotation import LogFile, Rotation

#: bytes of a part
PART = 64 << 10


class Merged(Sink):
    """Writes the new file ``path``, mode 0600; ``warn`` hears once of a disk that refuses.

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
        self._rest: dict[tuple[int, int], bytes] = {}
        self.missing = 0  # bytes that could not be written

    def output(self, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        text = self._rest.pop(key, b"") + data
        end = text.rfind(b"\n") + 1
        whole, rest = text[:end], text[end:]
        lines = []
        if whole:
            full = self._prefix(key, b"F")
            lines.append(full + whole[:-1].replace(b"\n", b"\n" + full) + b"\n")
        while len(rest) >= PART:
            lines.append(self._prefix(key, b"P") + rest[:PART] + b"\n")
            rest = rest[PART:]
        if rest:
            self._rest[key] = rest
        self._write(b"".join(lines), len(data))

    def event(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, OutputEnded):
            self._finish((stamped.event.rank, stamped.event.stream))
        elif isinstance(stamped.event, RanksPlaced):
            self._finish_all()  # of a host that was lost; the ranks are started again

    def gap(self, missing: Counts) -> None:
        for (rank, stream), count in missing.items():
            self._finish((rank, stream))
            text = f"... {count:,} bytes of rank {name(rank)} left out".encode()
            self._write(self._prefix((rank, stream), b"X") + text + b"\n", 0)
            self.missing += count

    def close(self) -> None:
        self._finish_all()
        self._file.close()
        if self.missing:
            self._warn(f"{self._path}: {self.missing:,} bytes of output are missing")

    def _finish_all(self) -> None:
        for key in list(self._rest):
            self._finish(key)

    def _finish(self, key: tuple[int, int]) -> None:
        rest = self._rest.pop(key, b"")
        if rest:
            self._write(self._prefix(key, b"P") + rest + b"\n", 0)

    def _write(self, lines: bytes, nbytes: int) -> None:
        if not lines:
            return
        try:
            self._file.write(lines)
        except OSError as error:
            if not self.missing:
                self._warn(f"{self._path}: cannot be written: {os.strerror(error.errno or 5)}")
            self.missing += nbytes

    def _prefix(self, key: tuple[int, int], tag: bytes) -> bytes:
        rank, stream = key
        side = "out" if stream == STDOUT else "err"
        return f"{stamp(self._clock())} {name(rank)} {side} ".encode() + tag + b" "


def stamp(seconds: float) -> str:
    """The time of arrival (since the epoch) as it stands before a line; sorts as the times do."""
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{when}.{int(seconds % 1 * 1e6):06d}Z"
