"""A last look at hosts where nobody was left to clean up: agent and guardian killed at once.

Ranks die with their agent (the kernel sees to that), but a child in a session of its own
does not, and both who would have ended it are dead. The launcher lives and knows the run id, so
it asks such a host once more, over a new connection: an errand that ends what carries that
id. No run pays for it in which this does not happen.

Not covered: a launcher that is killed in the same moment; for that there is ``dispatch sweep``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from signal import Signals

from dispatcher.core import events as ev
from dispatcher.plan.host import Host
from dispatcher.runner.host import AGENT_KILLED
from dispatcher.sinks.base import Sink, Stamped
from dispatcher.transport.base import Transport


class Aftermath(Sink):
    """Notes which of ``hosts``, by number, were left with nobody to clean up."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._all = hosts
        self._busy: set[int] = set()  # ranks were started there
        self.hosts: list[Host] = []

    def event(self, stamped: Stamped) -> None:
        match stamped.event:
            case ev.RankSpawned(host):
                self._busy.add(host)
            case ev.NodeSwept(host) | ev.NodeDying(host):
                self._busy.discard(host)  # the agent cleans up, or has
            case ev.NodeLost(host, failure) if host in self._busy:
                self._busy.discard(host)
                if failure.why.startswith(AGENT_KILLED):
                    self.hosts.append(self._all[host])

    def clean(
        self,
        run_id: str,
        transport_for: Callable[[Host], Transport],
        handled: Sequence[Signals],
    ) -> list[str]:
        """End what the run has left on these hosts; what was done, in words.

        handled: the signals that end this.
        """
        if not self.hosts:
            return []
        from dispatcher.api.tagged import look_by, summary

        seen = look_by(transport_for, self.hosts, [run_id], kill=True, handled=handled)
        killed = [f"note: {line}, left behind" for line in summary(seen.found, "killed", "killed")]
        return [*killed, *summary(seen.found, "left", "error: could not kill"), *seen.failures]
