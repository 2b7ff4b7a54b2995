"""What a sink is."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.core.events.run_events import Event
from dispatcher.model.frozen import Value, value

#: (rank, stream) -> bytes
Counts = Mapping[tuple[int, int], int]

#: seconds between two ticks
BEAT = 0.05


@value
class Stamped(Value):
    """An event on the spine: ``seq`` counts from 1, ``t`` is seconds since the run began."""

    seq: int
    t: float
    event: Event


class Sink:
    """Takes what happened, in order, on the sinks' thread. Subclasses override what they show."""

    def event(self, stamped: Stamped) -> None:
        """Something happened."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """``rank`` wrote ``data`` to ``stream`` (1 stdout, 2 stderr); any split, never empty."""

    def gap(self, missing: Counts) -> None:
        """Here these many bytes were left out, because this sink was too slow."""

    def say(self, line: str) -> None:
        """A line of dispatch itself for the user; only sinks that show something show it."""

    def tick(self, now: float) -> bool:
        """Time has passed; whether to be asked again in ``BEAT`` even if nothing happens.

        now: seconds, monotonic. Called at most once a ``BEAT``.
        """
        return False

    def close(self) -> None:
        """Nothing comes after this; flush and release."""
