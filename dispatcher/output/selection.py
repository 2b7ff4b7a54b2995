"""What is shown: the grammar of ``--only-ranks``, and the sinks that keep to a choice."""

from __future__ import annotations

import re

from dispatcher.core.events.sink import Counts, Sink, Stamped
from dispatcher.model.errors import UsageError

_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


class Ranks:
    """A set of rank numbers, as a list of (first, last); ``3 in ranks``."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._spans = spans

    def __contains__(self, rank: int) -> bool:
        return any(first <= rank <= last for first, last in self._spans)


def parse_ranks(text: str, flag: str, size: int | None = None) -> Ranks:
    """The ranks of ``0,3-5``; ``none`` for none at all. size: of the world, if it is known.

    Raises: UsageError.
    """
    spans = []
    for part in [] if text == "none" else text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"{flag}: not a list of ranks: {text!r}", hint=f"{flag} 0,3-5")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise UsageError(f"{flag}: {part.strip()}: the first is larger than the last")
        if size is not None and last >= size:
            raise UsageError(f"{flag}: {last}: the world's ranks are 0-{size - 1}")
        spans.append((first, last))
    return Ranks(spans)


class _Chosen(Sink):
    """``sink``, to which all is passed on; subclasses choose the output."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def event(self, stamped: Stamped) -> None:
        self._sink.event(stamped)

    def gap(self, missing: Counts) -> None:
        self._sink.gap(missing)

    def say(self, line: str) -> None:
        self._sink.say(line)

    def tick(self, now: float) -> bool:
        return self._sink.tick(now)

    def close(self) -> None:
        self._sink.close()


class OnlyRanks(_Chosen):
    """``sink``, which hears the output of ``ranks`` only."""

    def __init__(self, sink: Sink, ranks: Ranks) -> None:
        super().__init__(sink)
        self._ranks = ranks

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if rank in self._ranks:
            self._sink.output(rank, stream, data)

    def gap(self, missing: Counts) -> None:
        chosen = {key: count for key, count in missing.items() if key[0] in self._ranks}
        if chosen:
            self._sink.gap(chosen)


class OnlyStreams(_Chosen):
    """``sink``, which hears these ``streams`` only."""

    def __init__(self, sink: Sink, streams: frozenset[int]) -> None:
        super().__init__(sink)
        self._streams = streams

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if stream in self._streams:
            self._sink.output(rank, stream, data)
