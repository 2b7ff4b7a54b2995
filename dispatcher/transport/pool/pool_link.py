"""The launcher's side of the pool: one connection to the daemon, and a link for each command.

``PoolConnection`` is shared by all commands of a launcher: its one thread reads, and any
thread may write. A ``PoolLink`` is one command, on a channel of it.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
from typing import Any

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol import mux
from dispatcher.transport.base import LinkClosed, Window
from dispatcher.transport.mux_link import MuxLink
from dispatcher.transport.pool.daemon_socket import (
    ACCEPTED,
    FAILED,
    LARGEST,
    NOT_POOLED,
    RESIZE,
    fields,
)

_READ_SIZE = 256 << 10


class PoolConnection:
    """Frames to and from the daemon at the other end of ``link``. Any thread may send."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._links: dict[int, PoolLink] = {}
        self._over = False
        link.settimeout(None)
        self._thread = threading.Thread(target=self._run, name="transport:pool:read", daemon=True)
        self._thread.start()

    def order(self, **said: Any) -> PoolLink:
        """Ask for the command that ``said`` describes. Raises: LinkClosed."""
        number = next(self._numbers)
        with self._lock:
            if self._over:
                raise LinkClosed("the daemon is gone")
            link = self._links[number] = PoolLink(self, number)
        self.send(number, mux.OPEN, json.dumps(said).encode())
        return link

    def send(self, channel: int, kind: int, body: bytes = b"") -> None:
        """Send a frame. Raises: LinkClosed."""
        try:
            with self._lock:
                self._link.sendall(mux.frame(channel, kind, body))
        except OSError:
            raise LinkClosed("the daemon is gone") from None

    def forget(self, channel: int) -> None:
        """Nobody listens to the channel any more."""
        self._links.pop(channel, None)

    def close(self) -> None:
        """End all channels; idempotent."""
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _run(self) -> None:
        frames = mux.Frames(LARGEST)
        try:
            while data := self._link.recv(_READ_SIZE):
                for number, kind, body in frames.feed(data):
                    link = self._links.get(number)
                    if link is not None:  # else it was closed meanwhile
                        link.take(kind, body)
        except (OSError, mux.Malformed):
            pass
        with self._lock:
            self._over = True
            left = list(self._links.values())
            self._link.close()  # nobody sends now
        for link in left:
            link.lose(None)


class PoolLink(MuxLink):
    """A command that was ordered; the daemon's ``answer`` tells what came of it."""

    by = "kept"

    def __init__(self, connection: PoolConnection, channel: int) -> None:
        super().__init__(connection, channel)
        self._answer: tuple[int, bytes] | None = None

    def answer(self, seconds: float) -> tuple[int, bytes] | None:
        """Kind and body of the answer; None when none comes in so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None or self._over, seconds)
            return self._answer or ((NOT_POOLED, b"") if self._over else None)

    def _answered(self, kind: int, body: bytes) -> None:
        if self._answer is not None or kind not in (ACCEPTED, FAILED, NOT_POOLED):
            raise mux.Malformed("no answer")
        if kind == ACCEPTED:
            self.address = fields(body).get("address")
        self._answer = kind, body

    def _ending_of(self, body: bytes) -> tuple[Ending, Failure | None]:
        said = fields(body)
        silence = said.get("silence")
        lost = None if silence is None else Failure(Kind.UNREACHABLE, silence)
        return Ending(said.get("code"), said.get("signal")), lost

    def resize(self, window: Window) -> None:
        size = {"columns": window.columns, "rows": window.rows}
        self._say(RESIZE, json.dumps(size).encode())
