"""Which rank is slower than the others, from the lines that each of them writes once a step.

Theory. A rank that is slow slows all: the others wait for it in their next collective. What
its line tells depends on where the line is written:

* with the seconds that its own part took in it (a group of the pattern): these are compared
* before the others are waited for: all have the same pace, but its lines come *late*, by as
  much as it is slower
* by ranks that do not wait for each other: its lines come at a slower pace

A line after the wait, without a figure, tells nothing; then nothing is said. A rank is called
slow when over its last ``WINDOW`` steps (``LEAST`` at least) it takes ``RATIO`` times the median
of all ranks. ``Steps`` is pure; ``StepLines`` feeds it from the ranks' output.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from dispatcher.core.events.run_events import RankSpawned, RanksPlaced
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.output.monitor.outliers_part import outliers
from dispatcher.output.text.sanitize import harmless_text
from dispatcher.plan.job.worlds import name

WINDOW, LEAST, RATIO = 20, 5, 1.5
#: paces this near to the median (as a share of it) are the same
LOCKSTEP = 0.1
#: ranks that can be compared; slow ones that are told
FEWEST, MOST_TOLD = 3, 3
#: seconds for which an answer is good enough; bytes of a line that are looked at
FRESH, MOST_LINE = 1.0, 4096


@dataclass
class _Rank:
    lines: int = 0
    came: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    took: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


@dataclass(frozen=True)
class Slow:
    """``rank`` takes ``seconds`` a step, ``ratio`` times the median."""

    rank: int
    ratio: float
    seconds: float


class Steps:
    """The steps of the ranks of one attempt."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def step(self, rank: int, when: float, took: float | None = None) -> None:
        """``rank`` has written its line at ``when``; took: the seconds that stand in it."""
        known = self._ranks.setdefault(rank, _Rank())
        known.lines += 1
        known.came.append(when)
        if took is not None:
            known.took.append(took)

    def slow(self) -> list[Slow]:
        """The slow ranks, the slowest first; [] where nothing can be compared."""
        told = {rank: median(r.took) for rank, r in self._ranks.items() if len(r.took) >= LEAST}
        costs = told or self._costs()
        far = outliers(costs, RATIO - 1, fewest=FEWEST)
        return [Slow(o.rank, o.value / o.usual, o.value) for o in far if o.value > o.usual > 0]

    def _costs(self) -> Mapping[int, float]:
        """rank -> seconds a step, by when its lines came."""
        known = {rank: r for rank, r in self._ranks.items() if len(r.came) > LEAST}
        if len(known) < FEWEST:
            return {}
        paces = {rank: (r.came[-1] - r.came[0]) / (len(r.came) - 1) for rank, r in known.items()}
        usual = median(paces.values())
        if any(abs(pace - usual) > LOCKSTEP * usual for pace in paces.values()):
            return paces
        late = self._lateness(known)
        # who comes last sets the pace of all who wait; the others are done earlier by so much
        last = max(late.values())
        return {rank: pace - last + late[rank] for rank, pace in paces.items()}

    @staticmethod
    def _lateness(ranks: Mapping[int, _Rank]) -> Mapping[int, float]:
        """rank -> by how many seconds its lines usually come after the same ones of others."""
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
    """Finds the lines with ``pattern``. hosts: number -> name; clock: seconds, monotonic."""

    def __init__(
        self, pattern: re.Pattern[bytes], hosts: Sequence[str], clock: Callable[[], float]
    ) -> None:
        self._search = pattern.search
        self._hosts = hosts
        self._clock = clock
        self._lock = threading.Lock()
        self._steps = Steps()
        self._nodes: dict[int, int] = {}
        self._rests: dict[tuple[int, int], bytes] = {}
        self._words: tuple[str, ...] = ()
        self._good_until = 0.0

    def output(self, rank: int, stream: int, data: bytes) -> None:
        now = self._clock()
        before = self._rests.get((rank, stream), b"")
        *lines, rest = (before + data).replace(b"\r", b"\n").split(b"\n")
        self._rests[rank, stream] = rest[-MOST_LINE:]
        for line in lines:
            match = self._search(line[:MOST_LINE])
            if match is not None:
                with self._lock:
                    self._steps.step(rank, now, _seconds(match))

    def event(self, stamped: Stamped) -> None:
        with self._lock:
            match stamped.event:
                case RanksPlaced():  # also after a restart
                    self._steps = Steps()
                    self._nodes.clear()
                case RankSpawned(node, rank):
                    self._nodes[rank] = node

    def words(self) -> tuple[str, ...]:
        """``rank 5 on n3: 1.8x the median step time (0.92 s)``, from any thread."""
        now = self._clock()
        with self._lock:
            if now >= self._good_until:
                self._good_until = now + FRESH
                self._words = tuple(map(self._told, self._steps.slow()[:MOST_TOLD]))
            return self._words

    def _told(self, slow: Slow) -> str:
        node = self._nodes.get(slow.rank)
        where = "" if node is None else f" on {harmless_text(self._hosts[node])}"
        ratio, seconds = f"{slow.ratio:.1f}x", f"{slow.seconds:.3g} s"
        return f"rank {name(slow.rank)}{where}: {ratio} the median step time ({seconds})"


def _seconds(match: re.Match[bytes]) -> float | None:
    """The figure in the first group, if there is a group and a figure in it."""
    try:
        took = float(match[1])
    except (IndexError, TypeError, ValueError):
        return None
    return took if 0 <= took < 1e9 else None
