"""One command by way of the pool, on a channel of our one connection to it.

``Line``: the one connection of a dispatch to the holder, shared by all its commands.

``KeptLink``: one command by way of the holder, on a channel of the line; see ``Link``.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable
from typing import Any

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport.base import Link, LinkClosed, Window
from dispatcher.transport.pool.pool_frames import (
    INPUT,
    OUTPUT,
    Frames,
    Malformed,
    fields,
    frame,
    granted,
    number,
    told,
)

_RECEIVED = 256 << 10

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
            while data := self._link.recv(_RECEIVED):
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


_CHUNK = 32 << 10
#: bytes of output that were taken until as many are granted again
STEP = OUTPUT // 4


class KeptLink(Link):
    """A command that is to be told by ``order``. Raises: LinkClosed when ``line`` has ended."""

    tells_end = True
    by = "kept"

    def __init__(self, line: Line) -> None:
        self._line = line
        self._state = threading.Condition(threading.Lock())
        self._answer: tuple[bytes, bytes] | None = None
        self._held = {1: bytearray(), 2: bytearray()}
        self._ended = {1: False, 2: False}
        self._ending = Ending(None)
        self._silence: str | None = None
        self._over = False
        self._closed = False
        self._taken = 0  # bytes since we granted some
        self._credit = INPUT
        self._input_open = True
        self._ready: Callable[[], None] | None = None
        self._channel = line.new_channel(self._hear)

    def order(self, **said: Any) -> None:
        """Ask for the command. Raises: LinkClosed."""
        self._line.send(told(b"O", self._channel, **said))

    def answer(self, seconds: float) -> tuple[bytes, bytes]:
        """Kind and body of the answer; the kind is empty when none comes in time."""
        with self._state:
            self._state.wait_for(lambda: self._answer is not None, seconds)
            kind, body = self._answer or (b"", b"")
        if kind == b"A":
            try:
                self.address = fields(body).get("address")
            except Malformed:
                return b"N", b""
        return kind, body

    # -- on the line's thread ---------------------------------------------------------------

    def _hear(self, kind: bytes | None, body: bytes) -> None:
        """One frame, or None at the end of the line. Raises: Malformed."""
        with self._state:
            if kind == b"1" or kind == b"2":
                self._held[int(kind)] += body
            elif kind == b"e":
                self._ended[1] = True
            elif kind == b"r":
                self._ended[2] = True
            elif kind == b"X":
                said = fields(body)
                self._ending = Ending(said.get("code"), said.get("signal"))
                self._silence = said.get("silence")
                self._over = True
            elif kind == b"G":
                self._credit += number(body)
            elif kind is None:
                self._ended = {1: True, 2: True}
                self._over = True
            if self._answer is None:
                self._answer = (b"N" if kind is None else kind, body)
            self._state.notify_all()
        ready = self._ready
        if ready is not None:
            ready()

    # -- the owner --------------------------------------------------------------------------

    def watch(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        ready()

    def read(self, limit: int) -> bytes | None:
        data = self._take(1, limit)
        if data:
            return data
        with self._state:
            return b"" if self._ended[1] and not self._held[1] else None

    def read_errors(self, limit: int) -> bytes:
        return self._take(2, limit)

    def _take(self, stream: int, limit: int) -> bytes:
        with self._state:
            held = self._held[stream]
            if not held:
                return b""
            data = bytes(held[:limit])
            del held[:limit]
            self._taken += len(data)
            grant = self._taken if self._taken >= STEP and not self._over else 0
            self._taken -= grant
        if grant:
            self._tell(granted(self._channel, grant))
        return data

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with self._state:
                self._state.wait_for(lambda: self._credit > 0 or self._shut())
                if self._shut():
                    raise LinkClosed("link closed")
                size = min(len(view), self._credit, _CHUNK)
                self._credit -= size
            self._line.send(frame(b"D", self._channel, bytes(view[:size])))
            view = view[size:]

    def _shut(self) -> bool:
        return self._over or self._closed or not self._input_open

    def end_input(self) -> None:
        if self._input_open:
            self._tell(frame(b"E", self._channel))
            with self._state:
                self._input_open = False
                self._state.notify_all()

    def resize(self, window: Window) -> None:
        self._tell(told(b"W", self._channel, columns=window.columns, rows=window.rows))

    def _tell(self, data: bytes) -> None:
        try:
            self._line.send(data)
        except LinkClosed:
            pass  # as everybody is about to read

    def gone(self) -> bool:
        return self._over

    def errors_ended(self) -> bool:
        with self._state:
            return self._ended[2] and not self._held[2]

    def close(self) -> None:
        with self._state:
            if self._closed:
                return
            self._closed = True
            complete = self._over and all(self._ended.values())  # the holder has closed it
            self._ended = {1: True, 2: True}
            self._held = {1: bytearray(), 2: bytearray()}
            self._over = True
            self._state.notify_all()
        self._line.forget(self._channel)
        if not complete:
            self._tell(frame(b"Z", self._channel))
        ready = self._ready
        if ready is not None:
            ready()

    def ending(self, timeout: float) -> Ending:
        with self._state:
            self._state.wait_for(lambda: self._over, max(0.0, timeout))
            return self._ending

    def failure(self, timeout: float) -> Failure | None:
        seen = self._silence
        return None if seen is None else Failure(Kind.UNREACHABLE, seen)
