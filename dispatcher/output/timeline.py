"""A run from its journal: time by phase, attempts, CPU, GPU and memory of its ranks. Pure.

``History`` folds the events. ``output.page`` draws it, ``phases`` sums up the times, and
``chrome_trace`` gives the same for chrome://tracing and ui.perfetto.dev (``--trace``; "Trace Event
Format" of the Chromium project).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import NodeSampled, RunBegan, RunClosed
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.core.events.verdicts import NodeFailed
from dispatcher.model.frozen import Document, value
from dispatcher.output.monitor.outliers import Outlier, outliers
from dispatcher.output.run_state import CpuShares
from dispatcher.output.text.verdict_text import headline
from dispatcher.plan.job.placement import rank_name

#: the node of dispatch itself; the rank of a host's link
LAUNCHER = LINK = -1


@dataclass(frozen=True)
class Span:
    """A phase of a host or of one of its ranks; seconds since the run began."""

    node: int
    rank: int
    name: str
    since: float
    until: float
    details: Mapping[str, Any] = field(default_factory=dict)


@value
class Phase(Document):
    """An element of ``dispatch report --json``: one kind of span of a run, in seconds.

    count: how many there were. slowest: whose took longest.
    """

    schema = "phase/1"

    name: str
    count: int
    shortest: float
    median: float
    longest: float
    slowest: str


def phases(spans: Iterable[Span], hosts: Sequence[str]) -> list[Phase]:
    """Every phase, in the order of ``spans``. hosts: names of the nodes."""
    found: dict[str, list[tuple[float, str]]] = {}
    for span in spans:
        took = found.setdefault(span.name, [])
        took.append((span.until - span.since, owner(span, hosts)))
    return [
        Phase(
            name,
            len(took),
            min(seconds for seconds, _ in took),
            statistics.median(seconds for seconds, _ in took),
            *max(took),
        )
        for name, took in found.items()
    ]


def owner(span: Span, hosts: Sequence[str]) -> str:
    """A host's name, or ``rank 3 on n1``."""
    host = hosts[span.node] if span.node < len(hosts) else f"host {span.node}"
    return host if span.rank == LINK else f"rank {rank_name(span.rank)} on {host}"


#: a figure -> its unit, in the order in which they are drawn
FIGURES = {
    "CPU": "% of one CPU",
    "GPU": "% of the time in which it computed",
    "memory": "GiB resident, of the rank and its children",
    "GPU memory": "GiB used on its GPU",
    "silence": "seconds since it wrote anything",
}
#: the least end of a scale: a second or two without a line do not count as silence
_LEAST_TOP = {"CPU": 100.0, "GPU": 100.0, "silence": 10.0}
#: rows and columns of a heat map at most, and the seconds of one before any are joined
MOST_ROWS, MOST_COLUMNS, FINEST = 256, 120, 0.125


class Heat:
    """One figure of every rank over time, in columns of equal ``width`` (seconds).

    When there are too many columns, each two are joined, so memory is bounded by ranks. A cell
    is the mean of its figures. top: the least end of a picture's scale.
    """

    def __init__(self, top: float = 0.0) -> None:
        self.top = top
        self.width = FINEST
        self.cells: dict[int, dict[int, tuple[float, float]]] = {}  # rank -> column -> sum, weight

    def add(self, rank: int, since: float, until: float, value: float) -> None:
        """Note that ``rank`` had ``value`` from ``since`` to ``until`` (seconds of the run)."""
        while until / self.width >= MOST_COLUMNS:
            self._join()
        row = self.cells.setdefault(rank, {})
        for column in range(int(since / self.width), int(until / self.width) + 1):
            first, last = column * self.width, (column + 1) * self.width
            weight = max(min(until, last) - max(since, first), 1e-9)
            total, before = row.get(column, (0.0, 0.0))
            row[column] = total + value * weight, before + weight

    def _join(self) -> None:
        self.width *= 2
        for rank, row in self.cells.items():
            joined: dict[int, tuple[float, float]] = {}
            for column, (total, weight) in row.items():
                others = joined.get(column // 2, (0.0, 0.0))
                joined[column // 2] = others[0] + total, others[1] + weight
            self.cells[rank] = joined

    @property
    def columns(self) -> int:
        return 1 + max((max(row) for row in self.cells.values() if row), default=-1)

    def row(self, rank: int) -> dict[int, float]:
        """Column -> mean, of ``rank``."""
        return {at: total / weight for at, (total, weight) in self.cells.get(rank, {}).items()}

    def rows(self) -> tuple[list[list[int]], list[dict[int, float]]]:
        """The rows of a picture: the ranks of each, and its means by column.

        With more than ``MOST_ROWS`` ranks, several share a row, which shows the most unusual one.
        """
        ranks = sorted(self.cells)
        group = -(-len(ranks) // MOST_ROWS)
        members = [ranks[at : at + group] for at in range(0, len(ranks), group)]
        cells = {rank: self.row(rank) for rank in ranks}
        columns = {at for row in cells.values() for at in row}
        usual = {
            at: statistics.median(row[at] for row in cells.values() if at in row) for at in columns
        }
        return members, [_oddest([cells[rank] for rank in few], usual) for few in members]

    def means(self) -> dict[int, float]:
        """Rank -> mean over all its time."""
        sums = {rank: [*map(sum, zip(*row.values(), strict=True))] for rank, row in
                self.cells.items() if row}  # fmt: skip
        return {rank: total / weight for rank, (total, weight) in sums.items()}


def _oddest(rows: Sequence[Mapping[int, float]], usual: Mapping[int, float]) -> dict[int, float]:
    """Make one row of several: in each column the value farthest from the median of all ranks."""
    columns = {at for row in rows for at in row}
    return {
        at: max((row[at] for row in rows if at in row), key=lambda value: abs(value - usual[at]))
        for at in columns
    }


#: a sample is valid for the time since the last one of its rank, unless that is so many times as
#: long as the shortest such time: then the time between is unknown
GAP = 4.0


@dataclass
class RankLife:
    """A rank of one attempt; until, status: None until it exits."""

    node: int
    since: float
    until: float | None = None
    status: int | None = None


@dataclass
class Try:
    """An attempt, since its ranks were placed. first: the rank that failed before the others."""

    restart: int
    since: float
    world_size: int
    ranks: dict[int, RankLife] = field(default_factory=dict)
    until: float | None = None
    first: int | None = None
    why: str = ""

    def hosts(self, now: float) -> list[tuple[int, float, float]]:
        """(node, when its first rank began, when the last ended), ``now`` if it still runs."""
        found: dict[int, tuple[float, float]] = {}
        for life in self.ranks.values():
            since, until = found.get(life.node, (life.since, life.since))
            ended = now if life.until is None else life.until
            found[life.node] = min(since, life.since), max(until, ended)
        return [(node, *span) for node, span in sorted(found.items())]


GIB = 2.0**30


class History(Sink):
    """A run from its journal, whole or so far.

    began, closed: the journal's first and last event. tries: the attempts. lost: (when, host).
    hosts: names of the nodes. The spans of a host are connect (beside it the transport's steps),
    boot (the agent starts), check, wait for others, spawn, ranks; those of a rank are run (until
    its exit) and drain (until its last byte has arrived).
    """

    def __init__(self) -> None:
        self.began: RunBegan | None = None
        self.closed: RunClosed | None = None
        self.hosts: tuple[str, ...] = ()
        self.tries: list[Try] = []
        self.heats = {name: Heat(_LEAST_TOP.get(name, 0.0)) for name in FIGURES}
        self.lost: list[tuple[float, int]] = []
        self.moments: list[Span] = []  # without length
        self.seconds = 0.0
        self._spans: list[Span] = []
        #: open phases: (node, rank) -> (name, since)
        self._open: dict[tuple[int, int], tuple[str, float]] = {}
        self._places: dict[int, tuple[int, int]] = {}  # rank -> its node, and itself
        self._open_streams: dict[int, int] = {}
        self._shares = CpuShares()
        #: rank -> last sample, shortest time between
        self._seen: dict[int, tuple[float, float]] = {}

    def spans(self) -> list[Span]:
        """All phases, in order; open phases end with the last event."""
        now = self.seconds
        still = [Span(*line, name, at, max(at, now)) for line, (name, at) in self._open.items()]
        return sorted([*self._spans, *still], key=lambda span: (span.since, span.until))

    def event(self, entry: Entry) -> None:
        event, now = entry.event, entry.t
        self.seconds = max(self.seconds, now) if math.isfinite(now) else self.seconds
        match event:
            case RunBegan():
                self.began, self.hosts = event, event.hosts
            case ev.NodeConnecting(node):
                self._turn((node, LINK), "connect", now)
            case ev.NodeConnected(node, steps=steps):
                at = now - sum(seconds for _, seconds in steps)
                for name, seconds in steps:
                    self._spans.append(Span(node, LINK, name, at, at + seconds))
                    at += seconds
                self._turn((node, LINK), "boot", now)
            case ev.NodeBooted(node):
                self._turn((node, LINK), "check", now)
            case ev.NodeReady(node):
                self._turn((node, LINK), "wait for others", now)
            case ev.NodeProbed(node):
                self._happened(node, "probed", now)
            case ev.NodeNoticed(node, text):
                self._happened(node, text, now)
            case mpi_events.PmiCommitted(node, fence=fence):
                self._happened(node, f"MPI barrier {fence}", now)
            case ev.RanksPlaced(size, restart=restart):
                for line in [line for line in self._open if line[1] == LINK]:
                    self._turn(line, "spawn", now)
                self._happened(LAUNCHER, event.name, now)
                self._over(now)
                self.tries.append(Try(restart, now, size))
                self._seen.clear()
            case ev.RankSpawned(node, rank):
                self._spawned(node, rank, now)
            case ev.RankExited(node, rank, status):
                self._exited(node, rank, status, now)
            case ev.OutputEnded(rank=rank) if rank in self._places:
                self._open_streams[rank] -= 1
                if self._open_streams[rank] == 0:
                    self._end(self._places.pop(rank), now)
            case NodeSampled():
                self._sampled(event, now)
            case ev.NodeSwept(node) | ev.NodeLost(node):
                self._end((node, LINK), now)
                self._happened(node, event.name, now)
                if isinstance(event, ev.NodeLost):
                    self.lost.append((now, node))
            case ev.HostReplaced(node) | ev.HostLeftOut(node):
                self._end((node, LINK), now)
            case ev.RunRestarting(cause) if self.tries and self.tries[-1].until is None:
                self._over(now)
                self.tries[-1].why = headline(cause, self.hosts)
                if isinstance(cause, NodeFailed):
                    self._end((cause.node, LINK), now)
                    self.lost.append((now, cause.node))
            case ev.JobStopping() | ev.SignalReceived() | ev.RunFinished():
                self._happened(LAUNCHER, event.name, now, **vars(event))
                if isinstance(event, ev.JobStopping) and self.tries:
                    self.tries[-1].why = self.tries[-1].why or event.why
                elif isinstance(event, ev.RunFinished):
                    self._over(now)
            case RunClosed(verdict, nodes=nodes):
                self.closed = event
                if verdict.cause is not None and self.tries:
                    self.tries[-1].why = headline(verdict.cause, [node.host for node in nodes])

    def _spawned(self, node: int, rank: int, now: float) -> None:
        if self._open.get((node, LINK), ("",))[0] == "spawn":
            self._turn((node, LINK), "ranks", now)
        self._places[rank] = (node, rank)
        self._open_streams[rank] = 2
        self._turn((node, rank), "run", now)
        self._shares.forget(rank)
        if self.tries:
            self.tries[-1].ranks[rank] = RankLife(node, now)

    def _exited(self, node: int, rank: int, status: int, now: float) -> None:
        if rank in self._places:
            self._turn(self._places[rank], "drain", now, status=status)
        if self.tries:
            last = self.tries[-1]
            life = last.ranks.setdefault(rank, RankLife(node, now))
            life.until, life.status = now, status
            if status and last.first is None and not last.why:
                last.first = rank

    def _happened(self, node: int, name: str, now: float, **details: Any) -> None:
        self.moments.append(Span(node, LINK, name, now, now, details))

    def _turn(self, line: tuple[int, int], name: str, now: float, **details: Any) -> None:
        self._end(line, now, **details)
        self._open[line] = (name, now)

    def _end(self, line: tuple[int, int], now: float, **details: Any) -> None:
        if line in self._open:
            name, since = self._open.pop(line)
            self._spans.append(Span(*line, name, since, max(since, now), details))

    def _over(self, now: float) -> None:
        """End the attempt and its open ranks now."""
        if self.tries and self.tries[-1].until is None:
            self.tries[-1].until = now
            for life in self.tries[-1].ranks.values():
                life.until = now if life.until is None else life.until

    def _sampled(self, sample: NodeSampled, now: float) -> None:
        self._shares.take(sample)
        gpus = {gpu.index: gpu for gpu in sample.gpus}
        for rank in sample.ranks:
            before, usual = self._seen.get(rank.rank, (now, math.inf))
            usual = min(usual, now - before) if now > before else usual
            self._seen[rank.rank] = now, usual
            since = before if now - before <= GAP * usual else now
            gpu = gpus.get(rank.own[0]) if rank.own else None
            if gpu and gpu.memory and math.isfinite(gpu.memory):
                used = self.heats["GPU memory"]
                used.top = max(used.top, gpu.memory / GIB)
            figures = {
                "CPU": self._shares.of.get(rank.rank),
                "memory": rank.rss / GIB,
                "GPU": gpu.utilisation if gpu else None,
                "GPU memory": gpu.used / GIB if gpu and gpu.used is not None else None,
                "silence": rank.silent,
            }
            for figure, amount in figures.items():
                if amount is not None and math.isfinite(amount):
                    self.heats[figure].add(rank.rank, since, now, amount)

    def apart(self) -> list[tuple[str, Outlier]]:
        """(figure, rank with its mean and the median of all), for ranks unlike the others.

        Silence is left out, because in most jobs rank 0 writes and the others do not.
        """
        least = {"CPU": 25.0, "GPU": 25.0, "memory": 0.25, "GPU memory": 0.5}
        return [
            (figure, one)
            for figure, floor in least.items()
            for one in _few(outliers(
                self.heats[figure].means(), 0.25, fewest=4, least=floor, sigmas=5.0
            ), len(self.heats[figure].cells))
        ]  # fmt: skip

    def host_of(self, rank: int) -> str:
        """The name of the host where ``rank`` ran last; "" if it never ran."""
        for one in reversed(self.tries):
            if rank in one.ranks:
                node = one.ranks[rank].node
                return self.hosts[node] if node < len(self.hosts) else ""
        return ""


def _few(found: list[Outlier], count: int) -> Iterable[Outlier]:
    """``found``, or nothing if so many ranks differ that they have different tasks in the job."""
    return found if len(found) <= count / 4 else ()


def chrome_trace(history: History, before: float) -> Iterator[dict[str, Any]]:
    """The elements of a trace: process 0 is dispatch, a host n + 1; line 0 its link, a rank r + 1.

    before: seconds from the start of the process to that of the run. Times are microseconds.
    """
    spans = [Span(LAUNCHER, LINK, "load and plan", -before, 0.0), *history.spans()]
    names: dict[tuple[int, int | None], str] = {(LAUNCHER, None): "dispatch"}
    for node, host in enumerate(history.hosts):
        names |= {(node, None): host, (node, LINK): "link"}
    names |= {(s.node, s.rank): f"rank {rank_name(s.rank)}" for s in spans if s.rank != LINK}
    for (node, rank), name in names.items():
        kind = "process_name" if rank is None else "thread_name"
        line = {"pid": node + 1, "tid": 0 if rank is None else rank + 1}
        yield {"ph": "M", "name": kind, **line, "args": {"name": name}}
    for span in spans:
        yield {
            "ph": "X", "name": span.name, "pid": span.node + 1, "tid": span.rank + 1,
            "ts": round((span.since + before) * 1e6),
            "dur": round((span.until - span.since) * 1e6), "args": dict(span.details),
        }  # fmt: skip
    for one in history.moments:
        yield {
            "ph": "i", "s": "p", "name": one.name, "pid": one.node + 1, "tid": 0,
            "ts": round((one.since + before) * 1e6), "args": dict(one.details),
        }  # fmt: skip
