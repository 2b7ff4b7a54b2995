"""What one host says, for the thread that talks with it: bounded, in frames, with its end."""

from __future__ import annotations

import queue
from typing import Any

from dispatcher.copy.there import frames
from dispatcher.transport.base import Link

_LOOK = 0.5  # seconds between two looks whether a link has ended
#: pieces of output, each of at most 256 KiB, that may wait
_WAITING = 8


class Ended(Exception):
    """The host says nothing more."""


class Hearing:
    """Bytes from a host's own thread (``put``) to the thread that talks with it (the others).

    largest: most bytes of one value.
    """

    def __init__(self, largest: int) -> None:
        self._pieces: queue.Queue[bytes] = queue.Queue(_WAITING)
        self._frames = frames.Frames(largest)
        self._come: list[tuple[bytes, bytes]] = []  # the next one last
        self._deaf = False

    def put(self, data: bytes) -> None:
        """The host said ``data``; waits while much of it is not yet read."""
        while not self._deaf:
            try:
                return self._pieces.put(data, timeout=_LOOK)
            except queue.Full:
                continue
        return None

    def stop(self) -> None:
        """Nobody listens any more."""
        self._deaf = True

    def line(self, link: Link, size: int) -> bytes:
        """The first ``size`` bytes. Raises: Ended."""
        first = b""
        while len(first) < size:
            first += self._next(link)
        self._come += [*self._frames.feed(first[size:])][::-1]
        return first[:size]

    def frame(self, link: Link) -> tuple[bytes, bytes]:
        """The next frame. Raises: Ended, BadFrame."""
        while not self._come:
            self._come += [*self._frames.feed(self._next(link))][::-1]
        return self._come.pop()

    def value(self, link: Link) -> dict[str, Any]:
        """The next frame, which must hold a value. Raises: Ended, BadFrame."""
        return frames.value_of(*self.frame(link))

    def _next(self, link: Link) -> bytes:
        while not self._deaf:
            over = link.gone()
            try:
                return self._pieces.get(timeout=_LOOK)
            except queue.Empty:
                if over:
                    break
        raise Ended
