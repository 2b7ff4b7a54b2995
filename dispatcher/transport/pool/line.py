"""``Line``: the one connection of a dispatch to the holder, shared by all its commands."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable

from dispatcher.transport.base import LinkClosed
from dispatcher.transport.pool.pool_frames import Frames, Malformed

_CHUNK = 256 << 10

#: takes the kind and body of each frame, and None at the end of the line; on the line's thread
Hear = Callable[[bytes | None, bytes], None]


class Line:
    """Frames to and from the holder at the other end of ``link``. Any thread may send."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._hearers: dict[int, Hear] = {}
        self._over = False
        link.settimeout(None)
        self._thread = threading.Thread(target=self._run, name="transport:kept:read", daemon=True)
        self._thread.start()

    def new_channel(self, hear: Hear) -> int:
        """The number of a new channel, on which ``hear`` is told what comes.

        Raises: LinkClosed when the line has ended.
        """
        number = next(self._numbers)
        with self._lock:
            if self._over:
                raise LinkClosed("the holder is gone")
            self._hearers[number] = hear
        return number

    def forget(self, number: int) -> None:
        """Nobody hears the channel any more."""
        self._hearers.pop(number, None)

    def send(self, data: bytes) -> None:
        """Send whole frames. Raises: LinkClosed."""
        try:
            with self._lock:
                self._link.sendall(data)
        except OSError:
            raise LinkClosed("the holder is gone") from None

    def close(self) -> None:
        """End all channels; idempotent."""
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _run(self) -> None:
        frames = Frames()
        try:
            while data := self._link.recv(_CHUNK):
                for kind, number, body in frames.feed(data):
                    hear = self._hearers.get(number)
                    if hear is not None:
                        hear(kind, body)
        except (OSError, Malformed):
            pass
        with self._lock:
            self._over = True
            left = list(self._hearers.values())
            self._link.close()  # nobody sends now
        for hear in left:
            hear(None, b"")
