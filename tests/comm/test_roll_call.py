"""Ranks that would hang together are refused, with words that name them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cases import cases

from dispatcher.comm import CommError
from dispatcher.comm.nccl.library import Gpu
from dispatcher.comm.roll_call import (
    RankInfo,
    compare,
    first_number,
    gather,
    listed,
    rank_labels,
    settle,
    whereabouts,
)


def world(*changes: dict[str, Any]) -> list[RankInfo]:
    """Two ranks a host with a GPU each; a change a rank."""
    return [
        replace(
            RankInfo(
                rank,
                f"gpu{rank // 2}",
                f"k{rank // 2}",
                rank % 2,
                gpu=f"GPU-{rank}",
                gpu_index=rank % 2,
                driver=12080,
                nccl=23007,
            ),
            **change,
        )
        for rank, change in enumerate(changes)
    ]


def test_equal_ranks_pass() -> None:
    comparison = compare(world({}, {}, {}))
    assert comparison.refusals == ()
    assert comparison.warnings == ()


CPU = {"gpu": None, "gpu_index": None, "driver": None}
SHARE_HINT = "export CUDA_VISIBLE_DEVICES=$LOCAL_RANK, or fewer slots on that host"
SAME_HINT = "the same Python environment on every host"


@cases(
    "changes, text, hint",
    [
        ([{}, {}, {"gpu": "GPU-1"}], "comm: gpu GPU-1: chosen by rank 1 on gpu0 and rank 2 on gpu1:"
         " one rank a gpu is allowed", SHARE_HINT),
        ([{"gpu": "GPU-1"}] * 3, "comm: gpu GPU-1: chosen by rank 0 on gpu0 and rank 1 on gpu0 and"
         " rank 2 on gpu1: one rank a gpu is allowed", SHARE_HINT),
        ([{}, {}, {"nccl": 22907}], "comm: nccl: versions differ: 2.30.7 (ranks 0-1 on gpu0),"
         " 2.29.7 (rank 2 on gpu1)", SAME_HINT),
        ([{}, {"nccl": None}], "comm: nccl: versions differ: 2.30.7 (rank 0 on gpu0),"
         " none (rank 1 on gpu0)", SAME_HINT),
        ([CPU, {**CPU, "nccl": 22907}], "comm: nccl: versions differ: 2.30.7 (rank 0 on gpu0),"
         " 2.29.7 (rank 1 on gpu0)", SAME_HINT),
        ([{}, {"gpu": None}], "comm: gpu: none seen by rank 1 on gpu0, but by the other ranks",
         "nvidia-smi on that host, or comm.init(device='cpu') on all ranks"),
        ([{"settings": {"NCCL_NET": "a"}}, {}],
         "comm: NCCL_NET: differs: a (rank 0 on gpu0), unset (rank 1 on gpu0)", "unset NCCL_NET"),
        *(([{"settings": {name: "a"}}, {"settings": {name: "b"}}, {"settings": {name: "a"}}],
           f"comm: {name}: differs: a (rank 0 on gpu0; rank 2 on gpu1), b (rank 1 on gpu0)",
           f"unset {name}") for name in ("NCCL_ALGO", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_PROTO")),
    ],
)  # fmt: skip
def test_ranks_that_cannot_work_together(
    changes: list[dict[str, Any]], text: str, hint: str
) -> None:
    assert compare(world(*changes)).refusals == ((text, hint),)


def test_no_nccl_is_no_trouble_without_gpus() -> None:
    assert compare(world(CPU, {**CPU, "nccl": None})).refusals == ()


def test_two_ranks_on_one_gpu_when_nccl_was_told_so() -> None:
    both = {"gpu": "GPU-0", "shares_gpu": True}
    assert compare(world(both, both)).refusals == ()
    assert compare(world(both, {**both, "shares_gpu": False})).refusals
    for old in ({**both, "nccl": 22907}, {**both, "nccl": 23000}):
        assert compare(world(old, old)).refusals


def test_two_ranks_on_one_gpu_on_hosts_that_nccl_is_told_are_two() -> None:
    def rank(name: str) -> dict[str, object]:
        return {
            "gpu": "GPU-0",
            "nccl_host": gather(RankInfo(0, "n", "k"), {"NCCL_HOSTID": name}, None, None).nccl_host,
        }

    assert compare(world(rank("a"), rank("b"))).refusals == ()
    ((text, _),) = compare(world(rank("a"), rank("b"), rank("a"))).refusals
    assert "chosen by rank 0 on gpu0 and rank 2 on gpu1" in text


def test_other_settings_and_drivers_only_warn() -> None:
    comparison = compare(world({"settings": {"NCCL_BUFFSIZE": "aa"}}, {"driver": 12040}))
    assert comparison.refusals == ()
    assert [text.split(":")[1] for text in comparison.warnings] == [
        " NCCL_BUFFSIZE",
        " cuda driver",
    ]
    assert "12.8 (rank 0 on gpu0), 12.4 (rank 1 on gpu0)" in comparison.warnings[1]


def test_values_of_settings_stay_in_the_rank() -> None:
    env = {"NCCL_NET": "secret", "NCCL_SOCKET_IFNAME": "eth0", "HOME": "/root"}
    info = gather(RankInfo(3, "h", "k", 1, 2), env, Gpu(1, "GPU-x", 12080), 23007)
    assert b"secret" not in info.encode()
    assert list(info.settings) == ["NCCL_NET"]
    assert RankInfo.decode(info.encode()) == info
    assert (info.gpu, info.gpu_index, info.driver, info.nccl) == ("GPU-x", 1, 12080, 23007)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"rank": 1, "other": 2}'])
def test_what_another_version_says_is_refused(text: bytes) -> None:
    with pytest.raises(CommError, match="different versions"):
        RankInfo.decode(text)


def test_two_hosts_of_one_name_are_told_apart() -> None:
    ranks = world({}, {}, {"host": "gpu0"}, {"host": "gpu0"}, {})
    assert rank_labels(ranks) == {0: "gpu0", 1: "gpu0", 2: "gpu0#2", 3: "gpu0#2", 4: "gpu2"}


def test_gpus_that_the_launcher_knew_of_and_nobody_sees() -> None:
    (text,) = compare(world({**CPU, "expected": 8}, {**CPU, "expected": 8})).warnings
    assert text.startswith("comm: gpu: no rank sees one, though gpu0 has 8: this job runs on the")
    assert compare(world(CPU, CPU)).warnings == ()
    assert compare(world({"expected": 8}, {"expected": 8})).warnings == ()


@pytest.mark.parametrize(
    ("env", "wanted", "expected"),
    [
        ({}, True, 0),
        ({"DISPATCH_GPUS": "8"}, True, 8),
        ({"DISPATCH_GPUS": "8"}, False, 0),  # device="cpu"
        ({"DISPATCH_GPUS": "8", "CUDA_VISIBLE_DEVICES": "4,5"}, True, 8),
        ({"DISPATCH_GPUS": "8", "CUDA_VISIBLE_DEVICES": ""}, True, 0),
        ({"DISPATCH_GPUS": "8", "CUDA_VISIBLE_DEVICES": "-1"}, True, 0),
        ({"DISPATCH_GPUS": "x"}, True, 0),
    ],
)
def test_how_many_gpus_are_expected(env: dict[str, str], wanted: bool, expected: int) -> None:
    assert gather(RankInfo(0, "n", "k", 0, 1), env, None, None, wanted=wanted).expected == expected


def test_the_first_variable_that_has_a_number_is_taken() -> None:
    names = ("LOCAL_RANK", "MPI_LOCALRANKID")
    assert first_number({"LOCAL_RANK": "3", "MPI_LOCALRANKID": "1"}, names) == 3
    assert first_number({"LOCAL_RANK": "x", "MPI_LOCALRANKID": "1"}, names) == 1
    assert first_number({"LOCAL_RANK": "0"}, names) == 0
    for text in ("x", "\u0663", "-1", ""):
        assert first_number({"LOCAL_RANK": text}, names) is None


def test_ranks_of_a_key_are_numbered_together() -> None:
    ranks = [RankInfo(0, "a", "k1"), RankInfo(1, "a", "k2"), RankInfo(2, "a", "k1")]
    assert settle(ranks) == {0: (0, 2), 2: (1, 2), 1: (0, 1)}


def test_a_missing_rank_is_on_the_host_of_its_neighbours() -> None:
    present = RankInfo(8, "gpu02", "k", local_rank=0, local_size=8)
    assert whereabouts([9, 15, 16], [present], "") == {9: "gpu02", 15: "gpu02"}
    for unknown in ({"local_rank": None}, {"local_size": None}):
        known: dict[str, Any] = unknown
        assert whereabouts([9], [replace(present, **known)], "") == {}


@cases(
    "text, hosts",
    [
        *((text, {}) for text in ("", "gpu01", "gpu01:x", ":3", "a:1,b", "a:-1")),
        ("fe80::1:2,b:1,", {0: "fe80::1", 1: "fe80::1", 2: "b"}),
    ],
)
def test_the_launchers_list(text: str, hosts: dict[int, str]) -> None:
    assert listed(text) == hosts


@pytest.mark.parametrize("came", [(0, 2), (0, 1), (0, 2, 3)])
def test_where_ranks_are_dealt_in_turn_a_neighbour_says_nothing(came: tuple[int, ...]) -> None:
    dealt = [RankInfo(rank, f"n{rank % 2}", f"k{rank % 2}", rank // 2, 2) for rank in range(4)]
    missing = {0, 1, 2, 3}.difference(came)
    assert whereabouts(missing, [dealt[rank] for rank in came], "") == {}


def test_the_launchers_list_wins_over_what_neighbours_suggest() -> None:
    present = [RankInfo(2, "seen", "k", local_rank=0, local_size=2)]
    assert whereabouts([3], present, "a:2,b:2") == {3: "b"}
    assert whereabouts([3, 9], present, "") == {3: "seen"}
    assert whereabouts([1], present, "") == {}


@pytest.mark.parametrize(
    ("value", "shares"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)]
)
def test_whether_ranks_may_share_a_gpu(value: str | None, shares: bool) -> None:
    env = {} if value is None else {"NCCL_MULTI_RANK_GPU_ENABLE": value}
    assert gather(RankInfo(0, "n", "k"), env, None, None).shares_gpu is shares


def test_settings_are_compared_by_their_digests() -> None:
    def settings(**env: str) -> dict[str, str]:
        return dict(gather(RankInfo(0, "n", "k"), env, None, None).settings)

    assert settings(NCCL_ALGO="ring") == settings(NCCL_ALGO="ring", NCCL_IB_HCA="mlx5_1")
    assert settings(NCCL_ALGO="ring") != settings(NCCL_ALGO="tree")
    (digest,) = settings(NCCL_ALGO="caf\udce9").values()
    assert len(digest) == 8


def test_refusals_come_in_their_order() -> None:
    ranks = world({"settings": {"NCCL_NET": "a", "NCCL_ALGO": "b"}}, {"gpu": None, "nccl": 1})
    subjects = [text.split(":")[1].split()[0] for text, _ in compare(ranks).refusals]
    assert subjects == ["gpu", "nccl", "NCCL_ALGO", "NCCL_NET"]


@pytest.mark.parametrize(
    ("driver", "word"), [(None, "none"), (12080, "12.8"), (11040, "11.4"), (13000, "13.0")]
)
def test_drivers_are_spelled_as_people_do(driver: int | None, word: str) -> None:
    (text,) = compare(world({"driver": 9000}, {"driver": driver})).warnings
    assert f"{word} (rank 1 on gpu0)" in text
