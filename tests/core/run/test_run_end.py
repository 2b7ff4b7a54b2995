"""How a run ends: who is told to finish, who is given up, and what is told of them."""

from __future__ import annotations

import signal
from typing import Any

from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import (
    Action,
    CloseLink,
    End,
    Finish,
    Prepare,
    Sweep,
    Tell,
)
from dispatcher.core.run import run_machine
from dispatcher.core.run.attempt import SWEEP_LIMIT
from dispatcher.core.run.run_machine import RunMachine
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.plan.job.request import Restarts

from ..conftest import facts, make_plan
from .test_run_machine import GONE, WHY, World, started


class TestEnd:
    def test_who_never_answered_is_not_waited_for(self) -> None:
        world = World(2, spares=1)
        world.ready(0, 1)
        world.probed(1)
        for rank in range(4):
            world.exits(rank, 0)
        world.sweep(0)
        orders = world.since(ev.NodeSwept(1, 0))
        assert [order for order in orders if not isinstance(order, Tell)][:2] == [
            CloseLink(1), CloseLink(2),
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
        assert world.done[at] == CloseLink(2)
        assert isinstance(world.done[-1], End)
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
        assert actions[0] == CloseLink(2)
        assert isinstance(actions[-1], End)
        assert not world.told(ev.HostLeftOut)
        assert world.ended is not None
        assert world.ended.ok

    def test_a_signal_at_the_end_leaves_at_once(self) -> None:
        world = started(2, spares=2)
        for rank in range(4):
            world.exits(rank, 0)
        world.sweep(0, 1)
        assert world.since(ev.SignalReceived(signal.SIGUSR1)) == []
        actions = world.since(ev.SignalReceived(signal.SIGTERM))
        assert actions[:2] == [CloseLink(2), CloseLink(3)]
        assert world.ended is not None
        assert world.ended.ok
        for event in (ev.SignalReceived(signal.SIGTERM), ev.NodeHeard(2), ev.NodeSwept(2, 0)):
            assert world.since(event) == []
        assert world.run.tick(9999.0) == []

    def test_the_third_signal_leaves_spares_too(self) -> None:
        world = started(2, spares=1)
        for _ in range(3):
            world.tell(ev.SignalReceived(signal.SIGINT))
        assert world.ended is not None
        assert world.done[-1] == End(world.ended)
        assert CloseLink(2) in world.done
        assert Finish(2) in world.done

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

    def test_without_restarts_a_lost_host_is_the_end(self) -> None:
        world = started(2, spares=1)
        world.lose(1, Ending(None, "KILL"))
        world.killed(0, 1)
        assert Sweep(0) not in world.done
        assert Finish(0) in world.done
        world.sweep(0)
        world.sweep(2)
        assert world.ended is not None
        assert world.ended.cause == verdicts.NodeFailed(1, GONE)
        assert (world.ended.no_restart, world.checks()) == (None, [])

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
    assert [action for action in actions if isinstance(action, CloseLink)] == [
        CloseLink(1), CloseLink(2),
    ]  # fmt: skip
    assert run.handle(ev.NodeLost(1, Failure(Kind.LOST, "x")), 1.0) == []
    assert run.rank_hosts == {0: 0, 1: 0}
    return run


def ended(run: RunMachine, *statuses: int) -> list[Action]:
    """Both ranks exit, their output arrives; what the last of it leads to."""
    for rank, status in enumerate(statuses):
        run.handle(ev.RankExited(0, rank, status), 1.0)
        for stream in (1, 2):
            actions = run.handle(ev.OutputEnded(0, rank, stream, 0, 0), 1.0)
    return actions


def test_hosts_that_an_open_plan_does_not_need_are_let_go() -> None:
    run = opened()
    assert ended(run, 0, 0) == [Finish(0)]
    (close, end) = run.handle(ev.NodeSwept(0, 0), 1.0)
    assert close == CloseLink(0)
    assert isinstance(end, End)
    assert end.verdict.ok


def test_nor_does_it_need_them_when_its_ranks_start_again() -> None:
    run = opened(restarts=Restarts(most=1))
    assert ended(run, 3, -15) == [Sweep(0)]
    told, prepare = run.handle(ev.NodeSwept(0, 0), 1.0)
    assert isinstance(told, Tell)
    assert isinstance(told.event, ev.RunRestarting)
    assert prepare == Prepare(0, 1)
