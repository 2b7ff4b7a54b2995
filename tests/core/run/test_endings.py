"""How an attempt ends, deadline by deadline: who is waited for, for how long, and what is told."""

from __future__ import annotations

import signal

import pytest
from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import CloseLink, End, Finish, SignalRanks, Sweep, Tell
from dispatcher.core.run.attempt import (
    OVER,
    PROBE_SLACK,
    SWEEP_LIMIT,
    WOKEN,
    AttemptMachine,
    kill_steps,
    sweep_limit,
)
from dispatcher.model.errors import InternalError
from dispatcher.model.failure import AWAY, Ending, Failure, Kind
from dispatcher.plan.job.request import Limits

from ..conftest import facts, make_plan
from .test_attempt import READY, UNREACHABLE, begun, exit_all, exited, finish, orders, verdict_of

CTRL_C = verdicts.Interrupted(signal.SIGINT)
FAILED = verdicts.RankFailed(0, 0, 1)


def heard(job: AttemptMachine, now: float) -> None:
    for node in (0, 1):
        job.handle(ev.NodeHeard(node), now)


def silent(job: AttemptMachine) -> set[int]:
    """Nodes whose heartbeat is awaited."""
    return {key[1] for key in job.deadlines if isinstance(key, tuple) and key[0] == "silent"}


@cases(
    ("cause", "grace", "steps"),
    [
        (CTRL_C, 10.0, [(2, 10.0), (15, 2.0)]),
        (CTRL_C, 1.0, [(2, 1.0), (15, 1.0)]),
        (verdicts.Interrupted(signal.SIGTERM), 10.0, [(15, 10.0)]),
        (verdicts.Interrupted(signal.SIGHUP), 10.0, [(15, 10.0)]),
        (FAILED, 10.0, [(15, 10.0)]),
        (verdicts.Hung(60.0), 0.0, [(15, 0.0)]),
    ],
)
def test_kill_steps(cause: verdicts.Cause, grace: float, steps: list[tuple[int, float]]) -> None:
    assert kill_steps(cause, grace) == steps
    assert kill_steps(cause, grace, signal.SIGUSR1) == [(10, grace), (15, min(grace, 2.0))]
    assert kill_steps(cause, grace, signal.SIGTERM) == [(15, grace)]


class TestProbes:
    def test_an_answer_may_take_as_long_as_the_probe_and_a_little(self) -> None:
        job = begun(make_plan(), *READY)
        assert job.deadlines["probe"] == 1.0 + PROBE_SLACK
        job.handle(ev.NodeProbed(1, ()), 2.0)
        assert job.deadlines["probe"] == 2.0 + 3.0 + PROBE_SLACK
        assert job.deadlines["silent", 1] == 2.0 + 3.0 + job.plan.limits.silence
        heard(job, 10.0)
        assert job.tick(2.0 + 3.0 + PROBE_SLACK - 0.1) == []
        job.handle(ev.NodeProbed(1, ("10.0.0.1",)), 14.95)
        assert "probe" not in job.deadlines
        assert job.state == "running"

    def test_many_answers_may_take_longer_to_be_heard(self) -> None:
        few, many = make_plan(99), make_plan(250)
        assert [sweep_limit(plan) - SWEEP_LIMIT for plan in (few, many)] == [0, 2]
        job = AttemptMachine(many)
        job.begin()
        for node in range(250):
            job.handle(ev.NodeReady(node, facts(node)), 1.0)
        assert job.deadlines["probe"] == 1.0 + 1.0 + PROBE_SLACK + 2

    def test_who_is_late_is_named_with_the_reason(self) -> None:
        job = begun(make_plan(3), *READY, ev.NodeReady(2, facts(2)))
        job.handle(ev.NodeProbed(1, ("10.0.0.1",)), 0.5)
        for node in range(3):
            job.handle(ev.NodeHeard(node), 10.0)
        assert orders(job.tick(11.0)) == [CloseLink(2), Finish(0), Finish(1)]
        verdict = finish(job)
        why = Failure(Kind.LOST, "no answer to the check in time")
        assert verdict.cause == verdicts.NodeFailed(2, why)
        assert verdict.lost == {2: why}

    def test_who_calls_node_0_in_vain_is_not_lost_before_it(self) -> None:
        """An agent that tries addresses gives no heartbeat, for longer than three of them here."""
        job = begun(make_plan(limits=Limits(heartbeat=0.5)), *READY)
        job.handle(ev.NodeProbed(1, ()), 1.0)
        job.handle(ev.NodeHeard(0), 3.0)
        assert job.tick(1.0 + 3.0) == []
        job.handle(ev.NodeProbed(1, ()), 4.0)
        assert isinstance(job.cause, verdicts.Rejected)

    def test_late_words_of_a_start_change_nothing(self, running: AttemptMachine) -> None:
        before = dict(running.deadlines)
        assert running.handle(ev.NodeReady(1, facts(1)), 0.0) == []
        assert running.handle(ev.NodeProbed(1, ()), 0.0) == []
        assert (running.state, running.deadlines) == ("running", before)

    def test_a_node_that_an_open_plan_does_not_need_is_nobody_s(self) -> None:
        job = begun(make_plan(2, slots=None, np=2), ev.NodeReady(0, facts(0, gpus=4)))
        job.handle(ev.NodeReady(1, facts(1, gpus=4)), 0.0)
        assert silent(job) == {0}
        assert job.handle(ev.NodeLost(1, UNREACHABLE), 1.0) == []
        assert job.handle(ev.NodeHeard(1), 1.0) == []
        assert (silent(job), job.cause) == ({0}, None)
        exit_all(job, (0, 1), 0)
        assert finish(job, (0,)).world_size == job.plan.world_size == 2


class TestSilence:
    def test_a_heartbeat_that_is_told_late_shortens_nothing(self, running: AttemptMachine) -> None:
        limit = running.plan.limits.silence
        running.handle(ev.NodeHeard(0), 8.0)
        running.handle(ev.NodeHeard(0), 3.0)
        assert running.deadlines["silent", 0] == 8.0 + limit

    def test_its_reason_is_the_limit(self, running: AttemptMachine) -> None:
        running.handle(ev.NodeHeard(0), 5.0)
        assert running.tick(19.9) == []
        running.tick(20.0)
        why = Failure(Kind.LOST, "no heartbeat for 20 s", AWAY)
        assert running.cause == verdicts.NodeFailed(1, why)
        assert silent(running) == {0}

    def test_a_lost_node_is_lost_once(self, running: AttemptMachine) -> None:
        running.handle(ev.NodeLost(1, UNREACHABLE), 1.0)
        assert running.handle(ev.NodeLost(1, Failure(Kind.LOST, "again")), 1.1) == []
        assert running.handle(ev.NodeDying(1, "late"), 1.2) == []
        running.handle(ev.NodeHeard(1), 1.3)
        assert silent(running) == {0}
        exit_all(running, (0, 1), -15)
        assert finish(running, (0,)).lost == {1: UNREACHABLE}

    @cases("events", [[], READY])
    def test_one_that_dies_before_the_ranks_start_is_lost(self, events: list[ev.Event]) -> None:
        job = begun(make_plan(), *events)
        actions = orders(job.handle(ev.NodeDying(1, "told to"), 1.0))
        assert (CloseLink(1) in actions) == bool(events)
        if not events:
            actions = orders(job.handle(ev.NodeReady(0, facts(0)), 1.0))
        assert Finish(0) in actions
        cause = finish(job, (0,)).cause
        assert cause is not None
        assert Failure(Kind.LOST, "told to") in (
            cause.failures.values() if isinstance(cause, verdicts.Rejected) else [cause.failure]  # type: ignore[union-attr]
        )

    def test_while_others_are_ended_too_the_first_cause_stays(
        self, running: AttemptMachine
    ) -> None:
        exited(running, 0, 3)
        assert orders(running.handle(ev.NodeDying(1, "told to"), 1.0)) == []
        exit_all(running, (1, 2, 3), -15)
        verdict = finish(running)
        assert verdict.cause == verdicts.RankFailed(0, 0, 3)
        assert verdict.lost == {1: Failure(Kind.LOST, "told to")}


class TestSteps:
    def test_each_step_reaches_living_ranks_and_wakes_the_stopped(
        self, running: AttemptMachine
    ) -> None:
        exited(running, 0, 3, 1.0)
        exited(running, 1, 0, 1.0)
        heard(running, 10.0)
        assert "sweep" not in running.deadlines
        assert running.tick(11.0) == [Sweep(1)]
        assert "kill" not in running.deadlines
        assert running.deadlines["sweep"] == 11.0 + SWEEP_LIMIT

    def test_the_first_step_goes_with_what_continues(self, running: AttemptMachine) -> None:
        actions = running.handle(ev.SignalReceived(signal.SIGTERM), 1.0)
        assert actions[:1] == [Tell(ev.JobStopping("Interrupted"))]
        assert actions[1:] == [
            SignalRanks(0, signal.SIGTERM), SignalRanks(1, signal.SIGTERM),
            SignalRanks(0, signal.SIGCONT), SignalRanks(1, signal.SIGCONT),
        ]  # fmt: skip
        assert running.deadlines["kill"] == 1.0 + running.plan.limits.grace

    def test_who_ended_before_and_after_which_signal(self, running: AttemptMachine) -> None:
        exited(running, 3, 0)
        exited(running, 0, 3, 1.0)
        exited(running, 2, -15, 1.5)
        heard(running, 10.0)
        assert running.tick(11.0) == [Sweep(0)]
        exited(running, 1, -9, 11.5)
        verdict = finish(running)
        assert (verdict.before, verdict.ended) == ((3,), {2: signal.SIGTERM, 1: signal.SIGKILL})
        by = begun(make_plan(), *READY)
        by.handle(ev.SignalReceived(signal.SIGINT, "dispatch stop"), 1.0)
        assert by.cause == verdicts.Interrupted(signal.SIGINT, "dispatch stop")

    def test_who_does_not_answer_to_the_sweep_is_given_up(self, running: AttemptMachine) -> None:
        exited(running, 0, 3, 1.0)
        heard(running, 10.0)
        running.tick(11.0)
        exit_all(running, (1,), -9)
        assert running.tick(11.0 + SWEEP_LIMIT - 0.1) == []
        actions = running.tick(11.0 + SWEEP_LIMIT)
        assert actions == [CloseLink(1), Finish(0)]
        verdict = finish(running, (0,))
        assert verdict.lost == {1: Failure(Kind.LOST, "no answer for 8 s while ending")}
        assert verdict.cause == verdicts.RankFailed(0, 0, 3)

    def test_who_is_given_up_is_not_late_in_another_way_as_well(
        self, running: AttemptMachine
    ) -> None:
        exit_all(running, (0, 1), 3)
        heard(running, 10.0)
        assert running.tick(11.0) == [Sweep(1)]
        actions = running.tick(30.0)  # long after: the sweep was due at 19, the beats at 30
        assert actions[:3] == [CloseLink(1), Finish(0), CloseLink(0)]
        assert verdict_of(actions).lost == {
            1: Failure(Kind.LOST, "no answer for 8 s while ending"),
            0: Failure(Kind.LOST, "no heartbeat for 20 s", AWAY),
        }

    def test_who_does_not_answer_to_the_end_is_given_up(self, running: AttemptMachine) -> None:
        exit_all(running, range(4), 0)
        heard(running, 8.0)
        assert running.deadlines["finish"] == 1.0 + SWEEP_LIMIT
        assert running.handle(ev.NodeSwept(0, 0), 8.0) == [CloseLink(0)]
        assert silent(running) == {1}
        actions = running.tick(1.0 + SWEEP_LIMIT)
        assert actions[0] == CloseLink(1)
        verdict = verdict_of(actions)
        assert verdict.cause == verdicts.NodeFailed(
            1, Failure(Kind.LOST, "no answer for 8 s while ending")
        )
        assert running.deadlines == {}
        assert running.next_deadline() is None

    @pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2])
    def test_signals_that_are_passed_on_end_nothing(
        self, running: AttemptMachine, signum: int
    ) -> None:
        exited(running, 0, 0)
        exited(running, 1, 0)
        assert running.handle(ev.SignalReceived(signum), 1.0) == [SignalRanks(1, signum)]
        exited(running, 2, 3)
        assert running.handle(ev.SignalReceived(signum), 1.0) == [SignalRanks(1, signum)]
        exited(running, 3, -15)
        assert running.handle(ev.SignalReceived(signum), 1.0) == []
        assert (running.interrupts.level, running.state) == (0, "finishing")
        assert begun(make_plan()).handle(ev.SignalReceived(signum), 0.0) == []

    def test_a_second_ctrl_c_after_the_ranks_is_one_too_many(self, running: AttemptMachine) -> None:
        running.handle(ev.SignalReceived(signal.SIGINT), 1.0)
        exit_all(running, range(4), -2)
        actions = running.handle(ev.SignalReceived(signal.SIGINT), 1.5)
        assert actions[:2] == [CloseLink(0), CloseLink(1)]
        assert verdict_of(actions).exit_code == 130

    def test_a_first_ctrl_c_while_all_ends_well_is_the_cause(self, running: AttemptMachine) -> None:
        exit_all(running, range(4), 0)
        assert orders(running.handle(ev.SignalReceived(signal.SIGINT), 1.5)) == []
        assert finish(running).cause == verdicts.Interrupted(2)


class TestVerdict:
    def test_what_was_left_behind_is_told(self, running: AttemptMachine) -> None:
        exited(running, 0, 3)
        running.tick(11.0)
        running.handle(ev.NodeSwept(0, 2, ()), 11.5)
        exit_all(running, (1, 2), -9)
        left = ev.NodeSwept(1, 1, (77, 78), None, ("D in nfs_wait",))
        assert orders(running.handle(left, 12.0)) == [Finish(0), Finish(1)]
        running.handle(ev.NodeSwept(0, 0), 12.5)  # nothing new: what was found before stands
        verdict = verdict_of(running.handle(ev.NodeSwept(1, 0), 12.5))
        assert verdict.swept == {0: 2, 1: 1}
        assert verdict.unkillable == {1: (77, 78)}
        assert verdict.stuck == {1: ("D in nfs_wait",)}
        assert verdict.world_size == 4
        assert verdict.statuses == {0: 3, 1: -9, 2: -9}

    def test_what_was_left_without_anything_killed_is_told_too(
        self, running: AttemptMachine
    ) -> None:
        exit_all(running, range(4), 0)
        running.handle(ev.NodeSwept(0, 0, (77,)), 2.0)
        verdict = verdict_of(running.handle(ev.NodeSwept(1, 0), 2.0))
        assert (verdict.unkillable, verdict.swept) == ({0: (77,)}, {})

    def test_what_is_reported_twice_counts_once(self, running: AttemptMachine) -> None:
        exited(running, 0, 0)
        assert running.handle(ev.RankExited(0, 0, 5), 1.0) == []
        assert running.handle(ev.RankExited(1, 1, 5), 1.0) == []  # it lives elsewhere
        assert running.handle(ev.OutputEnded(0, 0, 1, 4, 5), 1.0) == []
        assert running.handle(ev.RankFailedToStart(1, 1, 2, "exec", "x"), 1.0) == []
        assert running.handle(ev.RankFailedToStart(0, 0, 2, "exec", "x"), 1.0) == []
        assert running.cause is None

    def test_who_could_not_be_started_has_no_status(self, running: AttemptMachine) -> None:
        running.handle(ev.RankFailedToStart(0, 1, 13, "exec", "prog"), 0.5)
        exit_all(running, (0, 2, 3), -15)
        verdict = finish(running)
        assert verdict.cause == verdicts.RankNotStarted(0, 1, 13, "exec", "prog")
        assert verdict.statuses == {0: -15, 2: -15, 3: -15}

    def test_nothing_is_ordered_after_the_end(self, running: AttemptMachine) -> None:  # J-5
        for now in (1.0, 2.0, 3.0):
            actions = running.handle(ev.SignalReceived(signal.SIGINT), now)
        assert isinstance(actions[-1], End)
        before = running.cause
        for event in (ev.NodeHeard(0), ev.RankExited(0, 0, 3), ev.NodeLost(0, UNREACHABLE)):
            assert running.handle(event, 2.0) == []
        assert running.tick(999.0) == []
        assert running.cause is before

    def test_an_event_without_a_rule_is_our_bug(self, running: AttemptMachine) -> None:
        with pytest.raises(InternalError, match="no rule for RunFinished"):
            running.handle(ev.RunFinished(0, ""), 1.0)
        for event in (ev.NodeNoticed(0, "x"), ev.RankLeaked(0, 0), ev.InputBroken("x")):
            assert running.handle(event, 1.0) == []


def test_hosts_are_told_in_order() -> None:
    answered = [0, 2, 3, 4, 5, 6, 7]
    job = begun(make_plan(9), *(ev.NodeReady(node, facts(node)) for node in answered))
    told = orders(job.handle(ev.SignalReceived(signal.SIGINT), 1.0))
    assert told == [*map(Finish, answered), CloseLink(1), CloseLink(8)]


def test_deadlines_are_met_in_their_order() -> None:
    """Two hosts are silent, of which the second for longer: it is the cause."""
    job = begun(make_plan(), *READY, check=False)
    job.handle(ev.NodeHeard(0), 5.0)
    job.handle(ev.NodeHeard(1), 4.0)
    assert job.next_deadline() == 24.0
    job.tick(60.0)
    assert job.cause == verdicts.NodeFailed(1, Failure(Kind.LOST, "no heartbeat for 20 s", AWAY))


SLEPT = Failure(
    Kind.LOST,
    "this machine slept or was stopped for 40 s; hosts end ranks after 30 s of silence (--lease)",
    AWAY,
)


def ends(rank: int, status: int) -> list[ev.Event]:
    return [ev.RankExited(rank // 2, rank, status)] + [
        ev.OutputEnded(rank // 2, rank, stream, 3, 3) for stream in (1, 2)
    ]


def gone(node: int) -> list[ev.Event]:
    """Its lease has run out: it says so, and its agent ends."""
    lost = ev.NodeLost(node, Failure(Kind.LOST, "the link ended"), Ending(3))
    return [ev.NodeDying(node, "the agent heard nothing from the launcher for 30 s"), lost]


WELL = [ends(rank, 0) for rank in range(4)]


@cases(
    ("told", "cause", "before", "lost"),
    [
        # all had ended well, and one host is read before the other
        ([*WELL[0], *WELL[1], *gone(0), *WELL[2], *WELL[3], *gone(1)], None, (), set()),
        # on node 1 they had not: that is no fault of it, and none of node 0's is lost
        ([*WELL[0], *WELL[1], *gone(0), *gone(1)[:1], *ends(2, -15), *ends(3, -15), *gone(1)[1:]],
         verdicts.NodeFailed(1, SLEPT), (0, 1), {1}),
        # rank 3 failed when its peer ended, which is told first
        ([*ends(3, 1), *gone(0)[:1], *ends(0, -15), *ends(1, -15), *gone(0)[1:], *ends(2, -15),
          *gone(1)], verdicts.NodeFailed(0, SLEPT), (), {0}),
        # a connection that ended while we slept, without a word
        ([*WELL[0], *WELL[1], ev.NodeLost(1, UNREACHABLE)], verdicts.NodeFailed(1, SLEPT),
         (0, 1), {1}),
        # a rank failed, and all hosts are still there
        ([*ends(3, 1)], verdicts.RankFailed(1, 3, 1), (), set()),
        ([*ends(3, 1), ev.SignalReceived(signal.SIGINT)], CTRL_C, (), set()),
        # output that was not read is lost
        ([*WELL[0], *WELL[1], *WELL[2], WELL[3][0], *gone(1)], verdicts.NodeFailed(1, SLEPT),
         (0, 1, 2, 3), {1}),
    ],
)  # fmt: skip
def test_what_came_while_the_launcher_slept_is_judged_when_all_is_known(
    told: list[ev.Event], cause: verdicts.Cause | None, before: tuple[int, ...], lost: set[int]
) -> None:
    job = begun(make_plan(), *READY, check=False)
    job.extend_deadlines(40.0)
    actions = job.handle(ev.LauncherSlept(40.0), 40.0)
    for event in told:
        actions += job.handle(event, 40.1)
    actions += job.tick(40.0 + WOKEN)
    assert job.cause == cause
    for node in (0, 1):
        actions += job.handle(ev.NodeSwept(node, 0), 44.0)
    if job.state == OVER:
        verdict = verdict_of(actions)
        assert (verdict.before, set(verdict.lost), verdict.ok) == (before, lost, cause is None)


def test_a_short_sleep_excuses_nothing() -> None:
    job = begun(make_plan(), *READY, check=False)
    job.handle(ev.LauncherSlept(19.0), 19.0)
    job.handle(ev.NodeLost(1, UNREACHABLE), 19.1)
    assert (job.cause, job.overslept) == (verdicts.NodeFailed(1, UNREACHABLE), set())
