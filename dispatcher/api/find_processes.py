"""Last looks at hosts where nobody may be left to clean up: agent and guardian killed at once.

Ranks die with their agent (the kernel sees to that), but a child in a session of its own
does not, nor does the agent's private folder go, and both who would have ended these are dead.
The launcher lives and knows the run id, so it asks such a host once more, over a new connection:
an errand that ends what carries that id. Between two attempts the core says which hosts are
looked at, and when (``last_look``); at the end of the run those that are left. No run pays for it
in which no host is lost.

Not covered: a launcher that is killed in the same moment; for that there is ``dispatch sweep``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from signal import Signals

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.core.run.orphan_check import LookAgain, NodeCleared
from dispatcher.model.host_part import Host
from dispatcher.transport.base import Transport

#: seconds a look takes at most beyond the connecting: five rounds of killing, a second apart
ROUNDS = 8.0
#: seconds that looks still under way are waited for at the end of the run
PATIENCE = 2.0


class Aftermath(Sink):
    """Looks at ``hosts``, by number, and notes which were left with nobody to clean up.

    run_id: whose processes are ended. tell: takes what a look between two attempts has shown.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        run_id: str,
        transport_for: Callable[[Host], Transport],
        tell: Callable[[ev.Event], None],
    ) -> None:
        self._all = hosts
        self._run_id = run_id
        self._transport_for = transport_for
        self._tell = tell
        self._busy: set[int] = set()  # an agent is at work there
        self._left: set[int] = set()
        self._looks: list[threading.Thread] = []

    @property
    def hosts(self) -> list[Host]:
        """Where agent and guardian were killed, and nobody has looked since."""
        return [self._all[host] for host in sorted(self._left)]

    def event(self, stamped: Stamped) -> None:
        match stamped.event:
            case ev.NodeBooted(host):
                self._busy.add(host)
            case ev.NodeDying(host):
                self._busy.discard(host)  # the agent cleans up
            case ev.NodeLost(host, _, ending) if host in self._busy:
                self._busy.discard(host)
                if ending is not None and ending.signal is not None:
                    self._left.add(host)
            case NodeCleared(host):
                self._left.discard(host)

    def look_again(self, look: LookAgain) -> None:
        """Look at a host on a thread of its own; tells ``NodeCleared`` if nothing is left."""
        name = f"look:{self._all[look.node].name}"
        thread = threading.Thread(target=self._look, args=(look,), name=name, daemon=True)
        self._looks.append(thread)
        thread.start()

    def _look(self, look: LookAgain) -> None:
        from dispatcher.api.tagged import LIMITS, look_by  # for runs that lose a host

        host = self._all[look.node]
        limits = replace(LIMITS, connect=look.seconds, total=look.seconds + ROUNDS)
        ids = [self._run_id]
        seen = look_by(self._transport_for, [host], ids, kill=True, limits=limits, handled=())
        found = [one.what for one in seen.found[host.name]]
        if not seen.failures and "left" not in found:
            self._tell(NodeCleared(look.node, found.count("killed")))

    def clean(self, handled: Sequence[Signals], also: Sequence[Host] = ()) -> list[str]:
        """End what the run has left on ``hosts``; what was done, in words.

        handled: the signals that end this. also: hosts to be looked at in any case.
        """
        end = time.monotonic() + PATIENCE
        for thread in self._looks:
            thread.join(max(0.0, end - time.monotonic()))
        hosts = [*self.hosts, *also]
        if not hosts:
            return []
        from dispatcher.api.tagged import look_by, summary

        ids = [self._run_id]
        seen = look_by(self._transport_for, hosts, ids, kill=True, handled=handled)
        ended = summary(seen.found, "killed", "removed")
        ended = [f"note: {line}, left behind" for line in ended]
        return [*ended, *summary(seen.found, "left", "kept"), *seen.failures]
