"""Heartbeats on their way to the core: noted by the threads of hosts, told when somebody asks.

A beat changes nothing but when its host must be heard again. So it wakes nobody: the loop asks
for what has come before it lets the core judge who is late, and all of it is one event. A job
that only runs then costs the loop a look now and then, however many hosts it has.
"""

from __future__ import annotations

import time

from dispatcher.core.events.run_events import NodesHeard


class Beats:
    """The last beat of each host."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._told: dict[int, float] = {}

    def note(self, node: int) -> None:
        """``node`` gave its beat now; from any thread."""
        self._last[node] = time.monotonic()

    def news(self, now: float) -> NodesHeard | None:
        """Who gave a beat since the last call, and how long before ``now``; None: nobody."""
        last = self._last.copy()  # at once: others go on to note
        new = {node: when for node, when in last.items() if when != self._told.get(node)}
        self._told = last
        ago = tuple(max(0.0, now - when) for when in new.values())
        return NodesHeard(tuple(new), ago) if new else None
