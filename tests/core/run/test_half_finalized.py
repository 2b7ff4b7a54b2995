"""Ranks that leave MPI half-way, through the job (J-10)."""

from __future__ import annotations

import pytest

from dispatcher.core.events import mpi_events, verdicts
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, QueryInside, SignalRanks
from dispatcher.core.events.mpi_events import MpiFound
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.core.run.half_finalized import AGAIN, MOMENT
from dispatcher.plan.job.placement import number

from ..conftest import facts, make_plan, use_mpi


def found(job: AttemptMachine, rank: int) -> None:
    assert job.handle(MpiFound(rank // 2, "/a/libmpi.so.12", "PMI-1", rank), 1.0) == []


def left(job: AttemptMachine, rank: int, mpi: str, now: float = 1.0) -> list[Action]:
    actions = job.handle(ev.RankExited(rank // 2, rank, 0, mpi=mpi), now)
    for stream in (1, 2):
        actions += job.handle(ev.OutputEnded(rank // 2, rank, stream, 5, 5), now)
    return actions


def look(job: AttemptMachine, now: float) -> list[QueryInside]:
    for node in (0, 1):
        job.handle(ev.NodeHeard(node), now)
    return [action for action in job.tick(now) if isinstance(action, QueryInside)]


def tell(
    job: AttemptMachine, inside: tuple[int, ...], over: tuple[int, ...] = (), now: float = 2.0
) -> list[Action]:
    """Both nodes answer: these ranks are ``inside``."""
    actions = []
    for node in (0, 1):
        own, theirs = (tuple(r for r in ranks if r // 2 == node) for ranks in (inside, over))
        actions += job.handle(mpi_events.MpiInside(node, own, theirs), now)
    return actions


def has_ended(running: AttemptMachine) -> bool:
    return running.cause is not None


class TestWithoutInit:
    def test_it_ends_the_job_when_others_are_inside(self, running: AttemptMachine) -> None:
        found(running, 0)
        left(running, 2, "never")
        assert look(running, 1.0 + MOMENT / 2) == []
        assert look(running, 1.0 + MOMENT) == [QueryInside(0, False), QueryInside(1, False)]
        actions = tell(running, (0, 3))
        assert {a.node for a in actions if isinstance(a, SignalRanks)} == {0, 1}
        assert running.cause == verdicts.LeftMpi(1, 2, True, (2,), (0, 3))
        assert running.cause.exit_code == 1
        assert "look" not in running.deadlines

    def test_all_that_did_so_are_named(self, running: AttemptMachine) -> None:
        left(running, 3, "never")
        left(running, 0, "never")
        found(running, 1)
        look(running, 1.0 + MOMENT)
        tell(running, (1,))
        assert running.cause == verdicts.LeftMpi(0, 0, True, (0, 3), (1,))

    def test_a_job_without_mpi_is_asked_for_nothing(self, running: AttemptMachine) -> None:
        left(running, 2, "never")
        assert look(running, 5.0) == []

    def test_ranks_that_come_later_are_seen(self, running: AttemptMachine) -> None:
        left(running, 2, "never")
        found(running, 0)
        assert len(look(running, 1.0 + MOMENT)) == 2
        assert tell(running, ()) == []  # it has not come to MPI_Init, or is through already
        assert running.cause is None
        assert look(running, 1.5 + MOMENT) == []
        assert len(look(running, 1.0 + MOMENT + AGAIN)) == 2
        tell(running, (0,))
        assert isinstance(running.cause, verdicts.LeftMpi)

    def test_who_does_not_answer_is_asked_again(self, running: AttemptMachine) -> None:
        left(running, 2, "never")
        found(running, 0)
        look(running, 1.0 + MOMENT)
        running.handle(mpi_events.MpiInside(0, (0,)), 2.0)
        assert not has_ended(running)
        assert len(look(running, 1.0 + MOMENT + AGAIN)) == 2
        tell(running, (0,))
        assert has_ended(running)
        assert tell(running, (0,)) == []

    def test_only_those_of_the_same_world_have_done_so_with_it(
        self, running: AttemptMachine
    ) -> None:
        use_mpi(running, 0, 1)
        running.handle(mpi_events.PmiSpawnAsked(0, 0, (mpi_events.Segment(2, (b"p",)),)), 1.0)
        one, two = number(1, 0), number(1, 1)
        found(running, 1)
        running.handle(ev.RankExited(running.node_of(one), one, 0, mpi="never"), 1.0)
        left(running, 3, "never")
        look(running, 1.0 + MOMENT)
        tell(running, (0, 1, two))
        node = running.node_of(one)
        assert running.cause in (
            verdicts.LeftMpi(node, one, True, (one,), (two,)),
            verdicts.LeftMpi(1, 3, True, (3,), (0, 1)),
        )

    def test_time_to_ask_is_a_moment_after_the_first_of_it(self, running: AttemptMachine) -> None:
        found(running, 0)
        left(running, 2, "never", 1.0)
        left(running, 1, "never", 1.5)
        assert running.deadlines["query"] == 1.0 + MOMENT
        assert len(look(running, 1.0 + MOMENT)) == 2
        assert running.deadlines["query"] == 1.0 + MOMENT + AGAIN
        left(running, 3, "never", 2.1)  # who is asked already is not asked sooner
        assert running.deadlines["query"] == 1.0 + MOMENT + AGAIN

    def test_what_was_said_to_an_earlier_question_is_old(self, running: AttemptMachine) -> None:
        found(running, 0)
        left(running, 2, "never")
        look(running, 1.0 + MOMENT)
        running.handle(mpi_events.MpiInside(0, (0,)), 2.0)
        look(running, 1.0 + MOMENT + AGAIN)
        tell(running, (), now=4.5)  # meanwhile rank 0 has finalized and gone on
        assert running.cause is None

    def test_a_node_that_ends_meanwhile_is_not_waited_for(self, running: AttemptMachine) -> None:
        found(running, 0)
        left(running, 2, "never")
        look(running, 1.0 + MOMENT)
        left(running, 3, "", 2.0)
        running.handle(mpi_events.MpiInside(0, (0,)), 2.1)
        assert running.cause == verdicts.LeftMpi(1, 2, True, (2,), (0,))

    def test_a_world_that_was_spawned_is_another(self, running: AttemptMachine) -> None:
        use_mpi(running, 0, 1)
        running.handle(mpi_events.PmiSpawnAsked(0, 0, (mpi_events.Segment(2, (b"p",)),)), 1.0)
        own = number(1, 0)
        found(running, 1)
        running.handle(ev.RankExited(running.node_of(own), own, 0, mpi="never"), 1.0)
        look(running, 1.0 + MOMENT)
        tell(running, (0, 1))
        assert running.cause is None

    def test_a_failure_of_another_is_its_own(self, running: AttemptMachine) -> None:
        left(running, 2, "never")
        found(running, 0)
        running.handle(ev.RankExited(0, 0, 3), 1.1)
        assert running.cause == verdicts.RankFailed(0, 0, 3)


class TestWithoutFinalize:
    def test_it_ends_the_job_when_others_are_inside(self, running: AttemptMachine) -> None:
        found(running, 0)
        left(running, 1, "inside")
        assert look(running, 1.0 + MOMENT) == [QueryInside(0, True), QueryInside(1, True)]
        tell(running, (0, 2, 3), over=(3,))
        assert running.cause == verdicts.LeftMpi(0, 1, False, (1,), (0, 2))

    def test_it_is_a_failure_even_if_nobody_is_left(self, running: AttemptMachine) -> None:
        found(running, 0)
        left(running, 1, "inside")
        look(running, 1.0 + MOMENT)
        tell(running, ())
        assert running.cause == verdicts.LeftMpi(0, 1, False, (1,), ())

    def test_the_others_may_all_have_ended_before_the_look(self, running: AttemptMachine) -> None:
        found(running, 0)
        for rank in (3, 0, 1, 2):
            left(running, rank, "inside" if rank in (2, 3) else "")
        assert running.cause == verdicts.LeftMpi(1, 3, False, (2, 3), ())
        assert running.state == "finishing"

    @pytest.mark.parametrize("over", [(), (0,)])
    def test_one_that_may_have_finalized_counts_only_if_others_wait(
        self, running: AttemptMachine, over: tuple[int, ...]
    ) -> None:
        found(running, 0)
        left(running, 1, "open")
        assert look(running, 1.0 + MOMENT) == [QueryInside(0, True), QueryInside(1, True)]
        tell(running, over, over)
        assert running.cause is None
        assert "look" not in running.deadlines
        left(running, 3, "open", 4.0)
        look(running, 4.0 + MOMENT)
        tell(running, (0,), now=5.0)
        assert running.cause == verdicts.LeftMpi(1, 3, False, (3,), (0,))

    def test_all_may_end_so_together(self, running: AttemptMachine) -> None:
        found(running, 0)
        for rank in range(4):
            left(running, rank, "open")
        assert (running.cause, running.state) == (None, "finishing")

    def test_one_alone_lets_nobody_wait(self) -> None:
        job = AttemptMachine(make_plan(1, 1))
        job.begin()
        job.handle(ev.NodeReady(0, facts(0)), 0.0)
        job.handle(ev.RankSpawned(0, 0, 7), 0.0)
        found(job, 0)
        left(job, 0, "inside")
        assert (job.cause, job.state) == (None, "finishing")

    @pytest.mark.parametrize(
        "then", [ev.RankExited(1, 3, -6), mpi_events.PmiAborted(1, 3, 14, "lost its partner")]
    )
    def test_who_fails_in_its_turn_is_not_the_cause(
        self, running: AttemptMachine, then: ev.Event
    ) -> None:
        found(running, 0)
        left(running, 1, "inside")
        running.handle(then, 1.1)
        assert running.cause == verdicts.LeftMpi(0, 1, False, (1,), ())

    @pytest.mark.parametrize(
        ("mpi", "is_own"), [("", True), ("never", True), ("open", False), ("inside", False)]
    )
    def test_who_is_through_with_mpi_fails_by_itself(
        self, running: AttemptMachine, mpi: str, is_own: bool
    ) -> None:
        found(running, 0)
        left(running, 1, "open")
        running.handle(ev.RankExited(1, 3, 5, mpi=mpi), 1.1)
        own, other = verdicts.RankFailed(1, 3, 5), verdicts.LeftMpi(0, 1, False, (1,), ())
        assert running.cause == (own if is_own else other)

    def test_after_the_end_began_it_changes_nothing(self, running: AttemptMachine) -> None:
        found(running, 0)
        running.handle(ev.RankExited(0, 0, 3), 1.0)
        left(running, 1, "inside")
        assert running.cause == verdicts.RankFailed(0, 0, 3)
        assert look(running, 1.0 + MOMENT) == []
