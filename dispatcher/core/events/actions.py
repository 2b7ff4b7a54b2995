"""The core's orders: frozen requests in the imperative; the runner carries them out.

``node`` is the number of a host in the run, spares last. Only in ``StartRanks``, ``SpawnRanks``,
``ServePmix`` and ``ShareWorld`` it is a node of the plan.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from dispatcher.model.frozen import Value, value

if TYPE_CHECKING:  # a fan-out command has none of these
    from dispatcher.core.events.mpi_events import World
    from dispatcher.core.events.run_events import Event
    from dispatcher.core.events.verdicts import Verdict
    from dispatcher.plan.job.job_plan import JobPlan


@value
class Action(Value):
    """Base of all actions; ``order`` is its name in an order to an agent: ``signal_ranks``."""

    order: ClassVar[str] = "action"

    def __init_subclass__(cls) -> None:
        cls.order = "_".join(re.findall(r"[A-Z][a-z]*", cls.__name__)).lower()

    def fields(self) -> dict[str, Any]:
        """The fields of that order: all but the hosts that get it."""
        return {name: value for name, value in vars(self).items() if name not in ("node", "nodes")}


@value
class Order(Action):
    """Base of the actions that the agent of ``node`` carries out, which gets them as they are."""

    node: int


@value
class OpenLink(Action):
    """Reach the node, start its agent, send ``prepare`` for ``attempt``."""

    node: int
    attempt: int = 0


@value
class Prepare(Action):
    """Have the node's agent, which runs already, check its host for a further attempt."""

    node: int
    attempt: int


@value
class Probe(Order):
    """Have the node's agent try to reach node 0 at each of ``addresses``."""

    addresses: tuple[str, ...]
    port: int
    seconds: float


@value
class StartRanks(Action):
    """Spawn the node's ranks, which will meet at ``master_addr``:``master_port``.

    restart: how often ranks of this run have been started before.
    """

    plan: JobPlan
    node: int
    master_addr: str
    master_port: int
    restart: int = 0


@value
class SpawnRanks(Action):
    """Start the node's part of a world that a rank has spawned."""

    node: int
    world: World


@value
class SignalRanks(Order):
    """Send ``signum`` to living ``ranks`` (None: all). to: as ``--signal-to``, or ``auto``."""

    signum: int
    ranks: tuple[int, ...] | None = None
    to: str = "auto"


@value
class PauseRanks(Order):
    """Stop the node's ranks until ``ResumeRanks``; its agent outlives our silence."""


@value
class ResumeRanks(Order):
    """Continue the node's ranks; its agent counts on us again."""


@value
class Suspend(Action):
    """Stop dispatch itself, as Ctrl-Z asks; SIGCONT, which comes as a signal, continues it."""


@value
class Sweep(Order):
    """Kill everything below the node's agent now."""


@value
class ReleaseFence(Action):
    """Let the members of ``fence`` on ``nodes`` go on, with the keys of all of these nodes.

    number: of a group that this fence makes; each group of the job has its own.
    """

    nodes: tuple[int, ...]
    world: int
    fence: str
    epoch: int
    keys: tuple[bytes, ...]
    number: int = 0


@value
class AnswerRank(Order):
    """Give the rank the ``line`` that answers its ``PmiAsked`` or ``PmiSpawnAsked``.

    ask: the number of that request, if it has one.
    """

    rank: int
    line: bytes
    ask: int = 0


@value
class ShareWorld(Action):
    """Announce ``world``, which has been spawned, to the PMIx server on ``node``."""

    node: int
    world: World


@value
class ServePmix(Action):
    """Have the agent of ``node`` serve PMIx to its ranks, one of which has asked."""

    node: int


@value
class QueryInside(Order):
    """Have the node report which of its ranks are inside MPI.

    over: also look for ranks that have finalized and have not reported it yet.
    """

    over: bool


@value
class AskWaiting(Order):
    """Have the node report for which of its ranks others have waited ``seconds`` in ``fence``."""

    world: int
    fence: str
    epoch: int
    seconds: float


@value
class GatherStacks(Action):
    """Have the node report within ``seconds`` where its living ranks are: gathering ``number``.

    hung: they seem to hang, so the agent may halt them to read their frames in C.
    ras: also ask NCCL's RAS, which knows about the ranks of all hosts.
    """

    node: int
    number: int
    seconds: float
    hung: bool = False
    ras: bool = True


@value
class SendFolder(Action):
    """Send the working folder to all hosts again: ``FolderSent``."""


@value
class Finish(Action):
    """Have the node's agent sweep, answer and exit: its part is over."""

    node: int


@value
class CloseLink(Action):
    """Give the node up; its agent exits by itself when it notices."""

    node: int


@value
class Tell(Action):
    """Put the core's own event on the spine, for the sinks."""

    event: Event


@value
class End(Action):
    """End the run."""

    verdict: Verdict


@value
class CheckOrphans(Action):
    """Reconnect to the node within ``seconds`` and kill what is left there: ``NodeCleared``."""

    node: int
    seconds: float
