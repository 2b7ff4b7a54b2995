"""The run as a machine of attempts: restarts, spares, shrinking. No I/O, no sleep, no thread."""

from __future__ import annotations

import dataclasses
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
from cases import cases, examples
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import (
    Action,
    CheckOrphans,
    CloseLink,
    End,
    Finish,
    OpenLink,
    Prepare,
    Probe,
    SignalRanks,
    StartRanks,
    Sweep,
    Tell,
)
from dispatcher.core.run import restart, run_machine
from dispatcher.core.run.run_machine import RunMachine
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.plan.job.job_plan import Change
from dispatcher.plan.job.request import Limits, Restarts

from ..conftest import facts, make_plan

GONE = Failure(Kind.UNREACHABLE, "no route to host")
#: how it is told
WHY = "unreachable: no route to host"


class World:
    """Hosts that do as they are told, for a ``RunMachine``; what is not told to happen goes well.

    ended: the verdict. done: all actions so far.
    """

    def __init__(
        self, n_hosts: int = 2, *, spares: int = 0, np: int | None = None, check: bool = True,
        limits: Limits | None = None, **rules: Any,
    ) -> None:  # fmt: skip
        plan = make_plan(
            n_hosts + spares,
            spares=spares or None,
            np=np,
            limits=limits or Limits(),
            restarts=Restarts(**rules),
        )
        self.run = RunMachine(plan, check=check)
        self.now = 0.0
        self.done: list[Action] = []
        self.ended: verdicts.Verdict | None = None
        self.mute: set[int] = set()  # hosts that answer nothing
        self.attempts: dict[int, int] = {}  # host -> the attempt its link is at
        self.homes: dict[int, int] = {}  # living rank -> host
        self.take(self.run.begin())

    def since(self, event: ev.Event) -> list[Action]:
        """What ``event`` leads to."""
        at = len(self.done)
        self.tell(event)
        return self.done[at:]

    def end_well(self) -> None:
        """Every rank exits with 0, and nothing is left."""
        for rank in list(self.homes):
            self.exits(rank, 0)
        for _ in range(2):
            if self.ended is None:
                self.swept()

    def tell(self, event: ev.Event) -> None:
        self.take(self.run.handle(event, self.now))

    def at(self, cls: type[ev.Event], host: int, *args: Any) -> None:
        """An event of the attempt that the host's link stands at."""
        self.tell(cls(host, *args, attempt=self.attempts.get(host, 0)))

    def wait(self, seconds: float) -> None:
        """Time passes, while hosts are heard."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 2.0, end)
            for host in set(self.attempts) - self.mute:
                self.tell(ev.NodeHeard(host))
            self.take(self.run.tick(self.now))

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            self.done.append(action)
            match action:
                case End(verdict):
                    assert self.ended is None
                    self.ended = verdict
                case StartRanks(plan, node):
                    host = self.run.host_at(node)
                    self.homes.update(dict.fromkeys(plan.nodes[node].ranks, host))

    def ready(self, *hosts: int, **fields: Any) -> None:
        """The hosts answer that they are ready (for the attempt they were last told of)."""
        for host in hosts:
            told = [
                action.attempt
                for action in self.done
                if isinstance(action, (OpenLink, Prepare)) and action.node == host
            ]
            self.attempts[host] = told[-1]
            head = self.run.host_at(0) == host
            known = facts(host, port=4000 + self.attempts[host] if head else None, **fields)
            self.at(ev.NodeReady, host, known)

    def probed(self, *hosts: int) -> None:
        for host in hosts:
            self.at(ev.NodeProbed, host, (f"10.0.0.{self.run.host_at(0) + 1}",))

    def exits(self, rank: int, status: int) -> None:
        host = self.homes.pop(rank)
        self.at(ev.RankExited, host, rank, status)
        for stream in (1, 2):
            self.at(ev.OutputEnded, host, rank, stream, 3, 3)

    def checks(self) -> list[Action]:
        """The orphan checks that were ordered."""
        return [action for action in self.done if isinstance(action, CheckOrphans)]

    def killed(self, *ranks: int) -> None:
        """The ranks end by SIGTERM."""
        for rank in ranks:
            self.exits(rank, -15)

    def sweep(self, *hosts: int) -> None:
        """Nothing is left on the hosts."""
        for host in hosts:
            self.at(ev.NodeSwept, host, 0)

    def fail(self, rank: int, status: int = 3) -> None:
        """One rank fails, the others die of it, all hosts sweep."""
        self.exits(rank, status)
        for other in list(self.homes):
            if self.homes[other] not in self.mute:
                self.exits(other, -15)
        self.swept()
        if self.run.state == run_machine.CLOSING:
            self.swept()

    def swept(self) -> None:
        """All hosts that answer have nothing left."""
        for host in set(self.attempts) - self.mute:
            self.at(ev.NodeSwept, host, 0)

    def lose(self, host: int, ending: Ending | None = None) -> None:
        self.mute.add(host)
        self.homes = {rank: at for rank, at in self.homes.items() if at != host}
        self.tell(ev.NodeLost(host, GONE, ending))

    def orders(self, since: int = 0) -> list[Action]:
        return [action for action in self.done[since:] if not isinstance(action, Tell)]

    def told(self, kind: type[ev.Event]) -> list[Any]:
        found = [a.event for a in self.done if isinstance(a, Tell)]
        return [event for event in found if isinstance(event, kind)]

    def starts(self) -> list[StartRanks]:
        return [action for action in self.done if isinstance(action, StartRanks)]


def started(n_hosts: int = 2, **options: Any) -> World:
    """A world whose ranks run, two on each host; all spares are ready."""
    world = World(n_hosts, **options)
    world.ready(*range(len(world.run.hosts.planned)))
    world.probed(*range(1, n_hosts))
    assert len(world.homes) == 2 * n_hosts
    return world


def again(world: World, *hosts: int) -> None:
    """The hosts (all of them if none is named) answer for the attempt under way."""
    seats = hosts or tuple(world.run.host_at(n) for n in range(len(world.run.plan.nodes)))
    world.ready(*seats)
    world.probed(*(host for host in seats if host != world.run.host_at(0)))


class TestRestart:
    def test_the_agents_stay_and_the_ranks_start_again(self) -> None:
        world = started(most=2)
        at = len(world.done)
        world.fail(1)
        orders = world.orders(at)
        assert Sweep(0) in orders
        assert Sweep(1) in orders
        assert orders[-2:] == [Prepare(0, 1), Prepare(1, 1)]
        assert not any(isinstance(order, (Finish, CloseLink, OpenLink)) for order in orders)
        again(world)
        assert [(s.node, s.master_port, s.restart) for s in world.starts()] == [
            (0, 4000, 0), (1, 4000, 0), (0, 4001, 1), (1, 4001, 1),
        ]  # fmt: skip
        for rank in range(4):
            world.exits(rank, 0)
        assert world.orders()[-2:] == [Finish(0), Finish(1)]
        world.sweep(0)
        world.sweep(1)
        assert world.ended is not None
        assert world.ended.ok
        assert world.ended.attempts == (
            verdicts.Attempt(0, ("n0", "n1"), 4, verdicts.RankFailed(0, 1, 3), True),
        )

    def test_the_last_attempt_decides(self) -> None:
        world = started(most=1)
        world.fail(1, 3)
        again(world)
        world.fail(2, 7)
        assert world.ended is not None
        assert world.ended.exit_code == 7
        assert world.ended.no_restart == "1 restart was made, which is the most"
        assert [attempt.restart for attempt in world.ended.attempts] == [0]

    def test_a_rank_may_ask_for_no_restart(self) -> None:
        world = started(most=5)
        world.fail(0, 93)
        assert world.ended is not None
        assert world.ended.exit_code == 93
        assert len(world.starts()) == 2

    def test_without_the_option_nothing_starts_again(self) -> None:
        world = started()
        world.fail(0)
        assert world.ended is not None
        assert world.ended.no_restart is None
        assert len(world.starts()) == 2

    def test_pauses_grow(self) -> None:
        world = started(most=9)
        pauses = []
        for _ in range(6):
            world.fail(0)
            pauses.append(world.told(ev.RunRestarting)[-1].seconds)
            world.wait(pauses[-1])
            again(world)
        assert pauses == [0, 1, 2, 4, 8, 16]
        assert Restarts().pause(99) == 60

    def test_a_long_life_begins_the_count_anew(self) -> None:
        world = started(most=9)
        world.fail(0)
        again(world)
        world.wait(301)
        world.fail(0)
        assert [event.seconds for event in world.told(ev.RunRestarting)] == [0, 0]

    def test_three_attempts_without_progress_are_enough(self) -> None:
        world = started(most=9, delay=0.0, progress_line="step")
        world.fail(0)
        again(world)
        world.at(ev.RanksProgressed, 1, 2)
        for _ in range(3):
            assert world.ended is None
            world.fail(0)
            if world.ended is None:
                again(world)
        world.fail(0)
        assert world.ended is not None
        assert world.ended.no_restart == "3 attempts without progress"
        assert len(world.ended.attempts) == 4

    def test_a_changed_file_is_progress(self) -> None:
        world = started(most=9, delay=0.0, progress_file="ckpt")
        for mark in range(5):
            world.exits(0, 3)
            world.killed(1, 2, 3)
            world.at(ev.NodeSwept, 0, 0, (), 100 + mark)
            world.sweep(1)
            world.ready(0, mark=100 + mark)
            world.ready(1)
            world.probed(1)
        assert world.ended is None

    @cases("at", ["running", "stopping", "paused", "gathering"])
    def test_an_interrupt_is_the_end(self, at: str) -> None:
        world = started(most=9, delay=5.0)
        if at == "stopping":
            world.exits(0, 3)
        elif at in ("paused", "gathering"):
            world.fail(0)
            if at == "paused":
                again(world)
                world.fail(0)
        n_starts = len(world.starts())
        world.tell(ev.SignalReceived(signal.SIGINT))
        for rank in list(world.homes):
            world.exits(rank, -2)
        world.sweep(0, 1)
        world.wait(100)
        assert world.ended is not None
        assert len(world.starts()) == n_starts
        assert world.ended.exit_code == (3 if at == "stopping" else 130)

    def test_words_of_an_old_attempt_change_nothing(self) -> None:
        world = started(most=2)
        world.fail(1)
        again(world)
        world.tell(ev.RankExited(1, 2, 9, attempt=0))
        world.tell(ev.NodeSwept(0, 3, (77,), attempt=0))
        assert world.run.state == run_machine.TRYING
        assert not [a for a in world.orders()[-3:] if isinstance(a, SignalRanks)]


class TestLostHosts:
    def test_a_spare_takes_the_seat_when_the_lease_has_run_out(self) -> None:
        world = started(3, spares=1, most=1)
        world.lose(1)
        world.killed(0, 1, 4, 5)
        world.sweep(0, 2)
        fence = restart.fence(world.run.plan.limits)
        assert world.told(ev.RunRestarting)[0].seconds == pytest.approx(fence)
        world.wait(fence - 0.1)
        assert not [a for a in world.done if isinstance(a, Prepare)]
        world.wait(0.2)
        assert world.told(ev.HostReplaced) == [
            ev.HostReplaced(1, 3, (2, 3), "unreachable: no route to host")
        ]
        again(world)
        starts = world.starts()[3:]
        assert [(s.node, s.plan.nodes[s.node].host.name) for s in starts] == [
            (0, "n0"), (1, "n3"), (2, "n2"),
        ]  # fmt: skip
        assert [s.plan.nodes[s.node].ranks for s in starts] == [(0, 1), (2, 3), (4, 5)]

    def test_a_host_whose_agent_ended_is_looked_at_and_not_waited_for(self) -> None:
        world = started(2, spares=1, most=1)
        world.lose(1, Ending(None, "KILL"))
        world.killed(0, 1)
        assert not world.checks()
        world.sweep(0)
        limits = world.run.plan.limits
        assert world.checks() == [CheckOrphans(1, limits.connect_timeout)]
        world.wait(1.0)
        assert world.run.state == run_machine.PAUSED
        world.tell(ev.NodeCleared(1, 3))
        assert world.told(ev.HostReplaced)
        again(world)
        assert [start.node for start in world.starts()[2:]] == [0, 1]

    def test_a_silent_host_is_looked_at_late(self) -> None:
        world = started(2, spares=1, most=2)
        world.lose(1)
        world.killed(0, 1)
        world.sweep(0)
        late = restart.fence(world.run.plan.limits) - restart.SWEEP
        world.wait(late - 0.1)
        assert not world.checks()
        world.wait(0.2)
        looks = world.checks()
        assert looks == [CheckOrphans(1, restart.SWEEP)]
        assert world.run.state == run_machine.PAUSED
        world.wait(5.0)  # no answer: its lease has run out all the same
        again(world)
        world.tell(ev.NodeCleared(1, 0))
        world.fail(0)
        world.wait(200)
        assert world.checks() == looks  # once is enough

    @cases("machine", ["machine 0", "machine 2", ""])
    def test_a_host_that_may_be_another_one_is_not_looked_at(self, machine: str) -> None:
        world = World(2, spares=1, most=1, check=False)
        world.ready(0, 2)
        world.ready(1, machine=machine)
        world.lose(1, Ending(None, "KILL"))
        world.killed(0, 1)
        world.sweep(0)
        assert world.told(ev.RunRestarting)
        assert not world.checks()

    def test_without_checks_a_restart_proves_nothing_either(self) -> None:
        world = World(2, most=1, check=False)
        for start in (1, 2):
            world.ready(0, 1)
            assert len(world.starts()) == 2 * start
            world.fail(0)
            world.wait(100)
        assert not [action for action in world.done if isinstance(action, Probe)]

    def test_orders_and_events_go_by_the_hosts_number(self) -> None:
        world = started(2, spares=1, most=1)
        world.lose(0)
        world.killed(2, 3)
        world.sweep(1)
        world.wait(100)
        again(world)
        assert world.run.host_at(0) == 2
        at = len(world.done)
        world.exits(3, 5)
        assert SignalRanks(2, signal.SIGTERM) in world.done[at:]
        world.killed(0, 1, 2)
        world.sweep(1, 2)
        assert world.ended is not None
        assert world.ended.cause == verdicts.RankFailed(1, 3, 5)

    def test_a_host_lost_while_its_lease_rested_is_never_surely_dead(self) -> None:
        world = started(2, spares=1, most=1)
        world.tell(ev.SignalReceived(signal.SIGTSTP))
        for host in (0, 1, 2):
            world.tell(ev.NodePaused(host))
        world.tell(ev.SignalReceived(signal.SIGCONT))
        world.lose(1)
        world.killed(0, 1)
        world.swept()
        world.swept()
        assert world.ended is not None
        assert "n1: lost while stopped" in str(world.ended.no_restart)

    def test_but_its_beat_shows_that_it_went_on(self) -> None:
        world = started(2, spares=1, most=1)
        world.tell(ev.SignalReceived(signal.SIGTSTP))
        for host in (0, 1, 2):
            world.tell(ev.NodePaused(host))
        world.tell(ev.SignalReceived(signal.SIGCONT))
        world.wait(2)
        world.lose(1)
        world.killed(0, 1)
        world.swept()
        assert world.told(ev.RunRestarting)

    def test_without_a_spare_the_verdict_says_so(self) -> None:
        world = started(2, most=3)
        world.lose(1)
        world.killed(0, 1)
        world.sweep(0)  # of the attempt
        world.sweep(0)  # of the end
        assert world.ended is not None
        assert world.ended.cause == verdicts.NodeFailed(1, GONE)
        assert world.ended.no_restart == "no host can take the place of n1"
        assert world.ended.exit_code == 125

    def test_the_world_may_shrink(self) -> None:
        world = started(3, most=1, min_nodes=2)
        world.lose(0)
        world.killed(2, 3, 4, 5)
        world.sweep(1, 2)
        world.wait(100)
        assert world.told(ev.WorldShrunk) == [ev.WorldShrunk((1, 2), (2, 2))]
        again(world)
        plan = world.run.plan
        assert [(n.index, n.host.name, n.ranks) for n in plan.nodes] == [
            (0, "n1", (0, 1)), (1, "n2", (2, 3)),
        ]  # fmt: skip
        assert plan.world_size == 4

    def test_a_host_rejected_before_the_start_is_replaced_at_once(self) -> None:
        world = World(2, spares=1)
        world.ready(0, 2)
        world.tell(ev.NodeLost(1, GONE))
        world.sweep(0)
        assert world.orders()[-2:] == [Prepare(0, 1), Prepare(2, 1)]
        again(world)
        assert [s.restart for s in world.starts()] == [0, 0]
        for rank in range(4):
            world.exits(rank, 0)
        world.sweep(0, 2)
        assert world.ended is not None
        assert world.ended.exit_code == 0

    def test_a_spare_that_is_still_on_its_way_is_awaited(self) -> None:
        world = World(2, spares=1)
        world.ready(0)
        world.tell(ev.NodeLost(1, GONE))
        world.sweep(0)
        assert not [a for a in world.done if isinstance(a, Prepare)]
        world.ready(2)
        assert Prepare(2, 1) in world.done

    def test_unless_it_fails_as_well(self) -> None:
        world = World(2, spares=1)
        world.ready(0)
        world.tell(ev.NodeLost(1, GONE))
        world.sweep(0)
        world.tell(ev.NodeLost(2, GONE))
        world.sweep(0)
        assert world.ended is not None
        assert isinstance(world.ended.cause, verdicts.Rejected)
        assert world.ended.left_out == {"n2": "unreachable: no route to host"}
        assert not world.starts()

    def test_a_spare_on_a_machine_in_use_takes_no_seat(self) -> None:
        world = World(2, spares=1)
        world.ready(0)
        world.ready(2, machine="machine 0")
        world.tell(ev.NodeLost(1, GONE))
        world.sweep(0)
        assert not [a for a in world.done if isinstance(a, Prepare)]

    def test_a_host_with_unkillable_processes_is_not_used_again(self) -> None:
        world = started(2, spares=1, most=1)
        world.exits(0, 3)
        world.exits(1, -15)
        world.exits(2, -15)
        world.wait(10)
        world.at(ev.NodeSwept, 1, 1, (99,))
        world.sweep(0)
        world.at(ev.NodeSwept, 1, 0, (99,))
        assert [e.by for e in world.told(ev.HostReplaced)] == [2]

    def test_a_host_where_attempts_end_is_left_out(self) -> None:
        world = started(2, spares=1, most=9, delay=0.0, max_host_failures=2)
        for _ in range(2):
            world.fail(3)
            again(world)
        assert world.told(ev.HostReplaced) == [
            ev.HostReplaced(1, 2, (2, 3), "2 attempts ended there")
        ]
        world.fail(0, 93)
        world.sweep(0, 1, 2)
        assert world.ended is not None
        assert world.ended.left_out == {"n1": "2 attempts ended there"}

    def test_but_stays_when_nobody_else_can_be_had(self) -> None:
        world = started(2, most=9, delay=0.0, max_host_failures=2)
        for _ in range(4):
            world.fail(3)
            again(world)
        assert world.ended is None

    def test_a_silent_spare_is_dropped(self) -> None:
        world = started(2, spares=1)
        world.mute.add(2)
        world.wait(20)
        assert world.told(ev.HostLeftOut) == [ev.HostLeftOut(2, "no heartbeat for 15 s")]
        assert CloseLink(2) in world.done
        assert world.ended is None

    def test_spares_end_with_the_run(self) -> None:
        world = started(2, spares=1)
        for rank in range(4):
            world.exits(rank, 0)
        world.sweep(0, 1)
        assert world.done[-1] == Finish(2)
        world.sweep(2)
        assert world.ended is not None
        assert world.ended.ok


# -- any sequence of events ------------------------------------------------------------------

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


def test_every_row_of_the_table_is_in_the_page() -> None:
    """The drawing of the machine is made from its own table."""
    page = Path(__file__).parents[3].joinpath("docs/design/restarts.md").read_text()
    for (state, what), after in run_machine.TABLE.items():
        assert f"| {state} | {what} | {after} |" in page
    rows = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    assert len(rows) - 1 == len(run_machine.TABLE)


def test_the_fence_outlives_a_stuck_agent() -> None:
    """Its guardian waits for lease + SLACK, then needs 5 seconds at most."""
    from dispatcher.remote.agent.guardian import SLACK

    limits = make_plan().limits
    assert restart.fence(limits) > limits.lease + max(limits.lifeline_grace, SLACK) + 5


def test_events_of_an_attempt_say_which() -> None:
    assert dataclasses.fields(ev.RankExited)[0].name == "attempt"
    assert ev.RankExited(1, 2, 3).attempt == 0
