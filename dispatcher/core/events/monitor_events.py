"""Events on the activity of ranks and hosts in a run, and the journal's first and last line.

``hang_monitor`` decides on samples, stacks and silence; sinks show outliers. The report is a
fold over the journal, which begins with ``RunBegan`` and ends with ``RunClosed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from dispatcher.core.events.collectives import Collective
from dispatcher.core.events.run_events import Event, OfAttempt, Remark
from dispatcher.core.events.stack_frames import HOW, Group
from dispatcher.core.events.verdicts import Verdict
from dispatcher.model import bounds
from dispatcher.model.frozen import Value, value
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.reassignment import Exclusion


@value
class RankSample(Value):
    """A sample of a rank's process tree; ``state``: its own process's letter of proc(5).

    cpu: seconds of CPU time so far, those of ended children included. rss: bytes. gpus: indices
    of the GPUs that it may use. own: of those that it probably uses (the one of its local rank, as
    scripts choose it; all, if it is alone on its host); None where that is not known. silent:
    seconds since it wrote anything, or started; None in older journals.
    """

    rank: bounds.OwnRank
    state: bounds.Letter
    cpu: bounds.Figure
    rss: bounds.Size
    threads: bounds.Size
    processes: bounds.Size
    own: bounds.Gpus | None = None
    gpus: bounds.Gpus | None = None
    silent: bounds.Figure | None = None


@value
class GpuSample(Value):
    """A sample of one GPU: utilisation in %, bytes used and in all, watts, degrees Celsius.

    limit: watts that it may draw at most. traffic: % of the time in which its memory was read or
    written. reasons: bits of NVML for the causes of low clocks. xids: errors that its driver has
    reported since the sample before. Values that it does not report are None.
    """

    index: bounds.Gpu
    utilisation: bounds.Figure | None
    used: bounds.Figure | None
    memory: bounds.Figure | None
    watts: bounds.Figure | None
    celsius: bounds.Figure | None
    limit: bounds.Figure | None = None
    traffic: bounds.Figure | None = None
    reasons: bounds.Size | None = None
    xids: bounds.Gpus = ()


@value
class NodeSampled(OfAttempt):
    """A host's sample of its ranks and GPUs, ``at`` a time of its own clock (s).

    late: the GPUs of this host do not answer. mark: when the progress file was changed, in ns;
    None where there is none.
    """

    node: int
    at: bounds.Seconds
    ranks: tuple[RankSample, ...]
    gpus: tuple[GpuSample, ...] = ()
    late: bool = False
    mark: bounds.Nanoseconds | None = None


@value
class RanksHung(Event):
    """All ranks have been inactive for ``seconds`` (see ``hang_rule``); dispatch asks their hosts.

    writing: ranks write, but do nothing else.
    """

    seconds: float
    writing: bool = False


@value
class RanksWait(Event):
    """All ranks have been silent for ``seconds``; ``still`` ranks seem to wait for ``busy`` ones.

    Busy ranks compute, or spin while they wait as well, so the job is not ended.
    """

    seconds: float
    still: tuple[int, ...]
    busy: tuple[int, ...]


@value
class RanksApart(Remark):
    """``ranks`` on ``nodes`` have used ``share`` % of ``what`` (CPU, GPU), unlike the others.

    usual: the median of all ranks, %. seconds: how long at least.
    """

    what: str
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    share: float
    usual: float
    seconds: float


@value
class GpuTroubled(Remark):
    """The driver reports error ``xid`` of ``gpu``, which ``ranks`` use, or the ``reason`` it slows.

    reason: a bit of NVML's clock event reasons. One of ``xid`` and ``reason`` is 0.
    """

    node: int
    gpu: int
    ranks: tuple[int, ...]
    xid: int
    reason: int


@value
class GpusUsed(Remark):
    """Processes used GPUs of the host when its ranks started; said: see ``gpu_users.SCRIPT``."""

    node: int
    said: bounds.Dump


@value
class StacksWanted(Event):
    """A user asks where in its program every rank is; ``StacksGathered`` has the answers."""


@value
class VersionsWanted(Event):
    """The job's record wants the versions of the ranks' software from all hosts."""


@value
class NodeVersions(OfAttempt):
    """A host's versions, as a rank's Python printed them (``checks.health.versions_in``)."""

    node: int
    found: bounds.Text


@value
class SamplesWanted(Event):
    """A user asks for samples of all hosts every ``seconds`` from now on."""

    seconds: float


@value
class RankStack(Value):
    """Where a rank is. how: the source, one of ``stack_frames.HOW``; text: its output, cut.

    pid: the process, on its host. state: the letter of proc(5).
    """

    rank: bounds.OwnRank
    pid: bounds.Count
    state: bounds.State
    how: Annotated[str, bounds.one_of(*HOW)]
    text: bounds.Dump


@value
class RankText(Value):
    """Raw text about a rank, cut."""

    rank: bounds.OwnRank
    text: bounds.Dump


@value
class Flight(Value):
    """A dump of torch's flight recorder: ``size`` bytes at its host's ``path``; data: b"" if large.

    The bytes are a pickle: dispatch stores them and never reads them.
    """

    rank: bounds.OwnRank
    path: bounds.Text
    size: bounds.Size
    data: bounds.Dump


@value
class NodeStacks(OfAttempt):
    """The answer of a host to gathering ``number``. ras: the answer of NCCL's RAS, b"" for none.

    recorders: extracts of flight recorders, see ``collectives.read``. natives: frames of main
    threads, with those in C.
    """

    node: int
    number: bounds.Count
    ranks: tuple[RankStack, ...]
    ras: bounds.Dump = b""
    flights: tuple[Flight, ...] = ()
    recorders: tuple[RankText, ...] = ()
    natives: tuple[RankText, ...] = ()

    def check(self) -> None:
        """Check that each rank has one file. Raises: ValueError."""
        if len({one.rank for one in self.flights}) < len(self.flights):
            raise ValueError("flights: a rank twice")


@value
class StacksGathered(Event):
    """Gathering ``number`` is over. late: hosts that have not answered in time.

    collective: the one that does not end, by torch's flight recorders.
    """

    number: int
    groups: tuple[Group, ...]
    late: tuple[int, ...] = ()
    collective: Collective | None = None


@value
class OutputSeen(Event):
    """Some rank wrote ``ago`` seconds before, or its output waited in dispatch until then.

    progress: it was the line that shows progress. The event comes only long after the last, when
    it may show that the job does not hang.
    """

    ago: float
    progress: bool = False


@value
class NetworksDiffer(Remark):
    """NCCL reports on ``nodes`` ``what`` network it uses: ``fell back to Socket``."""

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

    excluded: hosts that failed the checks before. version: of the journal's format.
    job_name: null if it has none.
    """

    run_id: str
    at: float
    hosts: tuple[str, ...]
    excluded: tuple[Exclusion, ...] = ()
    version: int = VERSION
    job_name: str | None = None


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

    The text is the one of the first of the ranks; numbers in it may differ from rank to rank.
    is_echo: it reports another rank's end. hint: the remedy, "" for none.
    """

    ranks: tuple[int, ...]
    text: str
    place: str = ""
    is_echo: bool = False
    hint: str = ""


@value
class NcclNetwork(Value):
    """The network ``net`` that NCCL uses, its ``devices``, and NCCL's version, "" if not known."""

    net: str
    devices: tuple[str, ...]
    version: str


@value
class RunClosed(Event):
    """The results of the run; the last line of a journal, after ``RunFinished``.

    verdict: the core's. seconds: how long the run took. nodes: of the plan as it was at the end.
    written: (rank, bytes of stdout, bytes of stderr) of the last attempt. last_words: of the rank
    that failed, if one did. advice: trouble -> a remedy that the launcher's machine knows.
    notes: further lines of the verdict, on leftovers and networks. nccl: host -> its network.
    errors: of the ranks of the last attempt, the cause's first. attempt_errors: number of
    restarts before an attempt -> the error of the rank that ended it, in a line.
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
