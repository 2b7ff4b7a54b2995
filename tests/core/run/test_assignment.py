"""Which hosts follow those that are lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import cases

from dispatcher.core.run.restart import Assignment, assign_hosts
from dispatcher.plan.job.job_plan import JobPlan
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
