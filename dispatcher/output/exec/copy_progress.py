"""How far a copy is, below the lines of a terminal: hosts, bytes, rate, what is left.

Loaded with the first copy that a terminal shows; nobody else pays for rich.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from rich.text import Text

from dispatcher.core.events import exec_events as vi
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.output.exec.copying import Told, size
from dispatcher.output.terminal.footer import clock, drawn
from dispatcher.output.terminal.outlet import Live
from dispatcher.output.terminal.terminal import Terminal
from dispatcher.output.text.counted import plural

#: seconds over which the rate is measured
RATE = 5.0
_BAR = 20


class CopyProgress(Sink):
    """told: what is known of each host's copy; its numbers grow meanwhile."""

    def __init__(self, told: Sequence[Told], clock: Callable[[], float] = time.monotonic) -> None:
        self._told = told
        self._clock = clock
        self._done = 0
        self._failed = 0
        self._seen: deque[tuple[float, int]] = deque()

    def event(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, vi.HostDone):
            self._done += 1
            self._failed += not vi.is_good(stamped.event.outcome)

    def lines(self, columns: int) -> list[tuple[bytes, int]]:
        """The footer: one line, no wider than ``columns``."""
        line = self._line(self._clock())
        line.truncate(columns, overflow="ellipsis")
        return drawn([line], columns)

    def _line(self, now: float) -> Text:
        sent, wanted = sum(one.bytes for one in self._told), sum(one.wanted for one in self._told)
        self._seen.append((now, sent))
        while now - self._seen[0][0] > RATE:
            self._seen.popleft()
        then, before = self._seen[0]
        rate = (sent - before) / (now - then) if now > then else 0.0
        part = min(1.0, sent / wanted) if wanted else 0.0
        line = Text(f"{self._done} of {plural(len(self._told), 'host')} ")
        if self._failed:
            line.append(f"({self._failed} failed) ", style="red")
        full = round(part * _BAR)
        line.append("\N{BOX DRAWINGS HEAVY HORIZONTAL}" * full, style="green")
        line.append("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (_BAR - full), style="dim")
        line.append(f" {size(sent)} of {size(wanted)}")
        if rate:
            line.append(f"  {size(rate)}/s  {clock((wanted - sent) / rate)} left")
        return line


class CopyTerminal(Terminal):
    """A terminal with the progress of a copy below its lines."""

    def __init__(self, progress: CopyProgress, stream: int, on_broken: Callable[[], None]) -> None:
        super().__init__(frozenset({stream}), stream, {stream: stream}, on_broken)
        self._progress = progress

    def refresh(self, now: float, live: Live) -> bool:
        return super().refresh(now, self._progress.lines)
