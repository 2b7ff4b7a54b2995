"""What one host says, for the thread that talks with it: bounded, in frames, with its end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from dispatcher.remote.protocol import copy_frames

#: pieces of output, each of at most 256 KiB, that may wait
_WAITING = 8
#: seconds between two looks whether anybody listens still
_LOOK = 0.5


class Ended(Exception):
    """The host says nothing more."""


class Hearing:
    """Bytes from a host's own thread (``put``, ``finish``) to the one that talks (the others).

    largest: most bytes of one value.
    """

    def __init__(self, largest: int) -> None:
        self._pieces: queue.Queue[bytes] = queue.Queue(_WAITING)
        self._frames = copy_frames.Frames(largest)
        self._come: list[tuple[bytes, bytes]] = []  # the next one last
        self._rest = b""  # what came behind the first line
        self._deaf = False
        self._thread: threading.Thread | None = None

    def talk(self, name: str, what: Callable[[], None]) -> None:
        """Run ``what`` in a thread of its own, until which ends ``finish`` waits."""
        self._thread = threading.Thread(target=what, name=name, daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """The host said ``data``; waits while much of it is not yet read."""
        while not self._deaf:
            try:
                return self._pieces.put(data, timeout=_LOOK)
            except queue.Full:
                continue
        return None

    def finish(self) -> None:
        """The host says nothing more; wait until all of it is dealt with."""
        self.put(b"")
        while self._thread is not None and self._thread.is_alive() and not self._deaf:
            self._thread.join(_LOOK)

    def stop(self) -> None:
        """Nobody listens any more."""
        self._deaf = True

    def line(self, size: int) -> bytes:
        """The first ``size`` bytes. Raises: Ended."""
        first = b""
        while len(first) < size:
            first += self.piece()
        self._rest = first[size:]
        return first[:size]

    def frame(self) -> tuple[bytes, bytes]:
        """The next frame. Raises: Ended, BadFrame."""
        while not self._come:
            self._come += [*self._frames.feed(self.piece())][::-1]
        return self._come.pop()

    def value(self) -> dict[str, Any]:
        """The next frame, which must hold a value. Raises: Ended, BadFrame."""
        return copy_frames.value_of(*self.frame())

    def piece(self) -> bytes:
        """What comes next, of a host that sends no frames. Raises: Ended."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        while not self._deaf:
            try:
                piece = self._pieces.get(timeout=_LOOK)
            except queue.Empty:
                continue
            if piece:
                return piece
            break
        raise Ended
