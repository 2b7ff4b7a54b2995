"""Decides whether a job hangs, by output, CPU time, GPUs and, if there is any, progress. Pure.

A job *hangs* when for ``seconds`` on end

* H-1  no rank has written anything, and no output of a rank waited in dispatch to be read, and
* H-2  every living rank was *still*: with all its processes it used less than ``IDLE`` of one CPU,
  or all GPUs of its own *waited*, and
* H-3  no GPU that the ranks may use was at work.
* H-4  Once progress was seen (``--progress-line``, ``--progress-file``) only progress counts.
* H-5  Output hides no hang where H-2 and H-3 hold and, ``seconds`` apart, the recorders twice name
       one collective, or all GPUs wait: a library or a thread may write while the program waits.

A rank without samples is not still. docs/design/hangs.md has the reasons, the definition of a GPU
that waits, and how ``hung`` makes one verdict of all signals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from dispatcher.core.events.collectives import Collective, Process
from dispatcher.core.events.monitor_events import GpuSample, NodeSampled
from dispatcher.core.events.stack_frames import Group
from dispatcher.core.events.verdicts import Hung, Signal

#: share of one CPU that threads which only look at the clock may take
IDLE = 0.02
#: % of a GPU's time from which it is at work, and from which it may only wait
WORKING, WAITING = 5.0, 95.0
#: share of the most power seen at work, and of the enforced limit, below which a busy GPU waits
POWER, LOW = 0.5, 0.35
#: % of the time in which a GPU that waits touches its memory at most; NVML has whole numbers
TRAFFIC = 1.0
#: samples of a period that are its last
RECENT = 3
#: samples of one period, and periods that the last one may be old
SAMPLES, FRESH = 10, 3.0
#: seconds between two samples at least
LEAST = 0.25

#: node and index of a GPU; indices of a rank's GPUs
Gpu = tuple[int, int]
Indices = tuple[int, ...] | None


def every(seconds: float) -> float:
    """Seconds between two samples that the rule needs."""
    return max(LEAST, seconds / SAMPLES)


class HangRule:
    """Collects the samples of one attempt, and decides by them. since: when its ranks started."""

    def __init__(self, seconds: float, since: float, *, shows_progress: bool = False) -> None:
        self.seconds = seconds
        self._shows_progress = shows_progress
        self._nodes: dict[int, int] = {}  # living rank -> node
        self._sign = since  # the last activity
        self._progress: float | None = None  # the last
        self._mark: int | None = None
        #: rank -> (here, there, CPU seconds) of samples, the first ``seconds`` old or older
        self._used: dict[int, deque[tuple[float, float, float]]] = {}
        self._most_watts: dict[Gpu, float] = {}
        self._at_work: dict[Gpu, float] = {}  # when it was last seen to work
        self._waits: dict[Gpu, float] = {}  # since when it does nothing else
        self._gpus_seen: dict[int, float] = {}  # node -> when its GPUs were last seen
        #: rank -> the GPUs that it is taken to use, and those that it may use; None: not known
        self._gpus: dict[int, tuple[Indices, Indices]] = {}

    # -- what is seen -------------------------------------------------------------------

    def began(self, rank: int, node: int, now: float) -> None:
        """Note that ``rank`` runs on ``node``."""
        self._nodes[rank] = node
        self._used.pop(rank, None)
        self._gpus.pop(rank, None)
        self._sign = max(self._sign, now)

    def ended(self, rank: int, now: float) -> None:
        """Note that ``rank`` exited, which counts as activity: others may go on because of it."""
        if self._nodes.pop(rank, None) is not None:
            self._sign = max(self._sign, now)

    def wrote(self, when: float, *, progress: bool = False) -> None:
        """Note that a rank wrote ``when``; progress: the line that shows it."""
        self._sign = max(self._sign, when)
        if progress and self._shows_progress:
            self._progress = max(self._progress or when, when)

    def sampled(self, sample: NodeSampled, now: float) -> None:
        """Note a host's sample of its ranks and GPUs."""
        if sample.mark is not None and sample.mark != self._mark:
            if self._mark is not None:
                self.wrote(now, progress=True)
            self._mark = sample.mark
        for rank in sample.ranks:
            if self._nodes.get(rank.rank) == sample.node:
                self._keep(rank.rank, (now, sample.at, rank.cpu))
                self._gpus[rank.rank] = rank.own, rank.gpus
        self._take_gpus(sample.node, sample.gpus, now)

    def _keep(self, rank: int, one: tuple[float, float, float]) -> None:
        samples = self._used.setdefault(rank, deque())
        lost = samples[-1][2] - one[2] if samples else 0.0
        if lost > 0:  # of a process that has ended, and that the rank never waited for
            before = [(here, there, used - lost) for here, there, used in samples]
            samples = self._used[rank] = deque(before)
        if len(samples) > 1 and samples[-1][1] - samples[-2][1] < every(self.seconds) * 0.9:
            samples.pop()  # samples come more often than the rule needs
        samples.append(one)
        while len(samples) > 1 and samples[1][1] <= one[1] - self.seconds:
            samples.popleft()

    def _take_gpus(self, node: int, gpus: tuple[GpuSample, ...], now: float) -> None:
        seen_before = self._gpus_seen.get(node, now)
        waited = {gpu: when for gpu, when in self._waits.items() if gpu[0] == node}
        for key in waited:
            del self._waits[key]
        if not gpus:
            return  # they do not answer
        self._gpus_seen[node] = now
        if now - seen_before > self._old:
            waited = {}  # they may have worked since
        for gpu in gpus:
            key, used = (node, gpu.index), gpu.utilisation
            if used is None:  # MIG, vGPU, GB10: only the watts count; without them it may work
                if gpu.watts is None or not gpu.limit or gpu.watts >= LOW * gpu.limit:
                    self._at_work[key] = now
                continue
            if used < WORKING:
                continue
            if used >= WAITING and _is_low(gpu, self._most_watts.get(key, 0.0)):
                self._waits[key] = waited.get(key, now)
                continue
            self._most_watts[key] = max(self._most_watts.get(key, 0.0), gpu.watts or 0.0)
            self._at_work[key] = now

    @property
    def _old(self) -> float:
        return FRESH * every(self.seconds) + 1.0

    def anew(self, now: float) -> None:
        """Begin again, because the ranks or dispatch itself were stopped: drop all samples."""
        self._sign = now
        self._progress = None if self._progress is None else now
        self._used.clear()
        self._waits.clear()
        self._gpus_seen.clear()

    # -- what it means --------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """The earliest time of a hang; None while no rank lives."""
        if not self._nodes:
            return None
        return (self._sign if self._progress is None else self._progress) + self.seconds

    def hangs(self, now: float) -> bool:
        """Whether the ranks hang, by the samples until ``now``."""
        due = self.due
        if due is None or now < due:
            return False
        return self._progress is not None or self._all_still(now)  # H-4

    def is_doubtful(self, now: float) -> bool:
        """Whether ranks write and do nothing else, and show no progress (H-5)."""
        due = self.due
        if due is None or due - now < self.seconds / 2 or self._progress is not None:
            return False  # H-1 may hold soon, or H-4 does
        return self._all_still(now)

    def gpus_wait(self, now: float) -> bool:
        """Whether each rank has its own GPUs and they all wait."""
        return all(self._waits_for_others(rank, now) for rank in self._nodes)

    def _all_still(self, now: float) -> bool:
        return not self._gpu_works(now) and all(self._is_still(r, now) for r in self._nodes)

    def busy(self, now: float) -> list[int]:
        """The ranks that are not still, or have no samples."""
        return sorted(rank for rank in self._nodes if not self._is_still(rank, now))

    def is_at_work(self, rank: int) -> bool:
        """Whether ``rank`` used CPU in its last samples, too, so that it stays busy."""
        samples = list(self._used.get(rank, ()))[-1 - RECENT :]
        if len(samples) <= RECENT:
            return False
        (_, first, before), (_, last, after) = samples[0], samples[-1]
        return after - before >= IDLE * (last - first)

    def silence(self, now: float) -> float:
        """Seconds for which the samples of ranks that hang show no activity."""
        if self._progress is not None:
            return now - self._progress
        seen = max((self._used[rank][0][0] for rank in self._nodes), default=self._sign)
        return max(self.seconds, now - max(self._sign, seen))

    def idle_gpus(self, now: float) -> tuple[int, ...]:
        """The ranks none of whose GPUs wait, while other ranks' GPUs do."""
        seen = {rank: own for rank, (own, _) in self._gpus.items() if own and rank in self._nodes}
        never = float("-inf")
        fresh = {r for r in seen if now - self._gpus_seen.get(self._nodes[r], never) <= self._old}
        waits = {r for r in fresh if any((self._nodes[r], gpu) in self._waits for gpu in seen[r])}
        return tuple(sorted(fresh - waits)) if waits else ()

    def _gpu_works(self, now: float) -> bool:
        """Whether a GPU works that ranks may use; any GPU, on a host where that is not known."""
        self._at_work = {g: when for g, when in self._at_work.items() if now - when < self.seconds}
        ranks: dict[int, list[int]] = {}
        for rank, node in self._nodes.items() if self._at_work else ():
            ranks.setdefault(node, []).append(rank)
        usable: dict[int, set[int | None]] = {}  # node -> indices; None: any
        for node, index in self._at_work:
            if node not in usable:
                each = (self._gpus.get(rank, (None, None))[1] for rank in ranks.get(node, ()))
                usable[node] = {i for gpus in each for i in ((None,) if gpus is None else gpus)}
            if index in usable[node] or None in usable[node]:
                return True
        return False

    def _waits_for_others(self, rank: int, now: float) -> bool:
        node, (own, _) = self._nodes[rank], self._gpus.get(rank, (None, None))
        if not own or now - self._gpus_seen.get(node, now) > self._old:
            return False
        return all(now - self._waits.get((node, index), now) >= self.seconds for index in own)

    def _is_still(self, rank: int, now: float) -> bool:
        samples = self._used.get(rank)
        if not samples or now - samples[-1][0] > self._old:
            return False
        _, first, before = samples[0]
        _, last, after = samples[-1]
        # the first sample comes a moment after the start, so the window may lack a part of a period
        if last - first < self.seconds - every(self.seconds):
            return False
        return after - before < IDLE * (last - first) or self._waits_for_others(rank, now)


def _is_low(gpu: GpuSample, most: float) -> bool:
    """Whether a busy GPU, which drew ``most`` watts at work, only waits."""
    if gpu.watts is None or (gpu.traffic is not None and gpu.traffic > TRAFFIC):
        return False
    if gpu.watts < POWER * most:
        return True
    return gpu.traffic is not None and gpu.watts < LOW * (gpu.limit or 0.0)


RECORDER, RAS, STACKS, GPUS = "flight recorder", "RAS", "stacks", "GPUs"


def rank_of(
    process: Process, pids: Mapping[int, int], addresses: Mapping[int, Collection[str]]
) -> int | None:
    """The rank that RAS means by ``process``; None where that is not certain.

    pids: rank -> process. addresses: of each rank's host. In containers several ranks may have one
    pid; then the address must match exactly one of them.
    """
    ranks = [rank for rank, pid in pids.items() if pid == process.pid]
    if len(ranks) > 1:
        ranks = [rank for rank in ranks if process.host in addresses.get(rank, ())]
    return ranks[0] if len(ranks) == 1 else None


def hung(
    seconds: float,
    groups: Sequence[Group],
    collective: Collective | None,
    ras: Iterable[int],
    idle_gpus: Iterable[int],
    nccl: Iterable[tuple[int, str]] = (),
    *,
    writing: bool = False,
) -> Hung:
    """Build the cause that ends a job which has hung for ``seconds``.

    ras: the ranks that it blames. idle_gpus: ranks whose GPUs do not wait where others' do. nccl:
    pairs of a rank and its error in RAS, or the state of its communicator.
    """
    by_words: dict[str, list[int]] = {}
    for rank, words in sorted(nccl):
        by_words.setdefault(words, []).append(rank)
    odd = tuple(sorted(rank for group in groups if group.odd for rank in group.ranks))
    named = (
        (RECORDER, () if collective is None else collective.blamed),
        (RAS, tuple(sorted(ras))), (STACKS, odd), (GPUS, tuple(sorted(idle_gpus))),
    )  # fmt: skip
    signals = tuple(Signal(name, ranks) for name, ranks in named if ranks)
    blamed = signals[0].ranks if signals else ()
    one = blamed[0] if len(blamed) == 1 else None
    said = tuple(Signal(words, tuple(ranks)) for words, ranks in by_words.items())
    return Hung(
        seconds, tuple(groups), rank=one, collective=collective, signals=signals, nccl=said,
        writing=writing,
    )  # fmt: skip
