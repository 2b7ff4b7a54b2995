"""One verdict on a hang, out of all that was found when the ranks stood still. Pure.

Each signal names the ranks that it takes to hold the others back, or nobody. The one that knows
most decides; which of the others agree is told with it, and which do not::

    torch's flight recorders   who has not called the collective that the others are in
    NCCL's RAS                 who is dead, does not answer, or has launched fewer collectives
    stacks                     who is elsewhere (``stack_frames.grouped``)
    GPUs                       whose GPU does not wait while others' do, by power and use

That nobody writes or computes is what the hang was told by, so it names nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dispatcher.core.events.collectives import Collective
from dispatcher.core.events.ras_reply import RasReply
from dispatcher.core.events.stack_frames import Group
from dispatcher.core.events.verdicts import Hung, Signal

RECORDER, RAS, STACKS, GPUS = "flight recorder", "RAS", "stacks", "GPUs"


def ranks_of(reply: RasReply, pids: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks that RAS blames. pids: rank -> process; one that two hosts have names nobody."""
    by_pid: dict[int, list[int]] = {}
    for rank, pid in pids.items():
        by_pid.setdefault(pid, []).append(rank)
    found = (by_pid.get(process.pid, []) for process in reply.blamed)
    return tuple(sorted(ranks[0] for ranks in found if len(ranks) == 1))


def hung(
    seconds: float,
    groups: Sequence[Group],
    collective: Collective | None,
    ras: Iterable[int],
    idle_gpus: Iterable[int],
) -> Hung:
    """The cause to end a job with that has hung for ``seconds``.

    ras: whom it blames. idle_gpus: ranks whose GPUs do not wait where others' do.
    """
    odd = tuple(sorted(rank for group in groups if group.odd for rank in group.ranks))
    named = (
        (RECORDER, () if collective is None else collective.blamed),
        (RAS, tuple(sorted(ras))), (STACKS, odd), (GPUS, tuple(sorted(idle_gpus))),
    )  # fmt: skip
    signals = tuple(Signal(name, ranks) for name, ranks in named if ranks)
    blamed = signals[0].ranks if signals else ()
    one = blamed[0] if len(blamed) == 1 else None
    return Hung(seconds, tuple(groups), rank=one, collective=collective, signals=signals)
