"""``LocalTransport``: the command runs on this host, no network and no ssh.

For a single node, for tests, and for sites where the launcher already runs on
the node (``--transport local``). The target's host name is not looked at.
"""

from __future__ import annotations

import time

from dispatcher.transport.base import Failure, Kind, Link, Target, Transport, Window
from dispatcher.transport.process.child import start
from dispatcher.transport.process.child_terminal import on_terminal
from dispatcher.transport.process.pump import Pump


class LocalTransport(Transport):
    """Runs ``/bin/sh -c command`` in its own session."""

    name = "local"

    def __init__(self) -> None:
        self._pump = Pump("transport:local:read")

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        if time.monotonic() >= deadline:
            return Failure(Kind.TIMEOUT, "no time left to start the command")
        argv = ("/bin/sh", "-c", command)
        opened = (
            start(argv, self._pump) if window is None else on_terminal(argv, self._pump, window)
        )
        if isinstance(opened, Link):
            opened.address = "127.0.0.1"
        return opened

    def close(self) -> None:
        self._pump.close()
