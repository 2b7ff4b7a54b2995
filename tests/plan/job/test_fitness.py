"""Plans without the hosts that are not fit."""

from __future__ import annotations

from cases import cases

from dispatcher.plan.job.reassignment import Exclusion, Fitness, without_hosts
from dispatcher.plan.job.request import Restarts
from plan.job.test_reassignment import names, planned


@cases(
    ("hosts", "flags", "unfit", "shrink", "left", "spares", "by"),
    [
        ("n[1-3]:2", {}, [1], True, ["n1", "n3"], [], {"n2": None}),
        ("n[1-3]:2", {}, [0], True, ["n2", "n3"], [], {"n1": None}),
        ("n[1-4]:2", {"spares": 1}, [1], False, ["n1", "n4", "n3"], [], {"n2": "n4"}),
        ("n[1-5]:2", {"spares": 2}, [1], True, ["n1", "n4", "n3"], ["n5"], {"n2": "n4"}),
        ("n[1-5]:2", {"spares": 2}, [1, 3], True, ["n1", "n5", "n3"], [], {"n2": "n5", "n4": None}),
        ("n[1-4]:2", {"spares": 1}, [3], False, ["n1", "n2", "n3"], [], {"n4": None}),
        ("n[1-2]:2,n3:4,n4:1", {"spares": 1}, [2], True, ["n1", "n2"], ["n4"], {"n3": None}),
    ],
)  # fmt: skip
def test_who_is_left(
    hosts: str,
    flags: dict[str, object],
    unfit: list[int],
    shrink: bool,
    left: list[str],
    spares: list[str],
    by: dict[str, str | None],
) -> None:
    found = without_hosts(planned(hosts, **flags), dict.fromkeys(unfit, "why"), shrink=shrink)
    assert (names(found.plan.nodes), names(found.plan.spares), found.vacant) == (left, spares, ())
    assert set(found.excluded) == {Exclusion(host, "why", who) for host, who in by.items()}
    places = (*found.plan.nodes, *found.plan.spares)
    assert [place.index for place in places] == list(range(len(places)))
    assert [rank.rank for rank in found.plan.ranks] == list(range(found.plan.world_size))


def test_nothing_fits() -> None:
    plan = planned("n[1-3]:2")
    for unfit, shrink in (([1], False), ([0, 1, 2], True)):
        found = without_hosts(plan, dict.fromkeys(unfit, "why"), shrink=shrink)
        assert (found.plan, found.vacant) == (plan, tuple(unfit))


def test_nobody_is_unfit() -> None:
    plan = planned("n[1-4]:2", spares=1)
    assert without_hosts(plan, {}, shrink=True).plan == plan


@cases(
    ("least", "unfit", "shrink", "vacant"),
    [
        (2, [1], False, ()), (2, [0, 1], True, (0, 1)), (3, [1], True, (1,)),
        (None, [0, 1], True, ()), (None, [1], False, (1,)),
    ],
)  # fmt: skip
def test_how_few_are_enough(
    least: int | None, unfit: list[int], shrink: bool, vacant: tuple[int, ...]
) -> None:
    plan = planned("n[1-3]:2", restarts=Restarts(most=1, min_nodes=least))
    found = without_hosts(plan, dict.fromkeys(unfit, "why"), shrink=shrink)
    assert found.vacant == vacant
    assert (found.plan == plan) == bool(vacant)
    assert [one.by for one in found.excluded] == [None] * len(unfit)


def test_each_spare_has_one_place() -> None:
    plan = planned("n[1-5]:2", spares=2)
    found = without_hosts(plan, {0: "a", 1: "b", 2: "c"}, shrink=True)
    assert found == Fitness(
        found.plan,
        (Exclusion("n1", "a", "n4"), Exclusion("n2", "b", "n5"), Exclusion("n3", "c", None)),
    )
    assert names(found.plan.nodes) == ["n4", "n5"]
    assert [node.ranks for node in found.plan.nodes] == [(0, 1), (2, 3)]
