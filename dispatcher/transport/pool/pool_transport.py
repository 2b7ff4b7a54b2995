"""``PoolTransport``: commands over the connections that the daemon has, else as without it.

Nothing of SSH is loaded here unless a connection has to be made by ourselves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from dispatcher.model.failure import Failure, Kind
from dispatcher.remote.protocol.mux import Malformed
from dispatcher.transport.base import (
    UNLESS_CONFIGURED,
    Call,
    Keepalive,
    Link,
    LinkClosed,
    Target,
    Transport,
    Window,
)
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_socket import ACCEPTED, FAILED, OPENING, fields
from dispatcher.transport.pool.pool_link import PoolConnection, PoolLink

#: seconds that the daemon's answer may be late
SLACK = 1.0
LATE = "no answer in time over the kept connection"


class PoolTransport(Transport):
    """By the daemon where it has a connection; otherwise by ``direct``, called once.

    keep: seconds for which a new connection is to be kept by the daemon; None: what it
    does not have is not its affair. config, host_keys, alive: as for ``ParamikoTransport``.
    """

    name = "kept"

    def __init__(
        self,
        direct: Callable[[], Transport],
        *,
        keep: float | None = None,
        config: str | None = None,
        host_keys: str | None = None,
        alive: Keepalive = UNLESS_CONFIGURED,
    ) -> None:
        self._make_direct = direct
        self._direct: Transport | None = None
        self._order = {
            "keep": keep,
            "run": os.urandom(8).hex(),
            "config": None if config is None else os.path.abspath(config),
            "host_keys": host_keys,
            "alive": [alive.seconds, alive.otherwise],
        }
        self._lock = threading.Lock()
        self._line: PoolConnection | None = None
        self._dialled = False

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        opened = self._by_daemon(target, command, deadline, window)
        if opened is not None:
            return opened
        direct = self._instead()
        link = direct.open(target, command, deadline, window)
        if isinstance(link, Link):
            link.by = direct.name
        return link

    def _by_daemon(
        self, target: Target, command: str, deadline: float, window: Window | None
    ) -> Link | Failure | None:
        """None where the daemon cannot serve us, for whatever reason."""
        left = deadline - time.monotonic()
        if left <= 0:
            return Failure(Kind.TIMEOUT, "no time left to connect")
        line = self._our_line()
        if line is None:
            return None
        link = self._ordered(line, target, command, left, window)
        if link is None:
            return None
        answer = link.answer(left + SLACK)
        if answer is not None and answer[0] == ACCEPTED:
            return link
        link.close()
        return Failure(Kind.TIMEOUT, LATE) if answer is None else _failure(*answer)

    def _ordered(
        self,
        line: PoolConnection,
        target: Target,
        command: str,
        left: float,
        window: Window | None = None,
        opening: bytes = b"",
    ) -> PoolLink | None:
        """The link to a command that was ordered; None if the daemon has gone."""
        try:
            return line.order(
                host=target.host,
                user=target.user,
                port=target.port,
                command=command,
                seconds=left,
                window=None if window is None else [window.columns, window.rows],
                opening=opening.decode("latin-1"),
                **self._order,
            )
        except LinkClosed:
            return None

    def call(self, target: Target, command: str, deadline: float, opening: bytes) -> Call | None:
        left = deadline - time.monotonic()
        line = self._our_line() if len(opening) <= OPENING else None
        if left <= 0 or line is None:
            return None
        link = self._ordered(line, target, command, left, opening=opening)
        return None if link is None else PoolCall(link, deadline + SLACK, self._instead)

    def _instead(self) -> Transport:
        """What reaches those whom the daemon does not."""
        with self._lock:
            if self._direct is None:
                self._direct = self._make_direct()
            return self._direct

    def _our_line(self) -> PoolConnection | None:
        with self._lock:
            if not self._dialled:
                self._dialled = True
                caller = daemon_socket.dial()
                self._line = None if caller is None else PoolConnection(caller)
            return self._line

    def prepare(self, command: str) -> None:
        if self._direct is not None:
            self._direct.prepare(command)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._direct is not None:
            self._direct.close()


class PoolCall(Call):
    """The daemon was asked for ``link``. until: when it is late; instead: who is asked then."""

    def __init__(self, link: PoolLink, until: float, instead: Callable[[], Transport]) -> None:
        self._link = link
        self.until = until
        self._instead = instead

    def watch(self, ready: Callable[[], None]) -> None:
        self._link.watch(ready)

    def answer(self) -> Link | Failure | Transport | None:
        answer = self._link.answer(0.0)
        if answer is not None and answer[0] == ACCEPTED:
            return self._link
        if answer is None and time.monotonic() < self.until:
            return None
        self._link.close()
        if answer is None:
            return Failure(Kind.TIMEOUT, LATE)
        return _failure(*answer) or self._instead()

    def close(self) -> None:
        self._link.close()


def _failure(kind: int, body: bytes) -> Failure | None:
    """The failure that the daemon tells; None if it tells none, or makes no sense."""
    if kind != FAILED:
        return None
    try:
        said = fields(body)
        return Failure(Kind(said["kind"]), str(said["why"]), said["hint"], bool(said["retryable"]))
    except (Malformed, ValueError, KeyError):
        return None
