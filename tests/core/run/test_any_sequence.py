"""Every sequence of events keeps the rules of a run, R-1 to R-7."""

from __future__ import annotations

import pickle
from typing import Any

from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import (
    Action,
    CheckOrphans,
    CloseLink,
    StartRanks,
)
from dispatcher.core.run import restart, run_machine
from dispatcher.plan.job.job_plan import Change

from .world import GONE, World

N_HOSTS = 4  # two seats, two spares
_hosts = st.integers(0, N_HOSTS - 1)
_steps = st.one_of(
    st.tuples(st.just("ready"), _hosts),
    st.tuples(st.just("probed"), _hosts),
    st.tuples(st.just("lost"), _hosts),
    st.tuples(st.just("cleared"), _hosts),
    st.tuples(st.just("swept"), _hosts, st.sampled_from([(), (), (), (7,)])),
    st.tuples(st.just("exit"), st.integers(0, 3), st.sampled_from([0, 1, -9, 93])),
    st.tuples(
        st.just("die"),
    ),
    st.tuples(
        st.just("all swept"),
    ),
    st.tuples(
        st.just("all ready"),
    ),
    st.tuples(st.just("stale"), _hosts, st.integers(0, 3)),
    st.tuples(st.just("signal"), st.sampled_from([2, 15, 10, 18, 20])),
    st.tuples(st.just("dying"), _hosts),
    st.tuples(
        st.just("restart"),
    ),
    st.tuples(st.just("sent"), st.sampled_from([(), (), (1,)])),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 4.0, 20.0, 60.0])),
)


class Checked(World):
    """A world that holds the run against its rules at every action."""

    def __init__(self, **options: Any) -> None:
        self.armed: dict[int, float | None] = {}  # host told to start -> when it was given up
        self.cancelled = False
        self.started_now: set[int] = set()  # hosts told to start in the step under way
        self.looked_at: set[int] = set()
        super().__init__(2, spares=2, **options)

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.ended is None, "R-1: an order after the end"
            match action:
                case StartRanks(_, node):
                    assert not self.cancelled, "R-2"
                    host = self.run.host_at(node)
                    assert host not in self.mute, "R-5"
                    fence = restart.fence(self.run.plan.limits)
                    for other, lost in self.armed.items():
                        if other != host or lost is not None:
                            assert lost is not None or self.fresh(other), "R-3: not swept"
                            assert lost is None or self.now >= lost + fence, "R-3: not fenced"
                    self.started_now.add(host)
                case CheckOrphans(host):
                    assert host in self.mute, "R-5: somebody lives there"
                    self.looked_at.add(host)
                case CloseLink(host):
                    if host in self.armed and self.armed[host] is None:
                        self.armed[host] = self.now
                    self.mute.add(host)
            super().take([action])

    def fresh(self, host: int) -> bool:
        """Whether ``host`` was armed by the attempt that is starting now."""
        return host in self.started_now


def perform(world: Checked, step: tuple[Any, ...]) -> None:
    kind, *args = step
    world.started_now = set()
    if kind == "ready" and args[0] not in world.mute:
        world.ready(args[0])
    elif kind == "probed":
        world.probed(args[0])
    elif kind == "lost" and args[0] not in world.mute:
        if args[0] in world.armed and world.armed[args[0]] is None:
            world.armed[args[0]] = world.now
        world.lose(args[0])
    elif kind == "cleared" and args[0] in world.looked_at:
        world.armed.pop(args[0], None)
        world.tell(ev.NodeCleared(args[0], 2))
    elif kind == "swept" and args[0] not in world.mute:
        sweep(world, args[0], args[1])
    elif kind == "exit" and args[0] in world.homes:
        world.exits(*args)
    elif kind == "die":
        for rank in list(world.homes):
            if world.homes[rank] not in world.mute:
                world.exits(rank, -15)
    elif kind == "all swept":
        for host in range(N_HOSTS):
            if host not in world.mute:
                sweep(world, host, ())
    elif kind == "all ready":
        for host in range(N_HOSTS):
            if host not in world.mute:
                world.ready(host)
        world.probed(*(set(range(N_HOSTS)) - world.mute))
    elif kind == "stale" and world.run.attempt > 0 and world.run.state == run_machine.TRYING:
        before = pickle.dumps(world.run)
        host, rank = args
        if host in world.run._assigned.nodes:
            for event in (ev.RankExited(host, rank, 5), ev.NodeSwept(host, 0, (7,))):
                assert world.run.handle(event, world.now) == []
            assert pickle.dumps(world.run) == before
    elif kind == "again":
        for part in (("die",), ("all swept",), ("wait", 4.0), ("all ready",)):
            perform(world, part)
        return
    elif kind == "dying" and args[0] not in world.mute:
        world.tell(ev.NodeDying(args[0], "told to"))
    elif kind == "signal":
        world.cancelled = world.cancelled or args[0] in (2, 15)
        world.tell(ev.SignalReceived(args[0]))
    elif kind == "restart":
        world.take(world.run.restart(Change(), ev.RestartWanted(), world.now))
    elif kind == "sent":
        world.tell(ev.FolderSent(dict.fromkeys(args[0], GONE)))
    elif kind == "wait":
        world.wait(args[0])
    for host in world.started_now:
        world.armed[host] = None


def sweep(world: Checked, host: int, left: tuple[int, ...]) -> None:
    if not [rank for rank, at in world.homes.items() if at == host] or left:
        world.armed.pop(host, None)
        world.homes = {rank: at for rank, at in world.homes.items() if at != host}
    else:
        return
    world.at(ev.NodeSwept, host, 0, left)


@examples(400)
@given(
    st.lists(_steps, max_size=50),
    st.sampled_from([0, 1, 5]),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
    st.booleans(),
)
def test_any_sequence_keeps_the_rules(
    steps: list[tuple[Any, ...]], most: int, min_nodes: int | None, good_start: bool, sync: bool
) -> None:
    """R-1 to R-5 and R-7 for every order in which the world may go wrong."""
    world = Checked(most=most, min_nodes=min_nodes, delay=0.5, max_host_failures=2)
    world.run._sync = sync
    if good_start:
        perform(world, ("all ready",))
    for step in steps:
        perform(world, step)
    # nobody answers any more, and time alone must end the run
    for _ in range(40):
        for host in range(N_HOSTS):
            perform(world, ("lost", host))
        perform(world, ("sent", ()))
        world.mute = set(range(N_HOSTS))
        world.wait(60.0)
    assert world.ended is not None
    assert world.run.state == run_machine.OVER
    assert world.run.next_deadline() is None or world.run.state == run_machine.OVER
    restarts = world.told(ev.RunRestarting)
    own = [one for one in restarts if not isinstance(one.cause, verdicts.RestartAsked)]
    assert len(own) <= most + world.cancelled
    assert all(one.number - one.asked <= most for one in own)
    assert not isinstance(world.ended.cause, verdicts.RestartAsked)
    if world.ended.exit_code == 0:
        assert set(world.ended.statuses.values()) == {0}
