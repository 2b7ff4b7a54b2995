"""What the core orders: frozen requests in the imperative; the runner carries them out.

``node`` counts hosts as the run has them, spares last. Only ``StartRanks``, ``SpawnRanks``,
``ServePmix`` and ``ShareWorld`` mean a node of the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.model.frozen import Value, value

if TYPE_CHECKING:  # a fan-out command has none of these
    from dispatcher.core.events.mpi_events import World
    from dispatcher.core.events.run_events import Event
    from dispatcher.core.events.verdicts import Verdict
    from dispatcher.plan.job.job_plan import JobPlan


@value
class Action(Value):
    """Base of all actions."""


@value
class OpenLink(Action):
    """Reach the node, start its agent, send ``prepare`` for ``attempt``."""

    node: int
    attempt: int = 0


@value
class Prepare(Action):
    """Let the node's agent, which runs already, look at its host for a further attempt."""

    node: int
    attempt: int


@value
class Probe(Action):
    """Let the node's agent try to reach node 0 at each of ``addresses``."""

    node: int
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
class SignalRanks(Action):
    """Send ``signum`` to living ``ranks`` (None: all), ``whole`` or as ``--signal-to`` says."""

    node: int
    signum: int
    ranks: tuple[int, ...] | None = None
    whole: bool = False


@value
class PauseRanks(Action):
    """Stop the node's ranks until ``ResumeRanks``; its agent outlives our silence."""

    node: int


@value
class ResumeRanks(Action):
    """Continue the node's ranks; its agent counts on us again."""

    node: int


@value
class Suspend(Action):
    """Stop dispatch itself, as Ctrl-Z asks; SIGCONT, told as a signal, continues it."""


@value
class Sweep(Action):
    """Kill everything below the node's agent now."""

    node: int


@value
class ReleaseFence(Action):
    """Let the members of ``fence`` on ``nodes`` go, with the keys of all of these.

    number: of a group that is made by it, which no other of the job has.
    """

    nodes: tuple[int, ...]
    world: int
    fence: str
    epoch: int
    packets: tuple[bytes, ...]
    number: int = 0


@value
class AnswerRank(Action):
    """Give the rank the ``line`` that answers its ``PmiAsked`` or ``PmiSpawnAsked``.

    ask: the number that this has, if any.
    """

    node: int
    rank: int
    line: bytes
    ask: int = 0


@value
class ShareWorld(Action):
    """Let those who serve PMIx on ``node`` know of ``world``, which has been spawned."""

    node: int
    world: World


@value
class ServePmix(Action):
    """Have the agent of ``node`` serve PMIx to its ranks, one of which has asked."""

    node: int


@value
class QueryInside(Action):
    """Let the node say who is inside MPI there.

    over: whether to look who has finalized and not said so yet.
    """

    node: int
    over: bool


@value
class AskWaiting(Action):
    """Let the node say which of its ranks others have awaited for ``seconds`` in ``fence``."""

    node: int
    world: int
    fence: str
    epoch: int
    seconds: float


@value
class GatherStacks(Action):
    """Have the node tell within ``seconds`` where its living ranks are: gathering ``number``.

    hung: they are thought to hang, so they may be halted to look at their frames in C.
    ras: NCCL's RAS, which any host can ask about all, is to be asked there.
    """

    node: int
    number: int
    seconds: float
    hung: bool = False
    ras: bool = True


@value
class SendFolder(Action):
    """Send the working folder to all hosts once more: ``FolderSent``."""


@value
class Finish(Action):
    """The node's part is over: let its agent sweep, answer and exit."""

    node: int


@value
class CloseLink(Action):
    """Give the node up; its agent ends by itself when it notices."""

    node: int


@value
class Tell(Action):
    """Put an event of the core's own on the spine, for the sinks."""

    event: Event


@value
class End(Action):
    """The run is over."""

    verdict: Verdict


@value
class CheckOrphans(Action):
    """End what is left on the node, reaching it anew within ``seconds``: ``NodeCleared``."""

    node: int
    seconds: float
