"""Who asks the agents for samples: at the start of their ranks, or later when somebody looks.

The one who samples also finds out where the ranks are, when that is asked for: then he gets
the modules for it and begins anew.
"""

from __future__ import annotations

from dispatcher.bootstrap import payload
from dispatcher.remote.protocol.frames import control
from dispatcher.runner.run.host_thread import Host

#: modules of the agent that take samples
PARTS = ("probe.sampler", "probe.usage", "probe.nvidia")


class Sampling:
    """every: seconds between two samples of a host; None until somebody wants some."""

    def __init__(self, every: float | None) -> None:
        self._every = every
        self._started: dict[int, Host] = {}

    def started(self, host: Host) -> None:
        """The ranks of ``host`` have been ordered to start."""
        self._started[host.node] = host
        if self._every is not None:
            self._order(host)

    def ask(self, seconds: float) -> None:
        """Sample every ``seconds``, if that is not done more often already; for good."""
        if self._every is None or seconds < self._every:
            self._every = seconds
            for host in self._started.values():
                self._order(host)

    def gather(self, host: Host, number: int, seconds: float) -> None:
        """Have ``host`` tell within ``seconds`` where its ranks are; see ``NodeStacks``."""
        order = {"number": number, "seconds": seconds}
        parts = payload.parts((*PARTS, "probe.stack_dump"))
        host.send(control("sample", seconds=self._every or 0.0, parts=parts, stacks=order))

    def _order(self, host: Host) -> None:
        parts = payload.parts(PARTS)
        host.send(control("sample", seconds=float(self._every or 0), parts=parts))
