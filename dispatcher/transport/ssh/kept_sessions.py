"""Connections that outlive their command, to be used by the next one.

A connection serves one command at a time. Only when that has ended by itself does
the connection come back here; otherwise it is closed, since its end is what tells
the far side to end the command (see ``lifeline``). So nobody's command depends on
another's, and sshd's limit of sessions a connection is never met.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from dispatcher.transport.keepalive import INTERVAL, MOST
from dispatcher.transport.ssh_config.host_config import HostConfig

if TYPE_CHECKING:
    from dispatcher.transport.ssh.session import Session

Route = tuple[HostConfig, ...]


class KeptSessions:
    """Idle sessions by route; ``give`` and ``take`` are called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Route, list[tuple[float, Session]]] = {}
        self._closed = False

    def take(self, route: Route, command: str | None = None) -> Session | None:
        """A living session that leads there and is nobody else's from now on, or None.

        command: only one where that has started already.
        """
        while True:
            with self._lock:
                idle = self._idle.get(route)
                if not idle or (command is not None and not idle[-1][1].at_hand(command)):
                    return None
                _, session = idle.pop()
            if session.active:
                return session
            session.end()

    def give(self, route: Route, session: Session) -> None:
        """Keep ``session``, whose command has ended."""
        session.look_after(INTERVAL, MOST)  # whatever its last user wanted
        with self._lock:
            if session.active and not self._closed:
                self._idle.setdefault(route, []).append((time.monotonic(), session))
                return
        session.end()

    def stand_by(self, command: str) -> None:
        """Start ``command`` over each idle session, ahead of who will want it; returns at once."""
        with self._lock:
            idle = [session for sessions in self._idle.values() for _, session in sessions]
        for session in idle:
            session.stand_by(command)

    def names(self) -> list[str]:
        """The hosts that idle sessions lead to, as they were named."""
        with self._lock:
            return [
                route[-1].name
                for route, idle in self._idle.items()
                for _, session in idle
                if session.active
            ]

    def drop(self, seconds: float = 0.0, names: Collection[str] | None = None) -> None:
        """End the sessions (to ``names`` only) that died, or that nobody used for ``seconds``."""
        limit = time.monotonic() - seconds
        old: list[Session] = []
        with self._lock:
            for route, idle in list(self._idle.items()):
                if names is not None and route[-1].name not in names:
                    continue
                left = [one for one in idle if one[0] > limit and one[1].active]
                old += [session for since, session in idle if (since, session) not in left]
                if left:
                    self._idle[route] = left
                else:
                    del self._idle[route]
        for session in old:
            session.end()

    def close(self) -> None:
        """End them all, and each that comes back later."""
        with self._lock:
            self._closed = True
        self.drop()
