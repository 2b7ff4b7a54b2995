"""Hosts that earlier jobs have lost, on which their ranks may still run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dispatcher.core.events.run_events import Entry, Event, NodeNoticed, NodeReady, Sink
from dispatcher.jobs import registry


class LostBefore(Sink):
    """Warns if an earlier job lost a host, whose old ranks may still run there, and how long.

    names: of the run's hosts. Hosts are identified by machine, because names may be reused.
    """

    def __init__(self, names: Sequence[str], tell: Callable[[Event], None]) -> None:
        self._names, self._tell = names, tell
        self._left = registry.left()
        self._machines: dict[str, str] = {}

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, NodeReady):
            node, machine = entry.event.node, entry.event.facts.machine
            self._machines[self._names[node]] = machine
            if seconds := self._left.pop(machine, 0.0):
                text = f"an earlier job lost it: that job's ranks may run on for {seconds:.0f} s"
                self._tell(NodeNoticed(node, text))

    def write_down(self, left: Mapping[str, float]) -> None:
        """Remember what this run has ``left``; see ``Report.may_run_on``. Raises: OSError."""
        known = {name: self._machines[name] for name in left if self._machines.get(name)}
        if known:
            registry.note_left({machine: left[name] for name, machine in known.items()})
