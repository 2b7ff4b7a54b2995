"""GPUs that somebody has chosen stay chosen: by index, UUID and MIG name, on every way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import PlanError
from dispatcher.model.host import Hostlist, visible
from dispatcher.plan.hosts.hostfile import parse_inline
from dispatcher.plan.job import devices, reassignment
from dispatcher.plan.job.job_plan import JobPlan, NodePlan, plan_job
from dispatcher.plan.job.rank_environment import Bound, rank_environment
from dispatcher.plan.job.request import Program, Request

BOUND = Bound("10.0.0.1", 29400)
NAME = "CUDA_VISIBLE_DEVICES"
UUIDS = "GPU-8f6c1a2e-0000-1111,GPU-9a7d"
MIGS = "MIG-5ea8e4c1-0000,MIG-GPU-8f6c1a2e-0000/1/0"


def planned(hosts: str = "n1:2", granted: str | None = None, **flags: Any) -> JobPlan:
    found = parse_inline(hosts).hosts
    if granted is not None:
        found = (replace(found[0], granted=tuple(granted.split(","))), *found[1:])
    request = Request(Hostlist(found), Program("script", ("t.py",)), "/w", **flags)
    return plan_job(request, "run-1")


def seen(plan: JobPlan) -> list[str | None]:
    """What dispatch sets for each rank; None: the host's own value stays."""
    return [rank_environment(plan, place.rank, BOUND).get(NAME) for place in plan.ranks]


@cases(
    ("text", "count", "found"),
    [
        ("6,7", 8, ("6", "7")), (" 3 , 1", 4, ("3", "1")), (UUIDS, 8, tuple(UUIDS.split(","))),
        (MIGS, 1, tuple(MIGS.split(","))), ("0,-1,1", 8, ("0",)), ("0,8,1", 8, ("0",)),
        ("1,1", 8, ()), ("", 8, ()), ("-1", 8, ()), ("NoDevFiles", 8, ()), ("none", 8, ()),
        ("6,7", 0, ()), ("GPU-", 8, ()), ("GPU-$(id)", 8, ()), ("\u0661", 8, ()), ("00001", 8, ()),
    ],
)  # fmt: skip
def test_what_cuda_makes_of_its_variable(text: str, count: int, found: tuple[str, ...]) -> None:
    assert visible(text, count) == found


@cases(
    ("hosts", "flags", "count", "text", "ranks"),
    [
        # the host's own environment: the caller's on localhost, a step's, what login gives
        ("localhost:2", {}, 8, "6,7", ["6,7"] * 2),
        ("localhost", {}, 8, "6,7", ["6,7"] * 2),  # a rank each
        ("n1", {"nproc_per_node": "gpu"}, 8, "5,6,7", ["5,6,7"] * 3),
        ("n1", {}, 8, UUIDS, [UUIDS] * 2),
        ("n1", {}, 1, MIGS, [MIGS] * 2),  # two slices of one GPU
        ("n1:2", {}, 8, "4,5,6,7", ["4,5"] * 2),  # slots are positions among them
        ("n1:2", {"devices": "rank"}, 8, "6,7", ["6", "7"]),
        ("n1", {"devices": "rank"}, 8, UUIDS, UUIDS.split(",")),
        ("n1:1", {"devices": "rank"}, 1, MIGS, [MIGS.split(",")[0]]),
        ("n1", {"nproc_per_node": 2}, 8, "6,7", ["6,7"] * 2),
        ("n1", {"nproc_per_node": 1}, 8, "6,7", ["6,7"]),
        ("n1", {"devices": "none"}, 8, "6,7", [None] * 2),
        ("n1 max_slots=1", {}, 8, "6,7", ["6"]),
        ("n1:4", {}, 8, "6,7", ["6,7"] * 4),
        (
            "n1:4", {"devices": "rank", "oversubscribe": True}, 8, "6,7", ["6", "7", "6", "7"],
        ),
        # hidden ones stay hidden, what cannot be there stays as it is
        ("n1:2", {}, 8, "", [None] * 2),
        ("n1:2", {"devices": "rank"}, 8, "-1", [None] * 2),
        ("n1", {}, 8, "NoDevFiles", [None]),
        ("n1:2", {}, 2, "6,7", [None] * 2),
        ("n1:2", {}, 0, "6,7", [None] * 2),
        # nobody has chosen
        ("n1:2", {}, 8, None, ["0,1"] * 2),
        ("n1:2", {}, 0, None, ["0,1"] * 2),
        ("n1", {}, 2, None, ["0,1"] * 2),
        # what is typed says otherwise
        ("n1:2", {"devices": "node"}, 8, "6,7", ["0,1"] * 2),
        ("n1", {"devices": "node"}, 3, "1", ["0,1,2"] * 3),
        ("n1:8", {"include": "n1:0,2"}, 8, "6,7", ["0,2"] * 2),
        ("n1", {"include": "n1:0,2"}, 8, "6,7", ["0,2"] * 2),
        ("n1:3", {"exclude": "n1:0"}, 8, "6,7", ["1,2"] * 2),
        ("n1 gpus=2,3", {}, 8, "6,7", ["2,3"] * 2),
        ("n1", {"exports": (f"{NAME}=1,3,5",)}, 8, "6,7", ["1,3,5"] * 3),
        ("n1", {"exports": (f"{NAME}=3,1",), "devices": "rank"}, 8, "6,7", ["3", "1"]),
        (f"n1:2 env={NAME}={UUIDS}", {"devices": "rank"}, 8, None, UUIDS.split(",")),
        ("n1:2", {"exports": (f"{NAME}=",), "devices": "rank"}, 8, None, [""] * 2),
        ("n1:2", {"exports": (f"{NAME}=3,1",), "devices": "rank"}, 0, None, ["3,1"] * 2),
        (f"n1 slots=2 env={NAME}=3", {"exports": (f"{NAME}=1",)}, 8, "6,7", ["3"] * 2),
        ("n1", {"environ": {NAME: "1"}}, 8, None, [",".join("01234567")] * 8),  # does not cross
    ],
)  # fmt: skip
def test_which_gpus_a_rank_finds(
    hosts: str, flags: dict[str, Any], count: int, text: str | None, ranks: list[str | None]
) -> None:
    plan = planned(hosts, **flags)
    assert seen(plan.resolved({0: count}, {0: text})) == ranks
    again = plan.resolved({0: count}, {0: text}).resolved({0: count}, {0: text})
    assert seen(again) == ranks  # after a restart


@cases(
    ("granted", "count", "text", "ranks"),
    [
        ("4,5", 8, None, ["4,5"] * 2),  # all devices can be opened: the numbers are the node's
        ("4,5", 2, None, ["0,1"] * 2),  # a cgroup denies the others: these begin at 0
        ("4,5", 8, "1,2", ["1,2"] * 2),  # what the step itself was told
        (UUIDS, 2, None, [UUIDS] * 2),
        ("4,5", 3, None, ["0,1,2"] * 3),  # makes no sense: all there are
        ("4,5", 0, None, [None]),
    ],
)
def test_gpus_of_a_batch_system(
    granted: str, count: int, text: str | None, ranks: list[str | None]
) -> None:
    assert seen(planned("n1", granted).resolved({0: count}, {0: text})) == ranks


def test_each_host_has_its_own() -> None:
    plan = planned("n[1-3]:2", granted="2,3").resolved(
        {0: 8, 1: 8, 2: 8}, {0: None, 1: "GPU-a,GPU-b", 2: ""}
    )
    assert seen(plan) == ["2,3"] * 2 + ["GPU-a,GPU-b"] * 2 + [None] * 2


def test_one_gpu_each_needs_as_many_as_are_chosen() -> None:
    with pytest.raises(
        PlanError, match="n1: --devices rank: 4 ranks, but only GPUs 6,7 "
    ) as caught:
        planned("n1:4", devices="rank").resolved({0: 8}, {0: "6,7"})
    assert caught.value.hint == "--nproc-per-node 2, or --oversubscribe to share"
    with pytest.raises(PlanError, match="--nproc-per-node gpu: no GPU on n1") as caught:
        planned("n1", nproc_per_node="gpu").resolved({0: 8}, {0: ""})
    assert "hides them" in (caught.value.hint or "")


@cases(
    ("hosts", "flags", "text", "told"),
    [
        ("n1", {}, "6,7", []), ("n1:2", {}, None, []), ("n1:2", {}, "", []), ("n1:2", {}, "-1", []),
        ("n1:4", {}, "6,7", ["4 ranks share what CUDA_VISIBLE_DEVICES='6,7' there leaves"]),
        ("n1", {}, "8,9", ["CUDA_VISIBLE_DEVICES='8,9' there leaves none of its 8 GPUs"]),
        ("n1", {"include": "n1:0,2"}, "6,7",
         ["CUDA_VISIBLE_DEVICES='6,7' there is not used: GPUs 0,2 are named"]),
        ("n1", {"include": "n1:6,7"}, "7,6", []),
        ("n1", {"include": "n1:0,2"}, "8,9", []),
        ("n1:4", {"devices": "none"}, "6,7", []),
        ("n1:4", {"exports": (f"{NAME}=1",)}, "6,7", []),
    ],
)  # fmt: skip
def test_what_may_not_be_expected_is_told(
    hosts: str, flags: dict[str, Any], text: str | None, told: list[str]
) -> None:
    counts, said = {0: 8}, {0: text}
    plan = planned(hosts, **flags).resolved(counts, said)
    assert [
        words
        for _, words in devices.gpu_warnings(plan.nodes, plan.devices, plan.exports, counts, said)
    ] == told


@cases(("text", "fits"), [(None, True), ("6,7", True), ("6", False), ("", False)])
def test_a_spare_needs_as_many_chosen_gpus_as_the_seat(text: str | None, fits: bool) -> None:
    spare = NodePlan(1, parse_inline("s").hosts[0], ())
    found = reassignment.with_host(planned("n1:2"), 0, spare, 8, text)
    assert (found is not None) == fits


def test_a_dry_run_says_what_it_cannot_know() -> None:
    assert rank_environment(planned(), 0)[NAME] == "<0,1, unless n1 has chosen others>"
    assert rank_environment(planned(devices="node"), 0)[NAME] == "0,1"
    assert rank_environment(planned("n1:4", include="n1:1,3"), 0)[NAME] == "1,3"
    assert rank_environment(planned(exports=(f"{NAME}=5",)), 0)[NAME] == "5"


def test_how_many_there_are_is_told_to_the_ranks() -> None:
    name = "DISPATCH_GPUS"
    assert rank_environment(planned(), 0, replace(BOUND, gpus=2))[name] == "2"
    assert name not in rank_environment(planned(), 0, BOUND)


words = st.sampled_from(["0", "1", "7", "8", "-1", "", " 2", "GPU-a", "MIG-b", "x", "\x1b[1m"])


@given(
    st.lists(words, max_size=4).map(",".join) | st.text(max_size=20), st.integers(0, 8),
    st.sampled_from(["auto", "rank"]), st.sampled_from(["n1", "n1:1", "n1:3"]),
)  # fmt: skip
def test_nobody_is_given_what_was_not_chosen(
    text: str, count: int, policy: str, hosts: str
) -> None:
    plan = planned(hosts, devices=policy, oversubscribe=True).resolved({0: count}, {0: text})
    for found in seen(plan):
        left = {word.strip() for word in text.split(",")}
        assert found is None or {f"{int(w)}" if w.isdigit() else w for w in left} >= set(
            found.split(",")
        )
