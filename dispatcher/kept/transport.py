"""``KeptTransport``: commands over the connections that the holder has, else as without it.

Nothing of SSH is loaded here unless a connection has to be made by ourselves.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable

from dispatcher.kept import place
from dispatcher.kept.frames import Frames, Malformed, fields, frame, told
from dispatcher.transport.base import (
    Ending,
    Failure,
    Kind,
    Link,
    LinkClosed,
    Target,
    Transport,
    Window,
)
from dispatcher.transport.pump import Pump

#: bytes held for the owner before the holder is not read any more
LIMIT = 1 << 20
_CHUNK = 32 << 10
#: seconds that the holder's answer may be late
SLACK = 1.0


class KeptTransport(Transport):
    """By the holder where it has a connection; otherwise by ``direct``, called once.

    keep: seconds for which a new connection is to be kept by the holder; None: what it
    does not have is not its affair. config, host_keys: as for ``ParamikoTransport``.
    """

    name = "kept"

    def __init__(
        self,
        direct: Callable[[], Transport],
        *,
        keep: float | None = None,
        config: str | None = None,
        host_keys: str | None = None,
    ) -> None:
        self._make_direct = direct
        self._direct: Transport | None = None
        self._keep = keep
        self._config = None if config is None else os.path.abspath(config)
        self._host_keys = host_keys
        self._run = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._pump = Pump("transport:kept:read")

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        opened = self._by_holder(target, command, deadline, window)
        if opened is not None:
            return opened
        with self._lock:
            if self._direct is None:
                self._direct = self._make_direct()
        link = self._direct.open(target, command, deadline, window)
        if isinstance(link, Link):
            link.by = self._direct.name
        return link

    def _by_holder(
        self, target: Target, command: str, deadline: float, window: Window | None
    ) -> Link | Failure | None:
        """None where the holder cannot serve us, for whatever reason."""
        left = deadline - time.monotonic()
        if left <= 0:
            return Failure(Kind.TIMEOUT, "no time left to connect")
        caller = place.dial()
        if caller is None:
            return None
        order = told(
            b"O",
            host=target.host,
            user=target.user,
            port=target.port,
            command=command,
            seconds=left,
            window=None if window is None else [window.columns, window.rows],
            keep=self._keep,
            run=self._run,
            config=self._config,
            host_keys=self._host_keys,
        )
        try:
            caller.settimeout(left + SLACK)
            caller.sendall(order)
            frames = Frames()
            answers: list[tuple[bytes, bytes]] = []
            while not answers:
                data = caller.recv(_CHUNK)
                if not data:
                    raise LinkClosed("the holder hung up")
                answers += frames.feed(data)
            kind, body = answers.pop(0)
            if kind == b"A":
                return KeptLink(caller, self._pump, frames, answers, fields(body).get("address"))
            answer = None
            if kind == b"F":
                said = fields(body)
                answer = Failure(
                    Kind(said["kind"]), str(said["why"]), said["hint"], bool(said["retryable"])
                )
        except TimeoutError:
            answer = Failure(Kind.TIMEOUT, "no answer in time over the kept connection")
        except (OSError, Malformed, ValueError, KeyError):
            answer = None
        caller.close()
        return answer

    def close(self) -> None:
        self._pump.close()
        if self._direct is not None:
            self._direct.close()


class KeptLink(Link):
    """One command by way of the holder; see ``Link`` for the contract.

    frames, early: what was read from ``caller`` already.
    """

    tells_end = True
    by = "kept"

    def __init__(
        self,
        caller: socket.socket,
        pump: Pump,
        frames: Frames,
        early: list[tuple[bytes, bytes]],
        address: str | None,
    ) -> None:
        self.address = address
        self._pump = pump
        self._frames = frames
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._held = {1: bytearray(), 2: bytearray()}
        self._ended = {1: False, 2: False}
        self._ending = Ending(None)
        self._over = threading.Event()
        self._ready: Callable[[], None] | None = None
        self._paused = False
        self._input_open = True
        caller.settimeout(None)
        self._out = os.dup(caller.fileno())
        self._in = caller.detach()
        for kind, body in early:
            self._take(kind, body)
        os.set_blocking(self._out, False)
        pump.add(self._in, self._feed)

    # -- on the pump's thread -------------------------------------------------------------

    def _feed(self, data: bytes) -> bool:
        with self._lock:
            try:
                for kind, body in self._frames.feed(data) if data else ():
                    self._take(kind, body)
            except (Malformed, ValueError):
                data = b""
            if not data:  # the holder is gone, and with it the link
                self._ended = {1: True, 2: True}
                self._over.set()
            self._paused = bool(data) and sum(map(len, self._held.values())) >= LIMIT
            wants_more = not self._paused
        self._tell()
        return wants_more

    def _take(self, kind: bytes, body: bytes) -> None:
        if kind in (b"1", b"2"):
            self._held[int(kind)] += body
        elif kind == b"e":
            self._ended[1] = True
        elif kind == b"r":
            self._ended[2] = True
        elif kind == b"X":
            said = fields(body)
            self._ending = Ending(said.get("code"), said.get("signal"))
            self._over.set()

    def _tell(self) -> None:
        ready = self._ready
        if ready is not None:
            ready()

    # -- the owner --------------------------------------------------------------------------

    def watch(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        ready()

    def read(self, limit: int) -> bytes | None:
        data = self._drain(1, limit)
        if data:
            return data
        with self._lock:
            return b"" if self._ended[1] and not self._held[1] else None

    def read_errors(self, limit: int) -> bytes:
        return self._drain(2, limit)

    def _drain(self, stream: int, limit: int) -> bytes:
        with self._lock:
            held = self._held[stream]
            data = bytes(held[:limit])
            del held[:limit]
            resume = self._paused and sum(map(len, self._held.values())) < LIMIT // 2
            if resume:
                self._paused = False
        if resume:
            self._pump.resume(self._in, self._feed)
        return data

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), _CHUNK):
            self._send(frame(b"D", data[at : at + _CHUNK]))

    def end_input(self) -> None:
        if self._input_open:
            try:
                self._send(frame(b"E"))
            except LinkClosed:
                pass  # the link is gone, and the input with it
            self._input_open = False

    def resize(self, window: Window) -> None:
        try:
            self._send(told(b"W", columns=window.columns, rows=window.rows))
        except LinkClosed:
            pass

    def _send(self, whole: bytes) -> None:
        left = memoryview(whole)
        with self._write_lock:
            while left:
                fd = self._out  # open as long as we have the lock
                if fd < 0 or self._over.is_set() or not self._input_open:
                    raise LinkClosed("link closed")
                try:
                    left = left[os.write(fd, left) :]
                except BlockingIOError:
                    poller = select.poll()  # not select: it knows no number beyond 1024
                    poller.register(fd, select.POLLOUT)
                    poller.poll(100)  # then look whether the link was closed meanwhile
                except OSError:
                    raise LinkClosed("the holder is gone") from None

    def gone(self) -> bool:
        return self._over.is_set()

    def errors_ended(self) -> bool:
        with self._lock:
            return self._ended[2] and not self._held[2]

    def close(self) -> None:
        if self._out < 0:
            return
        fd, self._out = self._out, -1
        with self._write_lock:
            os.close(fd)
        self._pump.drop(self._in)
        with self._lock:
            self._ended = {1: True, 2: True}
            self._held = {1: bytearray(), 2: bytearray()}
        self._over.set()
        self._tell()

    def ending(self, timeout: float) -> Ending:
        self._over.wait(max(0.0, timeout))
        return self._ending
