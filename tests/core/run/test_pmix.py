"""PMIx through the job: who is told to serve, and what ends it."""

from __future__ import annotations

import sys

from dispatcher.core.events import actions as act
from dispatcher.core.events import verdicts
from dispatcher.core.events.mpi_events import (
    MpiFound,
    PmiCommitted,
    PmiSpawnAsked,
    PmixFailed,
    PmixWanted,
    Segment,
)
from dispatcher.core.events.run_events import NodeReady, RankSpawned
from dispatcher.core.run.attempt import AttemptMachine
from dispatcher.core.run.fences import ONCE
from dispatcher.plan.job.placement import number
from dispatcher.runner.run.orders import world_order

from ..conftest import facts, make_plan, use_mpi


def test_each_node_serves_once(running: AttemptMachine) -> None:
    assert running.handle(PmixWanted(1), 1.0) == [act.ServePmix(1)]
    assert running.handle(PmixWanted(1), 1.0) == []
    assert running.handle(PmixWanted(0), 1.0) == [act.ServePmix(0)]
    assert running.handle(MpiFound(0, "/lib/libmpi.so.40", "OpenPMIx 5"), 1.0) == []


def test_a_host_without_a_library_ends_the_job_and_says_what_would_help(
    running: AttemptMachine,
) -> None:
    actions = running.handle(PmixFailed(1, "/lib/libmpi.so.40", "libpmix.so.2: not found"), 1.0)
    assert {action.node for action in actions if isinstance(action, act.SignalRanks)} == {0, 1}
    assert isinstance(running.cause, verdicts.NodeFailed)
    failure = running.cause.failure
    assert "/lib/libmpi.so.40 finds its ranks by PMIx" in failure.why
    assert "libpmix.so.2: not found" in failure.why
    assert failure.hint is not None
    assert failure.hint.startswith("apt-get install libpmix2")


def test_a_lone_rank_without_a_library_is_told_how_to_do_without() -> None:
    job = AttemptMachine(make_plan(1, 1), check=False)
    job.begin()
    job.handle(NodeReady(0, facts(0)), 0.0)
    job.handle(RankSpawned(0, 0, 1000), 0.0)
    job.handle(PmixFailed(0, "/lib/libmpi.so.40", "libpmix.so.2: not found"), 1.0)
    assert isinstance(job.cause, verdicts.NodeFailed)
    assert "--mpi none" in str(job.cause.failure.hint)


def test_a_library_that_dies_is_the_cause(running: AttemptMachine) -> None:
    running.handle(PmixFailed(0, "", ""), 1.0)
    assert isinstance(running.cause, verdicts.NodeFailed)
    assert "has ended" in running.cause.failure.why


def test_nothing_of_it_counts_when_no_rank_runs() -> None:
    job = AttemptMachine(make_plan(), check=False)
    job.begin()
    assert job.handle(PmixWanted(0), 1.0) == []
    assert job.handle(PmixFailed(0, "", ""), 1.0) == []
    assert job.cause is None


def test_a_world_is_known_where_pmix_is_served_before_it_starts(running: AttemptMachine) -> None:
    use_mpi(running, 0, 1)
    running.handle(PmixWanted(1), 1.0)
    asked = PmiSpawnAsked(1, 2, (Segment(1, (b"prog",), ((b"host", b"n0"),)),), ask=5)
    _, shared, spawned = running.handle(asked, 1.0)
    assert isinstance(shared, act.ShareWorld)
    assert isinstance(spawned, act.SpawnRanks)
    assert (shared.node, spawned.node) == (1, 0)
    serve, later = running.handle(PmixWanted(0), 1.0)
    assert serve == act.ServePmix(0)
    assert isinstance(later, act.ShareWorld)
    order, same = (world_order(running.plan, w, 0, "kvs") for w in (shared.world, later.world))
    assert order == same
    assert running.handle(RankSpawned(0, number(1, 0), 99), 1.0) == [
        act.AnswerRank(1, 2, b"cmd=spawn_result rc=0 world=1\n", 5)
    ]


def test_of_a_world_that_lives_its_words_and_keys_are_not_kept(running: AttemptMachine) -> None:
    use_mpi(running, 0, 1)
    before = sys.getrefcount(word := bytes(1 << 20))
    for ask in range(4):
        segments = (Segment(1, (b"prog", word), ((b"env", word), (b"host", b"n0"))),)
        running.handle(PmiSpawnAsked(1, 2, segments, ((b"key", word),), ask=ask), 1.0)
        del segments
    assert running._ranks.n_spawned == 4
    assert sys.getrefcount(word) == before


def test_ranks_of_two_worlds_meet(running: AttemptMachine) -> None:
    use_mpi(running, 0, 1)
    asked = PmiSpawnAsked(1, 2, (Segment(1, (b"prog",), ((b"host", b"n0"),)),), ask=5)
    running.handle(asked, 1.0)
    name = f"2-3,{number(1, 0)}:{ONCE}"
    assert running.handle(PmiCommitted(0, 0, name, 0, b"a"), 1.0) == []
    (opened,) = running.handle(PmiCommitted(1, 0, name, 0, b"b"), 1.0)
    assert opened == act.ReleaseFence((0, 1), 0, name, 0, (b"a", b"b"), 1)
