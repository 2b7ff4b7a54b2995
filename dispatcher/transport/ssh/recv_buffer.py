"""What has arrived on one stream of an SSH channel and was not taken yet.

Stands where paramiko has its ``BufferedPipe``, which copies every byte into an array and
out again; here the pieces stay as they came until they are taken. Bounded by the channel's
window, which the peer is held to.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any


class RecvBuffer:
    """Filled by the session's thread, emptied by the owner of the link."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._event: Any = None
        self._cond = threading.Condition()  # reentrant: ``wait`` takes

    def __len__(self) -> int:
        return self._size

    @property
    def spent(self) -> bool:
        """Whether all was taken and no more can come."""
        return self._ended and not self._size

    def take(self, limit: int) -> bytes | None:
        """Up to ``limit`` bytes; ``None``: none now; ``b""``: the end."""
        with self._cond:
            if not self._size:
                return b"" if self._ended else None
            taken: list[bytes] = []
            while limit and self._pieces:
                piece = self._pieces.popleft()
                if len(piece) > limit:
                    self._pieces.appendleft(piece[limit:])
                    piece = piece[:limit]
                taken.append(piece)
                limit -= len(piece)
            data = b"".join(taken)
            self._size -= len(data)
            return data

    def wait(self, limit: int, seconds: float | None) -> bytes:
        """As ``take``, but waits. Raises: TimeoutError."""
        end = None if seconds is None else time.monotonic() + seconds
        with self._cond:
            while (data := self.take(limit)) is None:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._cond.wait(left)
            return data

    # -- what paramiko calls, on the session's thread --------------------------------------

    def set_event(self, event: Any) -> None:
        with self._cond:
            self._event = event
            if self._size or self._ended:
                event.set()

    def feed(self, data: bytes) -> None:
        with self._cond:
            if data:
                self._pieces.append(data)
                self._size += len(data)
                self._tell()

    def close(self) -> None:
        with self._cond:
            self._ended = True
            self._tell()

    def _tell(self) -> None:
        if self._event is not None:
            self._event.set()
        self._cond.notify_all()


class EventAdapter:
    """What paramiko takes for an event on a buffer: rings the link's owner."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.set = ring

    def clear(self) -> None:
        """Nothing: the owner reads until nothing is left."""

    def is_set(self) -> bool:
        return False
