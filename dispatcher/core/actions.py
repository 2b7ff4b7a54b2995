"""What the core orders: frozen requests in the imperative; the runner carries them out.

``node`` counts hosts as the run has them, spares last, which is the plan's order
until a spare takes a seat. Only ``StartRanks`` and ``SpawnRanks`` mean a node of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.events import Event
from dispatcher.core.policy import Verdict
from dispatcher.core.spawn import World
from dispatcher.plan.job import JobPlan


@dataclass(frozen=True)
class Action:
    """Base of all actions."""


@dataclass(frozen=True)
class OpenLink(Action):
    """Reach the node, start its agent, send ``prepare``."""

    node: int


@dataclass(frozen=True)
class Prepare(Action):
    """Let the node's agent, which runs already, look at its host for a further attempt."""

    node: int
    attempt: int


@dataclass(frozen=True)
class Probe(Action):
    """Let the node's agent try to reach node 0 at each of ``addresses``."""

    node: int
    addresses: tuple[str, ...]
    port: int
    seconds: float


@dataclass(frozen=True)
class StartRanks(Action):
    """Spawn the node's ranks, which will meet at ``master_addr``:``master_port``.

    restart: how often ranks of this run have been started before.
    """

    plan: JobPlan
    node: int
    master_addr: str
    master_port: int
    restart: int = 0


@dataclass(frozen=True)
class SpawnRanks(Action):
    """Start the node's part of a world that a rank has spawned."""

    node: int
    world: World


@dataclass(frozen=True)
class SignalRanks(Action):
    """Send ``signum`` to the process groups of the node's living ``ranks``; None: of all."""

    node: int
    signum: int
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PauseRanks(Action):
    """Stop the node's ranks until ``ResumeRanks``; its agent outlives our silence."""

    node: int


@dataclass(frozen=True)
class ResumeRanks(Action):
    """Continue the node's ranks; its agent counts on us again."""

    node: int


@dataclass(frozen=True)
class Suspend(Action):
    """Stop dispatch itself, as Ctrl-Z asks; SIGCONT, told as a signal, continues it."""


@dataclass(frozen=True)
class Sweep(Action):
    """Kill everything below the node's agent now."""

    node: int


@dataclass(frozen=True)
class ReleaseFence(Action):
    """Let the node's members of ``fence`` go, with the keys of all nodes."""

    node: int
    world: int
    fence: str
    epoch: int
    packets: tuple[bytes, ...]


@dataclass(frozen=True)
class AnswerRank(Action):
    """Give the rank the ``line`` that answers its ``PmiAsked`` or ``PmiSpawnAsked``."""

    node: int
    rank: int
    line: bytes


@dataclass(frozen=True)
class AskWaiting(Action):
    """Let the node say which of its ranks others have awaited for ``seconds`` in ``fence``."""

    node: int
    world: int
    fence: str
    epoch: int
    seconds: float


@dataclass(frozen=True)
class Finish(Action):
    """The node's part is over: let its agent sweep, answer and exit."""

    node: int


@dataclass(frozen=True)
class CloseLink(Action):
    """Give the node up; its agent ends by itself when it notices."""

    node: int


@dataclass(frozen=True)
class Tell(Action):
    """Put an event of the core's own on the spine, for the sinks."""

    event: Event


@dataclass(frozen=True)
class End(Action):
    """The run is over."""

    verdict: Verdict
