"""The first and the last line of a run's journal: what the report needs beside the other events.

Names and numbers stand in the plan, and what ranks wrote is no event. So a journal opens with
``RunBegan`` and closes with ``RunClosed``; with these two the report is a fold over the journal
alone. Neither holds anything of a rank's environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from dispatcher.core.events.run_events import Event
from dispatcher.core.events.verdicts import Verdict
from dispatcher.model.frozen import Value, value
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.reassignment import Exclusion

#: of the journal's format; raised when an older reader would misread a newer journal
VERSION = 1


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
    that failed, if one did. above: host -> those it was reached through, nearest first; None where
    all were reached directly. advice: trouble -> what the launcher's machine knows to do about it.
    notes: further lines of the verdict, on leftovers and networks. nccl: host -> its network.
    """

    verdict: Verdict
    seconds: float
    nodes: tuple[PlacedNode, ...]
    written: tuple[tuple[int, int, int], ...] = ()
    last_words: LastWords | None = None
    above: Mapping[int, tuple[int, ...]] | None = None
    advice: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    nccl: Mapping[int, NcclNetwork] = field(default_factory=dict)


def placed(plan: JobPlan) -> tuple[PlacedNode, ...]:
    """The nodes of ``plan``, in order."""
    return tuple(PlacedNode(node.host.name, node.ranks) for node in plan.nodes)
