"""What took time in a run, and what its ranks did meanwhile; ``page`` draws it. Pure.

``read`` gives the spans and moments of a trace (``--trace``), whether or not its run has ended. The
format is the "Trace Event Format" of the Chromium project as far as ``output.files.trace`` writes
it: complete events (X), instants (i) and names (M), one a line, times in microseconds. A run that
was killed leaves the array open; whole lines count.

``History`` is the same of a journal, which knows more: attempts, how each rank ended, and what
samples saw, as a ``Heat`` for each figure.

``phases`` says where the time went: each phase over all hosts or ranks, and who was slowest.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import NodeSampled, RunBegan, RunClosed
from dispatcher.core.events.run_events import Entry
from dispatcher.model.errors import FileUnusable
from dispatcher.output.files.trace import LAUNCHER, LINK, Spans
from dispatcher.output.heat_map import FIGURES, Heat
from dispatcher.output.monitor.outliers import Outlier, outliers
from dispatcher.output.monitor.run_progress import CpuShares


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
            at = float(record["ts"]) / 1e6
            if kind == "X":
                spans.append(Span(process, line, name, at, at + float(record["dur"]) / 1e6))
            elif kind == "i":
                moments.append(Moment(process, name, at))
        except (ValueError, KeyError, TypeError, RecursionError):
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


@dataclass(frozen=True)
class Phase:
    """One kind of span: how many there were, and their seconds. slowest: whose took ``longest``."""

    name: str
    count: int
    shortest: float
    median: float
    longest: float
    slowest: str


def phases(timeline: Timeline) -> list[Phase]:
    """Every phase, in the order in which they first begin."""
    found: dict[str, list[tuple[float, str]]] = {}
    for span in timeline.spans:
        found.setdefault(span.name, []).append(
            (span.seconds, owner(timeline, span.process, span.line))
        )
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


def owner(timeline: Timeline, process: int, line: int) -> str:
    """``dispatch``, a host's name, or ``rank 3 on n1``."""
    host = timeline.hosts.get(process, f"process {process}")
    if process == LAUNCHER or line == LINK:
        return host
    return f"{timeline.lines.get((process, line), f'line {line}')} on {host}"


#: a sample stands for the time since the last one of its rank, unless that is this often as long
#: as the shortest such time was: then nothing is known of the time between
GAP = 4.0


@dataclass
class RankLife:
    """A rank of one attempt; until, status: None while it has not been seen to end."""

    node: int
    since: float
    until: float | None = None
    status: int | None = None


@dataclass
class Try:
    """An attempt: when its ranks were placed, how many, and what they did.

    first: the first rank to fail, if one did before the attempt was being ended.
    """

    restart: int
    since: float
    world_size: int
    ranks: dict[int, RankLife] = field(default_factory=dict)
    until: float | None = None
    first: int | None = None
    why: str = ""

    def hosts(self, now: float) -> list[tuple[int, float, float]]:
        """(node, when its first rank began, when the last ended), ``now`` for what goes on."""
        found: dict[int, tuple[float, float]] = {}
        for life in self.ranks.values():
            since, until = found.get(life.node, (life.since, life.since))
            ended = now if life.until is None else life.until
            found[life.node] = min(since, life.since), max(until, ended)
        return [(node, *span) for node, span in sorted(found.items())]


GIB = 2.0**30


class History(Spans):
    """A run of its journal. ``timeline`` may be asked at any time; the others grow.

    began, closed: the journal's first and last event. tries: the attempts. lost: (when, host).
    """

    first = "run"

    def __init__(self) -> None:
        super().__init__()
        self.began: RunBegan | None = None
        self.closed: RunClosed | None = None
        self.tries: list[Try] = []
        self.heats = {name: Heat(100.0 * unit.startswith("%")) for name, unit in FIGURES.items()}
        self.lost: list[tuple[float, int]] = []
        self.seconds = 0.0
        self._kept: list[Span] = []
        self._moments: list[Moment] = []
        self._hosts: dict[int, str] = {}
        self._lines: dict[tuple[int, int], str] = {}
        self._shares = CpuShares()
        self._seen: dict[
            int, tuple[float, float]
        ] = {}  # rank -> last sample, shortest time between

    def complete(
        self, line: tuple[int, int], name: str, since: float, until: float, **details: Any
    ) -> None:
        self._kept.append(Span(*line, name, since, max(since, until)))

    def instant(self, line: tuple[int, int], name: str, now: float, **details: Any) -> None:
        if line[0] == LAUNCHER:
            self._moments.append(Moment(line[0], name, now))

    def names(self, process: int, name: str, line: int | None = None) -> None:
        if line is None:
            self._hosts[process] = name
        else:
            self._lines[process, line] = name

    def event(self, entry: Entry) -> None:
        super().event(entry)
        event, now = entry.event, entry.t
        self.seconds = max(self.seconds, now) if math.isfinite(now) else self.seconds
        match event:
            case RunBegan():
                self.began = event
                self.begin(event.hosts)
            case RunClosed():
                self.closed = event
            case ev.RanksPlaced(size, restart=restart):
                self._over(now)
                self.tries.append(Try(restart, now, size))
                self._seen.clear()
            case ev.RankSpawned(node, rank) if self.tries:
                self._shares.forget(rank)
                self.tries[-1].ranks[rank] = RankLife(node, now)
            case ev.RankExited(node, rank, status) if self.tries:
                life = self.tries[-1].ranks.setdefault(rank, RankLife(node, now))
                life.until, life.status = now, status
                last = self.tries[-1]
                if status and last.first is None and not last.why:
                    last.first = rank
            case ev.JobStopping(why) if self.tries and not self.tries[-1].why:
                self.tries[-1].why = why
            case ev.NodeLost(node):
                self.lost.append((now, node))
            case ev.RunRestarting() | ev.RunFinished():
                self._over(now)
            case NodeSampled():
                self._sampled(event, now)

    def _over(self, now: float) -> None:
        if self.tries and self.tries[-1].until is None:
            self.tries[-1].until = now

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
            }
            for figure, value in figures.items():
                if value is not None and math.isfinite(value):
                    self.heats[figure].add(rank.rank, since, now, value)

    def timeline(self) -> Timeline:
        """Its spans so far; what is under way ends with what is known."""
        self.end(self.seconds)
        spans = sorted(self._kept, key=lambda span: (span.since, span.until))
        return Timeline(
            tuple(spans), tuple(self._moments), dict(self._hosts), dict(self._lines),
            self.closed is not None,
        )  # fmt: skip

    def apart(self) -> list[tuple[str, Outlier]]:
        """(figure, rank with its mean and the median of all), of ranks unlike the others."""
        least = {"CPU": 25.0, "GPU": 25.0, "memory": 0.25, "GPU memory": 0.5}
        return [
            (figure, one)
            for figure, heat in self.heats.items()
            for one in _few(outliers(
                heat.means(), 0.25, fewest=4, least=least[figure], sigmas=5.0
            ), len(heat.cells))
        ]  # fmt: skip


def _few(found: list[Outlier], count: int) -> Iterable[Outlier]:
    """``found``, unless it is so many that ranks have different parts in the job."""
    return found if len(found) <= count / 4 else ()


def host_of(history: History, rank: int) -> str:
    """The name of the host where ``rank`` ran last; "" for one that never did."""
    names: Mapping[int, str] = dict(enumerate(history.began.hosts if history.began else ()))
    for one in reversed(history.tries):
        if rank in one.ranks:
            return names.get(one.ranks[rank].node, "")
    return ""
