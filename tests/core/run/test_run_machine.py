"""The run as a machine of attempts: restarts, spares, shrinking. No I/O, no sleep, no thread."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest
from cases import cases

from dispatcher.core.events import actions as act
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.run import restart, run_machine
from dispatcher.model.failure import Ending

from .world import GONE, World, again, started


class TestRestart:
    def test_the_agents_stay_and_the_ranks_start_again(self) -> None:
        world = started(most=2)
        at = len(world.done)
        world.fail(1)
        orders = world.orders(at)
        assert act.Sweep(0) in orders
        assert act.Sweep(1) in orders
        assert orders[-2:] == [act.Prepare(0, 1), act.Prepare(1, 1)]
        assert not any(
            isinstance(order, (act.Finish, act.CloseLink, act.OpenLink)) for order in orders
        )
        again(world)
        assert [(s.node, s.master_port, s.restart) for s in world.starts()] == [
            (0, 4000, 0), (1, 4000, 0), (0, 4001, 1), (1, 4001, 1),
        ]  # fmt: skip
        for rank in range(4):
            world.exits(rank, 0)
        assert world.orders()[-2:] == [act.Finish(0), act.Finish(1)]
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

    def test_without_the_option_nothing_starts_again(self) -> None:
        world = started()
        world.fail(0)
        assert world.ended is not None
        assert world.ended.no_restart is None
        assert len(world.starts()) == 2

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
        assert not [a for a in world.orders()[-3:] if isinstance(a, act.SignalRanks)]


class TestLostHosts:
    def test_a_spare_takes_the_seat_when_the_lease_has_run_out(self) -> None:
        world = started(3, spares=1, most=1)
        world.lose(1)
        world.killed(0, 1, 4, 5)
        world.sweep(0, 2)
        fence = restart.fence(world.run.plan.limits)
        assert world.told(ev.RunRestarting)[0].seconds == pytest.approx(fence)
        world.wait(fence - 0.1)
        assert not [a for a in world.done if isinstance(a, act.Prepare)]
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
        assert world.checks() == [act.CheckOrphans(1, limits.connect_timeout)]
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
        assert looks == [act.CheckOrphans(1, restart.SWEEP)]
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
        assert not [action for action in world.done if isinstance(action, act.Probe)]

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
        assert act.SignalRanks(2, signal.SIGTERM) in world.done[at:]
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
        assert (
            world.ended.no_restart
            == "no host can take the place of n1 (--spares N keeps some ready)"
        )
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
        assert world.orders()[-2:] == [act.Prepare(0, 1), act.Prepare(2, 1)]
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
        assert not [a for a in world.done if isinstance(a, act.Prepare)]
        world.ready(2)
        assert act.Prepare(2, 1) in world.done

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
        assert not [a for a in world.done if isinstance(a, act.Prepare)]

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

    def test_spares_end_with_the_run(self) -> None:
        world = started(2, spares=1)
        for rank in range(4):
            world.exits(rank, 0)
        world.sweep(0, 1)
        assert world.done[-1] == act.Finish(2)
        world.sweep(2)
        assert world.ended is not None
        assert world.ended.ok


def test_every_row_of_the_table_is_in_the_page() -> None:
    """The drawing of the machine is made from its own table."""
    page = Path(__file__).parents[3].joinpath("docs/design/restarts.md").read_text()
    for (state, what), after in run_machine.TABLE.items():
        assert f"| {state} | {what} | {after} |" in page
    rows = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    assert len(rows) - 1 == len(run_machine.TABLE)


def test_events_of_an_attempt_say_which() -> None:
    assert dataclasses.fields(ev.RankExited)[0].name == "attempt"
    assert ev.RankExited(1, 2, 3).attempt == 0
