"""Hosts of a run beside its attempts: spares, those that took a node, those between two."""

from __future__ import annotations

import signal
from itertools import pairwise
from typing import Any

import pytest
from cases import cases

from dispatcher.core.events import actions as act
from dispatcher.core.events import mpi_events, verdicts
from dispatcher.core.events import run_events as ev
from dispatcher.core.run import restart, run_machine
from dispatcher.model.failure import Ending
from dispatcher.plan.job.placement import number

from ..conftest import facts, use_mpi
from .world import GONE, WHY, World, again, started


class TestSpares:
    def test_all_hosts_are_reached_at_once_spares_last(self) -> None:
        world = World(2, spares=2)
        assert world.done == [act.OpenLink(0), act.OpenLink(1), act.OpenLink(2), act.OpenLink(3)]

    def test_one_that_is_lost_is_told_and_closed(self) -> None:
        world = started(2, spares=1)
        assert world.since(ev.NodeLost(2, GONE)) == [
            act.CloseLink(2), act.Tell(ev.HostLeftOut(2, WHY)),
        ]  # fmt: skip
        assert world.since(ev.NodeLost(2, GONE)) == []
        assert world.since(ev.NodeReady(2, facts(2))) == []
        world.end_well()
        assert act.Finish(2) not in world.done
        assert world.ended is not None
        assert world.ended.left_out == {"n2": WHY}

    def test_one_that_is_dying_is_lost(self) -> None:
        world = started(2, spares=1)
        assert world.since(ev.NodeDying(2, "told to")) == [
            act.CloseLink(2), act.Tell(ev.HostLeftOut(2, "told to")),
        ]  # fmt: skip

    def test_one_that_is_not_fit_is_told_and_stays_until_the_end(self) -> None:
        world = World(2, spares=1, most=1)
        wrong = (("cwd", "no folder"), ("iface", "no eth9"))
        assert world.since(ev.NodeReady(2, facts(2), wrong)) == [
            act.Tell(ev.HostLeftOut(2, "no folder; no eth9"))
        ]
        world.ready(0, 1)
        world.probed(1)
        world.fail(0)
        assert not world.told(ev.HostReplaced)
        again(world)
        world.lose(1)
        world.killed(0, 1)
        world.swept()
        assert world.ended is None or world.ended.no_restart is not None
        assert act.CloseLink(2) in world.done  # it never said that it was ready

    def test_its_beats_are_awaited_from_its_first_word_on(self) -> None:
        world = World(2, spares=1)
        world.mute.add(2)
        world.ready(0, 1)
        world.probed(1)
        world.wait(40.0)
        assert not world.told(ev.HostLeftOut)  # reaching it has limits of its own
        world.tell(ev.NodeReady(2, facts(2)))
        world.wait(10.0)
        world.tell(ev.NodeHeard(2))
        world.wait(19.0)
        assert not world.told(ev.HostLeftOut)
        world.wait(2.0)
        assert world.told(ev.HostLeftOut) == [ev.HostLeftOut(2, "no heartbeat for 20 s")]

    def test_beats_that_are_told_together_count_for_each(self) -> None:
        world = started(2, spares=1)
        world.now = 20.0
        world.tell(ev.NodesHeard((0, 1, 2), (6.0, 0.0, 4.0)))
        deadline = world.run.next_deadline()
        assert deadline == 14.0 + 20.0
        world.tell(ev.NodeHeard(0))
        assert world.run.next_deadline() == 16.0 + 20.0

    def test_who_was_told_to_rest_and_never_said_so_may_do_so(self) -> None:
        world = started(2, spares=1, most=1)
        world.tell(ev.SignalReceived(signal.SIGTSTP))
        world.lose(1)
        world.tell(ev.SignalReceived(signal.SIGCONT))
        world.killed(0, 1)
        world.swept()
        world.swept()
        assert world.ended is not None
        assert world.ended.no_restart == "n1: lost while stopped, so its ranks may still run"

    def test_what_came_before_a_host_said_that_it_rests_does_not_wake_it(self) -> None:
        world = started(2, spares=1, most=1)
        world.tell(ev.SignalReceived(signal.SIGTSTP))
        for host in (0, 1, 2):
            world.tell(ev.NodePaused(host))
        world.tell(ev.SignalReceived(signal.SIGCONT))
        world.now = 1.0
        world.tell(ev.NodesHeard((1,), (0.5,)))
        world.lose(1)
        world.killed(0, 1)
        world.swept()
        world.swept()
        assert world.ended is not None
        assert world.ended.no_restart == "n1: lost while stopped, so its ranks may still run"


class TestOrders:
    """Host 2, a spare, has the node of host 0, which was lost."""

    @pytest.fixture
    def world(self) -> World:
        world = started(2, spares=1, most=3)
        world.lose(0)
        world.killed(2, 3)
        world.sweep(1)
        world.wait(100)
        again(world)
        assert [world.run.host_at(node) for node in (0, 1)] == [2, 1]
        return world

    def test_who_runs_where(self, world: World) -> None:
        assert [world.run.home(rank) for rank in range(4)] == [(2, 0), (2, 1), (1, 0), (1, 1)]
        assert world.run.rank_hosts == {0: 2, 1: 2, 2: 1, 3: 1}
        assert world.run.has_running_ranks

    def test_what_is_told_of_a_node_is_told_of_its_host(self, world: World) -> None:
        use_mpi(world.run._job, 0, 1)
        asked = mpi_events.PmiSpawnAsked(
            2, 0, (mpi_events.Segment(2, (b"p",)), mpi_events.Segment(1, ())), attempt=1
        )
        refused, answer = world.since(asked)
        assert isinstance(refused, act.Tell)
        assert isinstance(refused.event, mpi_events.SpawnRefused)
        assert (refused.event.node, refused.event.rank) == (2, 0)
        assert isinstance(answer, act.AnswerRank)
        assert answer.node == 2
        asked = mpi_events.PmiSpawnAsked(2, 0, (mpi_events.Segment(3, (b"p",)),), attempt=1)
        told, *orders = world.since(asked)
        first = number(1, 0)
        assert told == act.Tell(mpi_events.WorldPlaced(1, 0, first, (2, 2, 1)))
        assert [world.run.home(first + rank) for rank in range(3)] == [(2, 0), (2, 1), (1, 2)]
        assert [order.node for order in orders if isinstance(order, act.SpawnRanks)] == [0, 1]

    def test_pmix_is_served_on_the_plan_s_node(self, world: World) -> None:
        assert world.since(mpi_events.PmixWanted(2, attempt=1)) == [act.ServePmix(0)]

    def test_whom_a_hang_is_blamed_on_is_a_node(self, world: World) -> None:
        world.take(world.run.end_hung(verdicts.Hung(9.0, (), None, 3), world.now))
        assert world.run._job.cause == verdicts.Hung(9.0, (), 1, 3)
        assert act.SignalRanks(2, signal.SIGTERM) in world.done[-5:]

    def test_a_restart_is_blamed_on_a_host(self, world: World) -> None:
        world.fail(0, 9)
        told = world.told(ev.RunRestarting)[-1]
        assert (told.cause, told.number, told.most) == (verdicts.RankFailed(2, 0, 9), 2, 3)
        world.wait(5.0)
        again(world)
        world.fail(0, 93)
        assert world.ended is not None
        assert world.ended.attempts[-1].cause == verdicts.RankFailed(0, 0, 9)

    def test_places_are_told_with_the_number_of_the_restart(self, world: World) -> None:
        assert [placed.restart for placed in world.told(ev.RanksPlaced)] == [0, 1]

    def test_the_host_that_has_gone_says_nothing_any_more(self, world: World) -> None:
        world.run.hosts.linked.discard(0)  # nobody looks just now whether it is back
        for event in (
            ev.NodeHeard(0), ev.NodeReady(0, facts(0)), ev.NodeLost(0, GONE), ev.NodeSwept(0, 1),
        ):  # fmt: skip
            assert world.since(event) == []
        assert world.ended is None


class TestWhileRanksRun:
    def test_a_host_that_is_dying_is_let_go_when_its_ranks_have_ended(self) -> None:
        world = started(2, spares=1, most=1)
        world.tell(ev.NodeDying(1, "told to"))
        world.killed(0, 1, 2, 3)
        assert act.CloseLink(1) not in world.done
        at = len(world.done)
        world.sweep(0, 1)
        assert world.orders(at)[0] == act.CloseLink(1)
        assert world.told(ev.HostReplaced) == [ev.HostReplaced(1, 2, (2, 3), "host lost: told to")]
        assert world.told(ev.RunRestarting)[0].seconds == 0.0  # nothing of ours is there


class TestBetween:
    def test_the_next_attempt_begins_when_the_pause_is_over(self) -> None:
        world = started(2, most=5, delay=4.0)
        world.fail(0)
        again(world)
        world.fail(0)
        assert world.run.state == run_machine.PAUSED
        assert not world.run.has_running_ranks
        assert world.run.next_deadline() == world.now + 4.0
        at = len(world.done)
        world.wait(3.9)
        assert world.orders(at) == []
        world.wait(0.1)
        assert world.orders(at) == [act.Prepare(0, 2), act.Prepare(1, 2)]

    def test_a_host_that_falls_silent_meanwhile_is_lost(self) -> None:
        world = started(2, most=5, delay=40.0)
        world.fail(0)
        again(world)
        world.fail(0)
        world.mute.add(1)
        world.wait(21.0)
        assert world.told(ev.HostLeftOut) == [ev.HostLeftOut(1, "no heartbeat for 20 s")]
        assert world.orders()[-2:] == [act.CloseLink(1), act.Finish(0)]
        world.sweep(0)
        assert world.ended is not None
        assert (
            world.ended.no_restart
            == "no host can take the place of n1 (--spares N keeps some ready)"
        )
        assert world.ended.cause == verdicts.RankFailed(0, 0, 3)

    def test_one_that_is_lost_when_its_ranks_were_swept_needs_no_fence(self) -> None:
        world = started(2, spares=1, most=5, delay=4.0)
        world.fail(0)
        again(world)
        world.fail(0)
        world.lose(1)
        world.wait(4.0)
        assert world.told(ev.HostReplaced) == [ev.HostReplaced(1, 2, (2, 3), WHY)]
        assert world.orders()[-2:] == [act.Prepare(0, 2), act.Prepare(2, 2)]
        assert not world.checks()

    def test_all_that_nobody_can_replace_are_named_in_order(self) -> None:
        world = started(9, most=1)
        world.lose(8)
        world.lose(1)
        for rank in list(world.homes):
            world.exits(rank, -15)
        world.swept()
        world.swept()
        assert world.ended is not None
        assert (
            world.ended.no_restart
            == "no host can take the place of n[1,8] (--spares N keeps some ready)"
        )

    def test_time_in_which_we_were_stopped_is_no_pause(self) -> None:
        world = started(2, most=5, delay=4.0)
        world.fail(0)
        again(world)
        world.fail(0)
        due = world.run.next_deadline()
        assert due is not None
        world.run.extend_deadlines(7.0)
        assert world.run.next_deadline() == due + 7.0
        world.now = due + 6.9
        world.take(world.run.tick(world.now))
        assert world.run.state == run_machine.PAUSED

    @cases("signum", [signal.SIGUSR1, signal.SIGUSR2])
    def test_a_signal_to_pass_on_finds_nobody(self, signum: int) -> None:
        world = started(2, most=5, delay=4.0)
        world.fail(0)
        again(world)
        world.fail(0)
        assert world.since(ev.SignalReceived(signum)) == []
        assert world.run.state == run_machine.PAUSED

    def test_an_attempt_that_started_no_rank_is_told_as_one(self) -> None:
        world = World(2, spares=1, most=1)
        world.ready(0, 2)
        world.tell(ev.NodeLost(1, GONE))
        world.sweep(0)
        assert not world.told(ev.RunRestarting)
        assert world.told(ev.HostReplaced) == [ev.HostReplaced(1, 2, (2, 3), WHY)]
        again(world)
        world.fail(0)
        again(world)
        world.end_well()
        assert world.ended is not None
        assert [(one.restart, one.started) for one in world.ended.attempts] == [
            (0, False), (0, True),
        ]  # fmt: skip
        assert [placed.restart for placed in world.told(ev.RanksPlaced)] == [0, 1]

    def test_the_wait_that_is_told_is_the_longer_one(self) -> None:
        world = started(2, spares=1, most=5, delay=400.0)
        world.fail(0)
        again(world)
        world.lose(1)
        world.killed(0, 1)
        world.sweep(0)
        told = world.told(ev.RunRestarting)
        assert [event.seconds for event in told] == [0.0, 60.0]
        world = started(2, spares=1, most=5)
        world.lose(1)
        world.killed(0, 1)
        world.sweep(0)
        fence = restart.fence(world.run.plan.limits)
        assert [event.seconds for event in world.told(ev.RunRestarting)] == [fence]

    def test_one_attempt_ended_there(self) -> None:
        world = started(2, spares=1, most=9, delay=0.0, max_host_failures=1)
        world.fail(3)
        assert world.told(ev.HostReplaced) == [
            ev.HostReplaced(1, 2, (2, 3), "1 attempt ended there")
        ]

    @cases("left", [(), (4242,)])
    def test_who_is_left_out_has_no_link_when_others_get_its_ranks(
        self, left: tuple[int, ...]
    ) -> None:
        """It could go on to speak of them."""
        world = started(2, spares=1, most=9, delay=0.0, max_host_failures=2 if left else 1)
        world.exits(3, 3)
        world.killed(0, 1, 2)
        world.sweep(0)
        at = len(world.done)
        world.at(ev.NodeSwept, 1, 0, left)
        assert world.orders(at) == [act.CloseLink(1), act.Prepare(0, 1), act.Prepare(2, 1)]
        assert world.since(ev.NodeSwept(1, 0)) == []
        again(world)
        world.end_well()
        assert world.ended is not None
        assert list(world.ended.left_out) == ["n1"]

    def test_a_file_that_only_another_host_changes_is_no_progress(self) -> None:
        world = World(2, most=9, delay=0.0, progress_file="ckpt")
        for turn in range(3):
            world.ready(0, mark=100)
            world.ready(1, mark=turn)
            world.probed(1)
            world.exits(0, 3)
            world.killed(1, 2, 3)
            world.at(ev.NodeSwept, 1, 0, (), 555 + turn)
            world.at(ev.NodeSwept, 0, 0, (), 100)
        world.swept()
        assert world.ended is not None
        assert world.ended.no_restart == "3 attempts without progress"


def test_a_remark_is_nobody_s_business() -> None:
    world = started(2)
    assert world.since(ev.Remark()) == []


def test_news_of_the_launcher_s_own_count_while_an_attempt_lasts() -> None:
    world = started(2, most=2, delay=4.0)
    assert world.since(ev.InputBroken("x")) == []
    world.fail(0)
    again(world)
    world.fail(0)
    assert world.run.state == run_machine.PAUSED
    assert world.since(ev.InputBroken("x")) == []


def lost_and_gone_on(**options: Any) -> World:
    """Host 1 of two was lost, and the next attempt runs without it."""
    world = started(2, most=3, **options)
    world.lose(1)
    world.killed(0, 1)
    world.sweep(0)
    world.wait(45.0)
    again(world)
    assert set(world.homes.values()) == ({0, 2} if options.get("spares") else {0})
    return world


def test_a_host_lost_after_its_part_had_ended_is_reached_for_the_attempt_under_way() -> None:
    """Its new agent would else answer for the first attempt, and be waited for without end."""
    world = started(2, most=1)
    world.exits(0, 0)
    world.exits(1, 0)
    world.exits(2, 1)
    world.killed(3)
    world.sweep(0)
    world.lose(0)
    at = len(world.done)
    world.sweep(1)
    world.wait(1.0)
    reached = (act.OpenLink, act.Prepare)
    assert [action for action in world.orders(at) if isinstance(action, reached)] == [
        act.OpenLink(0, 1), act.Prepare(1, 1),
    ]  # fmt: skip
    world.mute.discard(0)
    again(world)
    assert len(world.starts()) == 4
    world.end_well()
    assert world.ended is not None
    assert world.ended.exit_code == 0


def test_a_beat_from_before_a_rest_counts_though_it_is_told_later() -> None:
    """The loop asks for beats only when somebody would be late."""
    world = started(2)
    late = world.run.next_deadline()
    assert late is not None
    world.now = late - 1.0
    world.tell(ev.SignalReceived(signal.SIGTSTP))
    world.tell(ev.NodePaused(0))
    world.now = late + 0.1
    world.tell(ev.NodesHeard((0, 1), (1.2, 1.2)))
    at = len(world.done)
    world.take(world.run.tick(world.now))
    assert world.orders(at) == []
    world.now += world.run.plan.limits.silence - 1.0
    world.tell(ev.SignalReceived(signal.SIGCONT))
    world.now += 2.0
    at = len(world.done)
    world.take(world.run.tick(world.now))
    assert not any(
        isinstance(action, (act.CloseLink, act.SignalRanks)) for action in world.orders(at)
    )


class TestReturn:
    def test_a_host_that_is_back_takes_a_place_at_the_next_restart(self) -> None:
        world = lost_and_gone_on(spares=1)
        at = len(world.done)
        world.wait(15.0)
        assert act.OpenLink(1) in world.done[at:]
        world.mute.discard(1)
        world.ready(1)
        assert world.told(ev.HostReturned) == [ev.HostReturned(1)]
        assert len(world.starts()) == 4  # nothing else happens to those that run
        world.lose(2)
        world.killed(*list(world.homes))
        world.sweep(0)
        world.wait(45.0)
        again(world)
        assert world.told(ev.HostReplaced)[-1] == ev.HostReplaced(2, 1, (2, 3), WHY)
        assert set(world.homes.values()) == {0, 1}
        world.end_well()
        assert world.ended is not None
        assert list(world.ended.left_out) == ["n2"]

    def test_one_that_is_being_reached_anew_keeps_its_link(self) -> None:
        world = lost_and_gone_on(spares=1)
        world.wait(15.0)
        assert world.orders()[-1] == act.OpenLink(1)
        at = len(world.done)
        world.fail(0)
        world.wait(1.0)
        assert world.orders(at)[-2:] == [act.Prepare(0, 2), act.Prepare(2, 2)]
        assert act.CloseLink(1) not in world.orders(at)

    def test_a_world_that_has_shrunk_grows_again(self) -> None:
        world = lost_and_gone_on(min_nodes=1)
        assert world.told(ev.WorldShrunk) == [ev.WorldShrunk((0,), (2,))]
        world.wait(15.0)
        world.mute.discard(1)
        world.ready(1)
        world.fail(0)
        world.wait(1.0)
        again(world)
        assert world.told(ev.WorldGrown) == [ev.WorldGrown((0, 1), (2, 2))]
        assert len(world.told(ev.WorldShrunk)) == 1
        assert sorted(world.homes.items()) == [(0, 0), (1, 0), (2, 1), (3, 1)]

    def test_one_that_is_not_back_is_no_news_and_is_looked_at_less_often(self) -> None:
        world = lost_and_gone_on(spares=1)
        found = []
        for _ in range(400):
            at = len(world.done)
            world.wait(2.0)
            if act.OpenLink(1) in world.done[at:]:
                found.append(world.now)
                assert world.since(ev.NodeLost(1, GONE)) == [act.CloseLink(1)]
        pauses = [later - sooner for sooner, later in pairwise(found)]
        assert pauses == [30.0, 60.0, 120.0, 240.0]
        assert world.told(ev.HostLeftOut) == []
        assert [restart.look_for(n) for n in (0, 1, 20)] == [15.0, 30.0, 600.0]

    def test_one_that_is_not_fit_has_its_link_and_gets_no_second(self) -> None:
        world = World(2, spares=1, most=1)
        world.ready(0, 1)
        world.probed(1)
        world.attempts[2] = 0
        world.tell(ev.NodeReady(2, facts(2), (("cwd", "no folder"),)))
        at = len(world.done)
        world.wait(900.0)
        assert act.OpenLink(2) not in world.done[at:]

    def test_a_run_that_starts_nothing_again_looks_at_nobody(self) -> None:
        world = started(2, spares=1)
        world.tell(ev.NodeLost(2, GONE))
        at = len(world.done)
        world.wait(900.0)
        assert act.OpenLink(2) not in world.done[at:]


def test_hosts_that_ended_while_the_launcher_slept_are_used_again() -> None:
    world = started(2, most=1)
    world.now = 40.0
    world.run.extend_deadlines(40.0)
    world.tell(ev.LauncherSlept(40.0))
    for host in (0, 1):
        world.tell(ev.NodeDying(host, "the agent heard nothing from the launcher for 30 s"))
        for rank in (2 * host, 2 * host + 1):
            world.exits(rank, -15)
        world.tell(ev.NodeLost(host, GONE, Ending(3)))
    seconds = world.run.plan.limits.connect_timeout
    assert world.checks() == [act.CheckOrphans(host, seconds) for host in (0, 1)]
    at = len(world.done)
    world.tell(ev.NodeCleared(0, 0))
    assert world.orders(at) == []
    world.tell(ev.NodeCleared(1, 0))
    assert world.orders(at) == [act.OpenLink(0, 1), act.OpenLink(1, 1)]
    again(world)
    assert len(world.starts()) == 4
    world.end_well()
    assert world.ended is not None
    assert (world.ended.ok, world.ended.left_out, world.ended.may_run_on) == (True, {}, {})


@cases(
    ("rules", "heard", "seconds"),
    [
        ({}, {"unheard": 16.0}, 28.0), ({}, {}, 44.0), ({"most": 1}, {"unheard": 16.0}, 28.0),
        ({}, {"ending": Ending(3)}, None),
    ],
)  # fmt: skip
def test_for_how_long_ranks_of_a_lost_host_may_run_on(
    rules: dict[str, int], heard: dict[str, Any], seconds: float | None
) -> None:
    world = started(2, **rules)
    world.mute.add(1)
    world.tell(ev.NodeLost(1, GONE, **heard))
    world.killed(0, 1)
    world.swept()
    world.swept()
    assert world.ended is not None
    assert world.ended.may_run_on == ({} if seconds is None else {"n1": seconds})
