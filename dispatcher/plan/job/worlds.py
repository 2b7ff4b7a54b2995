"""Numbers for the ranks of a whole job: those that were planned, and those they spawn later.

Every ``MPI_Comm_spawn`` makes a *world* of its own, whose ranks count from 0 again.
The plan is world 0. On the wire, in events and in the journal each rank of the job
has one number, from which its world and its rank there can be told without asking
anybody; people read ``3`` for a planned rank and ``1.0`` for rank 0 of the first
spawned world.

::

    0 ... FIRST-1                    the planned ranks, as they are
    FIRST + (w-1) * MOST_SPAWNED     rank 0 of world w; its other ranks follow
"""

from __future__ import annotations

#: where spawned ranks begin; above placement.MOST_RANKS
FIRST = 1 << 20
#: ranks of one spawned world at most; and of all that live at the same time
MOST_SPAWNED = 1 << 12
#: a frame holds a rank number in four bytes
MOST_WORLDS = ((1 << 32) - FIRST) // MOST_SPAWNED


def number(world: int, rank: int) -> int:
    """The number of ``rank`` of ``world``."""
    return rank if world == 0 else FIRST + (world - 1) * MOST_SPAWNED + rank


def place(number: int) -> tuple[int, int]:
    """(world, rank there) of a rank number."""
    if number < FIRST:
        return 0, number
    world, rank = divmod(number - FIRST, MOST_SPAWNED)
    return world + 1, rank


def name(number: int) -> str:
    """What people call it: ``3``, or ``1.0`` for a spawned rank."""
    world, rank = place(number)
    return f"{world}.{rank}" if world else str(rank)
