"""MPI's side of a job, through the job: barriers, ends (J-8), and spawns (J-9)."""

from __future__ import annotations

import signal

import pytest
from cases import cases

from dispatcher.core.events import actions as act
from dispatcher.core.events import mpi_events, verdicts
from dispatcher.core.events import run_events as ev
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.core.run.fences import FenceError
from dispatcher.core.run.mpi_manager import MOST_TOLD, MpiManager
from dispatcher.core.run.spawn_placement import SPAWNED_AT_ONCE
from dispatcher.core.run.tables import RankTable
from dispatcher.plan.job import placement
from dispatcher.plan.job.placement import number

from ..conftest import facts, make_plan, use_mpi

GOOD = b"cmd=spawn_result rc=0\n"
BAD = b"cmd=spawn_result rc=1 msg=refused_by_dispatch\n"
ONE = mpi_events.Segment(1, (b"prog",))
TWO = (
    mpi_events.Segment(1, (b"prog",), ((b"host", b"n0"),)),
    mpi_events.Segment(1, (b"prog",), ((b"host", b"n1"),)),
)


def commit(
    job: AttemptMachine, node: int, epoch: int = 0, world: int = 0, now: float = 1.0
) -> list[act.Action]:
    return job.handle(mpi_events.PmiCommitted(node, world, "WORLD:0", epoch, b"%d" % node), now)


def exited(
    job: AttemptMachine, node: int, rank: int, status: int = 0, now: float = 1.0
) -> list[act.Action]:
    actions = job.handle(ev.RankExited(node, rank, status), now)
    for stream in (1, 2):
        actions += job.handle(ev.OutputEnded(node, rank, stream, 5, 5), now)
    return actions


def spawn(
    job: AttemptMachine, *segments: mpi_events.Segment, node: int = 0, rank: int = 0
) -> list[act.Action]:
    use_mpi(job, 0, 1)
    return job.handle(mpi_events.PmiSpawnAsked(node, rank, segments or (ONE,)), 1.0)


def finish(job: AttemptMachine) -> verdicts.Verdict:
    actions = [a for node in (0, 1) for a in job.handle(ev.NodeSwept(node, 0), 3.0)]
    (end,) = [action for action in actions if isinstance(action, act.End)]
    return end.verdict


class TestFences:
    def test_one_order_for_all_nodes_when_the_last_is_in(self, running: AttemptMachine) -> None:
        assert commit(running, 0) == []
        packets = (b"0", b"1")
        assert commit(running, 1) == [act.ReleaseFence((0, 1), 0, "WORLD:0", 0, packets)]
        assert running.deadlines.keys() == {("silent", 0), ("silent", 1)}

    def test_of_many_late_barriers_a_node_is_asked_for_one_at_a_time(
        self, running: AttemptMachine
    ) -> None:
        def late(now: float) -> list[act.Action]:
            for node in (0, 1):
                running.handle(ev.NodeHeard(node), now)
            return running.tick(now)

        for tag in range(3):
            running.handle(mpi_events.PmiCommitted(0, 0, f"WORLD:{tag}", 0, b""), 1.0)
        asked = [late(now) for now in (31.0, 40.0, 61.0, 62.0, 91.0, 130.0)]
        assert asked == [
            [act.AskWaiting(1, 0, "WORLD:0", 0, 30.0)], [],
            [act.AskWaiting(1, 0, "WORLD:1", 0, 30.0)], [],
            [act.AskWaiting(1, 0, "WORLD:2", 0, 30.0)], [],
        ]  # fmt: skip

    @pytest.mark.parametrize(("world", "epoch"), [(1, 0), (7, 0), (0, 3)])
    def test_a_barrier_that_cannot_be_costs_the_node(
        self, running: AttemptMachine, world: int, epoch: int
    ) -> None:
        assert act.CloseLink(1) in commit(running, 1, epoch, world)
        assert isinstance(running.cause, verdicts.NodeFailed)


class TestEnds:
    """J-8."""

    def test_nobody_waits_for_a_rank_that_ended_with_0(self, running: AttemptMachine) -> None:
        commit(running, 0)
        assert exited(running, 1, 2) == []
        release = act.ReleaseFence((0,), 0, "WORLD:0", 0, (b"0",))
        assert exited(running, 1, 3) == [release]
        assert commit(running, 0, 1) == [act.ReleaseFence((0,), 0, "WORLD:0", 1, (b"0",))]

    def test_a_rank_that_ended_badly_opens_no_barrier(self, running: AttemptMachine) -> None:
        commit(running, 0)
        exited(running, 1, 2)
        actions = running.handle(ev.RankExited(1, 3, 1), 1.0)
        assert not any(isinstance(action, act.ReleaseFence) for action in actions)
        assert running.state == "stopping"

    def test_an_abort_ends_the_job_at_once_with_its_code(self, running: AttemptMachine) -> None:
        actions = running.handle(mpi_events.PmiAborted(1, 2, 7, "why"), 1.0)
        assert actions.count(act.SignalRanks(0, signal.SIGTERM)) == 1
        assert act.SignalRanks(1, signal.SIGTERM) in actions
        for rank in range(4):
            exited(running, rank // 2, rank, -15)
        verdict = finish(running)
        assert (verdict.exit_code, verdict.cause) == (7, verdicts.MpiAborted(1, 2, 7, "why"))

    def test_an_abort_is_a_failure_whatever_its_code(self, running: AttemptMachine) -> None:
        running.handle(mpi_events.PmiAborted(1, 2, 0, ""), 1.0)
        for rank in range(4):
            exited(running, rank // 2, rank, 0 if rank == 2 else -15)
        verdict = finish(running)
        assert (verdict.ok, verdict.exit_code) == (False, 1)

    def test_nobody_is_asked_for_whom_he_waits_while_all_ends(
        self, running: AttemptMachine
    ) -> None:
        commit(running, 0)
        for node in (0, 1):
            running.handle(ev.NodeHeard(node), 30.0)
        running.handle(ev.SignalReceived(signal.SIGTERM), 30.5)
        assert running.tick(31.0) == []

    def test_a_barrier_waits_for_a_rank_that_ended_without_mpi_init(
        self, running: AttemptMachine
    ) -> None:
        commit(running, 0)
        exited(running, 1, 2)
        assert running.handle(ev.RankExited(1, 3, 0, mpi="never"), 1.0) == []
        for node in (0, 1):
            running.handle(ev.NodeHeard(node), 30.0)
        assert running.tick(31.0) == [act.AskWaiting(1, 0, "WORLD:0", 0, 30.0)]

    @pytest.mark.parametrize(("node", "rank"), [(0, 2), (1, 9), (1, number(1, 0))])
    def test_an_abort_of_a_rank_that_is_not_there_is_nothing(
        self, running: AttemptMachine, node: int, rank: int
    ) -> None:
        assert running.handle(mpi_events.PmiAborted(node, rank, 7, ""), 1.0) == []

    def test_after_the_end_began_nothing_is_released_or_spawned(
        self, running: AttemptMachine
    ) -> None:  # J-2
        running.handle(mpi_events.PmiAborted(1, 2, 7, ""), 1.0)
        assert commit(running, 0) == commit(running, 1) == spawn(running) == []


class TestOthers:
    """Words of ranks that nobody knows, as only a broken host sends them."""

    def test_they_change_nothing(self) -> None:
        plan, ranks = make_plan(), RankTable()
        manager = MpiManager(plan, ranks, {}, ())
        stranger = number(7, 0)
        assert manager.started(stranger) == []
        assert manager.ended(stranger, 0) == []
        assert manager.not_started(ev.RankFailedToStart(0, stranger, 2, "exec", "x")) is None
        assert manager.not_started(ev.RankFailedToStart(0, 1, 2, "exec", "x")) is None
        assert manager.late(7, "WORLD:0", 0, 1.0) == []


class TestTrust:
    """Hosts trust each other by MPI alone."""

    ASKED = mpi_events.PmiSpawnAsked(0, 0, TWO)

    def test_who_does_not_use_mpi_loses_its_link(self, running: AttemptMachine) -> None:
        assert act.CloseLink(0) in running.handle(self.ASKED, 1.0)
        assert isinstance(running.cause, verdicts.NodeFailed)
        assert running.cause.failure.why == "MPI: it wants to spawn, but its ranks do not use MPI"

    @cases(
        "event", [ASKED, mpi_events.PmiAsked(0, 0, "lookup", b"s", b""), mpi_events.PmixWanted(0)]
    )
    def test_nobody_asks_in_a_job_without_mpi(self, event: mpi_events.PmiSpawnAsked) -> None:
        plan = make_plan(mpi="none")
        manager = MpiManager(plan, RankTable(), {}, ())
        manager.uses(0)
        with pytest.raises(FenceError, match="in a job without MPI"):
            manager.request(event, 1.0)
        with pytest.raises(FenceError, match="in a job without MPI"):
            manager.commit(mpi_events.PmiCommitted(0, 0, "WORLD:0", 0, b""))

    def test_no_program_is_started_where_nobody_uses_mpi(self, running: AttemptMachine) -> None:
        running.handle(mpi_events.MpiFound(0, "", "PMI-1"), 1.0)
        told, answer = running.handle(self.ASKED, 1.0)
        refused = mpi_events.SpawnRefused(0, 0, "no rank on n1 uses MPI")
        assert (told, answer) == (act.Tell(refused), act.AnswerRank(0, 0, BAD))
        asked = mpi_events.PmiSpawnAsked(0, 0, (mpi_events.Segment(9, (b"prog",)),))
        told, *orders = running.handle(asked, 1.0)
        assert [order.node for order in orders if isinstance(order, act.SpawnRanks)] == [0]

    def test_a_fence_shows_that_a_host_uses_mpi(self, running: AttemptMachine) -> None:
        for node in (0, 1):
            commit(running, node)
        assert len(running.handle(self.ASKED, 1.0)) == 3

    def test_refusals_are_told_some_times_and_answered_always(
        self, running: AttemptMachine
    ) -> None:
        bad = mpi_events.Segment(1, ())
        answers = [spawn(running, bad) for _ in range(MOST_TOLD + 5)]
        assert [len(one) for one in answers] == [2] * MOST_TOLD + [1] * 5


class TestSpawn:
    """J-9."""

    def test_orders_go_out_and_the_answer_comes_when_all_run(self, running: AttemptMachine) -> None:
        told, first, second = spawn(running, *TWO)
        placed = mpi_events.WorldPlaced(1, 0, number(1, 0), (0, 1))
        assert told == act.Tell(placed)
        assert isinstance(first, act.SpawnRanks)
        assert isinstance(second, act.SpawnRanks)
        assert (first.node, second.node) == (0, 1)
        assert running.handle(ev.RankSpawned(1, number(1, 1), 7), 1.0) == []
        assert running.handle(ev.RankSpawned(0, number(1, 0), 7), 1.0) == [
            act.AnswerRank(0, 0, GOOD)
        ]
        assert running.handle(ev.RankSpawned(0, number(1, 0), 7), 1.0) == []

    def test_the_job_lasts_as_long_as_its_spawned_ranks(self, running: AttemptMachine) -> None:
        spawn(running)
        for rank in range(4):
            assert exited(running, rank // 2, rank) == []
        assert exited(running, 0, number(1, 0)) == [act.Finish(0), act.Finish(1)]
        verdict = finish(running)
        assert verdict.ok
        assert verdict.statuses == {**dict.fromkeys(range(4), 0), number(1, 0): 0}
        assert verdict.world_size == 4

    def test_two_at_once_from_two_ranks(self, running: AttemptMachine) -> None:
        spawn(running)
        spawn(running, node=1, rank=3)
        nodes = [running.node_of(number(world, 0)) for world in (1, 2)]
        assert nodes == [0, 1]
        for world, (node, rank) in ((2, (1, 3)), (1, (0, 0))):
            at = running.node_of(number(world, 0))
            answers = running.handle(ev.RankSpawned(at, number(world, 0), 7), 1.0)
            assert answers == [act.AnswerRank(node, rank, GOOD)]

    def test_a_spawned_rank_spawns(self, running: AttemptMachine) -> None:
        spawn(running)
        (told, order) = spawn(running, rank=number(1, 0))
        assert told == act.Tell(mpi_events.WorldPlaced(2, number(1, 0), number(2, 0), (1,)))
        assert isinstance(order, act.SpawnRanks)

    def test_its_failure_is_the_job_s(self, running: AttemptMachine) -> None:
        spawn(running)
        actions = running.handle(ev.RankExited(0, number(1, 0), 3), 1.0)
        assert act.SignalRanks(1, signal.SIGTERM) in actions
        assert running.cause == verdicts.RankFailed(0, number(1, 0), 3)

    def test_its_abort_is_the_job_s(self, running: AttemptMachine) -> None:
        spawn(running)
        running.handle(mpi_events.PmiAborted(0, number(1, 0), 9, ""), 1.0)
        assert running.cause is not None
        assert running.cause.exit_code == 9

    def test_its_fences_are_its_own(self, running: AttemptMachine) -> None:
        spawn(running, *TWO)
        assert commit(running, 0) == commit(running, 0, world=1) == []
        releases = commit(running, 1, world=1)
        assert releases == [act.ReleaseFence((0, 1), 1, "WORLD:0", 0, (b"0", b"1"))]
        assert len(commit(running, 1)) == 1
        commit(running, 0, 1, world=1)
        assert exited(running, 1, number(1, 1)) == [
            act.ReleaseFence((0,), 1, "WORLD:0", 1, (b"0",))
        ]

    def test_a_lost_node_takes_its_spawned_ranks_along(self, running: AttemptMachine) -> None:
        spawn(running, *TWO)
        running.tick(1000.0)
        assert running.state in ("finishing", "over")

    def test_one_that_cannot_start_takes_its_world_and_nothing_else(
        self, running: AttemptMachine
    ) -> None:
        spawn(running, *TWO)
        one, two = number(1, 0), number(1, 1)
        running.handle(ev.RankSpawned(0, one, 7), 1.0)
        *kills, told, answer = running.handle(
            ev.RankFailedToStart(1, two, 2, "exec", "nosuch"), 1.0
        )
        assert act.SignalRanks(0, signal.SIGKILL, (one,)) in kills
        why = "n1: exec nosuch: no such file or directory"
        assert (told, answer) == (
            act.Tell(mpi_events.SpawnRefused(0, 0, why)),
            act.AnswerRank(0, 0, BAD),
        )
        assert exited(running, 0, one, -9) == []
        assert running.state == "running"
        assert commit(running, 0, world=1) == []
        for rank in range(4):
            exited(running, rank // 2, rank)
        verdict = finish(running)
        assert verdict.ok
        assert verdict.statuses == dict.fromkeys(range(4), 0)

    def test_its_ranks_are_killed_host_by_host(self, running: AttemptMachine) -> None:
        three = (TWO[1], mpi_events.Segment(2, (b"prog",), ((b"host", b"n0"),)))
        spawn(running, *three, node=1, rank=2)
        failed = ev.RankFailedToStart(1, number(1, 0), 13, "exec", "x")
        actions = running.handle(failed, 1.0)
        assert actions[:2] == [
            act.SignalRanks(0, signal.SIGKILL, (number(1, 1), number(1, 2))),
            act.SignalRanks(1, signal.SIGKILL, (number(1, 0),)),
        ]
        why = "n1: exec x: permission denied"
        assert actions[2:] == [
            act.Tell(mpi_events.SpawnRefused(1, 2, why)), act.AnswerRank(1, 2, BAD),
        ]  # fmt: skip

    def test_the_asker_hears_of_one_failure_only(self, running: AttemptMachine) -> None:
        spawn(running, *TWO)
        for node in (0, 1):
            actions = running.handle(
                ev.RankFailedToStart(node, number(1, node), 13, "exec", "x"), 1.0
            )
            assert (act.AnswerRank(0, 0, BAD) in actions) == (node == 0)
        before = {*running.deadlines}
        assert running.handle(mpi_events.PmiCommitted(0, 1, "WORLD:0", 0, b""), 1.0) == []
        assert {*running.deadlines} == before  # nobody waits where nobody is

    def test_a_refusal_is_told_and_answered(self, running: AttemptMachine) -> None:
        told, answer = spawn(running, mpi_events.Segment(1, (b"p",), ((b"host", b"mars"),)))
        assert isinstance(told, act.Tell)
        assert isinstance(told.event, mpi_events.SpawnRefused)
        assert answer == act.AnswerRank(0, 0, BAD)
        assert running.handle(ev.RankExited(0, number(1, 0), 0), 1.0) == []

    @pytest.mark.parametrize(("node", "rank"), [(1, 0), (0, 4), (0, number(1, 0))])
    def test_only_living_ranks_spawn(self, running: AttemptMachine, node: int, rank: int) -> None:
        assert spawn(running, node=node, rank=rank) == []

    def test_what_lies_in_the_barriers_of_a_world_goes_with_it(
        self, running: AttemptMachine
    ) -> None:
        for world in (1, 2, 3):
            spawn(running, *TWO)
            keys = mpi_events.PmiCommitted(0, world, "WORLD:0", 0, b"x" * (2 << 20))
            assert running.handle(keys, 1.0) == []
            assert running.state == "running"
            for node in (0, 1):  # so that nothing opens it
                running.handle(ev.RankExited(node, number(world, node), 0, mpi="never"), 1.0)

    def test_who_spawns_without_end_is_held_back(self, running: AttemptMachine) -> None:
        use_mpi(running, 0, 1)

        def spawned(node: int, count: int, now: float) -> bool:
            segment = mpi_events.Segment(count, (b"prog",), ((b"host", b"n0"),))
            asked = mpi_events.PmiSpawnAsked(node, 2 * node, (segment,))
            told, *_ = running.handle(asked, now)
            assert isinstance(told, act.Tell)
            if isinstance(told.event, mpi_events.SpawnRefused):
                host = running.plan.nodes[node].host.name
                assert f" wanted: {host} has spawned {SPAWNED_AT_ONCE}, and may" in told.event.why
                return False
            assert isinstance(told.event, mpi_events.WorldPlaced)
            for rank in range(count):
                running.handle(ev.RankFailedToStart(0, told.event.first + rank, 2, "exec", ""), now)
            return True

        assert all(spawned(0, placement.MOST_SPAWNED, 1.0) for _ in range(3))
        assert not spawned(0, 1, 1.0)
        assert spawned(1, 5, 1.0)
        assert spawned(0, 1, 2.0)
        assert not spawned(0, 1, 2.0)
        assert [spawned(0, count, 66.0) for count in (65, 60, 5, 4)] == [False, True, False, True]

    def test_nothing_piles_up(self, running: AttemptMachine) -> None:
        for world in range(1, 2001):
            spawn(running)
            rank = number(world, 0)
            node = running.node_of(rank)
            running.handle(ev.RankSpawned(node, rank, 7), 1.0)
            exited(running, node, rank)
        assert running._mpi is not None
        assert len(running._mpi._worlds) == 1
        assert running._ranks.load() == {0: 2, 1: 2}


def test_a_plan_without_room_for_more_still_spawns() -> None:
    job = AttemptMachine(make_plan(1, 1))
    job.begin()
    job.handle(ev.NodeReady(0, facts(0)), 0.0)
    job.handle(ev.RankSpawned(0, 0, 7), 0.0)
    assert [type(action) for action in spawn(job)] == [act.Tell, act.SpawnRanks]
