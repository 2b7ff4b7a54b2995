"""What ranks and hosts were seen to do while a job runs, and the journal's first and last line.

On samples, stacks and silence ``hang_monitor`` decides; of what is unlike the others sinks tell.
The report is a fold over the journal, which ``RunBegan`` opens and ``RunClosed`` closes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from dispatcher.core.events.collectives import Collective
from dispatcher.core.events.run_events import Event, OfAttempt, Remark
from dispatcher.core.events.stack_frames import Group
from dispatcher.core.events.verdicts import Verdict
from dispatcher.model.frozen import Value, value
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.reassignment import Exclusion


@value
class RankSample(Value):
    """A rank's whole tree of processes; ``state`` (a letter of proc(5)) is that of its own one.

    cpu: seconds of CPU time so far, those of ended children included. rss: bytes. gpus: indices
    of those that it may use, own: of those that it is taken to use (that of its local rank, as
    scripts choose it; all, of a rank that is alone there); None where nobody can tell. silent:
    seconds since it wrote anything, or began; None in older journals.
    """

    rank: int
    state: str
    cpu: float
    rss: int
    threads: int
    processes: int
    own: tuple[int, ...] | None = None
    gpus: tuple[int, ...] | None = None
    silent: float | None = None


@value
class GpuSample(Value):
    """One GPU: utilisation in %, bytes used and there are, watts, degrees Celsius.

    limit: watts that it may draw at most. traffic: % of the time in which its memory was read or
    written. reasons: bits of NVML that say what holds its clocks down. xids: errors that its driver
    has reported since the sample before. None for what it does not tell.
    """

    index: int
    utilisation: float | None
    used: float | None
    memory: float | None
    watts: float | None
    celsius: float | None
    limit: float | None = None
    traffic: float | None = None
    reasons: int | None = None
    xids: tuple[int, ...] = ()


@value
class NodeSampled(OfAttempt):
    """What was seen ``at`` a time of the host's own clock (s).

    late: the GPUs of this host do not answer. mark: when the file that shows progress was
    changed, in ns; None where there is none.
    """

    node: int
    at: float
    ranks: tuple[RankSample, ...]
    gpus: tuple[GpuSample, ...] = ()
    late: bool = False
    mark: int | None = None


@value
class RanksHung(Event):
    """No rank has shown a sign of life for ``seconds`` (see ``hang``); where are they?

    writing: ranks write, but do nothing else.
    """

    seconds: float
    writing: bool = False


@value
class RanksWait(Event):
    """Nobody has written for ``seconds``; ``still`` ranks wait for ``busy`` ones, it seems.

    Those compute, or spin while they wait as well: the job is not ended.
    """

    seconds: float
    still: tuple[int, ...]
    busy: tuple[int, ...]


@value
class RanksApart(Remark):
    """``ranks`` on ``nodes`` have used ``share`` % of ``what`` (CPU, GPU), unlike the others.

    usual: the median of all ranks, %. seconds: for so long at least.
    """

    what: str
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    share: float
    usual: float
    seconds: float


@value
class GpuTroubled(Remark):
    """A driver says of ``gpu``, which ``ranks`` use: error ``xid``, or what slows it down.

    reason: a bit of NVML's clock event reasons; 0 where it is an Xid, and the other way round.
    """

    node: int
    gpu: int
    ranks: tuple[int, ...]
    xid: int
    reason: int


@value
class StacksWanted(Event):
    """Somebody wants to know where in its program every rank is; ``stacks`` has the answers."""


@value
class SamplesWanted(Event):
    """Somebody wants samples of all hosts every ``seconds`` from now on."""

    seconds: float


@value
class RankStack(Value):
    """Where a rank is. how: what said so, one of ``frames.HOW``; text: its words, cut.

    pid: the process it is about, on its host. state: the letter of proc(5).
    """

    rank: int
    pid: int
    state: str
    how: str
    text: bytes


@value
class RankText(Value):
    """What somebody says of a rank, in that one's own words, cut."""

    rank: int
    text: bytes


@value
class Flight(Value):
    """A dump of torch's flight recorder: ``size`` bytes at ``path`` there; data: b"" if too many.

    Its bytes are a pickle: they are kept as they are and never read here.
    """

    rank: int
    path: str
    size: int
    data: bytes


@value
class NodeStacks(OfAttempt):
    """The answer of a host to gathering ``number``. ras: what NCCL's RAS says, b"" for nothing.

    recorders: what flight recorders hold, see ``collectives.read``. natives: frames of main
    threads with those of C.
    """

    node: int
    number: int
    ranks: tuple[RankStack, ...]
    ras: bytes = b""
    flights: tuple[Flight, ...] = ()
    recorders: tuple[RankText, ...] = ()
    natives: tuple[RankText, ...] = ()


@value
class StacksGathered(Event):
    """Gathering ``number`` is over. late: hosts that have not answered in time.

    collective: the one that does not end, as torch's flight recorders tell.
    """

    number: int
    groups: tuple[Group, ...]
    late: tuple[int, ...] = ()
    collective: Collective | None = None


@value
class OutputSeen(Event):
    """Some rank wrote ``ago`` seconds before, or what it wrote has waited here until then.

    progress: it was the line that shows progress. Told only when it is of use: long after
    the last.
    """

    ago: float
    progress: bool = False


@value
class NetworksDiffer(Remark):
    """``what`` NCCL says of the network it uses on ``nodes``: ``fell back to Socket``."""

    nodes: tuple[int, ...]
    what: str


@value
class RanksStalled(Remark):
    """Running ranks have written nothing for ``seconds`` (``--stall-after``)."""

    ranks: tuple[int, ...]
    seconds: float


#: of the journal's format; raised when an older reader would misread a newer journal
VERSION = 2


@value
class RunBegan(Event):
    """The first event of a run. at: seconds since 1970. hosts: names by number, spares last.

    excluded: hosts that were found unfit before. version: of the journal's format.
    """

    run_id: str
    at: float
    hosts: tuple[str, ...]
    excluded: tuple[Exclusion, ...] = ()
    version: int = VERSION


@value
class PlacedNode(Value):
    """A node of the plan: the name of its host, and its ranks."""

    host: str
    ranks: tuple[int, ...]


@value
class LastWords(Value):
    """The last ``lines`` on ``stream`` (``stderr``) of ``ranks``.

    The lines are those of the first of the ranks; numbers in them may differ from rank to rank.
    """

    ranks: tuple[int, ...]
    stream: str
    lines: tuple[str, ...]


@value
class RankError(Value):
    """Why ``ranks`` ended, as they wrote it themselves: ``text`` in a line, ``place`` in the code.

    The words are those of the first of the ranks; numbers in them may differ from rank to rank.
    is_echo: they tell of another rank's end. hint: the remedy, "" for none.
    """

    ranks: tuple[int, ...]
    text: str
    place: str = ""
    is_echo: bool = False
    hint: str = ""


@value
class NcclNetwork(Value):
    """The network ``net`` that NCCL said it uses, on which ``devices``, and its version if told."""

    net: str
    devices: tuple[str, ...]
    version: str


@value
class RunClosed(Event):
    """What is known once all is over; the last line of a journal, behind ``RunFinished``.

    verdict: the core's. seconds: how long the run took. nodes: of the plan as it was at the end.
    written: (rank, bytes of stdout, bytes of stderr) of the last attempt. last_words: of the rank
    that failed, if one did. advice: trouble -> what the launcher's machine knows to do about it.
    notes: further lines of the verdict, on leftovers and networks. nccl: host -> its network.
    errors: of the ranks of the last attempt, that of the cause first. attempt_errors: number of
    restarts before an attempt -> why the rank that ended it did, in a line.
    """

    verdict: Verdict
    seconds: float
    nodes: tuple[PlacedNode, ...]
    written: tuple[tuple[int, int, int], ...] = ()
    last_words: LastWords | None = None
    advice: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    nccl: Mapping[int, NcclNetwork] = field(default_factory=dict)
    errors: tuple[RankError, ...] = ()
    attempt_errors: Mapping[int, str] = field(default_factory=dict)

    GONE = ("above",)


def placed(plan: JobPlan) -> tuple[PlacedNode, ...]:
    """The nodes of ``plan``, in order."""
    return tuple(PlacedNode(node.host.name, node.ranks) for node in plan.nodes)
