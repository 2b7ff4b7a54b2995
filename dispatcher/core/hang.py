"""When a job hangs: a pure rule over output, CPU time, GPUs and, if there is any, progress.

No single sign is enough. A job may compute for an hour without a word; ranks that wait for
others may sleep, or spin at 100 % of a CPU, and a GPU whose kernel waits shows 100 % as well.

The rule. A job *hangs* when for ``seconds`` on end

* H-1  no rank has written anything, and nothing of what it wrote waited here to be read, and
* H-2  every living rank was *still*: with all its processes it used less than ``IDLE`` of one CPU;
  where all GPUs at work on its host *wait* (``WAITING`` % used or more, at less than ``POWER`` of
  the watts that the same GPU was seen to draw at work), what its CPU does is waiting too, and
* H-3  no GPU was at work.

Where the user says what progress is (``--progress-line``, ``--progress-file``), from the first
of it on only progress counts:

* H-4  none for ``seconds`` is a hang, whatever the ranks write or compute.

Whoever spins is taken for one who computes unless its GPU or H-4 tells otherwise: from outside, a
CPU in a spinning wait looks like one at work, and ending a job that works is the worse
mistake. For the same reason a rank of which nothing is known is not still: one whose host
sends no samples, or has sent them for less than ``seconds``. Ctrl-Z begins everything anew.
"""

from __future__ import annotations

from collections import deque

from dispatcher.core.samples import GpuSample, NodeSampled

#: share of one CPU that threads which only look at the clock may take
IDLE = 0.02
#: % of a GPU's time from which it is at work, and from which it may only wait
WORKING, WAITING = 5.0, 95.0
#: share of the most power seen at work below which a busy GPU waits
POWER = 0.5
#: samples of one period, and periods that the last one may be old
SAMPLES, FRESH = 10, 3.0
#: seconds between two samples at least
LEAST = 0.25


def every(seconds: float) -> float:
    """Seconds between two samples that the rule needs."""
    return max(LEAST, seconds / SAMPLES)


class Hang:
    """Judges the ranks of one attempt. since: when they were started."""

    def __init__(self, seconds: float, since: float, *, shows_progress: bool = False) -> None:
        self.seconds = seconds
        self._shows_progress = shows_progress
        self._nodes: dict[int, int] = {}  # living rank -> node
        self._sign = since  # of life, the last
        self._progress: float | None = None  # the last
        self._mark: int | None = None
        #: rank -> (here, there, CPU seconds) of samples, the first ``seconds`` old or older
        self._used: dict[int, deque[tuple[float, float, float]]] = {}
        self._most_watts: dict[tuple[int, int], float] = {}
        self._at_work: dict[int, float] = {}  # node -> when a GPU was last seen to work
        self._waits: dict[int, float] = {}  # node -> since when its GPUs do nothing but wait

    # -- what is seen -------------------------------------------------------------------

    def began(self, rank: int, node: int, now: float) -> None:
        self._nodes[rank] = node
        self._used.pop(rank, None)
        self._sign = max(self._sign, now)

    def ended(self, rank: int, now: float) -> None:
        """Something has happened: the others may be about to do what it was waited for."""
        if self._nodes.pop(rank, None) is not None:
            self._used.pop(rank, None)
            self._sign = max(self._sign, now)

    def wrote(self, when: float, *, progress: bool = False) -> None:
        self._sign = max(self._sign, when)
        if progress and self._shows_progress:
            self._progress = max(self._progress or when, when)

    def sampled(self, sample: NodeSampled, now: float) -> None:
        if sample.mark is not None and sample.mark != self._mark:
            if self._mark is not None:
                self.wrote(now, progress=True)
            self._mark = sample.mark
        for rank in sample.ranks:
            if rank.rank in self._nodes:
                self._keep(rank.rank, (now, sample.at, rank.cpu))
        if sample.gpus:
            self._look(sample.node, sample.gpus, now)

    def _keep(self, rank: int, one: tuple[float, float, float]) -> None:
        kept = self._used.setdefault(rank, deque())
        if len(kept) > 1 and kept[-1][1] - kept[-2][1] < every(self.seconds) * 0.9:
            kept.pop()  # somebody wants samples more often than is needed here
        kept.append(one)
        while len(kept) > 1 and kept[1][1] <= one[1] - self.seconds:
            kept.popleft()

    def _look(self, node: int, gpus: tuple[GpuSample, ...], now: float) -> None:
        waits = False
        for gpu in gpus:
            used, watts, key = gpu.utilisation or 0.0, gpu.watts, (node, gpu.index)
            if used < WORKING:
                continue
            most = self._most_watts.get(key, 0.0)
            if used >= WAITING and watts is not None and watts < POWER * most:
                waits = True
                continue
            self._most_watts[key] = max(most, watts or 0.0)
            self._at_work[node] = now
            self._waits.pop(node, None)
            return
        if waits:
            self._waits.setdefault(node, now)
        else:
            self._waits.pop(node, None)

    def anew(self, now: float) -> None:
        """The ranks, or we, have been stopped: what was seen before says nothing."""
        self._sign = now
        self._progress = None if self._progress is None else now
        self._used.clear()
        self._waits.clear()

    # -- what it means --------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """Before this no hang can be told; None while no rank lives."""
        if not self._nodes:
            return None
        return (self._sign if self._progress is None else self._progress) + self.seconds

    def hangs(self, now: float) -> bool:
        """Whether the ranks hang, by what was seen until ``now``."""
        due = self.due
        if due is None or now < due:
            return False
        if self._progress is not None:
            return True  # H-4
        return not self._gpu_works(now) and not self.busy(now)

    def busy(self, now: float) -> list[int]:
        """The ranks that are not still, or of which nothing is known."""
        return sorted(rank for rank in self._nodes if not self._is_still(rank, now))

    def _gpu_works(self, now: float) -> bool:
        return any(now - when < self.seconds for when in self._at_work.values())

    def _is_still(self, rank: int, now: float) -> bool:
        waits = self._waits.get(self._nodes[rank])
        if waits is not None and now - waits >= self.seconds:
            return True
        kept = self._used.get(rank)
        if not kept or now - kept[-1][0] > FRESH * every(self.seconds) + 1.0:
            return False
        _, first, before = kept[0]
        _, last, after = kept[-1]
        # the first sample comes a moment after the start, so the window may lack a part of a period
        whole = last - first >= self.seconds - every(self.seconds)
        return whole and after - before < IDLE * max(last - first, LEAST)
