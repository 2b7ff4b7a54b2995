"""How a run ends: who is told to finish, who is given up, and what is told of them."""

from __future__ import annotations

import signal
from typing import Any

from cases import cases

from dispatcher.core.events import actions as act
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.run import run_machine
from dispatcher.core.run.attempt import SWEEP_LIMIT
from dispatcher.core.run.run_machine import RunMachine
from dispatcher.model.failure import Failure, Kind
from dispatcher.plan.job.request import Limits

from ..conftest import facts, make_plan
from .world import GONE, WHY, World, started


class TestEnd:
    def test_who_never_answered_is_not_waited_for(self) -> None:
        world = World(2, spares=1)
        world.ready(0, 1)
        world.probed(1)
        for rank in range(4):
            world.exits(rank, 0)
        world.sweep(0)
        orders = world.since(ev.NodeSwept(1, 0))
        assert [order for order in orders if not isinstance(order, act.Tell)][:2] == [
            act.CloseLink(1), act.CloseLink(2),
        ]  # fmt: skip
        assert world.ended is not None

    def test_a_spare_that_is_silent_at_the_end_is_left(self) -> None:
        world = started(2, spares=1)
        world.mute.add(2)
        for rank in range(4):
            world.exits(rank, 0)
        world.sweep(0, 1)
        assert world.run.next_deadline() == world.now + SWEEP_LIMIT
        at = len(world.done)
        world.take(world.run.tick(world.now + SWEEP_LIMIT - 0.1))
        assert world.ended is None
        world.take(world.run.tick(world.now + SWEEP_LIMIT))
        assert world.done[at] == act.CloseLink(2)
        assert isinstance(world.done[-1], act.End)
        assert world.run.next_deadline() is None
        assert world.run.state == run_machine.OVER

    @cases("how", ["lost", "dying", "swept"])
    def test_its_last_word_of_any_kind_is_the_end(self, how: str) -> None:
        world = started(2, spares=1)
        end = {
            "lost": ev.NodeLost(2, GONE),
            "dying": ev.NodeDying(2, "x"),
            "swept": ev.NodeSwept(2, 0),
        }  # fmt: skip
        for rank in range(4):
            world.exits(rank, 0)
        world.sweep(0, 1)
        assert world.since(ev.NodeReady(2, facts(2))) == []  # late
        assert world.since(ev.NodeHeard(2)) == []
        actions = world.since(end[how])
        assert actions[0] == act.CloseLink(2)
        assert isinstance(actions[-1], act.End)
        assert not world.told(ev.HostLeftOut)
        assert world.ended is not None
        assert world.ended.ok

    def test_a_signal_at_the_end_leaves_at_once(self) -> None:
        world = started(2, spares=2)
        for rank in range(4):
            world.exits(rank, 0)
        world.sweep(0, 1)
        assert world.since(ev.SignalReceived(signal.SIGUSR1)) == []
        assert world.since(ev.SignalReceived(signal.SIGTERM)) == []  # of a machine, which can wait
        actions = world.since(ev.SignalReceived(signal.SIGINT))
        assert actions[:2] == [act.CloseLink(2), act.CloseLink(3)]
        assert world.ended is not None
        assert world.ended.ok
        for event in (ev.SignalReceived(signal.SIGTERM), ev.NodeHeard(2), ev.NodeSwept(2, 0)):
            assert world.since(event) == []
        assert world.run.tick(9999.0) == []

    def test_the_third_signal_leaves_spares_too(self) -> None:
        world = started(2, spares=1)
        for _ in range(3):
            world.tell(ev.SignalReceived(signal.SIGINT))
            world.wait(0.3)
        assert world.ended is not None
        assert world.done[-1] == act.End(world.ended)
        assert act.CloseLink(2) in world.done
        assert act.Finish(2) in world.done

    def test_who_is_to_blame_is_not_told_as_left_out(self) -> None:
        world = World(2, spares=1)
        world.ready(0)
        world.tell(ev.NodeLost(2, GONE))
        world.tell(ev.NodeLost(1, GONE))
        world.sweep(0)
        world.sweep(0)
        assert world.ended is not None
        assert isinstance(world.ended.cause, verdicts.Rejected)
        assert set(world.ended.cause.failures) == {1}
        assert world.ended.left_out == {"n2": WHY}

    def test_where_fewer_may_go_on_a_rejected_host_is_dropped(self) -> None:
        world = World(3, most=1, min_nodes=2)
        world.ready(0, 1)
        world.tell(ev.NodeLost(2, GONE))
        world.sweep(0, 1)
        assert world.told(ev.HostLeftOut) == [ev.HostLeftOut(2, WHY)]
        assert world.told(ev.WorldShrunk) == [ev.WorldShrunk((0, 1), (2, 2))]
        world = World(3, most=1)
        world.ready(0, 1)
        world.tell(ev.NodeLost(2, GONE))
        world.sweep(0, 1)
        assert world.ended is not None
        assert world.ended.no_restart is None


def opened(**fields: Any) -> RunMachine:
    """Three hosts with two GPUs each, of which two ranks need one."""
    run = RunMachine(make_plan(3, None, np=2, **fields))
    run.begin()
    for host in range(3):
        actions = run.handle(ev.NodeReady(host, facts(host, gpus=2)), 0.0)
    assert [action for action in actions if isinstance(action, act.CloseLink)] == [
        act.CloseLink(1), act.CloseLink(2),
    ]  # fmt: skip
    assert run.handle(ev.NodeLost(1, Failure(Kind.LOST, "x")), 1.0) == []
    assert run.rank_hosts == {0: 0, 1: 0}
    return run


def ended(run: RunMachine, *statuses: int) -> list[act.Action]:
    """Both ranks exit, their output arrives; what the last of it leads to."""
    for rank, status in enumerate(statuses):
        run.handle(ev.RankExited(0, rank, status), 1.0)
        for stream in (1, 2):
            actions = run.handle(ev.OutputEnded(0, rank, stream, 0, 0), 1.0)
    return actions


def test_hosts_that_an_open_plan_does_not_need_are_let_go() -> None:
    run = opened()
    assert ended(run, 0, 0) == [act.Finish(0)]
    (close, end) = run.handle(ev.NodeSwept(0, 0), 1.0)
    assert close == act.CloseLink(0)
    assert isinstance(end, act.End)
    assert end.verdict.ok


LIMITED = Limits(time_limit=100.0, warn_signal=signal.SIGUSR1, warn_before=30.0)
UP = verdicts.TimeUp(100.0)


def signals(world: World, since: int = 0) -> list[int]:
    return [a.signum for a in world.done[since:] if isinstance(a, act.SignalRanks) and a.node == 0]


class TestTimeLimit:
    def test_ranks_are_warned_then_ended_and_nothing_follows(self) -> None:
        world = started(2, most=3, limits=LIMITED)
        world.wait(69.0)
        assert signals(world) == []
        world.wait(1.0)
        assert signals(world) == [signal.SIGUSR1]
        assert world.told(ev.TimeShort) == [ev.TimeShort(signal.SIGUSR1, 30.0)]
        world.wait(29.0)
        assert world.told(ev.JobStopping) == []
        world.wait(1.0)
        assert signals(world)[1:] == [signal.SIGTERM, signal.SIGCONT]
        world.killed(0, 1, 2, 3)
        world.sweep(0, 1)
        assert world.ended is not None
        assert (world.ended.cause, world.ended.exit_code) == (UP, 124)
        assert (world.ended.attempts, world.ended.no_restart) == ((), None)

    def test_while_hosts_are_reached_nobody_is_warned_and_nothing_starts(self) -> None:
        world = World(2, limits=LIMITED)
        world.ready(0)
        world.wait(100.0)
        world.swept()
        assert world.ended is not None
        assert world.ended.cause == UP
        assert (world.told(ev.TimeShort), signals(world), world.starts()) == ([], [], [])

    def test_between_two_attempts_the_run_ends_at_once(self) -> None:
        world = started(2, most=9, delay=200.0, limits=LIMITED)
        world.fail(0)
        world.ready(0, 1)
        world.probed(1)
        world.fail(0)
        assert world.run.state == run_machine.PAUSED
        world.wait(100.0)
        world.swept()
        assert world.ended is not None
        assert world.ended.cause == UP
        assert len(world.ended.attempts) == 2

    def test_an_attempt_that_ends_as_the_time_does_is_the_last(self) -> None:
        world = started(2, most=9, limits=LIMITED)
        world.wait(99.0)
        world.exits(0, 3)
        world.wait(2.0)
        world.killed(1, 2, 3)
        world.sweep(0, 1)
        world.swept()
        assert world.ended is not None
        assert world.ended.cause == verdicts.RankFailed(0, 0, 3)
        assert world.ended.no_restart == "its time is up"

    def test_ranks_that_are_done_in_time_stay_ok(self) -> None:
        """However long the last look at their hosts takes."""
        world = started(2, limits=LIMITED)
        world.wait(99.0)
        for rank in range(4):
            world.exits(rank, 0)
        world.wait(2.0)
        world.sweep(0, 1)
        assert world.ended is not None
        assert world.ended.ok
        assert world.told(ev.JobStopping) == []


@cases(
    ("own", "asked", "steps"),
    [
        (0, 0, [(signal.SIGTERM, 10.0)]),
        (0, signal.SIGUSR1, [(signal.SIGUSR1, 10.0), (signal.SIGTERM, 2.0)]),
        (signal.SIGUSR2, 0, [(signal.SIGUSR2, 10.0), (signal.SIGTERM, 2.0)]),
        (signal.SIGUSR2, signal.SIGTERM, [(signal.SIGTERM, 10.0)]),
    ],
)
def test_who_stops_a_job_may_say_what_comes_first(
    own: int, asked: int, steps: list[tuple[int, float]]
) -> None:
    world = started(2, limits=Limits(stop_signal=own))
    world.tell(ev.SignalReceived(signal.SIGINT, first=asked))
    for signum, seconds in steps:
        assert signals(world)[-2:] == [signum, signal.SIGCONT]
        world.wait(seconds)
    assert act.Sweep(0) in world.done
    assert [type(one) for one in world.told(ev.JobStopping)] == [ev.JobStopping]


@cases(
    ("event", "left", "sooner"),
    [
        (ev.SignalReceived(signal.SIGINT), 11.0, "Ctrl-C again"),
        (ev.SignalReceived(signal.SIGHUP), 9.0, "Ctrl-C twice"),
        (ev.SignalReceived(signal.SIGINT, "dispatch stop", 0), 9.0, "dispatch stop --now"),
        (ev.RankExited(0, 0, 3), 9.0, ""),
    ],
)
def test_who_waits_is_told_for_whom_and_how_long(event: ev.Event, left: float, sooner: str) -> None:
    world = started(2)
    world.tell(event)
    if not sooner:
        del world.homes[0]
    world.killed(1)
    assert world.told(ev.RanksAwaited) == []
    world.wait(1.0)
    waiting = (2, 3) if not sooner else (0, 2, 3)
    assert world.told(ev.RanksAwaited) == [ev.RanksAwaited(waiting, left, sooner)]
    world.wait(8.0)
    assert len(world.told(ev.RanksAwaited)) == 1


def test_nobody_waits_for_ranks_where_only_their_output_is_open() -> None:
    world = started(1)
    world.at(ev.RankExited, 0, 1, 3)
    world.killed(0)
    world.wait(1.0)
    assert world.run.state == run_machine.TRYING
    assert world.told(ev.RanksAwaited) == []
