"""The run as a machine: what it orders for each event. No I/O, no sleep, no thread."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest

from dispatcher.core.events import actions as act
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.interrupts import READER
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.model.failure import Failure, Kind
from dispatcher.plan.job.job_plan import JobPlan

from ..conftest import facts, make_plan

UNREACHABLE = Failure(Kind.UNREACHABLE, "no route to host")


#: both nodes answer
READY = [ev.NodeReady(node, facts(node)) for node in (0, 1)]


def begun(plan: JobPlan, *events: ev.Event, check: bool = True) -> AttemptMachine:
    """An attempt at ``plan`` after these ``events``."""
    job = AttemptMachine(plan, check=check)
    job.begin()
    for event in events:
        job.handle(event, 0.0)
    return job


def orders(actions: list[act.Action]) -> list[act.Action]:
    """The actions that reach a host or end the run; what is only told is left out."""
    return [action for action in actions if not isinstance(action, act.Tell)]


def exited(job: AttemptMachine, rank: int, status: int, now: float = 1.0) -> list[act.Action]:
    """Rank ``rank`` exits with ``status`` and all its output arrives."""
    node = rank // 2
    actions = job.handle(ev.RankExited(node, rank, status), now)
    for stream in (1, 2):
        actions += job.handle(ev.OutputEnded(node, rank, stream, 5, 5), now)
    return orders(actions)


def exit_all(job: AttemptMachine, ranks: Iterable[int], status: int) -> None:
    for rank in ranks:
        exited(job, rank, status)


def verdict_of(actions: list[act.Action]) -> verdicts.Verdict:
    ends = [action for action in actions if isinstance(action, act.End)]
    assert len(ends) == 1
    return ends[0].verdict


def finish(
    job: AttemptMachine, nodes: tuple[int, ...] = (0, 1), now: float = 2.0
) -> verdicts.Verdict:
    actions: list[act.Action] = []
    for node in nodes:
        actions += job.handle(ev.NodeSwept(node, 0), now)
    return verdict_of(actions)


class TestStart:
    def test_opens_every_link_at_once(self, plan: JobPlan) -> None:
        assert AttemptMachine(plan).begin() == [act.OpenLink(0), act.OpenLink(1)]

    def test_starts_when_all_are_ready_and_reach_node_0(self, plan: JobPlan) -> None:
        job = begun(plan)
        assert job.handle(ev.NodeReady(1, facts(1)), 0.0) == []
        assert job.handle(ev.NodeReady(0, facts(0)), 0.0) == [
            act.Probe(1, ("10.0.0.1",), 4000, 1.0)
        ]
        assert orders(job.handle(ev.NodeProbed(1, ("10.0.0.1",)), 0.0)) == [
            act.StartRanks(plan, 0, "10.0.0.1", 4000),
            act.StartRanks(plan, 1, "10.0.0.1", 4000),
        ]

    def test_second_probe_tries_all_addresses(self, plan: JobPlan) -> None:
        job = begun(plan, *READY)
        again = job.handle(ev.NodeProbed(1, ()), 1.0)
        assert again == [act.Probe(1, ("10.0.0.1", "192.168.0.1"), 4000, 3.0)]
        started = orders(job.handle(ev.NodeProbed(1, ("192.168.0.1",)), 2.0))
        assert [action.master_addr for action in started] == ["192.168.0.1"] * 2  # type: ignore[attr-defined]

    def test_all_failures_are_collected_and_nothing_starts(self, plan: JobPlan) -> None:  # J-1
        job = begun(plan)
        assert job.handle(ev.NodeLost(1, UNREACHABLE), 1.0) == []
        wrong = ev.NodeReady(0, facts(0), (("cwd", "/w: no such directory"),))
        assert orders(job.handle(wrong, 2.0)) == [act.Finish(0)]
        verdict = finish(job, (0,))
        assert isinstance(verdict.cause, verdicts.Rejected)
        assert set(verdict.cause.failures) == {0, 1}
        assert verdict.exit_code == 125

    def test_what_may_not_be_expected_of_gpus_is_told(self) -> None:
        job = begun(make_plan(1, slots=4), check=False)
        told = job.handle(ev.NodeReady(0, facts(0, gpus=8, visible="6,7")), 0.0)
        (noticed,) = (
            a.event for a in told if isinstance(a, act.Tell) and isinstance(a.event, ev.NodeNoticed)
        )
        assert "4 ranks share" in noticed.text


class TestEnd:
    def test_all_zero(self, running: AttemptMachine) -> None:
        for rank in range(3):
            assert exited(running, rank, 0) == []
        assert exited(running, 3, 0) == [act.Finish(0), act.Finish(1)]
        verdict = finish(running)
        assert verdict.ok
        assert verdict.exit_code == 0
        assert verdict.statuses == {0: 0, 1: 0, 2: 0, 3: 0}

    def test_done_needs_both_streams(self, running: AttemptMachine) -> None:  # J-4
        exit_all(running, range(3), 0)
        assert running.handle(ev.RankExited(1, 3, 0), 1.0) == []
        assert running.handle(ev.OutputEnded(1, 3, 1, 0, 0), 1.0) == []
        assert running.handle(ev.OutputEnded(1, 3, 2, 0, 0), 1.0) == [act.Finish(0), act.Finish(1)]

    @pytest.mark.parametrize(("status", "code"), [(42, 42), (-9, 137), (-11, 139), (1, 1)])
    def test_first_failure_decides(
        self, running: AttemptMachine, status: int, code: int
    ) -> None:  # J-3
        ordered = exited(running, 2, status, 1.0)
        assert act.SignalRanks(0, signal.SIGTERM) in ordered
        assert act.SignalRanks(1, signal.SIGTERM) in ordered
        exited(running, 0, -15)
        exited(running, 1, 3)
        exited(running, 3, -15)
        verdict = finish(running)
        assert verdict.cause == verdicts.RankFailed(1, 2, status)
        assert verdict.exit_code == code

    def test_what_a_dead_rank_left_behind_is_told_to_end_at_once(self) -> None:
        job = begun(make_plan(1, slots=1), READY[0], check=False)
        ended = job.handle(ev.RankExited(0, 0, 1), 1.0)  # somebody holds its output
        assert act.SignalRanks(0, signal.SIGTERM) in ended

    def test_kill_ladder(self, running: AttemptMachine) -> None:
        exited(running, 2, 1, 1.0)
        grace = running.plan.limits.grace
        assert running.tick(1.0 + grace - 0.1) == []
        assert running.tick(1.0 + grace) == [act.Sweep(0), act.Sweep(1)]
        exited(running, 0, -9)
        exited(running, 1, -9)
        exited(running, 3, -9)
        assert finish(running).exit_code == 1

    def test_lost_output_is_an_error(self, running: AttemptMachine) -> None:  # J-6
        exit_all(running, range(3), 0)
        running.handle(ev.RankExited(1, 3, 0), 1.0)
        running.handle(ev.OutputEnded(1, 3, 1, 9, 10), 1.0)
        running.handle(ev.OutputEnded(1, 3, 2, 0, 0), 1.0)
        verdict = finish(running)
        assert verdict.cause == verdicts.OutputLost(1, 3, 9, 10)
        assert verdict.exit_code == 125

    def test_lost_node_ends_the_job(self, running: AttemptMachine) -> None:
        actions = orders(running.handle(ev.NodeLost(1, UNREACHABLE), 1.0))
        assert actions[0] == act.CloseLink(1)
        assert act.SignalRanks(0, signal.SIGTERM) in actions
        exited(running, 0, -15)
        exited(running, 1, -15)
        verdict = finish(running, (0,))
        assert verdict.cause == verdicts.NodeFailed(1, UNREACHABLE)
        assert verdict.exit_code == 125

    def test_a_dying_node_is_the_cause_of_what_its_ranks_do(
        self, running: AttemptMachine
    ) -> None:  # J-3
        actions = orders(running.handle(ev.NodeDying(1, "told to"), 1.0))
        assert act.CloseLink(1) not in actions  # what the ranks write at their end is still read
        assert act.SignalRanks(0, signal.SIGTERM) in actions
        exit_all(running, range(4), -15)
        running.handle(ev.NodeLost(1, Failure(Kind.LOST, "the link ended")), 2.0)
        verdict = finish(running, (0,))
        assert verdict.cause == verdicts.NodeFailed(1, Failure(Kind.LOST, "told to"))
        assert verdict.exit_code == 125

    def test_a_node_lost_after_its_last_rank_is_not_success(self, running: AttemptMachine) -> None:
        exit_all(running, range(4), 0)
        running.handle(ev.NodeSwept(0, 0), 2.0)
        verdict = verdict_of(running.handle(ev.NodeLost(1, UNREACHABLE), 2.0))
        assert verdict.exit_code == 125


class TestSignals:
    def test_ctrl_c_ladder(self, running: AttemptMachine) -> None:
        first = running.handle(ev.SignalReceived(signal.SIGINT), 1.0)
        assert act.SignalRanks(0, signal.SIGINT) in first
        assert act.SignalRanks(1, signal.SIGTERM, to="all") in running.tick(11.0)
        assert orders(running.tick(13.0)) == [act.Sweep(0), act.Sweep(1)]
        exit_all(running, range(4), -9)
        assert finish(running).exit_code == 130

    def test_second_kills_and_third_leaves(self, running: AttemptMachine) -> None:
        running.handle(ev.SignalReceived(signal.SIGINT), 1.0)
        second = orders(running.handle(ev.SignalReceived(signal.SIGINT), 1.5))
        assert second == [act.Sweep(0), act.Sweep(1)]
        assert running.handle(ev.SignalReceived(signal.SIGINT), 1.7) == []
        third = running.handle(ev.SignalReceived(signal.SIGINT), 1.8)
        assert third[:2] == [act.CloseLink(0), act.CloseLink(1)]
        assert verdict_of(third).exit_code == 130

    def test_machines_change_nothing(self, running: AttemptMachine) -> None:
        running.handle(ev.SignalReceived(signal.SIGTERM), 1.0)
        for signum, now in ((1, 1.02), (15, 2.0), (2, 3.0), (13, 4.0)):
            assert orders(running.handle(ev.SignalReceived(signum), now)) == []
        assert running.deadlines["kill"] == 11.0
        exit_all(running, range(4), 0)
        verdict = finish(running)
        assert (verdict.cause, verdict.came) == (verdicts.Interrupted(15), (15, 1, 15, 2, 13))
        assert verdict.sent == ((15, 0.0),)

    @pytest.mark.parametrize("signum", [signal.SIGINT, None])
    def test_ctrl_c_may_come_after_the_end_of_the_reader(
        self, running: AttemptMachine, signum: int | None
    ) -> None:
        assert running.handle(ev.SignalReceived(signal.SIGPIPE), 1.0) == []
        if signum is not None:
            running.handle(ev.SignalReceived(signum), 1.2)
        running.tick(1.0 + READER)
        assert running.cause == verdicts.Interrupted(signum or signal.SIGPIPE)
        assert running.interrupted
        assert "kill" in running.deadlines

    def test_what_nobody_read_did_not_end_well(self, running: AttemptMachine) -> None:
        running.handle(ev.SignalReceived(signal.SIGPIPE), 1.0)
        exit_all(running, range(4), 0)
        assert finish(running).exit_code == 141

    def test_a_command_that_kills_is_no_third(self, running: AttemptMachine) -> None:
        running.handle(ev.SignalReceived(signal.SIGINT), 1.0)
        assert running.handle(ev.SignalReceived(signal.SIGINT, "dispatch stop"), 1.5) == []
        order = ev.SignalReceived(signal.SIGKILL, "dispatch stop")
        assert orders(running.handle(order, 1.5)) == [act.Sweep(0), act.Sweep(1)]
        assert running.handle(order, 1.5) == []
        exit_all(running, range(4), -9)
        assert finish(running).exit_code == 130

    def test_while_connecting(self, plan: JobPlan) -> None:  # J-2
        job = begun(plan, ev.NodeReady(0, facts(0)))
        actions = orders(job.handle(ev.SignalReceived(signal.SIGINT), 1.0))
        assert actions == [act.Finish(0), act.CloseLink(1)]
        assert job.handle(ev.NodeReady(1, facts(1)), 1.1) == []
        assert finish(job, (0,)).exit_code == 130
