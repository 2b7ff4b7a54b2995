"""What the ranks and GPUs of a host were seen to do: an event that nobody decides on.

Apart from ``events``, since the core never looks at it: sinks do, and only where samples
were asked for.
"""

from __future__ import annotations

from dispatcher.core.events.run_events import Event, OfAttempt, Remark
from dispatcher.model.frozen import Value, value


@value
class RankSample(Value):
    """A rank's whole tree of processes; ``state`` (a letter of proc(5)) is that of its own one.

    cpu: seconds of CPU time so far, those of ended children included. rss: bytes. gpus: indices
    of those that it may use, own: of those that it is taken to use (that of its local rank, as
    scripts choose it; all, of a rank that is alone there); None where nobody can tell.
    """

    rank: int
    state: str
    cpu: float
    rss: int
    threads: int
    processes: int
    own: tuple[int, ...] | None = None
    gpus: tuple[int, ...] | None = None


@value
class GpuSample(Value):
    """One GPU: utilisation in %, bytes used and there are, watts, degrees Celsius.

    limit: watts that it may draw at most. traffic: % of the time in which its memory was read or
    written. None for what it does not tell.
    """

    index: int
    utilisation: float | None
    used: float | None
    memory: float | None
    watts: float | None
    celsius: float | None
    limit: float | None = None
    traffic: float | None = None


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
    """No rank has shown a sign of life for ``seconds`` (see ``hang``); where are they?"""

    seconds: float


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
class StacksWanted(Event):
    """Somebody wants to know where in its program every rank is; ``stacks`` has the answers."""


@value
class SamplesWanted(Event):
    """Somebody wants samples of all hosts every ``seconds`` from now on."""

    seconds: float
