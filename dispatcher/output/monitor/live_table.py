"""The state of each rank now: a fold over events, samples and output, for tables and metrics.

Fed on the sinks' thread, read on another, with a lock. Its size is bounded by the ranks: of their
output only the last line is kept, cut.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import GpuSample, NodeSampled, RankSample
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.frozen import Value, fields_of, value
from dispatcher.output.monitor.run_progress import CpuShares, Picture, Progress, encode_picture
from dispatcher.output.text.lines import wiped
from dispatcher.output.text.sanitize import sanitize, sanitize_text
from dispatcher.plan.job.placement import place

#: bytes kept of the last output of a rank
LAST = 512

#: letter of proc(5) -> word
STATES = {
    "R": "runs", "S": "sleeps", "D": "in disk wait", "T": "stopped", "t": "traced",
    "Z": "zombie", "I": "idle",
}  # fmt: skip


@value
class Row(Value):
    """One rank. cpu: % of one CPU; rss: bytes; silence: seconds; None: not (yet) known.

    state: a word for the table. gpu: % used, bytes used, watts of the rank's GPU. last: its last
    line, sanitized.
    """

    rank: int
    host: str
    local: int
    pid: int | None
    state: str
    cpu: float | None = None
    rss: int | None = None
    gpu: tuple[float | None, float | None, float | None] | None = None
    silence: float | None = None
    last: str = ""
    alive: bool = False


@value
class Snapshot(Value):
    """One moment of a run. late: hosts whose GPUs do not answer. slow: lines on slow ranks."""

    picture: Picture
    rows: tuple[Row, ...]
    late: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As values of JSON, for ``of_plain``; a row without the names of its fields."""
        rows = [list(fields_of(row).values()) for row in self.rows]
        return {**fields_of(self), "picture": encode_picture(self.picture), "rows": rows}

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Snapshot:
        """The snapshot that ``plain`` encoded, after JSON. Raises: ValueError for anything else."""
        from dispatcher.core.events import codec  # the run itself does not need it

        names = [field.name for field in dataclasses.fields(Row)]
        try:
            rows = [dict(zip(names, row, strict=True)) for row in plain["rows"]]
            snapshot: Snapshot = codec.reader(Snapshot)({**plain, "rows": rows}, "table")
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a table: {error}") from None
        safe = (dataclasses.replace(row, last=sanitize_text(row.last)) for row in snapshot.rows)
        return dataclasses.replace(snapshot, rows=tuple(safe))


@dataclass
class _Rank:
    node: int
    pid: int | None
    since: float  # when it wrote last
    state: str = "starts"
    alive: bool = True
    sample: RankSample | None = None


class Table(Sink):
    """Follows the state of each rank. hosts: node -> name. slow: gives lines on slow ranks."""

    def __init__(
        self,
        hosts: Sequence[str],
        clock: Callable[[], float],
        slow: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._slow = slow
        self._hosts = hosts
        self._gpus: dict[int, dict[int, GpuSample]] = {}
        self._late: set[int] = set()
        self._clock = clock
        self._ranks: dict[int, _Rank] = {}
        self._tails: dict[int, tuple[int, bytes]] = {}  # rank -> its last stream, and its text
        self._shares = CpuShares()
        self._lock = threading.Lock()
        self._progress = Progress(len(hosts), clock)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self._progress.output(rank, stream, data)
        with self._lock:  # a rank's first output may come before the event of its start
            last, before = self._tails.get(rank, (stream, b""))
            if last != stream:
                before = b""  # text on two streams is not one line
            self._tails[rank] = (stream, (before + data)[-LAST:])
            if rank in self._ranks:
                self._ranks[rank].since = self._clock()

    def event(self, entry: Entry) -> None:
        self._progress.event(entry)
        with self._lock:
            self._fold(entry.event)

    def _fold(self, event: ev.Event) -> None:
        match event:
            case ev.RanksPlaced():  # also after a restart
                self._ranks.clear()
                self._tails.clear()
            case ev.RankSpawned(node, rank, pid):
                self._shares.forget(rank)
                self._ranks[rank] = _Rank(node, pid, self._clock())
            case ev.RankFailedToStart(node, rank):
                self._ranks[rank] = _Rank(node, None, self._clock(), "not started", alive=False)
            case ev.RankExited(_, rank, status) if rank in self._ranks:
                known = self._ranks[rank]
                known.alive, known.sample = False, None
                known.state = f"signal {-status}" if status < 0 else f"exit {status}"
                if status == 0:
                    known.state = "done"
                self._shares.forget(rank)
            case ev.NodeLost(node):
                for known in self._ranks.values():
                    if known.node == node and known.alive:
                        known.alive, known.sample, known.state = False, None, "lost"
            case NodeSampled():
                self._shares.take(event)
                for sample in event.ranks:
                    if sample.rank in self._ranks and self._ranks[sample.rank].alive:
                        self._ranks[sample.rank].sample = sample
                self._gpus[event.node] = {gpu.index: gpu for gpu in event.gpus}
                (self._late.add if event.late else self._late.discard)(event.node)

    def picture(self) -> Picture:
        """The progress of the run; from any thread."""
        return self._progress.picture()

    def snapshot(self) -> Snapshot:
        """The run now; from any thread."""
        picture = self._progress.picture()
        with self._lock:
            now = self._clock()
            seats: dict[tuple[int, int], int] = {}  # (node, world) -> ranks so far
            rows = []
            for rank, known in sorted(self._ranks.items()):
                seat = (known.node, place(rank)[0])
                local = seats.get(seat, 0)
                seats[seat] = local + 1
                rows.append(self._row(rank, known, local, now))
            late = tuple(self._hosts[node] for node in sorted(self._late))
            return Snapshot(picture, tuple(rows), late, self._slow())

    def _row(self, rank: int, known: _Rank, local: int, now: float) -> Row:
        sample = known.sample
        state = STATES.get(sample.state, sample.state) if sample is not None else known.state
        return Row(
            rank, self._hosts[known.node], local, known.pid, state,
            cpu=self._shares.of.get(rank),
            rss=None if sample is None else sample.rss,
            gpu=self._gpu(known.node, sample) if known.alive else None,
            silence=now - known.since if known.alive else None,
            last=_last_line(self._tails.get(rank, (0, b""))[1]),
            alive=known.alive,
        )  # fmt: skip

    def _gpu(
        self, node: int, sample: RankSample | None
    ) -> tuple[float | None, float | None, float | None] | None:
        if sample is None or not sample.own:
            return None
        found = self._gpus.get(node, {}).get(sample.own[0])
        return None if found is None else (found.utilisation, found.used, found.watts)


def _last_line(tail: bytes) -> str:
    """The last line in ``tail``, or the last state of a line that rewrites itself; sanitized."""
    text = tail.rstrip(b"\r\n \t")
    line = text[max(text.rfind(b"\n"), text.rfind(b"\r")) + 1 :]
    return sanitize(wiped(line.partition(b"\x1b[A")[0])).decode()
