"""``--trace FILE``: where the time of a run went, for chrome://tracing or ui.perfetto.dev.

Each host is a process of the picture. Its line ``link`` has what it took to reach
it (the transport's steps), to start the agent (boot), to look at the host (check)
to wait for the others and to start the ranks (spawn); then one line for each rank: until its
first output (start), until its exit (run) and until its last byte arrived (drain).
A span is written when it ends, so memory holds only what is under way; whatever is
open at the end of the run ends there.

Format: "Trace Event Format" of the Chromium project; times in microseconds since the process
started. ``read`` takes such a file as far as it goes: complete events (X), instants (i) and names
(M), one a line. A run that was killed leaves the array open; whole lines count.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.errors import FileUnusable
from dispatcher.model.paths import anew, write_all
from dispatcher.plan.job import placement

#: the picture's process of the launcher itself; host n is n + 1
LAUNCHER = 0
#: the line of a host's link; rank r is on line r + 1
LINK = 0


class Spans(Sink):
    """What took time in a run, of its events; a subclass keeps it: ``complete``, ``instant``.

    A line is (process, line of it); times are seconds since the run began.
    """

    #: what a rank does first
    first = "start"

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], tuple[str, float]] = {}  # line -> (name, since)
        self._places: dict[int, tuple[int, int]] = {}  # rank -> its line
        self._open_streams: dict[int, int] = {}
        self._silent: set[int] = set()  # ranks whose first byte has not come

    def complete(
        self, line: tuple[int, int], name: str, since: float, until: float, **details: Any
    ) -> None:
        """``name`` took that long on ``line``."""

    def instant(self, line: tuple[int, int], name: str, now: float, **details: Any) -> None:
        """``name`` happened on ``line``."""

    def names(self, process: int, name: str, line: int | None = None) -> None:
        """``process``, or a line of it, is called ``name``."""

    def begin(self, hosts: Sequence[str]) -> None:
        """Name the lines that every run has. hosts: names of the nodes."""
        self.names(LAUNCHER, "dispatch")
        for node, host in enumerate(hosts):
            self.names(node + 1, host)
            self.names(node + 1, "link", LINK)

    def end(self, now: float) -> None:
        """Whatever is under way ends now."""
        for line in list(self._spans):
            self._end(line, now)

    def event(self, entry: Entry) -> None:
        event, now = entry.event, entry.t
        match event:
            case ev.NodeConnecting(node):
                self._turn((node + 1, LINK), "connect", now)
            case ev.NodeConnected(node, steps=steps):
                at = now - sum(seconds for _, seconds in steps)
                for name, seconds in steps:
                    self.complete((node + 1, LINK), name, at, at + seconds)
                    at += seconds
                self._turn((node + 1, LINK), "boot", now)
            case ev.NodeBooted(node):
                self._turn((node + 1, LINK), "check", now)
            case ev.NodeReady(node):
                self._turn((node + 1, LINK), "wait for others", now)
            case ev.NodeProbed(node):
                self.instant((node + 1, LINK), "probed", now)
            case ev.RanksPlaced():
                for line in [line for line in self._spans if line[1] == LINK]:
                    self._turn(line, "spawn", now)
                self.instant((LAUNCHER, LINK), event.name, now)
            case ev.RankSpawned(node, rank):
                if self._spans.get((node + 1, LINK), ("",))[0] == "spawn":
                    self._turn((node + 1, LINK), "ranks", now)
                self._places[rank] = (node + 1, rank + 1)
                self.names(node + 1, f"rank {placement.name(rank)}", rank + 1)
                self._open_streams[rank] = 2
                self._silent.add(rank)
                self._turn(self._places[rank], self.first, now)
            case ev.RankExited(rank=rank, status=status) if rank in self._places:
                self._turn(self._places[rank], "drain", now, status=status)
            case ev.OutputEnded(rank=rank) if rank in self._places:
                self._open_streams[rank] -= 1
                if self._open_streams[rank] == 0:
                    self._end(self._places.pop(rank), now)
            case ev.NodeSwept(node) | ev.NodeLost(node):
                self._end((node + 1, LINK), now)
                self.instant((node + 1, LINK), event.name, now)
            case ev.NodeNoticed(node, text):
                self.instant((node + 1, LINK), text, now)
            case mpi_events.PmiCommitted(node, fence=fence):
                self.instant((node + 1, LINK), f"MPI barrier {fence}", now)
            case ev.JobStopping() | ev.SignalReceived() | ev.RunFinished():
                self.instant((LAUNCHER, LINK), event.name, now, **vars(event))

    def _turn(self, line: tuple[int, int], name: str, now: float, **details: Any) -> None:
        """What was under way on ``line`` is over; ``name`` begins."""
        self._end(line, now, **details)
        self._spans[line] = (name, now)

    def _end(self, line: tuple[int, int], now: float, **details: Any) -> None:
        if line in self._spans:
            name, since = self._spans.pop(line)
            self.complete(line, name, since, now, **details)


class Trace(Spans):
    """Writes to ``path``, anew, mode 0600; ``warn`` hears once of a disk that refuses.

    hosts: names of the nodes. before: seconds from the start of the process to the start
    of the run. Raises: OSError if the file cannot be opened.
    """

    def __init__(
        self,
        path: str,
        hosts: Sequence[str],
        before: float,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._path = path
        self._warn = warn
        self._clock = clock
        self._before = before
        self._began: float | None = None  # by the clock
        self._early: set[int] = set()  # ranks whose bytes came before the news that they are there
        self._fd = anew(path)
        self._lines = 0
        self.begin(hosts)
        self.complete((LAUNCHER, LINK), "load and plan", -before, 0.0)

    def event(self, entry: Entry) -> None:
        if self._began is None:
            self._began = self._clock() - entry.t
        super().event(entry)
        match entry.event:
            case ev.RankSpawned(rank=rank) if rank in self._early:
                self._early.remove(rank)
                self._wrote(rank)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if rank in self._silent:
            self._wrote(rank)
        elif rank not in self._places:
            self._early.add(rank)

    def _wrote(self, rank: int) -> None:
        self._silent.remove(rank)
        if rank in self._places and self._began is not None:
            self._turn(self._places[rank], "run", self._clock() - self._began)

    def close(self) -> None:
        if self._began is not None:
            self.end(self._clock() - self._began)
        self._write(None)
        if self._fd >= 0:
            os.close(self._fd)

    def complete(
        self, line: tuple[int, int], name: str, since: float, until: float, **details: Any
    ) -> None:
        span = {"ph": "X", "name": name, **self._at(line, since)}
        self._write(span | {"dur": round(max(0.0, until - since) * 1e6), "args": details})

    def instant(self, line: tuple[int, int], name: str, now: float, **details: Any) -> None:
        point = {"ph": "i", "s": "p", "name": name, **self._at(line, now)}
        self._write(point | {"args": details})

    def names(self, process: int, name: str, line: int | None = None) -> None:
        about = {"pid": process, "tid": line or 0, "args": {"name": name}}
        self._write({"ph": "M", "name": "process_name" if line is None else "thread_name"} | about)

    def _at(self, line: tuple[int, int], when: float) -> dict[str, Any]:
        return {"pid": line[0], "tid": line[1], "ts": round((when + self._before) * 1e6)}

    def _write(self, record: dict[str, Any] | None) -> None:
        """One element of the array; None ends it."""
        start = ",\n" if self._lines else "[\n"
        text = "\n]\n" if record is None else start + json.dumps(record)
        self._lines += 1
        try:
            if self._fd >= 0:
                write_all(self._fd, text.encode())
        except OSError as error:
            os.close(self._fd)
            self._fd = -1
            self._warn(f"{self._path}: trace cannot be written: {(error.strerror or '').lower()}")


@dataclass(frozen=True)
class Span:
    """Something that took time on one line of one process; seconds since the run's start."""

    process: int
    line: int
    name: str
    since: float
    until: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.until - self.since


@dataclass(frozen=True)
class Moment:
    """Something that happened; ``at`` in seconds."""

    process: int
    name: str
    at: float


@dataclass(frozen=True)
class Timeline:
    """A whole trace: spans in time order, names of processes and of their lines."""

    spans: tuple[Span, ...]
    moments: tuple[Moment, ...]
    hosts: dict[int, str]
    lines: dict[tuple[int, int], str]
    ended: bool

    @property
    def seconds(self) -> float:
        """From the launcher's start to the last thing known."""
        ends = [span.until for span in self.spans] + [moment.at for moment in self.moments]
        return max(ends, default=0.0)

    @property
    def start(self) -> float:
        """When the last rank had begun to run, or all of it if none did."""
        begun = [span.until for span in self.spans if span.name == "start"]
        return max(begun, default=self.seconds)


def read(text: str, source: str) -> Timeline:
    """The timeline of a trace. Raises: UsageError naming the line that is none."""
    spans: list[Span] = []
    moments: list[Moment] = []
    hosts: dict[int, str] = {}
    lines: dict[tuple[int, int], str] = {}
    rows = text.splitlines()
    ended = bool(rows) and rows[-1].strip() == "]"
    for number, row in enumerate(rows, 1):
        row = row.strip().rstrip(",")
        if row in ("", "[", "]"):
            continue
        try:
            record = json.loads(row)
            kind, process, line = record["ph"], int(record["pid"]), int(record["tid"])
            name = str(record["name"])
            if kind == "M":
                label = str(record["args"]["name"])
                if name == "process_name":
                    hosts[process] = label
                else:
                    lines[process, line] = label
                continue
            at = _seconds(record["ts"])
            if kind == "X":
                spans.append(Span(process, line, name, at, at + _seconds(record["dur"])))
            elif kind == "i":
                moments.append(Moment(process, name, at))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            if number == len(rows) and not ended:
                break  # the run was killed in the middle of a line
            raise FileUnusable(
                f"{source}:{number}: not a line of a trace",
                hint="dispatch --trace run.json -H hostfile train.py  # writes one",
            ) from None
    if not spans:
        raise FileUnusable(f"{source}: no trace in it", hint="dispatch --trace run.json ...")
    spans.sort(key=lambda span: (span.since, span.until))
    return Timeline(tuple(spans), tuple(moments), hosts, lines, ended)


def _seconds(microseconds: Any) -> float:
    """Raises: ValueError for what no clock shows, of which no picture could be drawn."""
    seconds = float(microseconds) / 1e6
    if not abs(seconds) < 1e12:
        raise ValueError("no time")
    return seconds
