"""The event of a host that was left out before anything was started."""

from __future__ import annotations

from dispatcher.core.events.run_events import Event
from dispatcher.model.frozen import value


@value
class HostExcluded(Event):
    """``host`` was found unfit, ``why``, and is no part of the run; ``by`` has its seat."""

    host: str
    why: str
    by: str | None = None
