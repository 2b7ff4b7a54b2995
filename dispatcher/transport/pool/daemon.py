"""The daemon: a process that holds connections for every launcher of its user.

It opens a channel over a connection that it has, or makes a connection if the launcher asked it to
keep one. It ends when it holds nothing any more. docs/design/exec.md explains it.

``python -m dispatcher.transport.pool.daemon``: started by ``daemon_socket.dial_or_start`` alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from dispatcher.bootstrap import shell
from dispatcher.model.errors import DispatchError
from dispatcher.model.failure import Failure
from dispatcher.model.paths import keep_memory_ours
from dispatcher.transport.base import Keepalive, Link, Target, Window
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_client import Ask, Client
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport, preload
from dispatcher.transport.ssh.shared_sessions import SessionPool
from dispatcher.transport.ssh_auth.passwords import AnyPassword, Outcome, Passwords
from dispatcher.transport.ssh_config.ssh_config import SshConfig

#: seconds between two searches for connections to close
POLL = 1.0
#: seconds without any connection or client after which the daemon ends
LINGER = 5.0
_AGENT = "SSH_AUTH_SOCK"
#: readings of the configuration that are remembered, beside those whose connections are there
MOST_READINGS = 16


class Daemon:
    """Serves clients until nothing is held. listener: as ``daemon_socket.listen`` gives it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._pool = SessionPool()
        self._lock = threading.Lock()
        self._readings: dict[str, ParamikoTransport] = {}
        self._connecting: list[str] = []  # readings, once for each connection being made
        self._clients = 0
        self._last = time.monotonic()
        self._idle = 600.0
        self._is_due = False  # connections may have become idle

    def run(self) -> None:
        """Serve this user's launchers; returns after ``LINGER`` seconds with nothing held."""
        self._listener.settimeout(POLL)
        while not self._over():
            try:
                link, _ = self._listener.accept()
            except TimeoutError:
                self._pool.drop(self._idle)
                if self._is_due:  # no client has called, though a long job may run
                    # a host that takes nothing must not delay the next client
                    threading.Thread(target=self.stand_by, name="stand by", daemon=True).start()
                continue
            except OSError:  # too many files are open: keep what is held, let the caller wait
                time.sleep(POLL)
                continue
            if daemon_socket.uid_of(link) != os.geteuid():
                link.close()
                continue
            link.settimeout(None)
            with self._lock:
                self._clients += 1
            threading.Thread(target=self._serve, args=(link,), name="client", daemon=True).start()

    def _over(self) -> bool:
        with self._lock:
            if self._clients or self._pool.names():
                self._last = time.monotonic()
            return time.monotonic() - self._last > LINGER

    def close(self) -> None:
        """Close all connections that are held."""
        self._pool.close()

    def _serve(self, link: socket.socket) -> None:
        try:
            Client(link, self).serve()
        finally:
            with self._lock:
                self._clients -= 1
                self._is_due, resting = True, not self._clients
            if resting:
                self.stand_by()

    def stand_by(self) -> None:
        """Start over idle connections the shell that the next command will need."""
        self._is_due = False
        self._pool.stand_by(shell.COMMAND)

    # -- what a client asks for -----------------------------------------------------------

    def listed(self) -> dict[str, Any]:
        """The hosts, the idle seconds until their connections close, our process id."""
        return {"hosts": self._pool.names(), "idle": self._idle, "pid": os.getpid()}

    def drop(self, names: set[str] | None) -> None:
        """Close the idle connections to ``names``, or all."""
        self._pool.drop(names=names)

    def at_hand(self, order: dict[str, Any], ask: Ask) -> Link | None:
        """The link to the command of ``order`` if it runs already; never waits."""
        if order["window"] is not None:
            return None
        return self._reading(order, ask).open_started(_target(order), order["command"])

    def open(self, order: dict[str, Any], ask: Ask) -> Link | Failure | None:
        """The link to the command of ``order``; None if no connection is kept or wanted."""
        connects = order["keep"] is not None
        transport = self._reading(order, ask, connects=connects)
        deadline = time.monotonic() + float(order["seconds"])
        window = None if order["window"] is None else Window(*order["window"])
        if not connects:
            return transport.open_pooled(_target(order), order["command"], deadline, window)
        self._idle = float(order["keep"])
        try:
            return transport.open(_target(order), order["command"], deadline, window)
        finally:
            with self._lock:
                self._connecting.remove(str(order["run"]))

    def _reading(
        self, order: dict[str, Any], ask: Ask, *, connects: bool = False
    ) -> ParamikoTransport:
        """The transport of one launcher, which has read the files of that launcher.

        connects: it is about to make a connection. A transport that has made connections is needed
        as long as they last: it also holds those to their jump hosts.
        """
        run = str(order["run"])
        with self._lock:
            known = self._readings.get(run)
            if known is None:
                known = self._readings[run] = ParamikoTransport(
                    config=SshConfig(
                        order["config"],
                        environ=_environ(order["agent"]),
                        sends=order.get("sends", {}),
                    ),
                    host_keys=order["host_keys"],
                    passwords=FarPasswords(ask, *order["asks"]),
                    keep=self._pool,
                    alive=Keepalive(*order["alive"]),
                    reach=order.get("reach") or math.inf,
                )
            if connects:
                self._connecting.append(run)
            spare = [
                name
                for name, one in self._readings.items()
                if name not in self._connecting and not one.serves()
            ]
            old = [self._readings.pop(name) for name in spare[:-MOST_READINGS]]
        for one in old:
            one.close()
        return known


class FarPasswords(Passwords):
    """The passwords of the launcher that calls, which keeps them and asks its user.

    ask: as ``Client.ask``. hosts, jumps: whether a user types for hosts, and for jump hosts. The
    passphrase of a key is not asked for here: put that key into an agent.
    """

    def __init__(self, ask: Ask, hosts: bool, jumps: bool) -> None:
        super().__init__()
        self._ask = ask
        self._may = {False: hosts, True: jumps}

    def may_ask(self, *, jump: bool) -> bool:
        return self._may[jump]

    def of(self, user: str, name: str, *, jump: bool) -> AnyPassword:
        return FarPassword(self, user, name, jump)

    def answer(self, name: str, above: Sequence[str], prompt: str) -> str | None:
        answer = self.call("answer", name=name, above=list(above), prompt=prompt)
        return None if answer is None else str(answer)

    def call(self, what: str, **question: Any) -> Any:
        """The launcher's answer; its user may have to type, so no host's time runs."""
        self.timer.changed(True)
        try:
            return self._ask(what=what, **question)
        finally:
            self.timer.changed(False)


class FarPassword(AnyPassword):
    """One password of ``FarPasswords``; only the word that is being sent is here."""

    def __init__(self, passwords: FarPasswords, user: str, name: str, jump: bool) -> None:
        self._passwords = passwords
        self._whose = {"user": user, "name": name, "jump": jump}

    def take(self, who: object, deadline: float) -> str | None:
        seconds = deadline - self._passwords.timer.now()
        word = self._passwords.call("take", who=id(who), seconds=seconds, **self._whose)
        return None if word is None else str(word)

    def came(self, who: object, name: str, outcome: Outcome, *, again: bool = True) -> bool:
        told = {"who": id(who), "outcome": outcome, "again": again}
        return bool(self._passwords.call("came", **told, **self._whose))

    def why(self, name: str) -> str:
        return str(self._passwords.call("why", **self._whose) or "no answer from the user")


def _environ(agent: str | None) -> dict[str, str]:
    """Our environment, with the SSH agent of the launcher's login; our own agent may be gone."""
    others = {name: text for name, text in os.environ.items() if name != _AGENT}
    return others if agent is None else {**others, _AGENT: agent}


def _target(order: dict[str, Any]) -> Target:
    return Target(order["host"], order["user"], order["port"])


def main() -> None:
    """Be the daemon, unless one runs already; returns when nothing is held."""
    preload(alone=True)  # before it listens: callers wait for an answer only so long
    try:
        listener = daemon_socket.listen()
    except (DispatchError, OSError):
        return
    if listener is None:
        return
    os.chdir("/")
    _allow_open_files()
    keep_memory_ours()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    daemon = Daemon(listener)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the hosts see their links end
    try:
        daemon.run()
    finally:
        daemon_socket.remove_socket()
        daemon.close()


def _allow_open_files() -> None:
    """Allow as many open files as we may: the launcher that started us knew its own hosts only."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
