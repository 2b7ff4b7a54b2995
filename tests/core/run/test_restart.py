"""After which cause another attempt follows, when, and when a lost host is looked at again."""

from __future__ import annotations

from dataclasses import replace

from cases import cases

from dispatcher.core.events import actions as act
from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import CheckOrphans
from dispatcher.core.events.mpi_events import WorldPlaced
from dispatcher.core.run.restart import (
    DOUBT,
    LATE,
    LEAST_DOUBT,
    LOOK,
    SWEEP,
    OrphanCheck,
    RestartBudget,
    fence,
    why_not,
)
from dispatcher.core.run.tables import for_hosts
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Value
from dispatcher.plan.job.request import LONG_LIFE, MOST_FRUITLESS, Limits, Restarts
from dispatcher.remote.agent import node
from dispatcher.remote.host import ssh_peer

GONE = Failure(Kind.LOST, "gone")
FAILED = verdicts.RankFailed(1, 2, 3)


@cases(
    ("cause", "why"),
    [
        (FAILED, None),
        (verdicts.RankFailed(0, 0, 93), "exit code 93 asks for none"),
        (verdicts.MpiAborted(0, 0, 7), None),
        (verdicts.MpiAborted(0, 0, 93), "MPI_Abort(93) asks for none"),
        (verdicts.LeftMpi(0, 0, True, (0,)), None),
        (verdicts.RankNotStarted(0, 0, 2, "exec", "x"), "the program cannot be executed"),
        (verdicts.RankNotStarted(0, 0, 2, "chdir", "x"), None),
        (verdicts.NodeFailed(0, GONE), None),
        (verdicts.Rejected({0: GONE}), None),
        (verdicts.Impossible("no"), "the hosts cannot hold it"),
        (verdicts.OutputLost(0, 0, 1, 2), "output was lost"),
        (verdicts.Hung(5.0), None),
        (verdicts.Interrupted(2), "it was interrupted"),
    ],
)
def test_what_must_not_be_tried_again(cause: verdicts.Cause, why: str | None) -> None:
    assert cause.no_restart == why


@cases(
    ("cause", "most", "interrupted", "why"),
    [
        (None, 2, False, None),
        (FAILED, 0, False, None),
        (FAILED, 0, True, None),
        (FAILED, 1, False, "1 restart was made, which is the most"),
        (FAILED, 2, False, "2 restarts were made, which is the most"),
        (FAILED, 2, True, "it was interrupted"),
        (verdicts.Interrupted(2), 2, True, None),
        (verdicts.Rejected({0: GONE}), 2, False, None),
        (verdicts.Rejected({0: GONE}), 2, True, "it was interrupted"),
        (verdicts.OutputLost(0, 0, 1, 2), 2, False, "output was lost"),
    ],
)
def test_why_none_follows(
    cause: verdicts.Cause | None, most: int, interrupted: bool, why: str | None
) -> None:
    assert why_not(cause, most, interrupted) == why


@cases(
    ("of_attempt", "by_host"),
    [
        (FAILED, replace(FAILED, node=5)),
        (verdicts.Hung(5.0), verdicts.Hung(5.0)),
        (verdicts.Hung(5.0, (), 0, 3), verdicts.Hung(5.0, (), 4, 3)),
        (verdicts.Interrupted(2), verdicts.Interrupted(2)),
        (act.Finish(1), act.Finish(5)),
        (
            act.ReleaseFence((0, 1), 0, "WORLD:0", 0, ()),
            act.ReleaseFence((4, 5), 0, "WORLD:0", 0, ()),
        ),
        (WorldPlaced(1, 0, 9, (1, 1)), WorldPlaced(1, 0, 9, (5, 5))),
    ],
)
def test_hosts_stand_for_the_nodes_of_an_attempt(of_attempt: Value, by_host: Value) -> None:
    assert for_hosts(of_attempt, (4, 5)) == by_host


def test_the_fence_is_the_lease_and_whatever_comes_after() -> None:
    assert fence(Limits(lease=30.0, lifeline_grace=1.0)) == 30.0 + 8.0 + 5.0 + 1.0
    assert fence(Limits(lease=30.0, lifeline_grace=20.0)) == 30.0 + 20.0 + 5.0 + 1.0


@cases(
    ("limits", "seconds"),
    [
        (Limits(), 1.25 * 5 + 10 + 1 + 1 + 1),
        (Limits(lifeline_grace=2.0), 20.25),
        (Limits(heartbeat=1.0, lease=4.0), 8.25),
        (Limits(heartbeat=20.0, lease=60.0), 68.0),
        (Limits(heartbeat=100.0, max_missed_heartbeats=1, lease=100.0), 114.0),  # never more
    ],
)
def test_who_sees_that_we_do_not_answer_needs_no_lease(limits: Limits, seconds: float) -> None:
    assert fence(limits, self_fencing=True) == seconds
    assert node.LATE == LATE
    assert (ssh_peer.DOUBT, ssh_peer.LEAST_DOUBT, ssh_peer.LOOK) == (DOUBT, LEAST_DOUBT, LOOK)


def attempt(budget: RestartBudget, began: float, ended: float, progress: bool = False) -> float:
    """An attempt fails; the pause before the next."""
    budget.next()
    budget.began = began
    budget.progressed = progress
    budget.ended(ended)
    return budget.pause


class TestBudget:
    def test_failures_in_a_row_are_counted_from_the_last_long_life(self) -> None:
        budget = RestartBudget(Restarts(most=9, delay=3.0))
        assert [attempt(budget, 0.0, LONG_LIFE - 1) for _ in range(3)] == [0.0, 3.0, 6.0]
        assert attempt(budget, 5.0, 5.0 + LONG_LIFE) == 0.0
        assert attempt(budget, 0.0, 1.0) == 3.0
        assert attempt(budget, 0.0, 1.0, progress=True) == 0.0

    def test_an_attempt_that_started_no_rank_costs_nothing(self) -> None:
        budget = RestartBudget(Restarts(most=9, delay=3.0, progress_line="x"))
        for _ in range(5):
            budget.ended(1.0)
            assert (budget.pause, budget.verdict) == (0.0, None)
        assert attempt(budget, 0.0, 1.0) == 0.0

    @cases("shows", [True, False])
    def test_attempts_without_progress_are_counted_where_it_is_shown(self, shows: bool) -> None:
        rules = Restarts(most=9, progress_line="x" if shows else None)
        budget = RestartBudget(rules)
        said = []
        for progress in (False, False, True, False, False, False):
            attempt(budget, 0.0, 1.0, progress)
            said.append(budget.verdict)
        last = f"{MOST_FRUITLESS} attempts without progress" if shows else None
        assert said == [None, None, None, None, None, last]

    def test_progress_of_an_attempt_that_a_person_ended_counts(self) -> None:
        budget = RestartBudget(Restarts(most=9, delay=3.0, progress_line="x"))
        for _ in range(MOST_FRUITLESS - 1):
            attempt(budget, 0.0, 1.0)
        budget.began, budget.progressed = 0.0, True
        budget.ended(1.0, failed=False)
        budget.next()
        assert attempt(budget, 0.0, 1.0) == 0.0
        assert budget.verdict is None

    @cases(
        ("before", "after", "progressed"),
        [(None, None, False), (None, 5, True), (5, 5, False), (5, 6, True), (5, None, False)],
    )
    def test_a_changed_file_is_progress(
        self, before: int | None, after: int | None, progressed: bool
    ) -> None:
        budget = RestartBudget(Restarts(most=1, progress_file="x"))
        budget.start_from(before)
        budget.see(after)
        assert budget.progressed is progressed
        budget.progressed = True
        budget.see(before)
        assert budget.progressed

    def test_the_next_attempt_begins_anew(self) -> None:
        budget = RestartBudget(Restarts(most=9, delay=3.0))
        assert [attempt(budget, 0.0, 1.0), attempt(budget, 0.0, 1.0)] == [0.0, 3.0]
        budget.progressed = True
        budget.next()
        assert not budget.progressed
        assert budget.pause == 0.0  # no rank has been started yet


class TestOrphans:
    """Hosts 1 and 2 are fenced until 40; the agent of 1 was seen to end."""

    def planned(self) -> OrphanCheck:
        check = OrphanCheck(10.0)
        actions = check.plan({1: 40.0, 2: 40.0, 3: 7.0}, {1, 3}, 7.0)
        assert actions == [CheckOrphans(1, 10.0)]  # the fence of 3 is open
        return check

    def test_once_and_as_late_as_the_fence_allows(self) -> None:
        check = self.planned()
        assert check.deadline == 40.0 - SWEEP
        assert [check.tick(now) for now in (34.9, 35.0, 99.0)] == [[], [CheckOrphans(2, SWEEP)], []]

    def test_what_is_due_already_is_done_at_once(self) -> None:
        check = OrphanCheck(10.0)
        assert check.plan({1: 12.0, 2: 13.0}, (), 7.0) == [CheckOrphans(1, SWEEP)]
        assert check.deadline == 8.0

    def test_it_ends_with_the_fence_however_long_connecting_may_take(self) -> None:
        """Later it would find the agent of the next attempt, which bears the same id."""
        assert OrphanCheck(120.0).plan({1: 40.0}, {1}, 7.0) == [CheckOrphans(1, 33.0)]
