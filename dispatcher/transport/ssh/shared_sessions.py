"""The one connection to a jump host, shared by all hosts behind it.

Each of these is a ``direct-tcpip`` channel; not more than a few dozen are opened at once.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING

from dispatcher.transport.base import Failure, Kind
from dispatcher.transport.ssh import byte_stream
from dispatcher.transport.ssh.byte_stream import Wire
from dispatcher.transport.ssh_config.host_config import HostConfig
from dispatcher.transport.steps import Steps

if TYPE_CHECKING:
    from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport
    from dispatcher.transport.ssh.session import Session

_CHANNELS_AT_ONCE = 32  # being opened through one jump host
_SAME_ANSWER = 2.0  # seconds in which a jump host's failure is not tried again


class JumpHost:
    """The one connection to a jump host, made by whoever needs it first."""

    def __init__(self, owner: ParamikoTransport, route: tuple[HostConfig, ...]) -> None:
        self._owner = owner
        self._route = route
        self._lock = threading.Lock()
        self._gate = threading.BoundedSemaphore(_CHANNELS_AT_ONCE)
        self._session: Session | None = None
        self._failure: Failure | None = None
        self._failed_at = 0.0

    def reach(self, config: HostConfig, deadline: float) -> Wire | Failure:
        """A wire to a host behind this one."""
        late = Failure(Kind.TIMEOUT, f"jump host {self._name}: no answer in time")
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return late
        try:
            session = self._connected(deadline)
        finally:
            self._lock.release()
        if isinstance(session, Failure):
            return dataclasses.replace(session, why=f"jump host {self._name}: {session.why}")
        if not self._gate.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return late
        try:
            pipe, problem = session.open_pipe(deadline, (config.host, config.port))
        finally:
            self._gate.release()
        if pipe is not None:
            return byte_stream.over_channel(pipe)
        return self._refused(problem, config)

    @property
    def _name(self) -> str:
        return self._route[-1].name

    def _connected(self, deadline: float) -> Session | Failure:
        if self._session is not None and self._session.active:
            return self._session
        if self._failure is not None:
            fresh = time.monotonic() - self._failed_at < _SAME_ANSWER
            # Who was refused is refused again, and counted against us each time.
            if fresh or self._failure.kind in (Kind.AUTH, Kind.CONFIG):
                return self._failure
        session = self._owner.connect(self._route, deadline, Steps("jump host"))
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
        if "refused" in problem:
            return Failure(Kind.REFUSED, f"{via}: {problem}")
        if "timed out" in problem:
            return Failure(Kind.TIMEOUT, f"{via}: {problem}")
        if "not known" in problem or "name resolution" in problem:
            return Failure(Kind.DNS, f"{via}: {problem}")
        return Failure(Kind.UNREACHABLE, f"{via}: {problem}")

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end()
