"""Finds ranks that leave MPI half-way, before the job hangs because of them (J-10). Pure.

::

    exit with 0, MPI_Init never called --+         others are inside MPI ----------> LeftMpi
    exit with 0 without MPI_Finalize ----+-> ask: certain, or others are inside ---> LeftMpi
                                                   none of it -----> ask again, or forget

To ask is to ``query`` all nodes with living ranks which of them are inside MPI. docs/design/mpi.md
has the rules, and the reason why a rank of MPICH 5 may have finalized ("open").
"""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import Action, QueryInside
from dispatcher.core.events.mpi_events import MpiInside
from dispatcher.core.run.tables import RankTable
from dispatcher.plan.job import placement

#: seconds from an exit to the query, and between two
MOMENT, AGAIN = 1.0, 2.0


class HalfFinalized:
    """Follows which ranks of one job left MPI half-way. due: when to ``query``, or None."""

    def __init__(self, ranks: RankTable) -> None:
        self.due: float | None = None
        self._ranks = ranks
        self._never: list[int] = []  # ranks that are gone, in order
        self._unfinished: list[int] = []
        self._open: list[int] = []  # those that may have finalized
        self._uses_mpi = False  # whether any rank does
        self._awaited: set[int] = set()  # nodes that are yet to answer
        self._answers: list[MpiInside] = []

    def exited(self, rank: int, mpi: str, now: float) -> None:
        """Note that ``rank`` exited with 0; mpi: see ``run_events.RankExited``."""
        gone = {"never": self._never, "inside": self._unfinished, "open": self._open}.get(mpi)
        if gone is not None and len(self._ranks.nodes) > 1:  # no rank waits for the only one
            gone.append(rank)
            self._plan(now + MOMENT)

    def found(self, now: float) -> None:
        """Note that a rank uses MPI."""
        self._uses_mpi = True
        self._plan(now + MOMENT)

    def query(self, now: float) -> list[Action]:
        """Ask the nodes which ranks are inside, and no longer wait for answers of the last time."""
        self.due = None
        nodes = self._ranks.living()
        if not nodes:
            return []
        self._answers = []
        self._awaited = set(nodes)
        self.due = now + AGAIN
        over = bool(self._unfinished or self._open)
        return [QueryInside(node, over) for node in nodes]

    def answer(self, event: MpiInside) -> verdicts.Cause | None:
        """Note a node's answer; return the cause to end the job for, if the answers show one."""
        if event.node not in self._awaited:
            return None
        self._awaited.discard(event.node)
        self._answers.append(event)
        return None if self._awaited & set(self._ranks.living()) else self._conclude()

    def instead(self, cause: verdicts.Cause, mpi: str) -> verdicts.Cause:
        """Return the cause to name for ``cause``: a rank that left MPI makes its partners fail.

        mpi: the state of the failed rank, see ``RankExited``. If it was through with MPI, it
        cannot have lost a partner, so ranks that may have finalized are not blamed.
        """
        came = isinstance(cause, (verdicts.RankFailed, verdicts.MpiAborted))
        gone = (*self._unfinished, *(self._open if mpi in ("inside", "open") else ()))
        return self._left(gone, (), never=False) if came and gone else cause

    def at_the_end(self) -> verdicts.Cause | None:
        """Return the cause if ranks left MPI half-way, after all ranks exited with 0."""
        gone = tuple(self._unfinished)
        return self._left(gone, (), never=False) if gone else None

    # -- the judgement ----------------------------------------------------------------

    def _plan(self, when: float) -> None:
        if self._is_asked() and not self._awaited:
            self.due = when if self.due is None else min(self.due, when)

    def _is_asked(self) -> bool:
        return self._uses_mpi and bool(self._never or self._unfinished or self._open)

    def _conclude(self) -> verdicts.Cause | None:
        answers, self._answers = self._answers, []
        inside = {rank for answer in answers for rank in answer.ranks}
        for rank in self._never:
            gone, waiting = _of_world(rank, self._never), _of_world(rank, inside)
            if waiting:
                return self._left(gone, waiting, never=True)
        inside.difference_update(*(answer.over for answer in answers))
        if self._unfinished or (self._open and inside):
            gone = (*self._unfinished, *self._open)
            return self._left(gone, tuple(sorted(inside)), never=False)
        self._open.clear()
        if not self._is_asked():
            self.due = None
        return None

    def _left(
        self, gone: tuple[int, ...], waiting: tuple[int, ...], *, never: bool
    ) -> verdicts.LeftMpi:
        first = gone[0]
        ranks = tuple(sorted(gone))
        return verdicts.LeftMpi(self._ranks.nodes[first], first, never, ranks, waiting)


def _of_world(rank: int, ranks: Iterable[int]) -> tuple[int, ...]:
    """Those of ``ranks`` that were started together with ``rank``, in order."""
    world = placement.place(rank)[0]
    return tuple(sorted(other for other in ranks if placement.place(other)[0] == world))
