"""What each cause makes dispatch exit with, and what nobody said of it."""

from __future__ import annotations

import errno

import pytest
from cases import cases

from dispatcher.core.events import mpi_events, verdicts
from dispatcher.model.failure import Failure, Kind

GONE = Failure(Kind.LOST, "gone")


@cases(
    ("cause", "code"),
    [
        (None, 0),
        (verdicts.RankFailed(0, 1, 7), 7),
        (verdicts.RankFailed(0, 1, -9), 137),
        (verdicts.MpiAborted(0, 1, 14), 14),
        (verdicts.MpiAborted(0, 1, 0), 1),
        (verdicts.LeftMpi(0, 1, True, (1,)), 1),
        (verdicts.RankNotStarted(0, 1, errno.ENOENT, "exec", "x"), 127),
        (verdicts.RankNotStarted(0, 1, errno.EACCES, "exec", "x"), 126),
        (verdicts.RankNotStarted(0, 1, errno.ENOENT, "chdir", "x"), 126),
        (verdicts.NodeFailed(0, GONE), 125),
        (verdicts.Rejected({0: GONE}), 125),
        (verdicts.Rejected({0: GONE}, 127), 127),
        (verdicts.Impossible("no"), 2),
        (verdicts.OutputLost(0, 1, 3, 4), 125),
        (verdicts.Hung(10.0), 124),
        (verdicts.Interrupted(15), 143),
    ],
)
def test_exit_codes(cause: verdicts.Cause | None, code: int) -> None:
    assert (0 if cause is None else cause.exit_code) == code
    assert verdicts.Verdict(cause, code, 1).ok == (cause is None)


@cases(
    ("library", "tried", "kind", "said"),
    [
        ("", "", Kind.LOST, "libpmix, which served its MPI ranks, has ended"),
        ("/l.so", "", Kind.CHECK,
         "MPI: /l.so finds its ranks by PMIx, and no libpmix can be used: "),
        ("", "x: no", Kind.CHECK,
         "MPI: the ranks' MPI finds its ranks by PMIx, and no libpmix can be used: x: no"),
    ],
)  # fmt: skip
def test_why_a_job_cannot_have_pmix(library: str, tried: str, kind: Kind, said: str) -> None:
    found = mpi_events.failure(mpi_events.PmixFailed(0, library, tried))
    assert (found.kind, found.why) == (kind, said)
    assert (found.hint is not None) == (kind is Kind.CHECK)


@cases(("alone", "named"), [(True, True), (False, False)])
def test_a_lone_rank_may_do_without_pmix(alone: bool, named: bool) -> None:
    found = mpi_events.failure(mpi_events.PmixFailed(0, "/l.so", "x: no"), alone=alone)
    assert ("--mpi none" in (found.hint or "")) == named


def test_a_world_knows_its_ranks() -> None:
    segments = (mpi_events.Segment(2, (b"a",)), mpi_events.Segment(1, (b"b",)))
    world = mpi_events.World(3, 0, segments, (), (1, 0, 1))
    assert world.size == 3
    assert [world.segment(rank).argv for rank in range(3)] == [(b"a",), (b"a",), (b"b",)]
    with pytest.raises(IndexError):
        world.segment(3)
    assert world.ranks_of() == {1: (0, 2), 0: (1,)}
