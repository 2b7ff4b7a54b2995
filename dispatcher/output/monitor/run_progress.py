"""The progress of a run: hosts and ranks by state, lines, CPU, silence. A fold; draws nothing.

Fed on the sinks' thread, read on the screen's, with a lock. For another process a picture is
encoded here and decoded there; ``RemoteProgress`` adds the time since then.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import NodeSampled, RanksStalled
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.frozen import Value, fields_of, value

#: % of a CPU below which a rank counts as idle; a heartbeat or a poll takes about that
NOTHING = 1.0


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


#: states of a host, in the order in which they are passed
WAITING, CONNECTING, CONNECTED, CHECKED, RUNNING, ENDED, LOST = range(7)
STATES = ("waiting", "connecting", "connected", "checked", "running", "ended", "lost")


@value
class Picture(Value):
    """A run's progress at one moment. hosts: state -> count; pending: hosts not checked yet.

    ranks: ``running``, ``done`` and ``failed`` -> count. silent: ranks that were
    reported as stalled and have written nothing since; silent_for: the seconds of that
    report. idle: those of them that use no CPU.
    """

    hosts: Mapping[int, int]
    pending: tuple[int, ...]
    ranks: Mapping[str, int]
    lines: int
    seconds: float
    since_line: float | None
    silent: tuple[int, ...] = ()
    silent_for: float = 0.0
    stopping: str | None = None
    idle: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.hosts.keys() <= set(range(len(STATES))):
            raise ValueError(f"no states of hosts: {sorted(self.hosts)}")


class Progress(Sink):
    """Follows a run on ``count`` hosts. clock: seconds, monotonic."""

    def __init__(self, count: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._nodes = [WAITING] * count
        self._ranks: dict[int, str] = {}  # rank -> its state
        self._counts: Counter[str] = Counter()  # ranks by state, for frequent pictures
        self._lines = 0
        self._last: float | None = None
        self._silent: dict[int, float] = {}
        self._stopping: str | None = None
        self._shares = CpuShares()
        #: footer of another task of the run, such as a copy: columns -> lines
        self.instead: Callable[[int], list[tuple[bytes, int]]] | None = None

    def output(self, rank: int, stream: int, data: bytes) -> None:
        with self._lock:
            self._lines += data.count(b"\n")
            self._last = self._clock()
            self._silent.pop(rank, None)

    def event(self, entry: Entry) -> None:
        with self._lock:
            self._fold(entry.event)

    def _fold(self, event: ev.Event) -> None:
        match event:
            case ev.NodeConnecting(node):
                self._nodes[node] = CONNECTING
            case ev.NodeConnected(node):
                self._nodes[node] = CONNECTED
            case ev.NodeReady(node):
                self._nodes[node] = CHECKED
            case ev.NodeSwept(node):
                self._nodes[node] = ENDED
            case ev.NodeLost(node):
                self._nodes[node] = LOST
            case NodeSampled():
                self._shares.take(event)
            case ev.RankSpawned(node, rank):
                self._shares.forget(rank)
                self._nodes[node] = RUNNING
                self._move(rank, "running")
            case ev.RankFailedToStart(_, rank):
                self._move(rank, "failed")
            case ev.RankExited(_, rank, status):
                self._move(rank, "failed" if status else "done")
                self._silent.pop(rank, None)
            case RanksStalled(ranks, seconds):
                self._silent.update(dict.fromkeys(ranks, seconds))
            case ev.RanksPlaced():  # also after a restart
                self._stopping = None
                self._ranks.clear()
                self._counts.clear()
                self._silent.clear()
            case ev.JobStopping(why):
                self._stopping = why
                self._silent.clear()

    def _move(self, rank: int, state: str) -> None:
        before = self._ranks.get(rank)
        if before is not None:
            self._counts[before] -= 1
        self._ranks[rank] = state
        self._counts[state] += 1

    def picture(self) -> Picture:
        """The run now; from any thread."""
        with self._lock:
            now = self._clock()
            silent = tuple(sorted(self._silent))
            return Picture(
                hosts=dict(Counter(self._nodes)),
                pending=tuple(n for n, state in enumerate(self._nodes) if state < CHECKED),
                ranks=dict(+self._counts),
                lines=self._lines,
                seconds=now - self._began,
                since_line=None if self._last is None else now - self._last,
                silent=silent,
                silent_for=min(self._silent.values(), default=0.0),
                stopping=self._stopping,
                idle=tuple(rank for rank in silent if self._shares.is_idle(rank)),
            )


class StallDetector(Sink):
    """Reports ranks that have written nothing for ``after`` seconds, once for each silence.

    tell: called with the event; it comes back on the spine, to the journal and the notes.
    """

    def __init__(
        self, after: float, tell: Callable[[ev.Event], None], clock: Callable[[], float]
    ) -> None:
        self._after = after
        self._tell = tell
        self._clock = clock
        self._last: dict[int, float] = {}  # rank -> when it last wrote; without reported ranks
        self._running: set[int] = set()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if rank in self._running:
            self._last[rank] = self._clock()

    def event(self, entry: Entry) -> None:
        match entry.event:
            case ev.RankSpawned(_, rank):
                self._running.add(rank)
                self._last[rank] = self._clock()
            case ev.RankExited(_, rank):
                self._running.discard(rank)
                self._last.pop(rank, None)
            case ev.JobStopping() | ev.RanksPlaced():  # ranks of a lost host have no end
                self._running.clear()
                self._last.clear()

    def tick(self, now: float) -> bool:
        due = self._clock() - self._after
        silent = tuple(sorted(rank for rank, last in self._last.items() if last <= due))
        if silent:
            for rank in silent:
                del self._last[rank]
            self._tell(RanksStalled(silent, self._after))
        return bool(self._last)


#: silent or pending numbers that are sent at most: a footer has one line for them
MOST = 4096


def encode_picture(picture: Picture) -> dict[str, Any]:
    """``picture`` as values for JSON."""
    plain = fields_of(picture)
    short = {name: plain[name][:MOST] for name in ("pending", "silent", "idle")}
    hosts = {str(state): count for state, count in sorted(picture.hosts.items())}
    return {**plain, **short, "hosts": hosts}


def decode_picture(plain: Any) -> Picture | None:
    """The picture that ``plain`` encodes, or None."""
    from dispatcher.core.events import codec  # the run itself does not need it

    try:
        return cast("Picture", codec.reader(Picture)(plain, "picture"))
    except ValueError:
        return None


class RemoteProgress:
    """The run of another process, for a footer: ``picture`` is the last one, with later times.

    hosts: how many the run has. clock: seconds, monotonic.
    """

    def __init__(self, hosts: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_at = clock()
        self._hosts = hosts
        self._last = Picture({}, (), {}, 0, 0.0, None)
        self.heard = False

    def hear(self, plain: Mapping[str, Any]) -> None:
        """Take an encoded picture; an invalid one, or one of other hosts, is ignored."""
        picture = decode_picture(plain)
        if picture is not None and all(0 <= node < self._hosts for node in picture.pending):
            self._last, self._heard_at = picture, self._clock()
            self.heard = True

    def picture(self) -> Picture:
        """The last picture, with its times moved to now."""
        last, age = self._last, self._clock() - self._heard_at
        since = None if last.since_line is None else last.since_line + age
        return dataclasses.replace(last, seconds=last.seconds + age, since_line=since)
