"""What is known of a run's hosts and ranks, and which host has which node."""

from __future__ import annotations

import math
from dataclasses import replace

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import run_events as ev
from dispatcher.core.run import restart
from dispatcher.core.run.restart import Assignment
from dispatcher.core.run.tables import Assigned, Deadlines, HostTable, RankTable
from dispatcher.plan.job.job_plan import Change
from dispatcher.plan.job.request import Limits, Restarts

from ..conftest import facts, make_plan

LIMITS = Limits(heartbeat=2.0, max_missed_heartbeats=3)
FENCE = restart.fence(LIMITS)


class TestDeadlines:
    @given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.floats(0, 9)), max_size=40))
    def test_the_first_is_the_least(self, changes: list[tuple[int, float | None]]) -> None:
        due: Deadlines[int] = Deadlines()
        for key, when in changes:
            if when is None:
                due.pop(key, None)
            else:
                due[key] = when
            assert due.earliest() == min(due.values(), default=None)


def table(linked: int = 3) -> HostTable:
    """Hosts 0 to 3, of which the first ``linked`` are linked and have answered."""
    hosts = HostTable(make_plan(4).nodes, LIMITS)
    hosts.linked = set(range(linked))
    hosts.facts = {host: facts(host) for host in range(linked)}
    return hosts


class TestHosts:
    def test_who_sees_that_we_do_not_answer_is_fenced_for_less(self) -> None:
        hosts = table()
        hosts.facts[0] = facts(0, self_fencing=True)
        hosts.armed.add(0)
        hosts.unlink(0, 5.0)
        fence = restart.fence(LIMITS, self_fencing=True)
        assert hosts.dead_at() == 5.0 + fence < 5.0 + FENCE
        hosts.armed |= {0, 1}
        hosts.unlink(0, 5.0, unheard=1.0)  # it has heard nothing since
        assert hosts.dead_at() == 5.0 + fence - 1.0
        hosts.unlink(1, 50.0, unheard=99.0)
        assert hosts.dead_at() == 50.0 + restart.SWEEP

    def test_a_host_that_is_given_up_with_ranks_is_fenced(self) -> None:
        hosts = table()
        hosts.armed.add(0)
        hosts.armed.add(1)
        hosts.armed.discard(1)
        for host in (0, 1, 2):
            hosts.expect_heartbeat(host, 5.0)
            hosts.unlink(host, 5.0)
        assert (hosts.linked, hosts.silent) == (set(), {})
        assert hosts.fences() == {0: 5.0 + FENCE}
        assert hosts.dead_at() == 5.0 + FENCE
        assert (hosts.over, hosts.undead()) == (set(), [])
        hosts.unlink(0, 90.0)  # once is enough
        assert hosts.fences() == {0: 5.0 + FENCE}
        hosts.fenced.pop(0)
        assert (hosts.fences(), hosts.dead_at()) == ({}, 0.0)

    @cases("armed", [True, False])
    def test_whose_agent_was_seen_to_end_is_noted(self, armed: bool) -> None:
        hosts = table()
        if armed:
            hosts.armed.add(1)
        hosts.unlink(1, 5.0, over=True)
        assert hosts.over == ({1} if armed else set())

    def test_a_host_that_rests_may_never_die(self) -> None:
        hosts = table()
        for host in (0, 1, 2):
            hosts.armed.add(host)
            hosts.rest(host)
        hosts.rests(0)
        hosts.rests(1)
        assert [hosts.is_resting(host) for host in range(4)] == [True, True, False, False]
        hosts.resumed(0)
        hosts.resumed(2)  # which has not said that it rests: this was an earlier beat
        hosts.unlink(0, 5.0)
        hosts.unlink(1, 5.0)
        hosts.unlink(2, 5.0)
        assert hosts.undead() == ["n1", "n2"]
        assert hosts.dead_at() == math.inf
        assert hosts.fences()[0] == 5.0 + FENCE

    @cases(
        ("machines", "alone"),
        [
            ({0: "a", 1: "b"}, True),
            ({0: "a", 1: "a"}, False),
            ({0: "", 1: "b"}, False),
            ({0: "a", 1: "b", 3: "a"}, True),  # host 3 is not in use
            ({1: "b"}, False),
        ],
    )
    def test_only_a_host_that_is_surely_no_other_is_looked_at(
        self, machines: dict[int, str], alone: bool
    ) -> None:
        hosts = table(2)
        hosts.facts = {host: facts(host, machine=name) for host, name in machines.items()}
        hosts.armed.add(0)
        hosts.unlink(0, 0.0)
        assert list(hosts.fences()) == ([0] if alone else [])
        assert hosts.dead_at() == FENCE

    def test_who_waits_for_a_node(self) -> None:
        hosts = table()
        hosts.out[1] = "lost"
        assert hosts.waiting([0]) == [2]
        hosts.linked |= {3, 8}
        assert hosts.waiting([0]) == [2, 3, 8]
        hosts.linked = {8, 1, 0}
        hosts.out.clear()
        assert hosts.waiting([0]) == [1, 8]

    def test_silence(self) -> None:
        hosts = table(2)
        hosts.expect_heartbeat(0, 10.0)
        hosts.expect_heartbeat(0, 7.0)  # heard of late
        hosts.expect_heartbeat(1, 9.0)
        hosts.expect_heartbeat(3, 9.0)  # which nobody reaches
        assert hosts.silent == {0: 18.0, 1: 17.0}
        assert hosts.overdue(16.9) == []
        assert hosts.overdue(17.0) == [1]
        assert hosts.overdue(17.0) == []
        hosts.expect_nothing([0, 1])
        assert hosts.overdue(99.0) == []


def ranks() -> RankTable:
    """Ranks 0 and 1 on node 0, rank 2 on node 1."""
    found = RankTable()
    for rank, node in ((0, 0), (1, 0), (2, 1)):
        found.call(rank, node)
    return found


class TestRanks:
    def test_done_is_who_exited_and_has_no_stream_left(self) -> None:
        found = ranks()
        for rank, node in ((0, 0), (1, 0), (2, 1)):
            assert not found.exited(rank, 1 - node, 0)
            assert found.exited(rank, node, rank)
            assert not found.exited(rank, node, 9)
            assert [found.stream_ended(rank) for _ in range(3)] == [True, True, False]
            assert found.is_done == (rank == 2)
        assert found.statuses == {0: 0, 1: 1, 2: 2}
        assert found.nodes == {0: 0, 1: 0, 2: 1}
        assert not found.stream_ended(9)

    def test_output_of_who_has_ended_is_awaited_though_others_there_cannot_be(self) -> None:
        found = ranks()
        found.exited(0, 0, 0)
        found.give_up(0)
        assert found.living() == [1]
        assert (found.stream_ended(0), found.stream_ended(1)) == (True, False)


def test_a_rank_is_known_where_it_ran_last() -> None:
    plan, seats = make_plan(2), Assigned((0, 1))
    for node in (0, 1):
        seats.started(plan, node)
    seats.follow(Assignment(plan, (0, 2)), Change())
    assert seats.homes == {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}
    seats.started(plan, 1)
    assert seats.homes == {0: (0, 0), 1: (0, 1), 2: (2, 0), 3: (2, 1)}


def test_a_node_that_was_dropped_is_there_again_with_its_host_or_another() -> None:
    plan, seats = make_plan(2, restarts=Restarts(most=1, min_nodes=1)), Assigned((0, 1))
    hosts = HostTable((*plan.nodes, replace(plan.nodes[0], index=2, ranks=())), plan.limits)
    hosts.linked, hosts.facts = {0}, {0: facts(0)}
    hosts.out.setdefault(1, "host lost")
    smaller = seats.next(plan, hosts, 2, distinct=False)
    assert (smaller.hosts, smaller.dropped) == ((0,), (1,))
    assert seats.changes(smaller, hosts) == [
        ev.HostLeftOut(1, "host lost"),
        ev.WorldShrunk((0,), (2,)),
    ]
    seats.follow(smaller, Change())
    hosts.linked.add(2)
    hosts.facts[2] = facts(2)
    larger = seats.next(smaller.plan, hosts, 2, distinct=False)
    assert (larger.hosts, larger.whole) == ((0, 2), None)
    assert seats.changes(larger, hosts) == [
        ev.HostReplaced(1, 2, (2, 3), "host lost"),
        ev.WorldGrown((0, 2), (2, 2)),
    ]


def test_a_host_where_too_many_attempts_ended_is_told_of_as_left_out() -> None:
    plan, seats = make_plan(2, restarts=Restarts(most=1, min_nodes=1)), Assigned((0, 1))
    hosts = HostTable(plan.nodes, plan.limits)
    hosts.linked, hosts.facts = {0, 1}, {0: facts(0), 1: facts(1)}
    hosts.faults[1] = 2
    found = seats.next(plan, hosts, 2, distinct=False)
    assert found.excluded == (1,)
    why = "2 attempts ended there"
    assert seats.changes(found, hosts)[0] == ev.HostLeftOut(1, why)
    assert hosts.out == {1: why}
