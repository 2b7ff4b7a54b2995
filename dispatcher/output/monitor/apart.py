"""Which rank uses its CPU or GPU unlike all others, by what samples show (``--sample S``).

Theory. In a job of equal ranks all do the same, so the shares that they use are alike; which
share is right nobody knows. Where ranks sleep while they wait for others the slow one is the
busiest; where the wait spins, or a GPU waits, the slow one is rather the one that does less. So
what is told is that a rank is *apart*, never that it is slow. A rank is apart when

* its share is away from the median of all by ``SIGMAS`` deviations, a quarter of the
  median, and ``LEAST`` points, in the same direction ``ROUNDS`` times in a row, and
* a quarter of the ranks are so at most: else ranks have different parts in the job

A round is over when every host has sent a sample; who falls behind by more than ``BEHIND``
samples is left out of it. Shares of CPUs have no upper end, those of GPUs are of the GPU of the
rank. ``Apart`` is pure; ``SamplesApart`` feeds it and tells each rank once an attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from dispatcher.core.events.monitor_events import NodeSampled, RanksApart
from dispatcher.core.events.run_events import Event, NodeLost, RankExited, RankSpawned, RanksPlaced
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.model.hostset import fold
from dispatcher.output.monitor.outliers_part import Outlier, outliers
from dispatcher.output.monitor.shares import Shares
from dispatcher.output.text.verdict_text import fold_ranks
from dispatcher.plan.job.worlds import place

FEWEST, ROUNDS, BEHIND = 4, 5, 3
SIGMAS, SHARE, LEAST = 5.0, 0.25, 25.0
#: the largest part of all ranks that can be apart
MOST_APART = 0.25


class Apart:
    """Rounds of figures of one kind: for how many in a row each rank has been apart."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}  # rank -> so many, below 0 for less than usual

    def round(self, figures: Mapping[int, float]) -> list[Outlier]:
        """The ranks that are apart after this round; ``figures``: rank -> % in it."""
        odd = {
            one.rank: one
            for one in outliers(figures, SHARE, fewest=FEWEST, least=LEAST, sigmas=SIGMAS)
        }
        if len(odd) > MOST_APART * len(figures):
            odd.clear()
        rounds = self._rounds
        self._rounds = {}
        for rank, one in odd.items():
            step = 1 if one.value > one.usual else -1
            before = rounds.get(rank, 0)
            self._rounds[rank] = step + (before if before * step > 0 else 0)
        return [one for rank, one in odd.items() if abs(self._rounds[rank]) >= ROUNDS]


class SamplesApart(Sink):
    """Tells ``RanksApart``, each rank once; it comes back on the spine."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._begin()

    def _begin(self) -> None:
        self._living: dict[int, set[int]] = {}  # host -> ranks
        self._gpus: dict[int, float] = {}  # rank -> % of its GPU
        self._shares = Shares()
        self._came: dict[int, int] = {}  # host -> samples in this round
        self._awaited: set[int] = set()  # hosts with none in this round
        self._ends: deque[float] = deque(maxlen=ROUNDS + 1)
        self._apart = {"CPU": Apart(), "GPU": Apart()}
        self._told: set[tuple[str, int]] = set()

    def event(self, stamped: Stamped) -> None:
        match stamped.event:
            case RanksPlaced():  # also after a restart
                self._begin()
            case RankSpawned(node, rank):
                self._shares.forget(rank)
                self._living.setdefault(node, set()).add(rank)
                self._awaited.add(node)
            case RankExited(node, rank):
                self._living.get(node, set()).discard(rank)
            case NodeLost(node):
                self._living.pop(node, None)
                self._awaited.discard(node)
            case NodeSampled(node) if node in self._living:
                self._take(stamped.event, stamped.t)

    def _take(self, sample: NodeSampled, now: float) -> None:
        node = sample.node
        self._shares.take(sample)
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
        present = {rank: node for node in self._came for rank in self._living.get(node, ())}
        self._came.clear()
        self._awaited = {node for node, ranks in self._living.items() if ranks}
        for what, known in (("CPU", self._shares.of), ("GPU", self._gpus)):
            found = self._apart[what].round({r: known[r] for r in present if r in known})
            new = [one for one in found if (what, one.rank) not in self._told]
            self._told.update((what, one.rank) for one in new)
            for more in (True, False):
                odd = [one for one in new if (one.value > one.usual) is more]
                if odd:
                    self._tell(self._report(what, odd, present, now - self._ends[0]))

    @staticmethod
    def _report(
        what: str, odd: Sequence[Outlier], homes: Mapping[int, int], seconds: float
    ) -> RanksApart:
        ranks = tuple(sorted(one.rank for one in odd))
        nodes = tuple(sorted({homes[rank] for rank in ranks}))
        share = sum(one.value for one in odd) / len(odd)
        return RanksApart(what, ranks, nodes, share, odd[0].usual, seconds)


def words(event: RanksApart, hosts: Sequence[str]) -> str:
    """``rank 5 on n3: 98 % of a CPU for 10 s, the median is 12 %``. hosts: number -> name."""
    where = fold(hosts[node] for node in event.nodes)
    who = f"{fold_ranks(event.ranks)} on {where}"
    of = "a CPU" if event.what == "CPU" else "the GPU"
    much = f"{event.share:.0f} % of {of} for {event.seconds:.0f} s"
    why = " (the others may wait for it)" if event.share > event.usual else ""
    return f"{who}: {much}, where the median is {event.usual:.0f} %{why}"
