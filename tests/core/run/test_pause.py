"""Ctrl-Z: who is told to stop, when dispatch stops itself, and who goes on after."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import CloseLink, PauseRanks, ResumeRanks, Suspend
from dispatcher.core.interrupts import LIMIT, Pause
from dispatcher.core.run.tables import HostTable

from .world import World, started

STOP, GO = ev.SignalReceived(signal.SIGTSTP), ev.SignalReceived(signal.SIGCONT)


def orders_of(world: World, event: ev.Event) -> list[object]:
    since = len(world.done)
    world.tell(event)
    return list(world.orders(since))


def test_the_ranks_stop_first() -> None:  # Z-1
    world = started()
    assert orders_of(world, STOP) == [PauseRanks(0), PauseRanks(1)]
    assert orders_of(world, STOP) == []
    assert orders_of(world, ev.NodePaused(1)) == []
    assert orders_of(world, ev.NodePaused(0)) == [Suspend()]
    world.run.extend_deadlines(3600.0)
    world.now += 3600.0
    assert orders_of(world, GO) == [ResumeRanks(0), ResumeRanks(1)]
    world.take(world.run.tick(world.now))
    assert world.ended is None
    assert world.run.attempt == 0


def test_who_answers_is_asked_only_when_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = started(), []

    def answering(self: HostTable) -> set[int]:
        asked.append(self)
        return {0, 1}

    monkeypatch.setattr(HostTable, "answering", property(answering))
    world.take(world.run.tick(world.now))
    assert not asked  # the loop ticks after each event, and there may be thousands of hosts
    assert orders_of(world, STOP) == [PauseRanks(0), PauseRanks(1)]
    assert asked


def test_nobody_is_waited_for_long() -> None:  # Z-1
    world = started()
    world.tell(STOP)
    world.tell(ev.NodePaused(1))
    assert Suspend() not in world.done
    world.wait(LIMIT)
    assert world.done[-1] == Suspend()
    assert orders_of(world, ev.NodePaused(0)) == []


def test_who_rests_unasked_loses_its_link_and_keeps_nobody_from_a_restart() -> None:
    world = started(spares=1, most=1)
    assert CloseLink(1) in world.since(ev.NodePaused(1))
    assert isinstance(world.run._job.cause, verdicts.NodeFailed)
    assert world.run._job.cause.failure.why == "it stopped its ranks without an order"
    assert not world.run.hosts.is_resting(1)
    assert world.run.hosts.undead() == []


def test_spares_outlive_a_pause_too() -> None:
    world = started(spares=1, most=1)
    assert orders_of(world, STOP) == [PauseRanks(0), PauseRanks(1), PauseRanks(2)]


def test_hosts_that_are_being_reached_are_awaited() -> None:  # Z-3
    world = World(spares=1)
    assert orders_of(world, STOP) == []
    world.ready(0, 1, 2)
    world.take(world.run.tick(world.now))
    assert Suspend() not in world.done
    world.probed(1)
    world.take(world.run.tick(world.now))
    assert world.done[-3:] == [PauseRanks(0), PauseRanks(1), PauseRanks(2)]
    for host in range(3):
        world.tell(ev.NodePaused(host))
    assert world.done[-1] == Suspend()
    assert world.starts()  # all was begun before it was stopped


def test_asked_twice_it_stops_at_once() -> None:  # Z-3
    world = World()
    assert orders_of(world, STOP) == []
    assert orders_of(world, STOP) == [Suspend()]
    assert orders_of(world, GO) == []


def test_a_stop_that_was_taken_back_or_came_too_late() -> None:  # Z-3
    world = World()
    assert orders_of(world, STOP) == orders_of(world, GO) == []
    world.ready(0, 1)
    world.probed(1)
    world.take(world.run.tick(world.now))
    assert Suspend() not in world.done
    world = World()
    world.tell(STOP)
    world.tell(ev.SignalReceived(signal.SIGINT))
    world.take(world.run.tick(world.now))
    assert not [order for order in world.done if isinstance(order, PauseRanks)]


_steps = st.one_of(
    st.tuples(st.just("begin"), st.sets(st.integers(0, 3))),
    st.tuples(st.just("stopped"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0])),
)


@given(st.lists(_steps, max_size=20))
def test_whoever_was_paused_is_resumed(steps: list[tuple[str, object]]) -> None:  # Z-1, Z-2
    pause, now, open_since = Pause(), 0.0, None
    paused: set[int] = set()
    for kind, value in steps:
        if kind == "begin":
            actions = pause.begin(value, now)  # type: ignore[arg-type]
        elif kind == "stopped":
            actions = pause.stopped(value)  # type: ignore[arg-type]
        else:
            now += value  # type: ignore[operator]
            actions = pause.tick(set(), now)
        for action in actions:
            if isinstance(action, PauseRanks):
                paused.add(action.node)
                open_since = now if open_since is None else open_since
            else:
                assert action == Suspend()
                open_since = None
                assert pause.deadline is None
                # the runner stops here, and is continued
                assert pause.end(range(4)) == [ResumeRanks(host) for host in sorted(paused)]
                paused.clear()
        assert open_since is None or pause.deadline == open_since + LIMIT


def test_a_pause_that_waited_for_hosts_is_made_once() -> None:  # Z-3
    pause = Pause()
    assert (pause.begin({0}, 1.0, reaching=True), pause.deadline) == ([], None)
    assert pause.tick({0}, 2.0, reaching=True) == []
    assert pause.tick({0, 1}, 3.0) == [PauseRanks(0), PauseRanks(1)]
    assert pause.deadline == 3.0 + LIMIT
    assert pause.begin({0}, 3.5, reaching=True) == []  # it is under way
    assert pause.tick({0, 1}, 3.0 + LIMIT - 0.1) == []
    assert pause.tick({0, 1}, 3.0 + LIMIT) == [Suspend()]
    assert pause.tick({0, 1}, 9.0) == []
    assert pause.stopped(0) == []


def test_only_who_still_answers_goes_on_and_once() -> None:  # Z-2
    pause = Pause()
    pause.begin({0, 1, 2}, 1.0)
    assert pause.end({3, 2, 0}) == [ResumeRanks(0), ResumeRanks(2)]
    assert pause.end({0, 1, 2}) == []
