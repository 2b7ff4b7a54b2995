"""Finds ranks that are unlike the others: by CPU and GPU, or by the time that their steps take.

``outliers`` is the one rule for all, from medians and median distances, which a few outliers do
not move. ``SampleOutliers`` uses it on samples (``--sample``): a rank is apart if it differs in the
same direction ``ROUNDS`` times in a row; a round is over when every host has sent a sample, or one
is ``BEHIND`` samples ahead. ``StepLines`` uses it on lines that each rank writes once a step
(``--step-line``). docs/design/hangs.md discusses the conclusions from each.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import NodeSampled, RanksApart
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.hostset import fold
from dispatcher.output.run_state import RUNNING, RunState
from dispatcher.output.text.fold import fold_ranks
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.job.placement import place, rank_name

#: median distances that are one standard deviation where figures are spread normally
SIGMA = 1.4826


@dataclass(frozen=True)
class Outlier:
    """``rank`` has ``value`` where ``usual`` is the median of all."""

    rank: int
    value: float
    usual: float


def outliers(
    figures: Mapping[int, float],
    share: float,
    *,
    fewest: int,
    least: float = 0.0,
    sigmas: float = 0.0,
) -> list[Outlier]:
    """The ranks that are away from the median, the farthest first; [] for fewer than ``fewest``.

    share: of the median, that they are away at least; least: the same as a figure; sigmas: the
    same in standard deviations, estimated by the median distance.
    """
    if len(figures) < fewest:
        return []
    usual = median(figures.values())
    spread = SIGMA * median(abs(value - usual) for value in figures.values())
    away = max(share * abs(usual), least, sigmas * spread)
    found = [
        Outlier(rank, value, usual)
        for rank, value in figures.items()
        if abs(value - usual) >= away and value != usual
    ]
    return sorted(found, key=lambda one: (-abs(one.value - usual), one.rank))


FEWEST_SAMPLED, ROUNDS, BEHIND = 4, 5, 3
SIGMAS, SHARE, LEAST_POINTS = 5.0, 0.25, 25.0
#: the largest part of all ranks that can be apart
MOST_APART = 0.25


class OutlierRounds:
    """Rounds of figures of one kind: how many times in a row each rank has been apart."""

    def __init__(self) -> None:
        self._machine: dict[int, int] = {}  # rank -> times, below 0 for less than usual

    def round(self, figures: Mapping[int, float]) -> list[Outlier]:
        """The ranks that are apart after this round; ``figures``: rank -> % in it."""
        few, least = FEWEST_SAMPLED, LEAST_POINTS
        found = outliers(figures, SHARE, fewest=few, least=least, sigmas=SIGMAS)
        odd = {one.rank: one for one in found}
        if len(odd) > MOST_APART * len(figures):
            odd.clear()
        rounds = self._machine
        # a host that ends rounds by itself, with samples that come too often, resets only its own
        self._machine = {rank: n for rank, n in rounds.items() if rank not in figures}
        for rank, one in odd.items():
            step = 1 if one.value > one.usual else -1
            before = rounds.get(rank, 0)
            self._machine[rank] = step + (before if before * step > 0 else 0)
        return [one for rank, one in odd.items() if abs(self._machine[rank]) >= ROUNDS]


class SampleOutliers(Sink):
    """Tells ``RanksApart``, each rank once; it comes back on the spine."""

    def __init__(self, state: RunState, tell: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._tell = tell
        self._begin()

    def _begin(self) -> None:
        self._gpus: dict[int, float] = {}  # rank -> % of its GPU
        self._came: dict[int, int] = {}  # host -> samples in this round
        self._awaited: set[int] = set()  # hosts with none in this round
        self._ends: deque[float] = deque(maxlen=ROUNDS + 1)
        self._apart = {"CPU": OutlierRounds(), "GPU": OutlierRounds()}
        self._told: set[tuple[str, int]] = set()

    def event(self, entry: Entry) -> None:
        match entry.event:
            case ev.RanksPlaced():  # also after a restart
                self._begin()
            case ev.RankSpawned(node):
                self._awaited.add(node)
            case ev.NodeLost(node):
                self._awaited.discard(node)
            case NodeSampled(node) if self._state.nodes.get(node) == RUNNING:
                self._take(entry.event, entry.t)

    def _take(self, sample: NodeSampled, now: float) -> None:
        node = sample.node
        used = {gpu.index: gpu.utilisation for gpu in sample.gpus}
        for rank in sample.ranks:
            value = used.get(rank.own[0]) if rank.own else None
            if value is None or place(rank.rank)[0]:  # spawned ranks have another part in the job
                self._gpus.pop(rank.rank, None)
            else:
                self._gpus[rank.rank] = value
        self._came[node] = self._came.get(node, 0) + 1
        self._awaited.discard(node)
        if not self._awaited or self._came[node] >= BEHIND:
            self._round(now)

    def _round(self, now: float) -> None:
        self._ends.append(now)
        living = {rank: one.node for rank, one in self._state.ranks.items() if one.alive}
        present = {rank: node for rank, node in living.items() if node in self._came}
        self._came.clear()
        self._awaited = set(living.values())
        for what, known in (("CPU", self._state.shares.of), ("GPU", self._gpus)):
            found = self._apart[what].round({r: known[r] for r in present if r in known})
            new = [one for one in found if (what, one.rank) not in self._told]
            self._told.update((what, one.rank) for one in new)
            for more in (True, False):
                odd = [one for one in new if (one.value > one.usual) is more]
                if odd:
                    ranks = tuple(sorted(one.rank for one in odd))
                    nodes = tuple(sorted({present[rank] for rank in ranks}))
                    share, usual = sum(one.value for one in odd) / len(odd), odd[0].usual
                    self._tell(RanksApart(what, ranks, nodes, share, usual, now - self._ends[0]))


def outlier_text(event: RanksApart, hosts: Sequence[str]) -> str:
    """``rank 5 on n3: 98 % of a CPU for 10 s, the median is 12 %``. hosts: number -> name."""
    where = fold(hosts[node] for node in event.nodes)
    who = f"{fold_ranks(event.ranks)} on {where}"
    of = "a CPU" if event.what == "CPU" else "the GPU"
    much = f"{event.share:.0f} % of {of} for {event.seconds:.0f} s"
    why = " (the others may wait for it)" if event.share > event.usual else ""
    return f"{who}: {much}, where the median is {event.usual:.0f} %{why}"


WINDOW, LEAST_STEPS, RATIO = 20, 5, 1.5
#: paces this near to the median (as a share of it) are the same
LOCKSTEP = 0.1
#: ranks that can be compared; slow ranks that are reported
FEWEST_STEPPING, MOST_TOLD = 3, 3
#: seconds for which an answer is good enough; bytes of a line that are looked at
FRESH, MOST_LINE = 1.0, 4096


@dataclass
class _Rank:
    lines: int = 0
    came: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    took: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


class Steps:
    """The steps of the ranks of one attempt."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def step(self, rank: int, when: float, took: float | None = None) -> None:
        """Note that ``rank`` wrote its line at ``when``; took: the seconds in its text."""
        known = self._ranks.setdefault(rank, _Rank())
        known.lines += 1
        known.came.append(when)
        if took is not None:
            known.took.append(took)

    def slow(self) -> list[Outlier]:
        """The slow ranks and their seconds a step, the slowest first; [] if unknown."""
        measured = {
            rank: median(r.took) for rank, r in self._ranks.items() if len(r.took) >= LEAST_STEPS
        }
        far = outliers(measured or self._costs(), RATIO - 1, fewest=FEWEST_STEPPING)
        return [one for one in far if one.value > one.usual > 0]

    def _costs(self) -> Mapping[int, float]:
        """rank -> seconds a step, by when its lines came."""
        known = {rank: r for rank, r in self._ranks.items() if len(r.came) > LEAST_STEPS}
        if len(known) < FEWEST_STEPPING:
            return {}
        paces = {rank: (r.came[-1] - r.came[0]) / (len(r.came) - 1) for rank, r in known.items()}
        usual = median(paces.values())
        if any(abs(pace - usual) > LOCKSTEP * usual for pace in paces.values()):
            return paces
        late = self._lateness(known)
        # the last rank sets the pace of all others, which finish their steps so much earlier
        last = max(late.values())
        return {rank: pace - last + late[rank] for rank, pace in paces.items()}

    @staticmethod
    def _lateness(ranks: Mapping[int, _Rank]) -> Mapping[int, float]:
        """rank -> by how many seconds its lines usually come after the other ranks' same lines."""
        came: dict[int, list[float]] = {}  # number of the line -> when it came, from all
        for one in ranks.values():
            for at, when in enumerate(one.came, one.lines - len(one.came)):
                came.setdefault(at, []).append(when)
        usual = {at: median(whens) for at, whens in came.items()}
        return {
            rank: max(
                0.0,
                median(w - usual[at] for at, w in enumerate(one.came, one.lines - len(one.came))),
            )
            for rank, one in ranks.items()
        }


class StepLines(Sink):
    """Finds the lines with ``pattern``."""

    def __init__(self, pattern: re.Pattern[bytes], state: RunState) -> None:
        self._search = pattern.search
        self._state = state
        self._lock = threading.Lock()
        self._steps = Steps()
        self._rests: dict[tuple[int, int], bytes] = {}
        self._words: tuple[str, ...] = ()
        self._good_until = 0.0

    def output(self, rank: int, stream: int, data: bytes) -> None:
        now = self._state.clock()
        before = self._rests.get((rank, stream), b"")
        *lines, rest = (before + data).replace(b"\r", b"\n").split(b"\n")
        self._rests[rank, stream] = rest[-MOST_LINE:]
        for line in lines:
            match = self._search(line[:MOST_LINE])
            if match is not None:
                with self._lock:
                    self._steps.step(rank, now, _seconds(match))

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, ev.RanksPlaced):  # also after a restart
            with self._lock:
                self._steps = Steps()
                self._rests.clear()

    def words(self) -> tuple[str, ...]:
        """``rank 5 on n3: 1.8x the median step time (0.92 s)``, from any thread."""
        now = self._state.clock()
        with self._lock:
            if now >= self._good_until:
                self._good_until = now + FRESH
                self._words = tuple(map(self._text, self._steps.slow()[:MOST_TOLD]))
            return self._words

    def _text(self, slow: Outlier) -> str:
        known = self._state.ranks.get(slow.rank)
        where = "" if known is None else f" on {sanitize_text(self._state.hosts[known.node])}"
        ratio, seconds = f"{slow.value / slow.usual:.1f}x", f"{slow.value:.3g} s"
        return f"rank {rank_name(slow.rank)}{where}: {ratio} the median step time ({seconds})"


def _seconds(match: re.Match[bytes]) -> float | None:
    try:
        took = float(match[1])
    except (IndexError, TypeError, ValueError):
        return None
    return took if 0 <= took < 1e9 else None
