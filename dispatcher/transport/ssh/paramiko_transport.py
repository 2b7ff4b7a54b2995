"""``ParamikoTransport``: SSH inside this process, the default.

One deadline spans name look-up, connection, key exchange, login and the command's start; a host
that is late fails with the step's name. All hosts behind a jump host share one connection to it.
Without: GSSAPI, smart cards, forwarding; a host whose config needs more gets a hint.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import sys
import threading
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport import base
from dispatcher.transport.base import Link, Steps, Target, Transport, Window
from dispatcher.transport.process.pump import Pump
from dispatcher.transport.ssh import byte_stream
from dispatcher.transport.ssh.byte_stream import ByteStream
from dispatcher.transport.ssh.dial import dial
from dispatcher.transport.ssh.logging_in import SSH_HINT, LoggingIn, why_broken
from dispatcher.transport.ssh.shared_sessions import JumpHost, Route, SessionPool
from dispatcher.transport.ssh_auth.host_keys import HostKeyCheck
from dispatcher.transport.ssh_auth.identities import Identities
from dispatcher.transport.ssh_auth.known_hosts import KnownHostsFiles
from dispatcher.transport.ssh_auth.passwords import Passwords
from dispatcher.transport.ssh_config.ssh_config import SshConfig

if TYPE_CHECKING:
    from dispatcher.transport.ssh.session import Session

_MAX_HOPS = 8
_PROOF = 3.0  # seconds in which a kept connection must open a channel, or is given up

_import_lock = threading.Lock()


class _Versions(ModuleType):
    """Stands in for ``importlib.metadata``: a version by the name of the folder that holds it."""

    def version(self, name: str) -> str:
        import glob

        for folder in sys.path:
            for path in glob.iglob(f"{glob.escape(folder or '.')}/{name}-*.dist-info"):
                return os.path.basename(path)[len(name) + 1 : -len(".dist-info")]
        return str(self.__getattr__("version")(name))

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def preload(*, alone: bool = False) -> None:
    """Import paramiko now, so that the first ``open`` need not; safe from any thread.

    Two thirds of its import are for parts that dispatch does not use (``python -X importtime``), so
    these are hidden from it while it loads: ``invoke``, which its config reader can do without, and
    ``importlib.metadata``, which it asks for its own version. alone: the process is ours, like the
    CLI's. In a program that uses our API other threads may import them, so nothing is hidden.
    """
    with _import_lock:
        if "paramiko" in sys.modules:
            return
        stand_ins = {"invoke": None, "importlib.metadata": _Versions("importlib.metadata")}
        modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
        alone = alone or "dispatcher.cli" in modules
        hidden = {n: module for n, module in stand_ins.items() if alone and n not in modules}
        modules.update(hidden)  # None is the documented way to make an import fail
        try:
            import paramiko  # noqa: F401
        finally:
            for name, module in hidden.items():
                if modules.get(name) is module:
                    del modules[name]


class ParamikoTransport(Transport):
    """SSH to any number of hosts.

    config: as ``ssh -F``; ``None`` for the user's and the system's files. host_keys: ``strict`` or
    ``accept-new``; ``None`` for the config's setting. passwords: the user's, and how to ask for
    them. keep: connections whose command has ended serve the next one, until ``close``; or
    they go to and come from the caller's own. alive: when a silent host is asked whether it lives.
    reach: seconds of a deadline for all steps before the login, and as many for its keys alone.
    """

    name = "paramiko"

    def __init__(
        self,
        *,
        config: SshConfig | str | None = None,
        host_keys: str | None = None,
        passwords: Passwords | None = None,
        keep: bool | SessionPool = False,
        alive: base.Keepalive = base.UNLESS_CONFIGURED,
        reach: float = math.inf,
    ) -> None:
        if host_keys not in (None, "strict", "accept-new"):
            raise ValueError(f"host_keys: {host_keys!r}")
        self._config = config if isinstance(config, SshConfig) else SshConfig(config)
        self._host_keys = host_keys
        self._alive = alive
        self._seconds = reach
        self._known_hosts = KnownHostsFiles()
        self._passwords = passwords or Passwords()
        self._identities = Identities(self._passwords.ask)
        self._pump = Pump("transport:proxy:read")
        self._lock = threading.Lock()
        self._jump_hosts: dict[Route, JumpHost] = {}
        self._made: WeakSet[Session] = WeakSet()
        self._owns_pool = keep is True
        self.session_pool = (
            keep if isinstance(keep, SessionPool) else SessionPool() if keep else None
        )

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        steps = Steps("ssh configuration")
        route = self._route(target)
        if isinstance(route, Failure):
            return route
        link = self._reuse(route, command, deadline, window)
        if link is not None:
            return link
        steps.enter("paramiko")
        preload()
        steps.enter("known hosts and keys")
        timer = self._passwords.timer
        deadline -= timer.seconds()  # from here on by the timer
        session = self.connect(route, deadline, steps)
        if isinstance(session, Failure):
            return session
        started = self._start(route, session, command, timer.real(deadline), window)
        if isinstance(started, Failure):
            session.end()
        else:
            started.steps = steps.taken()
        return started

    def open_pooled(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | None:
        """Do as ``open``, but only over a connection that is there; else None."""
        route = self._route(target)
        return None if isinstance(route, Failure) else self._reuse(route, command, deadline, window)

    def open_started(self, target: Target, command: str) -> Link | None:
        """Do as ``open_pooled``, but only where ``command`` runs already: never waits."""
        route = self._route(target, runs=False)
        if isinstance(route, Failure):
            return None
        return self._reuse(route, command, 0.0, None, started=True)

    def _reuse(
        self,
        route: Route,
        command: str,
        deadline: float,
        window: Window | None,
        *,
        started: bool = False,
    ) -> Link | None:
        """A link over a connection that is there; None where a new one is needed.

        started: only where ``command`` has started already.
        """
        if self.session_pool is None:
            return None
        session = self.session_pool.take(route, command if started else None)
        if session is None:
            return None
        soon = min(deadline, time.monotonic() + _PROOF)
        link = self._start(route, session, command, soon, window)
        if isinstance(link, Link):
            return link
        session.end()
        return None

    def _start(
        self, route: Route, session: Session, command: str, deadline: float, window: Window | None
    ) -> Link | Failure:
        from dispatcher.transport.ssh.session import ParamikoLink

        config, pool, steps = route[-1], self.session_pool, session.steps
        session.environment = config.environment
        session.set_keepalive(*self._alive.limits(config.alive_interval, config.alive_count))
        release = None if pool is None else lambda ended: pool.give(route, ended)
        steps.enter("channel")
        if window is None and (ready := session.take_standby(command, deadline)) is not None:
            return ParamikoLink(session, ready, release)
        channel, problem = session.open_ssh_channel(deadline)
        refused = Failure(Kind.DROPPED, f"the host refuses to open a channel: {problem}")
        if channel is not None and window is not None:
            steps.enter("terminal")
            problem = session.request_pty(channel, window, deadline)
            refused = Failure(Kind.BOOT, "the host refuses to give a terminal")
        if channel is not None and not problem:
            steps.enter("command start")
            problem = session.execute(channel, command, deadline)
            refused = Failure(Kind.BOOT, "the host refuses to run a command")
        if channel is None or problem:
            return why_broken(session, deadline) if problem in ("late", "gone") else refused
        session.stream.acknowledge = None  # from now on sshd holds back nothing
        return ParamikoLink(session, channel, release)

    def prepare(self, command: str) -> None:
        if self.session_pool is not None:
            self.session_pool.stand_by(command)

    def close(self) -> None:
        if self.session_pool is not None and self._owns_pool:
            self.session_pool.close()
        with self._lock:
            jump_hosts = list(self._jump_hosts.values())
            self._jump_hosts.clear()
        for jump_host in jump_hosts:
            jump_host.close()
        self._identities.close()
        self._pump.close()

    def connect(
        self, route: Route, deadline: float, steps: Steps, *, jump: bool = False
    ) -> Session | Failure:
        """A logged-in session with the last host of the route, through those before it.

        deadline: by the timer of the passwords. jump: it leads on to other hosts.
        """
        from dispatcher.transport.ssh.session import Session, offered_algorithms

        config = route[-1]
        offered = offered_algorithms(dict(config.algorithms))
        for name, left in offered.items():
            if not left:
                why = f"ssh_config allows none of the {name} that we have"
                return Failure(Kind.CONFIG, why, SSH_HINT)
        index = self._known_hosts.index((*config.user_known_hosts, *config.global_known_hosts))
        policy = self._host_keys or config.host_keys
        if "publickey" in config.methods:
            self._identities.load_first(config)
        login = LoggingIn(config, deadline, self._identities, self._passwords, jump=jump)
        timer = self._passwords.timer
        while True:
            stream = self._reach(route, deadline, steps)
            if isinstance(stream, Failure):
                return stream
            check = HostKeyCheck(config, index, policy, stream.address)
            session = Session(stream, check, offered, steps)
            until = timer.real(min(deadline, timer.now() + self._seconds))
            done = session.handshake(until)
            failure = login.run(session) if done else why_broken(session, until)
            if failure is None:
                break
            session.end()
            if not (done and login.goes_on):
                return failure
        with self._lock:
            self._made.add(session)
        return session

    def serves(self) -> bool:
        """Whether a connection that was made here, or leads on to others, is still there."""
        with self._lock:
            made = [*self._made]
        return any(session.active for session in made)

    def _route(self, target: Target, *, runs: bool = True) -> Route | Failure:
        """All hosts on the way to one, itself last; by config alone, nothing is contacted.

        runs: as for ``SshConfig.resolve``.
        """
        config = self._config.resolve(target, runs=runs)
        if isinstance(config, Failure):
            return config
        route = [config]
        while route[0].jumps:
            if len(route) > _MAX_HOPS:
                why = f"more than {_MAX_HOPS} jumps; does {route[0].name} jump through itself?"
                return Failure(Kind.CONFIG, f"ProxyJump: {why}")
            *before, last = route[0].jumps
            hop = self._config.resolve(last, runs=runs)
            if isinstance(hop, Failure):
                return dataclasses.replace(hop, why=f"jump host {last.host}: {hop.why}")
            if before:  # "-J a,b": the way to b is a, whatever b's own config says
                hop = dataclasses.replace(hop, jumps=tuple(before), proxy_command=None)
            route.insert(0, hop)
        return tuple(route)

    def _reach(self, route: Route, deadline: float, steps: Steps) -> ByteStream | Failure:
        config = route[-1]
        if len(route) > 1:
            steps.enter("jump host")
            return self._jump_host(route[:-1]).reach(config, deadline, self._seconds)
        if config.proxy_command is not None:
            steps.enter("proxy command")
            return byte_stream.over_command(config.proxy_command, self._pump)
        seconds = min(self._seconds, config.connect_timeout or math.inf)
        deadline = min(self._passwords.timer.real(deadline), time.monotonic() + seconds)
        family, source = config.family, config.bind_address
        sock = dial(config.host, config.port, deadline, family=family, source=source, steps=steps)
        return sock if isinstance(sock, Failure) else byte_stream.over_socket(sock)

    def _jump_host(self, route: Route) -> JumpHost:
        def connect(deadline: float) -> Session | Failure:
            return self.connect(route, deadline, Steps("jump host"), jump=True)

        with self._lock:
            if route not in self._jump_hosts:
                self._jump_hosts[route] = JumpHost(route[-1].name, connect, self._passwords.timer)
            return self._jump_hosts[route]
