"""A link to a host that says what a test wants it to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.transport.base import Link


class Wire(Link):
    """Keeps what is written; never ends by itself."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def watch(self, ready: Callable[[], None]) -> None: ...
    def read(self, limit: int) -> bytes | None: ...
    def read_errors(self, limit: int) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        self.written += data

    def end_input(self) -> None: ...
    def gone(self) -> bool:
        return False

    def errors_ended(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def ending(self, timeout: float) -> Any: ...
