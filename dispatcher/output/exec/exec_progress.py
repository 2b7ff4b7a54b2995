"""Shows the progress of a fan-out command or a copy: notes, a line below the lines of a terminal.

A command: hosts done, failed, at work, slow. A copy: hosts, bytes, rate, time left. rich is loaded
when the first line is drawn: a quick command shows none.

``Passthrough`` shows the output of one host's terminal on the user's, byte for byte and not
sanitized, as ``ssh -t`` does: a full-screen program needs the whole terminal.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.hostset import fold
from dispatcher.model.names import clock, plural, size
from dispatcher.model.paths import write_all
from dispatcher.output.exec.host_results import CopyResult, outcome_text

if TYPE_CHECKING:
    from rich.text import Text


#: seconds after which hosts that are not done are named
SLOW = 5.0


class ExecNotes(Sink):
    """Prints a note for important events at once; with ``verbose``, for every step of a host.

    names: node -> name. say: writes one line.
    """

    def __init__(self, names: Sequence[str], say: Callable[[str], None], *, verbose: bool) -> None:
        self._names = names
        self._say = say
        self._verbose = verbose
        self._held: list[str] = []

    def close(self) -> None:
        if self._held:
            self._say(
                f"note: {fold(self._held)}: the command ended, but a process it started holds its "
                "output open; later output of that process is not shown"
            )

    def event(self, entry: Entry) -> None:
        text = self._always(entry.event)
        if text is None and self._verbose:
            text = self._detail(entry.event)
            if text is not None:
                text = f"{entry.t:.3f} s: {text}"
        if text is not None:
            self._say(f"note: {text}")

    def _always(self, event: ev.Event) -> str | None:
        match event:
            case ev.NodeConnecting(node, attempt) if attempt > 1:
                return f"{self._names[node]}: connection was dropped, attempt {attempt}"
            case exec_events.CommandEnded(node, held_open=True):
                self._held.append(self._names[node])
            case exec_events.StatusAsked(connecting, running, waiting):
                parts = [
                    f"{fold(self._names[node] for node in nodes)} {word}"
                    for nodes, word in (
                        (running, "running"),
                        (connecting, "connecting"),
                        (waiting, "not started"),
                    )
                    if nodes
                ]
                return f"stopping; {', '.join(parts) or 'all done'}; again to kill"
        return None

    def _detail(self, event: ev.Event) -> str | None:
        match event:
            case ev.NodeConnected(node, address, transport):
                return f"{self._names[node]}: connected to {address or 'it'} by {transport}"
            case ev.NodeBooted(node, noise):
                after = f" after {plural(noise, 'byte')} of noise" if noise else ""
                return f"{self._names[node]}: command started{after}"
            case exec_events.BatchStarted(number, total, nodes):
                return f"batch {number} of {total}: {fold(self._names[node] for node in nodes)}"
            case exec_events.HostDone(node, outcome):
                return f"{self._names[node]}: {outcome_text(outcome)}"
        return None


class ExecProgress(Sink):
    """The progress of a command; fed on the sinks' thread, drawn on the screen's.

    names: node -> name. It is drawn only after a host was reached, because until then dispatch may
    ask for a passphrase.
    """

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._names = names
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._connecting: set[int] = set()
        self._running: set[int] = set()
        self._done: set[int] = set()
        self._failed = 0
        self._reached = False
        self._batch = ""

    def event(self, entry: Entry) -> None:
        with self._lock:
            match entry.event:
                case ev.NodeConnecting(node):
                    self._connecting.add(node)
                case ev.NodeConnected():
                    self._reached = True
                case ev.NodeBooted(node):
                    self._connecting.discard(node)
                    self._running.add(node)
                case ev.NodeLost(node):
                    self._connecting.discard(node)
                case exec_events.BatchStarted(number, total):
                    self._batch = f" batch {number} of {total}"
                case exec_events.HostDone(node, outcome):
                    self._connecting.discard(node)
                    self._running.discard(node)
                    self._done.add(node)
                    self._failed += _has_failed(outcome)

    def lines(self, bars: Sequence[tuple[str, bytes]], columns: int) -> list[tuple[bytes, int]]:
        """The footer: the hosts' ``bars`` and a line, no wider than ``columns``."""
        with self._lock:
            if not self._reached:
                return []
            line = self._line()
        return _drawn(line, bars, columns)

    def _line(self) -> Text:
        seconds = self._clock() - self._began
        done, total = len(self._done), len(self._names)
        line = _head(done, self._failed, total, done / max(1, total))
        for nodes, word in ((self._running, "running"), (self._connecting, "connecting")):
            if nodes:
                named = f": {fold(self._names[n] for n in nodes)}" if seconds >= SLOW else ""
                line.append(f" {len(nodes)} {word}{named}")
        line.append(f"{self._batch} {clock(seconds)}")
        return line


def _has_failed(outcome: exec_events.Outcome) -> bool:
    return not (exec_events.is_good(outcome) or isinstance(outcome, exec_events.NotStarted))


def _head(done: int, failed: int, total: int, part: float) -> Text:
    """``3 of 8 hosts (1 failed)`` and a bar of which ``part`` is full."""
    from rich.text import Text  # a quick command, or one without a terminal, does not need it

    from dispatcher.output.terminal.footer import progress_bar

    line = Text(f"{done} of {plural(total, 'host')} ")
    if failed:
        line.append(f"({failed} failed) ", style="red")
    return line.append_text(progress_bar(part))


def _drawn(line: Text, bars: Sequence[tuple[str, bytes]], columns: int) -> list[tuple[bytes, int]]:
    from dispatcher.output.terminal.footer import bar_lines, cut_line, drawn

    return drawn([cut_line(one, columns) for one in (*bar_lines(bars), line)], columns)


#: seconds over which the rate is measured
RATE = 5.0


class CopyProgress(Sink):
    """The progress of a copy. copies: the state of each host's copy, which changes."""

    def __init__(
        self, copies: Sequence[CopyResult], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._copies = copies
        self._clock = clock
        self._done = 0
        self._failed = 0
        self._seen: deque[tuple[float, int]] = deque()

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, exec_events.HostDone):
            self._done += 1
            self._failed += _has_failed(entry.event.outcome)

    def lines(self, bars: object, columns: int) -> list[tuple[bytes, int]]:
        """The footer: one line, no wider than ``columns``."""
        return _drawn(self._line(self._clock()), (), columns)

    def _line(self, now: float) -> Text:
        sent = sum(one.bytes for one in self._copies)
        wanted = sum(one.wanted for one in self._copies)
        self._seen.append((now, sent))
        while now - self._seen[0][0] > RATE:
            self._seen.popleft()
        then, before = self._seen[0]
        rate = (sent - before) / (now - then) if now > then else 0.0
        part = min(1.0, sent / wanted) if wanted else 0.0
        line = _head(self._done, self._failed, len(self._copies), part)
        line.append(f" {size(sent)} of {size(wanted)}")
        if rate:
            line.append(f"  {size(rate)}/s  {clock((wanted - sent) / rate)} left")
        return line


class Passthrough(Sink):
    """Writes to ``fd``; on_broken: called once, when the reader has gone."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd: int | None = fd
        self._on_broken = on_broken

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if self._fd is None:
            return
        try:
            write_all(self._fd, data)
        except OSError:
            self._fd = None
            self._on_broken()
