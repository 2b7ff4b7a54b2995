"""The plan of a job: who gets which ranks, open plans, command lines, JSON."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import InternalError, PlanError, UsageError
from dispatcher.plan.hosts.hostfile import parse_hostfile, parse_inline
from dispatcher.plan.job.binding import Topology
from dispatcher.plan.job.job_plan import LONGEST_RANK_HOSTS, JobPlan, plan_job
from dispatcher.plan.job.rank_environment import describe_plan
from dispatcher.plan.job.request import Part, Program, Request, Restarts

TRAIN = Program("script", ("train.py", "--lr", "3e-4"))


def planned(hosts: str, program: Program = TRAIN, **flags: Any) -> JobPlan:
    request = Request(parse_hostfile(hosts, "hf"), program, "/work", **flags)
    return plan_job(request, "run-1")


def ranks(plan: JobPlan) -> dict[str, tuple[int, ...]]:
    return {node.host.name: node.ranks for node in plan.nodes}


@cases(
    ("hosts", "flags", "found"),
    [
        ("n[1-2] slots=2", {}, {"n1": (0, 1), "n2": (2, 3)}),
        ("n2 slots=1\nn1 slots=2", {}, {"n2": (0,), "n1": (1, 2)}),
        ("n[1-2] slots=2", {"map_by": "node"}, {"n1": (0, 2), "n2": (1, 3)}),
        ("n[1-3] slots=2", {"nnodes": 2}, {"n1": (0, 1), "n2": (2, 3)}),
        ("n[1-3] slots=2", {"np": 3}, {"n1": (0, 1), "n2": (2,)}),
        ("n[1-3] slots=2", {"np": 2, "map_by": "node"}, {"n1": (0,), "n2": (1,)}),
        ("n[1-2] slots=4", {"nproc_per_node": 2}, {"n1": (0, 1), "n2": (2, 3)}),
        ("n[1-2]", {"nproc_per_node": 2}, {"n1": (0, 1), "n2": (2, 3)}),
        ("n[1-2]", {"nproc_per_node": 2, "np": 3}, {"n1": (0, 1), "n2": (2,)}),
        ("n[1-2] slots=1", {"np": 3, "oversubscribe": True}, {"n1": (0, 1), "n2": (2,)}),
        ("n1 slots=1 max_slots=1\nn2 slots=1", {"np": 4, "oversubscribe": True},
         {"n1": (0,), "n2": (1, 2, 3)}),
        ("n[1-3] slots=4", {"include": "n3:0@n1:1,2"}, {"n1": (0, 1), "n3": (2,)}),
        ("n[1-2] slots=2", {"exclude": "n1"}, {"n2": (0, 1)}),
        ("n[1-2] slots=2", {"nproc_per_node": "auto"}, {"n1": (0, 1), "n2": (2, 3)}),
        ("n1\nn1\nn2", {}, {"n1": (0, 1), "n2": (2,)}),
        ("n1", {"include": "n1:0,3"}, {"n1": (0, 1)}),
        ("n[1-2] slots=4", {"map_by": "ppr:2:node"}, {"n1": (0, 1), "n2": (2, 3)}),
        ("n[1-2]", {"map_by": "ppr:2:node", "np": 3}, {"n1": (0, 1), "n2": (2,)}),
        ("n[1-2] slots=2", {"map_by": "numa"}, {"n1": (0, 1), "n2": (2, 3)}),
        ("n[1-2] slots=2", {"rank_by": "node"}, {"n1": (0, 2), "n2": (1, 3)}),
        ("n[1-2] slots=2", {"map_by": "node", "rank_by": "slot"}, {"n1": (0, 1), "n2": (2, 3)}),
        ("n[1-2] slots=2", {"np": 3, "rank_by": "node"}, {"n1": (0, 2), "n2": (1,)}),
    ],
)  # fmt: skip
def test_ranks_by_flags(
    hosts: str, flags: dict[str, Any], found: dict[str, tuple[int, ...]]
) -> None:
    plan = planned(hosts, **flags)
    assert not plan.is_open
    assert ranks(plan) == found
    assert plan.world_size == len(plan.ranks) == sum(map(len, found.values()))
    assert [place.rank for place in plan.ranks] == list(range(plan.world_size))
    assert [node.index for node in plan.nodes] == list(range(len(plan.nodes)))


@cases(
    ("hosts", "flags", "message", "hint"),
    [
        ("n[1-2] slots=2", {"np": 5}, "5 ranks but only 4 slots on n[1-2]", "--np 4"),
        ("n[1-2] slots=2 max_slots=3", {"np": 7, "oversubscribe": True},
         "7 ranks but n[1-2] take at most 6 (max_slots)", None),
        ("n[1-2] slots=2", {"nproc_per_node": 4}, "--nproc-per-node 4: n[1-2]: only 2 slots",
         "--oversubscribe, or --nproc-per-node 2"),
        ("n1 slots=2 max_slots=3", {"nproc_per_node": 4, "oversubscribe": True},
         "n1 takes at most 3", None),
        ("n[1-2]", {"nnodes": 3}, "--nnodes 3: only 2 hosts: n[1-2]", None),
        ("n1 slots=1", {"exclude": "n1"}, "no host is left after --exclude", None),
        ("n[1-300] slots=4096", {}, "at most 1000000 can be placed", None),
        ("n1 slots=1", {"np": 2}, "2 ranks but only 1 slot on n1", "--oversubscribe, or --np 1"),
        ("n1 slots=3\nn2 slots=2\nn3 slots=4", {"nproc_per_node": 4},
         "--nproc-per-node 4: n[1-2]: only 2 slots", "--oversubscribe, or --nproc-per-node 2"),
        ("n1 slots=1", {"nproc_per_node": 2}, "n1: only 1 slot", "--nproc-per-node 1"),
        ("n[1-2] slots=2 max_slots=3", {"nproc_per_node": 4, "oversubscribe": True},
         "--nproc-per-node 4: n1 takes at most 3", None),
        ("n1 slots=2", {"stdin": 2}, "--stdin 2: there are only 2 ranks", None),
        ("n1 slots=1", {"stdin": 1}, "--stdin 1: there are only 1 rank", None),
        ("n[1-2] slots=1", {"include": "n1:0", "exclude": "n1"},
         "no host is left after --include and --exclude", None),
        ("n[1-2] slots=1", {"restarts": Restarts(min_nodes=3)},
         "--min-nodes 3: only 2 hosts to start on", None),
        ("n1 slots=1", {"restarts": Restarts(min_nodes=2)}, "--min-nodes 2: only 1 host to", None),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_with_both_numbers(
    hosts: str, flags: dict[str, Any], message: str, hint: str | None
) -> None:
    with pytest.raises(PlanError) as caught:
        planned(hosts, **flags)
    assert message in caught.value.message
    assert (hint or "") in (caught.value.hint or "")
    assert (hint is None) == (caught.value.hint is None)


def test_nodes_without_ranks_are_left_out_and_named() -> None:
    plan = planned("n[1-4] slots=2", np=3)
    assert [node.host.name for node in plan.nodes] == ["n1", "n2"]
    assert plan.notices == ("n[3-4]: left out: --np 3 needs only 2 nodes",)


def test_notices_of_the_hostfile_stay_with_the_plan() -> None:
    assert "22 slots" in planned("n1:22").notices[0]


def test_run_defaults_fill_what_a_host_leaves_open() -> None:
    plan = planned("n1 slots=1\nn2 slots=1 user=own port=7", user="me", port=2222)
    assert [(n.host.user, n.host.port) for n in plan.nodes] == [("me", 2222), ("own", 7)]


class TestOpenPlans:
    def test_without_slots_there_is_one_rank_per_gpu_and_one_where_there_is_none(self) -> None:
        plan = planned("n[1-3]")
        assert plan.is_open
        assert plan.world_size == 0
        assert plan.ranks == ()
        closed = plan.resolved({0: 2, 1: 0, 2: 1})
        assert ranks(closed) == {"n1": (0, 1), "n2": (2,), "n3": (3,)}
        assert [node.slots for node in closed.nodes] == [("0", "1"), (), ("0",)]
        assert closed.resolved({0: 2, 1: 0, 2: 1}).nodes == closed.nodes

    def test_said_and_unsaid_slots_mix(self) -> None:
        assert ranks(planned("n1 slots=1\nn2").resolved({1: 2})) == {"n1": (0,), "n2": (1, 2)}

    def test_max_slots_bounds_what_is_counted(self) -> None:
        assert planned("n1 max_slots=2").resolved({0: 8}).world_size == 2

    def test_np_is_held_against_what_is_counted(self) -> None:
        plan = planned("n[1-2]", np=4)
        assert ranks(plan.resolved({0: 4, 1: 4})) == {"n1": (0, 1, 2, 3)}
        with pytest.raises(PlanError, match="4 ranks but only 2 slots"):
            plan.resolved({0: 1, 1: 1})

    def test_gpu_wants_gpus(self) -> None:
        plan = planned("n[1-3]", nproc_per_node="gpu")
        assert plan.is_open
        assert plan.resolved({0: 1, 1: 2, 2: 3}).world_size == 6
        with pytest.raises(PlanError, match=r"--nproc-per-node gpu: no GPU on n\[1-2\]$") as caught:
            plan.resolved({0: 0, 1: 0, 2: 3})
        assert caught.value.hint == "leave them out, or say how many ranks: --nproc-per-node 1"

    def test_gpu_means_the_chosen_ones(self) -> None:
        plan = planned("n1 slots=4\nn2 gpus=GPU-a,GPU-b", nproc_per_node="gpu")
        assert plan.resolved({0: 8, 1: 8}).world_size == 6
        with pytest.raises(PlanError, match="n1: no GPU 2: it has 2 GPUs"):
            plan.resolved({0: 2, 1: 8})

    def test_an_included_gpu_must_exist(self) -> None:
        plan = planned("n[1-2]", include="n1:0,5@n2")
        with pytest.raises(PlanError, match="n1: no GPU 5: it has 4 GPUs"):
            plan.resolved({0: 4, 1: 4})

    def test_a_node_nobody_counted_is_our_bug(self) -> None:
        with pytest.raises(InternalError, match="n2"):
            planned("n[1-2]").resolved({0: 1})


@cases(
    ("program", "argv"),
    [
        (TRAIN, ("python3", "-u", "train.py", "--lr", "3e-4")),
        (Program("module", ("pkg.train", "-v")), ("python3", "-u", "-m", "pkg.train", "-v")),
        (Program("command", ("nvidia-smi", "-L")), ("nvidia-smi", "-L")),
    ],
)
def test_command_lines(program: Program, argv: tuple[str, ...]) -> None:
    assert planned("n1 slots=1", program).argv(0) == argv


def test_a_host_may_have_its_own_python() -> None:
    plan = planned("n1 slots=1\nn2 slots=1 python=/opt/py/bin/python", python="/usr/bin/python3.11")
    assert [plan.argv(rank)[0] for rank in (0, 1)] == ["/usr/bin/python3.11", "/opt/py/bin/python"]


@cases(
    "word",
    ["", " ", "a  b", "$HOME", "%h %n %u %%", "--x=", "it's", '"', "\n", "-", "\udcff", "*", "\\"],
)
def test_arguments_are_never_altered(word: str) -> None:
    assert planned("n1 slots=1", Program("command", ("x", word))).argv(0) == ("x", word)


@cases(
    ("flags", "message"),
    [
        ({"np": 0}, "--np: 0"),
        ({"map_by": "board"}, "not one of block, node"),
        ({"map_by": "ppr:2:board"}, "not one of block, node"),
        ({"map_by": "ppr:0:numa"}, "--map-by ppr:N"),
        ({"map_by": "ppr:2:node", "nproc_per_node": 2}, "says how many ranks a host has"),
    ],
)
def test_values_no_cluster_could_honour(flags: dict[str, Any], message: str) -> None:
    everything: dict[str, Any] = {"hosts": parse_inline("n1:2"), "program": TRAIN, "cwd": "/"}
    with pytest.raises(UsageError) as caught:
        plan_job(Request(**(everything | flags)), "run")
    assert message in caught.value.message


def test_spares_slow_down_heartbeats_too() -> None:
    assert planned("n[1-3960] slots=1", spares=60).limits.heartbeat == 9.9


def test_the_plan_is_frozen() -> None:
    plan = planned("n1:1")
    with pytest.raises(FrozenInstanceError):
        plan.cwd = "/"  # type: ignore[misc]


def test_secrets_are_not_shown() -> None:
    plan = planned("n1 slots=1 env=HOST_SECRET=hidden1", exports=("HF_TOKEN=hidden2",))
    shown = describe_plan(plan)
    assert "hidden1" not in json.dumps(shown)
    assert "hidden2" not in json.dumps(shown)
    assert shown["ranks"][0]["environment"]["RANK"] == "0"
    assert describe_plan(planned("n[1-2]"))["world_size"] is None  # GPUs are not counted yet


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_closing_a_plan_gives_each_gpu_one_rank(counts: list[int]) -> None:
    plan = planned(f"n[1-{len(counts)}]").resolved(dict(enumerate(counts)))
    assert [len(node.ranks) for node in plan.nodes] == [max(1, count) for count in counts]


@cases(
    ("hosts", "flags", "rank_hosts"),
    [
        ("n[1-2] slots=2", {}, "n1:2,n2:2"),
        ("n[1-2] slots=2", {"map_by": "node"}, "n1:1,n2:1,n1:1,n2:1"),
        ("n1 slots=3", {}, "n1:3"),
        ("n[00001-02000] slots=1", {}, None),
    ],
)
def test_rank_hosts_names_hosts_in_rank_order(
    hosts: str, flags: dict[str, Any], rank_hosts: str | None
) -> None:
    assert planned(hosts, **flags).rank_hosts == rank_hosts


@cases(
    ("hosts", "flags", "found"),
    [
        ("n1 slots=2 max_slots=3", {"nproc_per_node": 3, "oversubscribe": True}, 3),
        ("n1 slots=2", {"nproc_per_node": 2}, 2),
        ("n1 slots=2", {"stdin": 1}, 2),
        ("n[1-2] slots=1", {"restarts": Restarts(min_nodes=2)}, 2),
    ],
)
def test_just_as_many_as_there_is_room_for(hosts: str, flags: dict[str, Any], found: int) -> None:
    assert planned(hosts, **flags).world_size == found


@cases(
    ("hosts", "flags", "is_open"),
    [
        ("n1 slots=2", {}, False),
        ("n1 slots=2\nn2", {}, True),
        ("n1 slots=2\nn2", {"nproc_per_node": "auto"}, True),
        ("n1 slots=2\nn2", {"nproc_per_node": 1}, False),
        ("n1 slots=2", {"nproc_per_node": "gpu"}, True),
    ],
)
def test_when_gpus_must_be_counted(hosts: str, flags: dict[str, Any], is_open: bool) -> None:
    assert planned(hosts, **flags).is_open is is_open


def test_spares_that_follow_are_numbered_after_the_nodes_that_are_used() -> None:
    plan = planned("n[1-4] slots=2", spares=1, np=3)
    assert [node.index for node in (*plan.nodes, *plan.spares)] == [0, 1, 2]
    assert plan.notices == ("n3: left out: --np 3 needs only 2 nodes",)
    assert planned("n[1-2] slots=2", np=1).notices == ("n2: left out: --np 1 needs only 1 node",)


def test_who_reads_standard_input() -> None:
    reads = {
        stdin: [rank for rank in range(3) if planned("n1 slots=3", stdin=stdin).reads_stdin(rank)]
        for stdin in ("none", "all", 0, 2)
    }
    assert reads == {"none": [], "all": [0, 1, 2], 0: [0], 2: [2]}


def test_a_local_rank_goes_before_the_program_s_own_words() -> None:
    for kind, argv in (
        ("script", ("python3", "-u", "pkg", "--local_rank=1", "-v")),
        ("module", ("python3", "-u", "-m", "pkg", "--local_rank=1", "-v")),
        ("command", ("pkg", "--local_rank=1", "-v")),
    ):
        program = Program(kind, ("pkg", "-v"))  # type: ignore[arg-type]
        plan = planned("n1 slots=2", program, local_rank_arg="--local_rank")
        assert plan.argv(1) == argv


def test_words_before_the_program_of_some_ranks() -> None:
    plan = planned("n1 slots=4", wraps=("all:nice -n 3", "0,2-3:perf record -o 'a b'"))
    own = ("python3", "-u", *plan.program.argv)
    perf = ("perf", "record", "-o", "a b")
    assert plan.argv(1) == ("nice", "-n", "3", *own)
    assert [plan.argv(rank) for rank in (0, 2, 3)] == [("nice", "-n", "3", *perf, *own)] * 3
    with pytest.raises(UsageError, match="--wrap: 4: the world's ranks are 0-3"):
        planned("n1 slots=4", wraps=("0-4:perf stat",))
    with pytest.raises(UsageError, match="--wrap: 2: the world's ranks are 0-1"):
        planned("n1", wraps=("2:perf stat",)).resolved({0: 2})  # its GPUs are counted first


class TestGpusThatWereCounted:
    def test_those_of_a_hostfile_are_not_held_against_the_count(self) -> None:
        """Somebody may have named them by another count, or on purpose before they are there."""
        assert planned("n1 slots=4").resolved({0: 2}).world_size == 4
        assert planned("n1", include="n1:0,1").resolved({0: 0}).world_size == 2

    def test_the_last_one_is_there_and_the_next_is_not(self) -> None:
        plan = planned("n1", include="n1:3")
        assert plan.resolved({0: 4}).world_size == 1
        with pytest.raises(PlanError, match="n1: no GPU 3: it has 3 GPUs"):
            plan.resolved({0: 3})
        with pytest.raises(PlanError, match=r"n1: no GPU 3: it has 1 GPU$"):
            plan.resolved({0: 1})

    def test_what_was_resolved_stays(self) -> None:
        plan = planned("n1").resolved({0: 2})
        assert plan.resolved({0: 2}) is plan


@cases(("length", "shown"), [(1, True), (0, False)])
def test_names_of_hosts_are_told_up_to_a_length(length: int, shown: bool) -> None:
    """Each host takes ``nNNNNN:1`` and a comma: 9 characters, and the last one 8."""
    count = (LONGEST_RANK_HOSTS + 1) // 9
    rest = LONGEST_RANK_HOSTS - (9 * count - 1)
    hosts = f"n[10001-{10000 + count - 1}] slots=1\n{'x' * (6 + rest + 1 - length)} slots=1"
    text = planned(hosts).rank_hosts
    assert (text is not None) == shown
    assert text is None or len(text) == LONGEST_RANK_HOSTS


#: two sockets of a core each, and a NUMA node
SOCKETS = Topology("0-1", ((0, "0-1"),), ("0", "1"), sockets=("0", "1"))


@cases(
    ("flags", "there", "found"),
    [
        ({"map_by": "ppr:2:socket"}, (SOCKETS, SOCKETS), {"n1": (0, 1, 2, 3), "n2": (4, 5, 6, 7)}),
        ({"map_by": "ppr:2:numa"}, (SOCKETS, SOCKETS), {"n1": (0, 1), "n2": (2, 3)}),
        ({"map_by": "ppr:1:core", "np": 3}, (SOCKETS, SOCKETS), {"n1": (0, 1), "n2": (2,)}),
        ({"map_by": "ppr:1:core", "rank_by": "node"}, (SOCKETS, SOCKETS),
         {"n1": (0, 2), "n2": (1, 3)}),
        ({"map_by": "ppr:2:gpu"}, (None, None), {"n1": (0, 1), "n2": (2, 3)}),
        ({"map_by": "ppr:1:socket"}, (SOCKETS, None), "n2 reports no socket"),
    ],
)  # fmt: skip
def test_so_many_on_each_of_what_a_host_has(flags: dict[str, Any], there: Any, found: Any) -> None:
    plan = planned("n[1-2]", **flags)
    assert plan.is_open
    if isinstance(found, str):
        with pytest.raises(PlanError, match=found):
            plan.resolved({0: 1, 1: 1}, {}, dict(enumerate(there)))
    else:
        assert ranks(plan.resolved({0: 1, 1: 1}, {}, dict(enumerate(there)))) == found


def by_file(text: str) -> dict[str, Any]:
    return {"rankfile": ("rf", text)}


@cases(
    ("hosts", "text", "found"),
    [
        ("n[1-2] slots=2", "rank 0=n2\nrank 1=n1\nrank 2=n2", {"n2": (0, 2), "n1": (1,)}),
        ("n[1-2] slots=1", "rank 1=+n0 slot=0\nrank 0=+n1 slot=0:*", {"n2": (0,), "n1": (1,)}),
        ("n[1-3] slots=1", "rank 0=n3 # the last", {"n3": (0,)}),
        ("n1", "rank 0 = n1 slots = 1-2\n\n rank 1=n1 slot=p3;0:1", {"n1": (0, 1)}),
    ],
)
def test_a_rankfile_places_each_rank(
    hosts: str, text: str, found: dict[str, tuple[int, ...]]
) -> None:
    plan = planned(hosts, **by_file(text))
    assert not plan.is_open
    assert ranks(plan) == found
    assert [*ranks(plan)] == [*found]  # rank 0 is on node 0
    assert ranks(planned(hosts, rankfile=("rf", text.encode()))) == found


def test_hosts_that_a_rankfile_leaves_out_are_told() -> None:
    plan = planned("n[1-3] slots=1", **by_file("rank 0=n3"))
    assert plan.notices == ("n[1-2]: left out: rf needs only 1 node",)


@cases(
    ("hosts", "text", "flags", "message"),
    [
        ("n1", "rank 0=n1\nrnk 1=n1", {}, "rf:2: not a place: 'rnk 1=n1'"),
        ("n1", "rank 0=n1 slot=", {}, "rf:1: not a place"),
        ("n1", "rank 0=n1 slot=a", {}, "rf:1: not a place"),
        ("n1", "rank 0=n1 slot=0:1:2", {}, "rf:1: not a place"),
        ("n1", "rank 0=n1 slot=3-1", {}, "rf:1: 3-1: the first is larger"),
        ("n1", "rank 0=n1\nrank 0=n1", {}, "rf:2: rank 0 has a place already: rf:1"),
        ("n1", "rank 0=n1\nrank 2=n1", {}, "rf: no place for rank 1, and one for rank 2"),
        ("n1", "rank 999999999=n1", {}, "rf:1: rank 999999999: there can be"),
        ("n1", "# none", {}, "rf: no place for rank 0"),
        ("n[1-2]", "rank 0=n1\nrank 1=n3", {}, "rf:2: n3: not one of the hosts: this job has n["),
        ("n[1-2]", "rank 0=+n2", {}, "rf:1: +n2: not one of the hosts"),
        ("n1 port=1\nn1 port=2", "rank 0=n1", {}, "rf:1: n1: two ports of it"),
        ("n1 slots=1", "rank 0=n1\nrank 1=n1", {}, "rf:2: rank 1: n1 takes only 1 rank"),
        ("n1 max_slots=1", "rank 0=n1\nrank 1=n1", {"oversubscribe": True}, "n1 takes only 1"),
        ("n1", "rank 0=n1", {"np": 2}, "--np 2: it has places for 1 rank"),
        ("n1", "rank 0=n1", {"nproc_per_node": 1}, "does not go with --nproc-per-node"),
        ("n1", "rank 0=n1", {"map_by": "numa"}, "does not go with --map-by numa"),
        ("n1", "rank 0=n1", {"rank_by": "slot"}, "does not go with --rank-by"),
        ("n1", "rank 0=n1 slot=0", {"bind_to": "core"}, "does not go with --bind-to core"),
        ("n1", "rank 0=n1", {"restarts": Restarts(most=1, min_nodes=1)}, "with --min-nodes"),
        ("n1", "rank 0=n1", {"parts": (Part(("a",), np=1), Part(("b",), np=1))},
         "with several programs"),
    ],
)  # fmt: skip
def test_a_wrong_rankfile_touches_no_host(
    hosts: str, text: str, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        planned(hosts, **by_file(text), **flags)
    assert message in caught.value.message


def test_a_rank_that_a_rankfile_lacks_is_in_the_hint() -> None:
    with pytest.raises(UsageError) as caught:
        planned("n1", **by_file("rank 0=n1\nrank 2=n1"))
    assert caught.value.hint == "rank 1=n1 slot=0-1"


def test_a_rankfile_may_crowd_hosts_and_leave_binding_to_others() -> None:
    text = "rank 0=n1\nrank 1=n1"
    plan = planned("n1 slots=1", oversubscribe=True, bind_to="core", np=2, **by_file(text))
    assert ranks(plan) == {"n1": (0, 1)}
    assert not plan.names_cpus
    assert plan.slots_of(plan.nodes[0]) == ()
    named = planned("n1", bind_to="none", **by_file("rank 0=n1 slot=99"))
    assert named.resolved({0: 0}, {}, {0: SOCKETS}) is named  # which nobody binds


@cases(
    ("slot", "there", "why"),
    [
        ("0-1", SOCKETS, None), ("1:0", SOCKETS, None), ("", None, None),
        ("1-2", SOCKETS, "rf:1: slot=1-2: n1: no core 2: ranks may use 2"),
        ("2:0", SOCKETS, "rf:1: slot=2:0: n1: no socket 2: ranks may use 2"),
        ("0", None, "rf:1: slot=0: n1: the host does not report its cores"),
    ],
)  # fmt: skip
def test_the_host_must_have_what_a_rankfile_names(slot: str, there: Any, why: str | None) -> None:
    plan = planned("n1", **by_file(f"rank 0=n1 slot={slot}" if slot else "rank 0=n1"))
    if why is None:
        assert plan.resolved({0: 0}, {}, {0: there}) is plan
    else:
        with pytest.raises(PlanError) as caught:
            plan.resolved({0: 0}, {}, {0: there})
        assert caught.value.message == why


def test_slots_bound_what_a_host_takes() -> None:
    plan = planned("n1 slots=1", map_by="ppr:1:core")
    with pytest.raises(PlanError, match="2 ranks on n1, which has 1 slot"):
        plan.resolved({0: 0}, {}, {0: SOCKETS})
    bounded = planned("n1 max_slots=1", map_by="ppr:1:core", oversubscribe=True)
    with pytest.raises(PlanError, match="--map-by ppr:1:core: n1 takes at most 1, not 2"):
        bounded.resolved({0: 0}, {}, {0: SOCKETS})
    wide = planned("n1 slots=1", map_by="ppr:1:core", oversubscribe=True)
    assert wide.resolved({0: 0}, {}, {0: SOCKETS}).world_size == 2
