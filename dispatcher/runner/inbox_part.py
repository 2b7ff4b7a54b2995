"""What has happened and the loop has not looked at yet."""

from __future__ import annotations

import queue
import time

from dispatcher.core.events.run_events import Event, SignalReceived
from dispatcher.runner.inbox import LOOK


class Inbox:
    """Events in the order they came; ``put`` from any thread or signal handler."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        """Something happened."""
        self._events.put(event)

    def wait(self, due: float | None) -> list[Event]:
        """All there is, once there is something; [] when ``due`` or ``LOOK`` came before.

        due: a time of the monotonic clock.
        """
        wait = LOOK if due is None else min(max(0.0, due - time.monotonic()), LOOK)
        try:
            first = self._events.get(timeout=wait)
        except queue.Empty:
            return []
        return [first, *(self._events.get() for _ in range(self._events.qsize()))]

    def asks_to_leave(self) -> bool:
        """Whether a signal is in what nobody will look at any more; empties it."""
        asked = False
        while not self._events.empty():
            asked = isinstance(self._events.get(), SignalReceived) or asked
        return asked
