"""What a sink is."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.events import Event


@dataclass(frozen=True)
class Stamped:
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

    def close(self) -> None:
        """Nothing comes after this; flush and release."""
