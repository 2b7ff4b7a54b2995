"""The process that holds connections, for every launcher of the user that calls.

A launcher says what to run where; the daemon opens a channel over a connection it has, or
makes one if it was asked to keep it, and hands bytes on. Every launcher has its own reading
of ssh_config and known_hosts (``run``), so a change of these files holds from the next one
on. While nobody calls, shells are started for the next commands
(``transport.ssh.shared_sessions``). It ends when it holds nothing any more.

``python -m dispatcher.transport.pool.daemon``: started by ``daemon_socket.call`` alone.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import Any

from dispatcher.bootstrap import shell
from dispatcher.model.errors import DispatchError
from dispatcher.model.failure import Failure
from dispatcher.transport.base import Keepalive, Link, Target, Window
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_client import Client
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport, preload
from dispatcher.transport.ssh.shared_sessions import SessionPool

#: seconds between two looks for connections that are to be closed
POLL = 1.0
#: seconds without any connection or client after which the daemon ends
LINGER = 5.0
#: readings of the configuration that are remembered, beside those that made a connection
MOST_READINGS = 16


class Daemon:
    """Serves clients until nothing is held. listener: as ``daemon_socket.listen`` gives it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._pool = SessionPool()
        self._lock = threading.Lock()
        self._readings: dict[str, ParamikoTransport] = {}
        self._connected: set[str] = set()  # readings that made connections
        self._clients = 0
        self._last = time.monotonic()
        self._idle = 600.0

    def run(self) -> None:
        """Serve whoever of this user calls; returns after ``LINGER`` seconds with nothing held."""
        self._listener.settimeout(POLL)
        while not self._over():
            try:
                link, _ = self._listener.accept()
            except TimeoutError:
                self._pool.drop(self._idle)
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
                resting = not self._clients
            if resting:
                self._pool.stand_by(shell.COMMAND)

    # -- what a client asks for -----------------------------------------------------------

    def listed(self) -> dict[str, Any]:
        """The hosts, the idle seconds until their connections close, our process id."""
        return {"hosts": self._pool.names(), "idle": self._idle, "pid": os.getpid()}

    def drop(self, names: set[str] | None) -> None:
        """Close the idle connections to ``names``, or all."""
        self._pool.drop(names=names)

    def at_hand(self, order: dict[str, Any]) -> Link | None:
        """The command of ``order`` where a shell waits for it: without waiting."""
        if order["window"] is not None:
            return None
        return self._reading(order).open_started(_target(order), order["command"])

    def open(self, order: dict[str, Any]) -> Link | Failure | None:
        """The command of ``order``; None where no connection is kept, nor is one to be."""
        transport = self._reading(order)
        deadline = time.monotonic() + float(order["seconds"])
        window = None if order["window"] is None else Window(*order["window"])
        if order["keep"] is None:
            return transport.open_pooled(_target(order), order["command"], deadline, window)
        self._idle = float(order["keep"])
        with self._lock:
            self._connected.add(order["run"])
        return transport.open(_target(order), order["command"], deadline, window)

    def _reading(self, order: dict[str, Any]) -> ParamikoTransport:
        """The transport of this dispatch, which has read its files for itself."""
        run = str(order["run"])
        with self._lock:
            known = self._readings.get(run)
            if known is None:
                known = self._readings[run] = ParamikoTransport(
                    config=order["config"],
                    host_keys=order["host_keys"],
                    keep=self._pool,
                    alive=Keepalive(*order["alive"]),
                )
            spare = [name for name in self._readings if name not in self._connected]
            for name in spare[:-MOST_READINGS]:
                del self._readings[name]
        return known


def _target(order: dict[str, Any]) -> Target:
    return Target(order["host"], order["user"], order["port"])


def main() -> None:
    """Be the daemon, if nobody is yet; returns when nothing is held."""
    try:
        listener = daemon_socket.listen()
    except (DispatchError, OSError):
        return
    if listener is None:
        return
    os.chdir("/")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    preload()
    daemon = Daemon(listener)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the hosts see their links end
    try:
        daemon.run()
    finally:
        daemon_socket.forget()
        daemon.close()


if __name__ == "__main__":
    main()
