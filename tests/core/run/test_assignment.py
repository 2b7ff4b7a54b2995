"""Which hosts follow those that are lost, and what passes between nodes and hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import cases

from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Finish, ReleaseFence, SignalRanks
from dispatcher.core.run.assignment import Assigned, Assignment, assign_hosts, for_hosts
from dispatcher.core.run.tables import HostTable
from dispatcher.plan.job.job_plan import Change, JobPlan
from dispatcher.plan.job.request import Restarts

from ..conftest import facts, make_plan


def assigned(
    plan: JobPlan, hosts: tuple[int, ...], *, free: tuple[int, ...] = (), **how: Any
) -> Assignment:
    """As ``assign_hosts``; those that are ``free`` have two slots each."""
    own = {host: (replace(plan.nodes[0], index=host, ranks=()), facts(host)) for host in free}
    return assign_hosts(plan, hosts, **{"bad": (), "faulty": (), "free": own, **how})


def rules(least: int | None) -> Restarts:
    return Restarts(most=1, min_nodes=least)


class TestAssignment:
    def test_nothing_changes_for_nothing(self) -> None:
        plan = make_plan(3)
        assert assigned(plan, (0, 1, 2), free=(3,)) == Assignment(plan, (0, 1, 2))

    def test_the_first_that_is_free_takes_the_place(self) -> None:
        plan = make_plan(3)
        found = assigned(plan, (0, 1, 2), bad={1}, free=(4, 3))
        assert found.hosts == (0, 4, 2)
        assert found.swaps == ((1, 4, (2, 3)),)
        assert (found.dropped, found.excluded, found.vacant) == ((), (), frozenset())
        assert [node.ranks for node in found.plan.nodes] == [(0, 1), (2, 3), (4, 5)]

    def test_each_takes_one(self) -> None:
        found = assigned(make_plan(3), (0, 1, 2), bad={0, 2}, free=(3, 4))
        assert (found.hosts, found.swaps) == ((3, 1, 4), ((0, 3, (0, 1)), (2, 4, (4, 5))))

    @cases(
        ("least", "bad", "hosts", "dropped", "vacant"),
        [
            (None, {1}, (0, 1, 2), (), {1}),
            (3, {1}, (0, 1, 2), (), {1}),
            (2, {1}, (0, 2), (1,), set()),
            (2, {1, 2}, (0, 1, 2), (), {1, 2}),
            (1, {0, 2}, (1,), (0, 2), set()),
        ],
    )
    def test_nodes_are_dropped_as_far_as_is_allowed(
        self,
        least: int | None,
        bad: set[int],
        hosts: tuple[int, ...],
        dropped: tuple[int, ...],
        vacant: set[int],
    ) -> None:
        plan = make_plan(3, restarts=rules(least))
        found = assigned(plan, (0, 1, 2), bad=bad)
        assert (found.hosts, found.dropped, set(found.vacant)) == (hosts, dropped, vacant)
        assert found.plan.world_size == 2 * len(hosts)
        assert not found.awaited

    def test_who_may_still_come_is_awaited_for_those_that_must_be_replaced(self) -> None:
        plan = make_plan(2, restarts=rules(1))
        found = assigned(plan, (0, 1), bad={1}, awaited=True)
        assert found == Assignment(plan, (0, 1), vacant=frozenset({1}), awaited=True)
        assert not assigned(plan, (0, 1), faulty={1}, awaited=True).awaited
        assert not assigned(plan, (0, 1), bad={1}, free=(2,), awaited=True).awaited

    def test_a_faulty_host_stays_where_nobody_takes_its_place(self) -> None:
        plan = make_plan(2)
        assert assigned(plan, (0, 1), faulty={1}) == Assignment(plan, (0, 1))
        found = assigned(plan, (0, 1), faulty={1}, free=(2,))
        assert (found.hosts, found.excluded) == ((0, 2), (1,))
        found = assigned(make_plan(2, restarts=rules(1)), (0, 1), faulty={1})
        assert (found.hosts, found.dropped, found.excluded) == ((0,), (1,), (1,))

    def test_the_bad_ones_are_served_first(self) -> None:
        plan = make_plan(3, restarts=rules(2))
        found = assigned(plan, (0, 1, 2), bad={2}, faulty={0, 2}, free=(3,))
        assert found.swaps == ((2, 3, (4, 5)),)
        assert (found.hosts, found.dropped, found.excluded) == ((1, 3), (0,), (0,))
        found = assigned(plan, (0, 1, 2), bad={2}, faulty={0})
        assert (found.hosts, found.dropped) == ((0, 1), (2,))

    def test_no_two_nodes_share_a_machine(self) -> None:
        plan = make_plan(3)
        machines = {0: "a", 1: "b", 2: "c", 3: "a", 4: "d", 5: "d"}
        found = assigned(plan, (0, 1, 2), bad={1}, free=(3, 4), distinct=machines)
        assert found.hosts == (0, 4, 2)
        found = assigned(plan, (0, 1, 2), bad={1, 2}, free=(4, 5), distinct=machines)
        assert found.vacant == {2}
        # a host that leaves makes room for its second name
        found = assigned(plan, (0, 1, 2), bad={0}, free=(3,), distinct=machines)
        assert found.hosts == (3, 1, 2)
        # of hosts that nobody knows anything of none is another
        found = assigned(plan, (0, 1, 2), bad={1, 2}, free=(6, 7), distinct={0: "a"})
        assert found.hosts == (0, 6, 7)

    def test_gpus_there_bound_who_fits(self) -> None:
        plan = make_plan(2)
        spare = replace(
            plan.nodes[1], host=replace(plan.nodes[1].host, slots=None), slots=(), index=2
        )
        for seen, fits in ((facts(2, gpus=2), True), (facts(2, gpus=1), False),
                           (facts(2, gpus=4, visible="3"), False)):  # fmt: skip
            found = assign_hosts(plan, (0, 1), bad={1}, faulty=(), free={2: (spare, seen)})
            assert (found.hosts == (0, 2)) == fits


def test_orders_go_to_the_hosts_that_have_the_nodes() -> None:
    assert for_hosts(Finish(1), (0, 3)) == Finish(3)
    order = Finish(0)
    assert for_hosts(order, (0, 3)) is order
    assert for_hosts(SignalRanks(1, 15, (2,)), (0, 3)) == SignalRanks(3, 15, (2,))
    release = ReleaseFence((0, 1), 0, "WORLD:0", 0, (b"a", b"b"))
    assert for_hosts(release, (0, 3)) == replace(release, nodes=(0, 3))


def test_news_of_nodes_is_told_of_the_hosts_that_have_them() -> None:
    seats = Assigned((0, 3))
    assert (seats.hosts, seats.nodes) == ((0, 3), {0: 0, 3: 1})
    for told, known in (
        (ev.NodeNoticed(1, "low on memory"), ev.NodeNoticed(3, "low on memory")),
        (mpi_events.SpawnRefused(1, 2, "no slots"), mpi_events.SpawnRefused(3, 2, "no slots")),
        (mpi_events.WorldPlaced(1, 0, 90, (0, 1)), mpi_events.WorldPlaced(1, 0, 90, (0, 3))),
        (ev.RunFinished(0, ""), ev.RunFinished(0, "")),
    ):
        assert seats.outward(told) == known
    assert seats.homes == {90: (0, 0), 91: (3, 1)}


def test_a_rank_is_known_where_it_ran_last() -> None:
    plan, seats = make_plan(2), Assigned((0, 1))
    for node in (0, 1):
        seats.started(plan, node)
    seats.follow(assigned(plan, (0, 1), bad={1}, free=(2,)), Change())
    assert seats.homes == {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}
    seats.started(plan, 1)
    assert seats.homes == {0: (0, 0), 1: (0, 1), 2: (2, 0), 3: (2, 1)}


def test_a_node_that_was_dropped_is_there_again_with_its_host_or_another() -> None:
    plan, seats = make_plan(2, restarts=rules(1)), Assigned((0, 1))
    hosts = HostTable((*plan.nodes, replace(plan.nodes[0], index=2, ranks=())), plan.limits)
    hosts.linked, hosts.facts = {0}, {0: facts(0)}
    hosts.leave_out(1, "host lost")
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
    plan, seats = make_plan(2, restarts=rules(1)), Assigned((0, 1))
    hosts = HostTable(plan.nodes, plan.limits)
    hosts.linked, hosts.facts = {0, 1}, {0: facts(0), 1: facts(1)}
    hosts.faults[1] = 2
    found = seats.next(plan, hosts, 2, distinct=False)
    assert found.excluded == (1,)
    why = "2 attempts ended there"
    assert seats.changes(found, hosts)[0] == ev.HostLeftOut(1, why)
    assert hosts.out == {1: why}
