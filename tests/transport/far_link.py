"""A link whose far side is the test."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dispatcher.model.failure import Ending
from dispatcher.transport.base import Link, RecvBuffer


class FarLink(Link):
    """``say`` what it says, ``end`` it, look at what was ``written``, and whether it is closed."""

    address = "10.0.0.9"

    def __init__(self, said: bytes = b"") -> None:
        self.written = bytearray()
        self.closed = False
        self._said = RecvBuffer()
        self._lock = threading.Lock()
        self.say(said)

    def say(self, data: bytes) -> None:
        self._said.feed(data)

    def end(self) -> None:
        self._said.close()

    def take_written(self) -> bytes:
        """All that was written since the last call."""
        with self._lock:
            data = bytes(self.written)
            self.written.clear()
        return data

    def watch(self, ready: Callable[[], None]) -> None:
        self._said.watch(ready)
        ready()

    def read(self, limit: int) -> bytes | None:
        return self._said.take(limit)

    def read_errors(self, limit: int) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        with self._lock:
            self.written += data

    def end_input(self) -> None: ...

    def gone(self) -> bool:
        return self._said.ended()

    def errors_ended(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
        self.end()

    def ending(self, timeout: float) -> Ending:
        return Ending(None)
