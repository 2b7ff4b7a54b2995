"""The process that holds connections: one thread a caller, and one for what it reads back.

A caller's dispatch says what to run where; the holder opens a channel over a connection
it has, or makes one if it was asked to keep it, and hands bytes on. Every dispatch
has its own reading of ssh_config and known_hosts (``run``), so a change of these files
holds from the next one on. It ends when it holds nothing any more.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from dispatcher.errors import DispatchError
from dispatcher.kept import place
from dispatcher.kept.frames import Frames, Malformed, fields, frame, told
from dispatcher.transport.base import Failure, Link, LinkClosed, Target, Window
from dispatcher.transport.kept_sessions import KeptSessions
from dispatcher.transport.paramiko_ import ParamikoTransport, preload

#: seconds between two looks for connections that are to be closed
LOOK = 1.0
#: seconds without any connection or caller after which the holder ends
LINGER = 5.0
#: readings of the configuration that are remembered, beside those that made a connection
MOST_READINGS = 16
#: seconds after a command's end until it is told though its output has not ended
HELD_OPEN = 0.1
_CHUNK = 64 << 10


class Holder:
    """Serves callers until nothing is held. listener: as ``place.listen`` gives it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._pool = KeptSessions()
        self._lock = threading.Lock()
        self._readings: dict[str, ParamikoTransport] = {}
        self._connected: set[str] = set()  # readings that made connections
        self._callers = 0
        self._last = time.monotonic()
        self._idle = 600.0

    def run(self) -> None:
        self._listener.settimeout(LOOK)
        while not self._over():
            try:
                link, _ = self._listener.accept()
            except TimeoutError:
                self._pool.drop(self._idle)
                continue
            if place.uid_of(link) != os.geteuid():
                link.close()
                continue
            link.settimeout(None)
            with self._lock:
                self._callers += 1
            threading.Thread(target=self._serve, args=(link,), name="caller", daemon=True).start()

    def _over(self) -> bool:
        with self._lock:
            if self._callers or self._pool.names():
                self._last = time.monotonic()
            return time.monotonic() - self._last > LINGER

    def close(self) -> None:
        self._pool.close()

    # -- one caller ---------------------------------------------------------------------

    def _serve(self, link: socket.socket) -> None:
        try:
            self._obey(link)
        except (OSError, Malformed, LinkClosed):
            pass  # the caller is gone, or no caller of ours
        finally:
            link.close()
            with self._lock:
                self._callers -= 1

    def _obey(self, link: socket.socket) -> None:
        frames = Frames()
        waiting: list[tuple[bytes, bytes]] = []
        while not waiting:
            data = link.recv(_CHUNK)
            if not data:
                return
            waiting += frames.feed(data)
        kind, body = waiting.pop(0)
        if kind == b"L":
            link.sendall(told(b"L", hosts=self._pool.names(), idle=self._idle, pid=os.getpid()))
        elif kind == b"C":
            wanted = fields(body).get("hosts")
            self._pool.drop(names=None if wanted is None else set(wanted))
            link.sendall(told(b"L", hosts=self._pool.names(), idle=self._idle, pid=os.getpid()))
        elif kind == b"O":
            opened = self._open(fields(body))
            if opened is None:
                link.sendall(frame(b"N"))
            elif isinstance(opened, Failure):
                link.sendall(
                    told(
                        b"F",
                        kind=opened.kind.value,
                        why=opened.why,
                        hint=opened.hint,
                        retryable=opened.retryable,
                    )
                )
            else:
                self._carry(link, opened, frames, waiting)

    def _open(self, order: dict[str, Any]) -> Link | Failure | None:
        target = Target(order["host"], order["user"], order["port"])
        transport = self._reading(order)
        deadline = time.monotonic() + float(order["seconds"])
        window = None if order["window"] is None else Window(*order["window"])
        if order["keep"] is None:
            return transport.open_kept(target, order["command"], deadline, window)
        self._idle = float(order["keep"])
        with self._lock:
            self._connected.add(order["run"])
        return transport.open(target, order["command"], deadline, window)

    def _reading(self, order: dict[str, Any]) -> ParamikoTransport:
        """The transport of this dispatch, which has read its files for itself."""
        run = str(order["run"])
        with self._lock:
            known = self._readings.get(run)
            if known is None:
                known = self._readings[run] = ParamikoTransport(
                    config=order["config"], host_keys=order["host_keys"], keep=self._pool
                )
            spare = [name for name in self._readings if name not in self._connected]
            for name in spare[:-MOST_READINGS]:
                del self._readings[name]
        return known

    def _carry(
        self, caller: socket.socket, link: Link, frames: Frames, waiting: list[tuple[bytes, bytes]]
    ) -> None:
        """Hand on what the caller writes until it leaves; the other way has a thread."""
        closing = threading.Lock()

        def close() -> None:
            with closing:
                link.close()

        try:
            caller.sendall(told(b"A", address=link.address))
            threading.Thread(
                target=_hand_back, args=(caller, link, close), name="hand back", daemon=True
            ).start()
            while True:
                for kind, body in waiting:
                    _hand_on(link, kind, body)
                data = caller.recv(_CHUNK)
                if not data:
                    return
                waiting = list(frames.feed(data))
        finally:
            close()


def _hand_on(link: Link, kind: bytes, body: bytes) -> None:
    try:
        if kind == b"D":
            link.write(body)
        elif kind == b"E":
            link.end_input()
        elif kind == b"W":
            link.resize(Window(**fields(body)))
    except LinkClosed:
        pass  # the caller is about to read why


def _hand_back(caller: socket.socket, link: Link, close: Callable[[], None]) -> None:
    """Everything that the command says, and its end, until the caller or all of it has gone.

    The connection is free again before the end is told: the caller's next command may
    come at once. Who holds the output open is waited for a little.
    """
    ready = threading.Event()
    link.watch(ready.set)
    output = errors = end = False
    gone_at: float | None = None
    try:
        while not (output and errors and end):
            ready.wait(LOOK if gone_at is None else HELD_OPEN)
            ready.clear()
            while data := link.read_errors(_CHUNK):
                caller.sendall(frame(b"2", data))
            while not output and (data_or_none := link.read(_CHUNK)) is not None:
                output = not data_or_none
                caller.sendall(frame(b"1", data_or_none) if data_or_none else frame(b"e"))
            if not errors and link.errors_ended():
                errors = True
                caller.sendall(frame(b"r"))
            if output and errors and not end:
                link.ending(LOOK)
            if end or not link.gone():
                continue
            gone_at = gone_at or time.monotonic()
            if (output and errors) or time.monotonic() - gone_at >= HELD_OPEN:
                end = True
                ending = link.ending(0.0)
                if output and errors:
                    close()
                caller.sendall(told(b"X", code=ending.code, signal=ending.signal))
    except OSError:
        pass  # the caller has left, and the link is closed for it


def main() -> None:
    """Be the holder, if nobody is yet; returns when nothing is held."""
    try:
        listener = place.listen()
    except (DispatchError, OSError):
        return
    if listener is None:
        return
    os.chdir("/")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    preload()
    holder = Holder(listener)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the hosts see their links end
    try:
        holder.run()
    finally:
        place.forget()
        holder.close()
