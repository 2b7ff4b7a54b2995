"""What ranks say to MPI's process manager, and what it does for them: events."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.core.events.error_file import ErrorFile
from dispatcher.core.events.run_events import Event, OfAttempt
from dispatcher.model.frozen import Value, value


@value
class PmiCommitted(OfAttempt):
    """All members on the node are in ``fence``; ``keys`` is what they put, packed by the agent."""

    node: int
    world: int
    fence: str
    epoch: int
    keys: bytes


@value
class PmiAborted(OfAttempt):
    """The rank called MPI_Abort with ``code``; ``text`` is its reason; error: its error file."""

    node: int
    rank: int
    code: int
    text: str
    error: ErrorFile | None = None


@value
class PmiAsked(OfAttempt):
    """The rank wants to ``publish``, ``lookup`` or ``unpublish`` ``service`` (at ``port``)."""

    node: int
    rank: int
    verb: str
    service: bytes
    port: bytes


@value
class Segment(Value):
    """A part of a spawn: ``nprocs`` ranks run ``argv``; ``info`` are pairs of key and value."""

    nprocs: int
    argv: tuple[bytes, ...]
    info: tuple[tuple[bytes, bytes], ...] = ()


@value
class PmiSpawnAsked(OfAttempt):
    """The rank wants a new world of ``segments``, whose keys begin with the pairs ``preput``."""

    node: int
    rank: int
    segments: tuple[Segment, ...]
    preput: tuple[tuple[bytes, bytes], ...] = ()


@value
class WorldPlaced(Event):
    """Rank ``by`` spawns ``world``: its ranks, numbered from ``first``, start on ``nodes``."""

    world: int
    by: int
    first: int
    nodes: tuple[int, ...]


@value
class SpawnRefused(Event):
    """The rank on ``node`` that wanted to spawn was told no; ``why`` is for the user."""

    node: int
    rank: int
    why: str


@value
class PmiWaiting(OfAttempt):
    """Ranks have been awaited for ``seconds``: they ``never`` called MPI_Init, or are ``absent``.

    absent: from a barrier, in MPI_Init, MPI_Finalize or a spawn. some: perhaps only some of them.
    """

    node: int
    never: tuple[int, ...]
    absent: tuple[int, ...]
    seconds: float
    some: bool = False


@value
class MpiInside(OfAttempt):
    """Who is ``inside`` MPI on the node: rank -> what serves it, and its library.

    over: those whose MPI_Finalize is behind them.
    versions: (what serves it, library) -> version, of those that were asked for.
    """

    node: int
    inside: Mapping[int, tuple[str, str]]
    over: tuple[int, ...]
    versions: Mapping[tuple[str, str], str]
