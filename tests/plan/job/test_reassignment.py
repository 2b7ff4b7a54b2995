"""Spares: who becomes one, which seat one fits into, and plans that shrink."""

from __future__ import annotations

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import PlanError, UsageError
from dispatcher.plan.hosts.hostfile import parse_hostfile, parse_inline
from dispatcher.plan.job import reassignment
from dispatcher.plan.job.job_plan import JobPlan, NodePlan, plan_job
from dispatcher.plan.job.request import Program, Request, Restarts


def planned(hosts: str, **flags: object) -> JobPlan:
    request = Request(parse_inline(hosts), Program("command", ("prog",)), "/w", **flags)  # type: ignore[arg-type]
    return plan_job(request, "run-1")


def names(nodes: tuple[NodePlan, ...]) -> list[str]:
    return [node.host.name for node in nodes]


@cases(
    ("hosts", "flags", "used", "spared"),
    [
        ("n[1-4]:2", {"spares": 1}, ["n1", "n2", "n3"], ["n4"]),
        ("n[1-4]:2", {"spares": 1, "nnodes": 2}, ["n1", "n2"], ["n3"]),
        ("n[1-4]:2", {"nnodes": 3}, ["n1", "n2", "n3"], []),
        ("n[1-4]:2", {"spares": 2, "exclude": "n1"}, ["n2"], ["n3", "n4"]),
        ("n[1-2]:2 spare\nn[3-4]:2\nn5:2", {}, ["n3", "n4", "n5"], ["n1", "n2"]),
        ("n1:2 spare\nn[3-5]:2", {"spares": 1}, ["n3", "n4"], ["n5", "n1"]),
    ],
)
def test_who_is_spared(
    hosts: str, flags: dict[str, object], used: list[str], spared: list[str]
) -> None:
    plan = planned(hosts, **flags)
    assert names(plan.nodes) == used
    assert names(plan.spares) == spared
    assert [spare.index for spare in plan.spares] == list(range(len(used), len(used) + len(spared)))


@cases(
    ("hosts", "flags", "message"),
    [
        ("n[1-2]:1", {"spares": 2}, "--spares 2: no host is left to start on: only 2 hosts"),
        ("n[1-3]:1", {"spares": 2, "nnodes": 2}, "--nnodes 2 --spares 2: only 3 hosts: n[1-3]"),
        ("n[1-2]:1 spare", {}, "n[1-2]: only spares, no host to start on"),
        ("n[1-2]:1", {"restarts": Restarts(min_nodes=3)}, "--min-nodes 3: only 2 hosts"),
    ],
)
def test_too_few(hosts: str, flags: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message.replace("[", r"\[")):
        planned(hosts, **flags)


def test_the_hostfile_says_spare_in_any_place() -> None:
    hosts = parse_hostfile("a slots=2 spare\nb spare slots=2 # later\nc slots=2\n", "f").hosts
    assert [host.spare for host in hosts] == [True, True, False]
    with pytest.raises(UsageError, match="second word"):
        parse_hostfile("a spare spare\n", "f")


@cases(
    ("spare", "gpus", "slots"),
    [
        ("s:2", 0, ("0", "1")),
        ("s:8", 0, ("0", "1")),
        ("s gpus=4,5,6", 0, ("4", "5")),
        ("s", 0, ("0", "1")),  # nobody has said, and there is nothing to count
        ("s", 4, ("0", "1")), ("s", 1, None), ("s:1", 0, None), ("s max_slots=1", 0, None),
    ],
)  # fmt: skip
def test_which_spare_fits(spare: str, gpus: int, slots: tuple[str, ...] | None) -> None:
    plan = planned("n1:2,n2:2")
    host = parse_inline(spare).hosts[0]
    own = () if host.slots is None else tuple(host.gpus or map(str, range(host.slots)))
    found = reassignment.with_host(plan, 1, NodePlan(2, host, own), gpus)
    assert (None if found is None else found.slots) == slots
    if found is not None:
        assert (found.index, found.ranks) == (1, (2, 3))


@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=6),
    st.sampled_from(["block", "node"]),
    st.data(),
)
def test_a_smaller_world_is_a_world(counts: list[int], map_by: str, data: st.DataObject) -> None:
    plan = planned(",".join(f"n{i}:{c}" for i, c in enumerate(counts)), map_by=map_by)
    gone = data.draw(st.frozensets(st.integers(0, len(counts) - 1), max_size=len(counts) - 1))
    less = reassignment.shrunk(plan, gone)
    kept = [i for i in range(len(counts)) if i not in gone]
    assert names(less.nodes) == [f"n{i}" for i in kept]
    assert [len(node.ranks) for node in less.nodes] == [counts[i] for i in kept]
    assert [place.rank for place in less.ranks] == list(range(sum(counts[i] for i in kept)))


def test_ranks_keep_their_places_while_no_node_is_gone() -> None:
    text = "rank 0=n0 slot=0\nrank 1=n1\nrank 2=n0 slot=1\nrank 3=n1"
    plan = planned("n0:2,n1:2", rankfile=("rf", text))
    assert [node.ranks for node in plan.nodes] == [(0, 2), (1, 3)]
    assert reassignment.shrunk(plan, frozenset()) is plan
    left = reassignment.without_hosts(plan, {1: "it is unfit"}, shrink=True)
    assert (left.plan, left.vacant) == (plan, (1,))
    spare = NodePlan(2, parse_inline("s:2").hosts[0], ("0", "1"))
    found = reassignment.with_host(plan, 0, spare)
    assert found is not None
    assert reassignment.replaced(plan, {0: found}).slots_of(found) == ("0", "1")


def test_in_an_open_plan_any_host_has_room() -> None:
    plan = planned("n[1-2]")
    assert plan.is_open
    spare = NodePlan(2, parse_inline("s:1").hosts[0], ("0",), named=True)
    found = reassignment.with_host(plan, 1, spare, 8)
    assert found == NodePlan(1, spare.host, ("0",), (), named=True)


@cases(
    ("spare", "gpus", "variable", "slots"),
    [
        ("s", 2, None, ("0", "1")),  # just as many
        ("s", 4, "2,3", ("0", "1")), ("s", 4, "3", None), ("s", 0, "3", ("0", "1")),
        ("s max_slots=2", 0, None, ("0", "1")),
        ("s:2", 1, None, ("0", "1")),  # what is said is not counted
        ("s gpus=GPU-a,GPU-b,GPU-c", 0, None, ("GPU-a", "GPU-b")),
        ("s gpus=GPU-a", 0, None, None),
    ],
)  # fmt: skip
def test_what_there_is_to_be_seen_bounds_a_host(
    spare: str, gpus: int, variable: str | None, slots: tuple[str, ...] | None
) -> None:
    plan = planned("n1:2,n2:2")
    host = parse_inline(spare).hosts[0]
    own = () if host.slots is None else tuple(host.gpus or map(str, range(host.slots)))
    node = NodePlan(2, host, own, named=host.gpus is not None)
    found = reassignment.with_host(plan, 0, node, gpus, variable)
    assert (None if found is None else found.slots) == slots
    if found is not None:
        assert (found.index, found.ranks, found.named) == (0, (0, 1), host.gpus is not None)


def test_with_all_gpus_of_the_node_the_variable_bounds_nothing() -> None:
    plan = planned("n1:2,n2:2", devices="node")
    spare = NodePlan(2, parse_inline("s").hosts[0], ())
    assert reassignment.with_host(plan, 0, spare, 2, "1") is not None
    assert reassignment.with_host(plan, 0, spare, 1, "1") is None


@cases(
    ("flags", "spare", "slots"),
    [
        ({"np": 2}, "s:1", None),  # both ranks are on the first host, with two slots
        ({"np": 3, "nnodes": 2}, "s:1", ("0",)),  # one rank needs one slot
        ({"nproc_per_node": 1}, "s:1", ("0",)),
        ({"nproc_per_node": 3, "oversubscribe": True}, "s:2", ("0", "1")),
        ({"nproc_per_node": 3, "oversubscribe": True}, "s:2 max_slots=2", None),
        ({"nproc_per_node": 3, "oversubscribe": True}, "s:2 max_slots=3", ("0", "1")),
    ],
)
def test_a_host_needs_room_for_the_ranks_that_there_are(
    flags: dict[str, object], spare: str, slots: tuple[str, ...] | None
) -> None:
    plan = planned("n1:2,n2:2", **flags)
    host = parse_inline(spare).hosts[0]
    node = NodePlan(9, host, tuple(map(str, range(host.slots or 0))))
    found = reassignment.with_host(plan, len(plan.nodes) - 1, node)
    assert (None if found is None else found.slots) == slots


def test_nodes_without_slots_need_none() -> None:
    """One process each, whatever GPUs there are."""
    plan = planned("n[1-2]", nproc_per_node=1)
    found = reassignment.with_host(plan, 1, NodePlan(2, parse_inline("s").hosts[0], ()), 0)
    assert found == NodePlan(1, parse_inline("s").hosts[0], (), (1,))


def test_nodes_are_replaced_by_their_index() -> None:
    plan = planned("n1:2,n2:2")
    other = NodePlan(1, parse_inline("s:2").hosts[0], ("0", "1"), (2, 3))
    assert reassignment.replaced(plan, {1: other}).nodes == (plan.nodes[0], other)


@cases(("np", "left"), [(None, None), (3, 2)])
def test_a_smaller_plan_has_fewer_ranks_and_keeps_the_rest(
    np: int | None, left: int | None
) -> None:
    plan = planned("n1:1,n2:1,n3:1", np=np)
    less = reassignment.shrunk(plan, frozenset({1}))
    assert less.np == left
    assert [(n.index, n.host.name, n.ranks) for n in less.nodes] == [
        (0, "n1", (0,)),
        (1, "n3", (1,)),
    ]


def test_an_open_plan_shrinks_too() -> None:
    less = reassignment.shrunk(planned("n[1-3]", np=3), frozenset({0}))
    assert [(n.index, n.host.name, n.ranks) for n in less.nodes] == [(0, "n2", ()), (1, "n3", ())]
    assert (less.is_open, less.np) == (True, 3)
