"""The state of a run now: its hosts, ranks and output. It draws nothing.

``RunState`` is the one fold over the events of a run. It is the first sink, so another sink that
gets an event, or output, reads a state which includes that. Other threads hold its ``lock`` while
they read (``monitor.run_picture``). Its size is bounded by hosts and ranks: of a rank's output it
keeps only the last line, cut.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import (
    GpuSample,
    NodeSampled,
    RankSample,
    RanksStalled,
    RunBegan,
)
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.plan.job.placement import place

if TYPE_CHECKING:
    from dispatcher.core.events.progress import Pace

#: states of a host, in the order in which they are passed
WAITING, CONNECTING, CONNECTED, CHECKED, RUNNING, ENDED, LOST = range(7)
STATES = ("waiting", "connecting", "connected", "checked", "running", "ended", "lost")

#: % of a CPU below which a rank counts as idle; a heartbeat or a poll takes about that
NOTHING = 1.0
#: bytes kept of the last output of a rank
LAST = 512


class CpuShares:
    """``of``: rank -> % of one CPU between its last two samples."""

    def __init__(self) -> None:
        self.of: dict[int, float] = {}
        self._seen: dict[int, tuple[float, float]] = {}  # rank -> when (s), CPU time (s)

    def take(self, sample: NodeSampled) -> None:
        """Take the next sample of a host."""
        for rank in sample.ranks:
            then, before = self._seen.get(rank.rank, (sample.at, 0.0))
            if sample.at > then:
                # a tree may lose the time of a child that was never waited for
                used = max(0.0, rank.cpu - before)
                self.of[rank.rank] = 100 * used / (sample.at - then)
            self._seen[rank.rank] = (sample.at, rank.cpu)

    def forget(self, rank: int) -> None:
        """Forget the samples of ``rank``, which is another process from now on, or none."""
        self.of.pop(rank, None)
        self._seen.pop(rank, None)

    def is_idle(self, rank: int) -> bool:
        """Whether the last samples of ``rank`` show no CPU use."""
        return self.of.get(rank, NOTHING) < NOTHING


@dataclass
class Rank:
    """A rank of the present attempt, number ``local`` on host ``node``.

    pid: None if it could not be started. began, ended: seconds since the run began. wrote: when it
    last wrote, or began, by the clock. state: ``running``, ``done``, ``failed``, or ``lost`` with
    its host. status: exit code, or -n for signal n.
    """

    node: int
    local: int
    pid: int | None
    began: float
    wrote: float
    state: str = "running"
    status: int | None = None
    ended: float | None = None
    sample: RankSample | None = None

    @property
    def alive(self) -> bool:
        """Whether it was started, and has not ended."""
        return self.state == "running"


class RunState(Sink):
    """Follows a run. hosts: their names, if they are known before the run begins. clock: seconds,
    monotonic.

    nodes: the state of each host. ranks: those of the present attempt. phase: what the run does
    now, one word: ``connecting``, ``starting``, ``running``, ``stopping`` or ``restarting``.
    """

    def __init__(self, hosts: Sequence[str] = (), clock: Callable[[], float] | None = None) -> None:
        self.clock = clock or time.monotonic
        self._name(hosts)
        self.counts_lines = False  # to count all lines takes a sixth of a core in a flood
        self.lines = 0
        self.last_line: float | None = None
        self.phase = "connecting"
        self.parts: tuple[tuple[str, int], ...] = ()  # name and ranks of each of several programs
        self.late: set[int] = set()  # hosts whose GPUs do not answer
        self.gpus: dict[int, dict[int, GpuSample]] = {}  # host -> index -> its last sample
        self.began = self.clock()
        self._attempt = 0
        self.lock = threading.Lock()
        self.reached = ""  # the last find of --progress-line, such as step 1200
        self._begin(0)

    def _name(self, hosts: Sequence[str]) -> None:
        self.hosts = hosts
        self.nodes = dict.fromkeys(range(len(hosts)), WAITING)

    def _begin(self, world_size: int) -> None:
        """Begin an attempt, with no ranks yet. This is the one reset at a restart."""
        self.world_size = world_size
        self.ranks: dict[int, Rank] = {}
        self.counts: Counter[str] = Counter()  # ranks by state
        self.silent: dict[int, float] = {}  # reported as stalled -> seconds of that report
        self.tails: dict[int, tuple[int, bytes]] = {}  # rank -> its last stream, and its text
        self.shares = CpuShares()
        self.stopping: str | None = None
        self.pace: Pace | None = None  # of the rank that reported progress first
        self._awaited = world_size  # ranks that have yet to be started
        self._on: dict[int, list[int]] = {}  # host -> its ranks
        self._seats: Counter[tuple[int, int]] = Counter()  # (host, world) -> ranks so far

    def home(self, rank: int) -> tuple[int, int]:
        """The number of the rank's host, and the rank's number there."""
        known = self.ranks.get(rank)
        return (len(self.hosts), rank) if known is None else (known.node, known.local)

    def host_of(self, rank: int) -> str:
        """The name of the rank's host, or ``?``."""
        node = self.home(rank)[0]
        return self.hosts[node] if 0 <= node < len(self.hosts) else "?"

    def program_of(self, rank: int) -> str:
        """The name of its program, if there are several; "" also for spawned ranks."""
        for name, size in self.parts:
            if rank < size:
                return name
            rank -= size
        return ""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        with self.lock:
            now = self.clock()
            if self.counts_lines:
                self.lines += data.count(b"\n")
            self.last_line = now
            self.silent.pop(rank, None)
            # a rank's first output may come before the event of its start
            if len(data) < LAST:
                last, before = self.tails.get(rank, (stream, b""))
                if last == stream:  # text on two streams is not one line
                    data = before + data
            self.tails[rank] = (stream, data[-LAST:])
            known = self.ranks.get(rank)
            if known is not None:
                known.wrote = now

    def progressed(self, rank: int, text: str, part: tuple[float, float] | None) -> None:
        """Take a find of ``--progress-line``, with (done, total) if it has them."""
        with self.lock:
            self.reached = text
            if part is None:
                return
            if self.pace is None:
                from dispatcher.core.events.progress import Pace  # few runs need it

                self.pace = Pace(rank)
            if self.pace.rank == rank:  # others are a little ahead or behind
                self.pace.take(self.clock(), *part)

    def event(self, entry: Entry) -> None:
        event = entry.event
        with self.lock:
            if isinstance(event, ev.OfAttempt):
                if event.attempt < self._attempt:
                    return  # late news of ranks that are gone
                self._attempt = event.attempt
            self._fold(event, entry.t)

    def _fold(self, event: ev.Event, now: float) -> None:
        match event:
            case RunBegan(hosts=hosts):
                self._name(hosts)
            case ev.NodeConnecting(node):
                self.nodes[node] = CONNECTING
            case ev.NodeConnected(node):
                self.nodes[node] = CONNECTED
            case ev.NodeReady(node):
                self.nodes[node] = CHECKED
            case ev.NodeSwept(node):
                self.nodes[node] = ENDED
            case ev.NodeLost(node):
                self.nodes[node] = LOST
                for rank in self._on.get(node, ()):
                    if self.ranks[rank].alive:
                        self._became(rank, "lost")
            case NodeSampled():
                self._sampled(event)
            case RanksStalled(ranks, seconds):
                self.silent.update(dict.fromkeys(ranks, seconds))
            case ev.RanksPlaced(world_size, parts=parts):  # also after a restart
                self._begin(world_size)
                self.phase, self.parts = "starting", parts
            case ev.RankSpawned(node, rank, pid):
                self.nodes[node] = RUNNING
                self._started(rank, node, pid, now)
                self._awaited -= 1
                if self._awaited == 0 and self.phase == "starting":
                    self.phase = "running"
            case ev.RankFailedToStart(node, rank):
                self._started(rank, node, None, now)
            case ev.RankExited(_, rank, status) if rank in self.ranks:
                known = self.ranks[rank]
                known.status, known.ended = status, now
                self._became(rank, "failed" if status else "done")
                if self._awaited <= 0 and not self.counts["running"]:
                    self.phase = "stopping"  # the ranks' leftovers are looked for
            case ev.JobStopping(why):
                self.stopping, self.phase = why, "stopping"
                self.silent.clear()
            case ev.RunRestarting():
                self.phase = "restarting"

    def _started(self, rank: int, node: int, pid: int | None, now: float) -> None:
        before, state = self.ranks.get(rank), "failed" if pid is None else "running"
        if before is None:
            seat = (node, place(rank)[0])
            local = self._seats[seat]
            self._seats[seat] += 1
            self._on.setdefault(node, []).append(rank)
        else:
            local = before.local
            self.counts[before.state] -= 1
        self.shares.forget(rank)
        self.ranks[rank] = Rank(node, local, pid, now, self.clock(), state)
        self.counts[state] += 1

    def _became(self, rank: int, state: str) -> None:
        """Note that ``rank`` has ended: ``done``, ``failed`` or ``lost``."""
        known = self.ranks[rank]
        self.counts[known.state] -= 1
        self.counts[state] += 1
        known.state, known.sample = state, None
        self.shares.forget(rank)
        self.silent.pop(rank, None)

    def _sampled(self, sample: NodeSampled) -> None:
        self.shares.take(sample)
        for one in sample.ranks:
            if one.rank in self.ranks and self.ranks[one.rank].alive:
                self.ranks[one.rank].sample = one
        self.gpus[sample.node] = {gpu.index: gpu for gpu in sample.gpus}
        (self.late.add if sample.late else self.late.discard)(sample.node)
