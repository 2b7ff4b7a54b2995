"""Sessions that several commands share: idle ones for the next command, those to jump hosts.

A connection serves one command at a time, and comes back to ``SessionPool`` only when its command
has ended by itself. A jump host has one connection for all hosts behind it.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import ALIVE_COUNT, ALIVE_INTERVAL, PromptTimer
from dispatcher.transport.ssh import byte_stream
from dispatcher.transport.ssh.byte_stream import ByteStream
from dispatcher.transport.ssh_config.host_config import HostConfig

if TYPE_CHECKING:
    from dispatcher.transport.ssh.session import Session


Route = tuple[HostConfig, ...]


class SessionPool:
    """Idle sessions by route; ``give`` and ``take`` are called from any thread.

    The SSH agent of the login does not count: a later login may have another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._idle: dict[Route, list[tuple[float, Session]]] = {}
        self._closed = False

    def take(self, route: Route, started: str | None = None) -> Session | None:
        """A living session for ``route``, which the caller then owns, or None.

        started: only one where that command runs already.
        """
        while True:
            with self._lock:
                idle = self._idle.get(_by_any_agent(route))
                if not idle:
                    return None
                session = idle[-1][1]
                session.environment = route[-1].environment
                if started is not None and not session.has_standby(started):
                    return None
                idle.pop()
            if session.active:
                return session
            session.end()

    def give(self, route: Route, session: Session) -> None:
        """Keep ``session``, whose command has ended."""
        session.set_keepalive(ALIVE_INTERVAL, ALIVE_COUNT)  # whatever its last user wanted
        with self._lock:
            if session.active and not self._closed:
                idle = self._idle.setdefault(_by_any_agent(route), [])
                idle.append((time.monotonic(), session))
                return
        session.end()

    def stand_by(self, command: str) -> None:
        """Start ``command`` over each idle session before a user wants it; returns at once."""
        with self._lock:
            idle = [session for sessions in self._idle.values() for _, session in sessions]
        with self._starting:
            for session in idle:
                session.stand_by(command)

    def names(self) -> list[str]:
        """The hosts that idle sessions lead to, by the names that users gave."""
        with self._lock:
            return [
                route[-1].name
                for route, idle in self._idle.items()
                for _, session in idle
                if session.active
            ]

    def drop(self, seconds: float = 0.0, names: Collection[str] | None = None) -> None:
        """End the sessions (to ``names`` only) that died, or were idle for ``seconds``."""
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
        """End all sessions, and each that comes back later."""
        with self._lock:
            self._closed = True
        self.drop()


def _by_any_agent(route: Route) -> Route:
    """The route without the parts in which commands that share a session may differ."""
    return tuple(dataclasses.replace(hop, identity_agent=None, environment=()) for hop in route)


_CHANNELS_AT_ONCE = 32  # being opened through one jump host
#: sshd's words about a host that it does not reach -> its kind
_REFUSALS = {
    "refused": Kind.REFUSED, "timed out": Kind.TIMEOUT, "not known": Kind.DNS,
    "name resolution": Kind.DNS,
}  # fmt: skip
_SAME_ANSWER = 2.0  # seconds in which a jump host's failure is not tried again


class JumpHost:
    """The one connection to a jump host, made by the thread that needs it first.

    connect: logs in there by a deadline. All deadlines are by ``timer``.
    """

    def __init__(
        self, name: str, connect: Callable[[float], Session | Failure], timer: PromptTimer
    ) -> None:
        self._name = name
        self._connect = connect
        self._timer = timer
        self._lock = threading.Lock()
        self._gate = threading.BoundedSemaphore(_CHANNELS_AT_ONCE)
        self._session: Session | None = None
        self._failure: Failure | None = None
        self._failed_at = 0.0

    def reach(
        self, config: HostConfig, deadline: float, seconds: float = math.inf
    ) -> ByteStream | Failure:
        """A stream to a host behind this one; that host alone gets so many ``seconds``."""
        late = Failure(Kind.TIMEOUT, f"jump host {self._name}: no answer in time")
        while not self._lock.acquire(timeout=max(0.0, deadline - self._timer.now())):
            if deadline <= self._timer.now():
                return late
        try:
            session = self._connected(deadline)
        finally:
            self._lock.release()
        if isinstance(session, Failure):
            return dataclasses.replace(session, why=f"jump host {self._name}: {session.why}")
        if not self._gate.acquire(timeout=max(0.0, deadline - self._timer.now())):
            return late
        try:
            until = self._timer.real(min(deadline, self._timer.now() + seconds))
            channel, problem = session.open_ssh_channel(until, (config.host, config.port))
        finally:
            self._gate.release()
        if channel is not None:
            return byte_stream.over_channel(channel)
        return self._refused(problem, config)

    def _connected(self, deadline: float) -> Session | Failure:
        if self._session is not None and self._session.active:
            return self._session
        if self._failure is not None:
            fresh = time.monotonic() - self._failed_at < _SAME_ANSWER
            # A login that was refused is refused again, and counted against us each time.
            if fresh or self._failure.kind in (Kind.AUTH, Kind.CONFIG):
                return self._failure
        session = self._connect(deadline)
        if isinstance(session, Failure):
            self._failure, self._failed_at = session, time.monotonic()
            return session
        self._session = session
        return session

    def _refused(self, problem: str, config: HostConfig) -> Failure:
        via = f"jump host {self._name}: {config.host} port {config.port}"
        if problem == "late":
            return Failure(Kind.TIMEOUT, f"{via}: no answer in time")
        if problem == "gone":
            return Failure(Kind.DROPPED, f"{via}: the jump host is gone", retryable=True)
        kinds = (kind for words, kind in _REFUSALS.items() if words in problem)
        return Failure(next(kinds, Kind.UNREACHABLE), f"{via}: {problem}")

    def close(self) -> None:
        """End the connection, and with it all that run through it; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            session.end()
