"""Several programs in one job: who gets which ranks, on which hosts, and what its ranks find."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cases

from dispatcher.model.errors import DispatchError, UsageError
from dispatcher.plan.hosts.hostfile import parse_hostfile
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.parts import Part, names
from dispatcher.plan.job.rank_environment import describe_plan, rank_environment
from dispatcher.plan.job.reassignment import without_hosts
from dispatcher.plan.job.request import Request, Restarts


def part(text: str, **own: Any) -> Part:
    """``a.py 2`` has two ranks, ``a.py *2`` two on each of its hosts, ``a.py`` what is left."""
    program, _, count = text.partition(" ")
    if count.startswith("*"):
        own["nproc_per_node"] = int(count[1:])
    elif count:
        own["np"] = int(count)
    return Part((program,), **own)


def on(text: str, *hosts: str) -> Part:
    """``part``, on ``hosts``; ``n1:2`` is two there at most."""
    split = (host.partition(":") for host in hosts)
    return part(text, hosts=tuple((name, int(most) if most else None) for name, _, most in split))


def planned(hosts: str, *parts: Part | str, **flags: Any) -> JobPlan:
    every = tuple(part(one) if isinstance(one, str) else one for one in parts)
    found = Request(parse_hostfile(hosts, "hf"), every[0].program, "/w", parts=every, **flags)
    return plan_job(found, "run-1")


def ranks(plan: JobPlan) -> dict[str, tuple[int, ...]]:
    return {node.host.name: node.ranks for node in plan.nodes}


TWO = "n[1-2] slots=4"


@cases(
    ("hosts", "parts", "flags", "found", "sizes"),
    [
        (TWO, ("a 2", "b 6"), {}, {"n1": (0, 1, 2, 3), "n2": (4, 5, 6, 7)}, (2, 6)),
        (TWO, ("a 1", "b"), {}, {"n1": (0, 1, 2, 3), "n2": (4, 5, 6, 7)}, (1, 7)),
        (TWO, ("a", "b 6"), {}, {"n1": (0, 1, 2, 3), "n2": (4, 5, 6, 7)}, (2, 6)),
        (TWO, ("a *1", "b *3"), {}, {"n1": (0, 2, 3, 4), "n2": (1, 5, 6, 7)}, (2, 6)),
        (TWO, ("a *1", "b"), {}, {"n1": (0, 2, 3, 4), "n2": (1, 5, 6, 7)}, (2, 6)),
        (TWO, ("a 2", "b 2"), {"map_by": "node"}, {"n1": (0, 2), "n2": (1, 3)}, (2, 2)),
        (TWO, ("a 1", "b 1", "c 1"), {}, {"n1": (0, 1, 2)}, (1, 1, 1)),
        (TWO, (on("a 2", "n2"), "b 3"), {}, {"n2": (0, 1), "n1": (2, 3, 4)}, (2, 3)),
        (TWO, ("a 5", on("b 3", "n2")), {}, {"n1": (0, 1, 2, 3), "n2": (4, 5, 6, 7)}, (5, 3)),
        (TWO, (on("a", "n1:1"), on("b", "n1:2", "n2:1")), {},
         {"n1": (0, 1, 2), "n2": (3,)}, (1, 3)),
        ("n[1-2]", ("a *1", "b *2"), {}, {"n1": (0, 2, 3), "n2": (1, 4, 5)}, (2, 4)),
        ("n1 slots=1", ("a 2", "b 2"), {"oversubscribe": True}, {"n1": (0, 1, 2, 3)}, (2, 2)),
        ("n1 slots=1 max_slots=1\nn2 slots=1", ("a 1", "b 3"), {"oversubscribe": True},
         {"n1": (0,), "n2": (1, 2, 3)}, (1, 3)),
    ],
)  # fmt: skip
def test_who_gets_which_ranks(
    hosts: str, parts: Any, flags: Any, found: dict[str, tuple[int, ...]], sizes: tuple[int, ...]
) -> None:
    plan = planned(hosts, *parts, **flags)
    assert ranks(plan) == found
    assert plan.nodes[0].ranks[0] == 0, "rank 0 is on node 0"
    assert tuple(one.size for one in plan.parts) == sizes
    assert [node.index for node in plan.nodes] == list(range(len(plan.nodes)))
    owners = [plan.parts.index(plan.part_of(rank)) for rank in range(plan.world_size)]
    assert owners == [at for at, size in enumerate(sizes) for _ in range(size)]


@cases(
    ("hosts", "parts", "flags", "why"),
    [
        (TWO, ("a 2", "b 7"), {}, "b: 7 ranks, but 6 slots are left for it on n[1-2]"),
        (TWO, ("a 8", "b"), {}, "b: 1 rank, but no slots are left for it on n[1-2]"),
        (TWO, ("a *3", "b *2"), {}, "b: 4 ranks, but 2 slots are left"),
        (TWO, (on("a 3", "n1:2"), "b 1"), {}, "a: 3 ranks, but 2 slots are left for it on n1"),
        ("n1 slots=1 max_slots=2", ("a 2", "b 1"), {"oversubscribe": True}, "b: 1 rank, but no"),
        (TWO, ("a 2", on("b 1", "n9")), {}, "b: n9: none of the job's hosts"),
        (TWO, ("a 2", on("b 1", "n2")), {"nnodes": 1}, "b: its hosts are not among the"),
        (TWO, ("a", "b"), {}, "a and b: how many ranks has each?"),
        (TWO, ("a 1", "b 1"), {"np": 2}, "each says how many ranks it has, the job does not"),
        (TWO, ("a 1", "b 0"), {}, "b: --np: 0 is not between"),
        (TWO, ("a 1", " 1"), {}, "an empty program among several"),
        (TWO, ("a 1", part("b\0 1")), {}, "a NUL byte"),
        (TWO, ("a 1", part("b 1", python="-c")), {}, "b: --python: not a program"),
        (TWO, ("a 1", "b 1"), {"per_node": True}, "--per-node: a job of several programs"),
        (TWO, ("a 1", "b 1"), {"local_rank_arg": "--l"}, "--local-rank-arg: a job of several"),
        (TWO, ("a 1", "b 1"), {"restarts": Restarts(min_nodes=1)}, "--min-nodes: a job of"),
        (TWO, ("a 1", "b 1"), {"stdin": 2}, "--stdin 2: there are only 2 ranks"),
        (TWO, tuple(f"a{i} 1" for i in range(300)), {}, "300 programs: a job has 256 at most"),
    ],
)  # fmt: skip
def test_what_cannot_be(hosts: str, parts: Any, flags: Any, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        planned(hosts, *parts, **flags)
    assert why in refused.value.message


def test_gpus_are_counted_first_where_nobody_says_how_many() -> None:
    plan = planned("n[1-2]", "a 1", "b")
    assert plan.is_open
    assert [one.name for one in plan.parts_at(plan.nodes[1])] == ["a", "b"]
    closed = plan.resolved({0: 4, 1: 4})
    assert ranks(closed) == {"n1": (0, 1, 2, 3), "n2": (4, 5, 6, 7)}
    assert [one.size for one in closed.parts] == [1, 7]
    assert [one.name for one in closed.parts_at(closed.nodes[1])] == ["b"]


def test_an_open_plan_keeps_the_numbers_of_its_hosts() -> None:
    plan = planned("n[1-3]", "a 1", on("b 1", "n3"))
    with pytest.raises(DispatchError, match="leave out a host in the middle"):
        plan.resolved({0: 1, 1: 1, 2: 1})
    plan = planned("n[1-3]", on("a 1", "n3"), on("b 1", "n1"))
    assert plan.notices == ("n2: left out: no program names it",)
    assert ranks(plan.resolved({0: 1, 1: 1})) == {"n3": (0,), "n1": (1,)}


def test_each_finds_what_is_its_own() -> None:
    plan = planned(
        TWO,
        part("actor.py 1", exports=("A=1",)),
        part("sub/learner 3", kind="command", cwd="sub", env_files=(("e", b"B=2"),), python="p9"),
        exports=("A=0",),
        environ={"PATH": "/bin"},
    )
    assert [(one.name, one.cwd) for one in plan.parts] == [("actor", "/w"), ("learner", "/w/sub")]
    assert plan.argv(0) == ("python3", "-u", "actor.py")
    assert plan.argv(3) == ("sub/learner",)
    assert plan.command == ("actor.py", ":", "sub/learner")
    one, other = (rank_environment(plan, rank) for rank in (0, 2))
    roles = ("A", "B", "PATH", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "WORLD_SIZE")
    assert [one.get(name) for name in roles] == ["1", None, "/bin", "actor", "0", "1", "4"]
    assert [other.get(name) for name in roles] == ["0", "2", "/bin", "learner", "1", "3", "4"]
    assert describe_plan(plan)["parts"] == [
        {"name": "actor", "ranks": [0], "cwd": "/w", "argv": ["actor.py"]},
        {"name": "learner", "ranks": [1, 2, 3], "cwd": "/w/sub", "argv": ["sub/learner"]},
    ]


def test_one_program_is_a_part_that_has_all_ranks() -> None:
    plan = planned(TWO, "train.py 3")
    alone = plan_job(Request(parse_hostfile(TWO, "hf"), plan.program, "/w", np=3), "run-1")
    assert alone.parts == ()
    assert [(one.name, one.first, one.size) for one in alone.every_part] == [("", 0, 3)]
    assert ranks(alone) == ranks(plan)
    assert alone.argv(2) == plan.argv(2)
    assert "parts" not in describe_plan(alone)


@cases(
    ("programs", "found"),
    [
        (("a.py", "/opt/b"), ("a", "b")),
        (("x/run", "y/run", "run"), ("run", "run#2", "run#3")),
        (("a\x1b[1m b.py",), ("a__1m_b",)),
        (("n" * 80,), ("n" * 24,)),
        (("dir/",), ("part",)),
    ],
)
def test_what_people_call_it(programs: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert names([Part((one,), kind="command") for one in programs]) == found
    assert names([Part(("my.pkg.train",), kind="module")]) == ("train",)


def test_a_program_does_not_lose_its_hosts() -> None:
    """Fewer hosts might leave a program without ranks."""
    plan = planned("n[1-3] slots=2", "a 2", "b 4")
    assert without_hosts(plan, {2: "it is hot"}, shrink=True).vacant == (2,)
    spare = planned("n[1-3] slots=2", "a 2", "b 2", spares=1)
    changed = without_hosts(spare, {1: "it is hot"}, shrink=False).plan
    assert ranks(changed) == {"n1": (0, 1), "n3": (2, 3)}
