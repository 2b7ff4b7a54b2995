"""The last lines of every rank, kept for the verdict."""

from __future__ import annotations

from collections import deque

from dispatcher.core.events.run_events import OutputEnded, RanksPlaced
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.output.text.lines import LineAssembler
from dispatcher.output.text.sanitize import harmless
from dispatcher.remote.protocol.wire import STDERR, STDOUT

#: lines kept of each stream, and bytes kept of each line
N_LINES = 20
LINE_BYTES = 512
#: bytes of a chunk that can matter here; older ones would be pushed out anyway
CHUNK_BYTES = 16 << 10


class Tail(Sink):
    """``last(rank)`` gives the lines that say most about how the rank ended."""

    def __init__(self) -> None:
        self._assemblers: dict[tuple[int, int], LineAssembler] = {}
        self._lines: dict[tuple[int, int], deque[bytes]] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        if key not in self._assemblers:
            self._assemblers[key] = LineAssembler()
            self._lines[key] = deque(maxlen=N_LINES)
        self._keep(key, self._assemblers[key].feed(data[-CHUNK_BYTES:]))

    def event(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, RanksPlaced) and event.restart:
            self._lines.clear()
            self._assemblers.clear()
        if isinstance(event, OutputEnded) and (event.rank, event.stream) in self._assemblers:
            key = (event.rank, event.stream)
            self._keep(key, self._assemblers[key].finish())

    def _keep(self, key: tuple[int, int], block: bytes) -> None:
        if block:
            lines = block[:-1].rsplit(b"\n", N_LINES)[-N_LINES:]
            self._lines[key].extend(line[:LINE_BYTES] for line in lines)

    def last(self, rank: int) -> tuple[str, list[str]]:
        """("stderr" or "stdout", its last lines made harmless); stderr if it said anything."""
        for stream, name in ((STDERR, "stderr"), (STDOUT, "stdout")):
            lines = self._lines.get((rank, stream))
            if lines:
                return name, [harmless(line).decode() for line in lines]
        return "stderr", []
