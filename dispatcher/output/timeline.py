"""What took time in a run, and what its ranks did meanwhile; ``page`` draws it. Pure.

``History`` is a fold over the journal: attempts, how each rank ended, and what samples saw, as a
``Heat`` for each figure. ``phases`` says where the time went, of a run or of a trace: each phase
over all hosts or ranks, and who was slowest.

A heat map (ranks x time) is drawn as a PNG of at most ``MOST_ROWS`` x ``MOST_COLUMNS`` points of 4
bits, 60 KB before it is compressed, whatever a run was like.
"""

from __future__ import annotations

import math
import statistics
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import NodeSampled, RunBegan, RunClosed
from dispatcher.core.events.run_events import Entry
from dispatcher.core.events.verdicts import NodeFailed
from dispatcher.output.files.trace import LAUNCHER, LINK, Moment, Span, Spans, Timeline
from dispatcher.output.monitor.outliers import Outlier, outliers
from dispatcher.output.monitor.run_progress import CpuShares
from dispatcher.output.text.verdict_text import headline


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


#: a figure -> its unit, in the order in which they are drawn
FIGURES = {
    "CPU": "% of one CPU",
    "GPU": "% of the time in which it computed",
    "memory": "GiB resident, of the rank and its children",
    "GPU memory": "GiB used on its GPU",
    "silence": "seconds since it wrote anything",
}
#: what a scale ends with at least; a second or two without a line is no silence
_LEAST_TOP = {"CPU": 100.0, "GPU": 100.0, "silence": 10.0}
#: rows and columns of a heat map at most, and the seconds of one before any are joined
MOST_ROWS, MOST_COLUMNS, FINEST = 512, 240, 0.125


class Heat:
    """One figure of every rank over time, in columns of equal ``width`` (seconds).

    The run's length is not known while it is folded: when the columns do not suffice, two are
    joined everywhere, so that memory is bounded by ranks. A cell is the mean of what was added.
    top: the least that a picture's scale ends with.
    """

    def __init__(self, top: float = 0.0) -> None:
        self.top = top
        self.width = FINEST
        self.cells: dict[int, dict[int, tuple[float, float]]] = {}  # rank -> column -> sum, weight

    def add(self, rank: int, since: float, until: float, value: float) -> None:
        """``rank`` had ``value`` from ``since`` to ``until`` (seconds since the run began)."""
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
        """How many there are, from the run's beginning to the last figure."""
        return 1 + max((max(row) for row in self.cells.values() if row), default=-1)

    def row(self, rank: int) -> dict[int, float]:
        """Column -> mean, of ``rank``."""
        return {at: total / weight for at, (total, weight) in self.cells.get(rank, {}).items()}

    def rows(self) -> tuple[list[list[int]], list[dict[int, float]]]:
        """The rows of a picture: the ranks of each, and its means by column.

        Of more than ``MOST_ROWS`` ranks some share a row; it shows the farthest from the median.
        """
        ranks = sorted(self.cells)
        group = -(-len(ranks) // MOST_ROWS)
        members = [ranks[at : at + group] for at in range(0, len(ranks), group)]
        cells = {rank: self.row(rank) for rank in ranks}
        if group == 1:
            return members, [cells[few[0]] for few in members]
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


#: of a heat map, from little to much: viridis, which stays in order in grey and for all eyes
_STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
LEVELS = 15


def _oddest(rows: Sequence[Mapping[int, float]], usual: Mapping[int, float]) -> dict[int, float]:
    """Of several rows one: in each column what is farthest from the median of all ranks."""
    columns = {at for row in rows for at in row}
    return {
        at: max((row[at] for row in rows if at in row), key=lambda value: abs(value - usual[at]))
        for at in columns
    }


def _colour(level: int) -> tuple[int, ...]:
    place = level / (LEVELS - 1) * (len(_STOPS) - 1)
    low = min(int(place), len(_STOPS) - 2)
    pairs = zip(_STOPS[low], _STOPS[low + 1], strict=True)
    return tuple(round(a + (b - a) * (place - low)) for a, b in pairs)


def hexadecimal(level: int) -> str:
    """The colour of a level, 0 for the least, as CSS has it."""
    return "#" + "".join(f"{part:02x}" for part in _colour(level))


def levels(rows: Sequence[Mapping[int, float]], columns: int, top: float) -> list[list[int]]:
    """``rows`` as ``png`` draws them, with ``top`` as the most."""
    return [
        [1 + max(0, min(LEVELS - 1, int(row[at] / top * LEVELS))) if at in row else 0
         for at in range(columns)]
        for row in rows
    ]  # fmt: skip


def png(points: Sequence[Sequence[int]]) -> bytes:
    """A picture of rows of levels: 0 is transparent, the others are colours, little to much.

    PNG, 4 bits a point with a palette: https://www.w3.org/TR/png-3/
    """
    width = len(points[0])
    lines = bytearray()
    for row in points:
        even = [*row, *[0] * (width % 2)]
        lines.append(0)  # no filter
        lines += bytes(a << 4 | b for a, b in zip(even[::2], even[1::2], strict=True))
    palette = bytes((0, 0, 0)) + b"".join(bytes(_colour(level)) for level in range(LEVELS))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, len(points), 4, 3, 0, 0, 0)), (b"PLTE", palette),
        (b"tRNS", b"\0"), (b"IDAT", zlib.compress(bytes(lines), 9)), (b"IEND", b""),
    )  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


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
        self.heats = {name: Heat(_LEAST_TOP.get(name, 0.0)) for name in FIGURES}
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
            case RunClosed(verdict, nodes=nodes):
                self.closed = event
                if verdict.cause is not None and self.tries:
                    self.tries[-1].why = headline(verdict.cause, [node.host for node in nodes])
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
                self._lose(node, now)
            case ev.RunRestarting(cause) if self._goes_on() and self.began is not None:
                self._over(now)
                self.tries[-1].why = headline(cause, self.began.hosts)
                if isinstance(cause, NodeFailed):
                    self._lose(cause.node, now)
            case ev.HostReplaced(node) | ev.HostLeftOut(node):
                self._end((node + 1, LINK), now)
            case ev.RunFinished():
                self._over(now)
            case NodeSampled():
                self._sampled(event, now)

    def _goes_on(self) -> bool:
        """Whether there is an attempt, whose end has not been told yet."""
        return bool(self.tries) and self.tries[-1].until is None

    def _over(self, now: float) -> None:
        """The attempt is over; of ranks that nobody saw end, nothing is known from now on."""
        if self.tries and self.tries[-1].until is None:
            self.tries[-1].until = now
            for life in self.tries[-1].ranks.values():
                life.until = now if life.until is None else life.until

    def _lose(self, node: int, now: float) -> None:
        self.lost.append((now, node))
        self._end((node + 1, LINK), now)

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
        """(figure, rank with its mean and the median of all), of ranks unlike the others.

        Not by silence: in most jobs rank 0 writes and the others do not.
        """
        least = {"CPU": 25.0, "GPU": 25.0, "memory": 0.25, "GPU memory": 0.5}
        return [
            (figure, one)
            for figure, floor in least.items()
            for one in _few(outliers(
                self.heats[figure].means(), 0.25, fewest=4, least=floor, sigmas=5.0
            ), len(self.heats[figure].cells))
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
