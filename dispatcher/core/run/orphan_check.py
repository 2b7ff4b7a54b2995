"""A new look at hosts that were given up with living ranks: proof in place of patience. Pure.

Of such a host only time is known: when its lease has run out (``restart.fence``), its
agent has ended the ranks, or its guardian has. A new connection that ends what still
carries the run's id, and then finds nothing more, is proof. The next attempt need not
wait any longer, and what nobody there could end, with agent and guardian killed or
stopped at once, is ended.

When: at once where the agent's process was seen to end, since whoever could have swept
has done so or is dead. Otherwise as late as the fence allows: who lives there sweeps by
itself, and knows its children by descent, not only by the run's id. A host that does
not answer is left to its lease.

Not looked at: a host that is, or may be, another linked one by a second name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dispatcher.core.events.actions import Action, CheckOrphans
from dispatcher.core.run.restart import SWEEP


class OrphanCheck:
    """When to look at which hosts; from the end of one attempt to the start of the next.

    connect: seconds in which a host that answers is reached.
    """

    def __init__(self, connect: float) -> None:
        self._connect = connect
        self._due: dict[int, float] = {}

    def plan(self, fences: Mapping[int, float], over: Collection[int], now: float) -> list[Action]:
        """The looks to take now. fences: host -> when its lease has surely run out; over:
        those whose agent's process was seen to end.
        """
        closed = {host: when for host, when in fences.items() if when > now}
        at_once = [host for host in closed if host in over]
        self._due = {host: when - SWEEP for host, when in closed.items() if host not in over}
        return [CheckOrphans(host, self._connect) for host in at_once] + self.tick(now)

    def tick(self, now: float) -> list[Action]:
        """The looks that are due at ``now``."""
        due = [host for host, when in self._due.items() if when <= now]
        for host in due:
            del self._due[host]
        return [CheckOrphans(host, SWEEP) for host in due]

    def forget(self) -> None:
        """The pause is over."""
        self._due.clear()

    @property
    def deadline(self) -> float | None:
        """When the next check is due; None: none is."""
        return min(self._due.values(), default=None)
