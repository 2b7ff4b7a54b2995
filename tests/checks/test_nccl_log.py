"""Which host uses another network than was meant: a table of what hosts say, and any bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.checks.nccl_log import Networks

IB = (
    "b01:42:43 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_3:1/IB [RO]; OOB e:10.0.0.1<0>",
    "b01:42:43 [0] NCCL INFO Using network IB",
)  # fmt: skip
BARE = ("b06:42:43 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1 [1]mlx5_3:1; OOB e:1<0>",)  # no layer
HALF = (
    "[2026-01-31 10:00:00] b02:4:4 [1] NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE [RO]; OOB e<0>",
)
SOCKET = (
    "b03:42:43 [0] NCCL INFO NET/IB : No device found.",
    "b03:42:43 [0] NCCL INFO NET/IB : Using [RO]; OOB eno1:10.0.0.3<0>",
    "b03:42:43 [0] NCCL INFO NET/Socket : Using [0]eno1:10.0.0.3<0>",
    "b03:42:43 [0] NCCL INFO Using network Socket",
)
OFI = ("b04:42:43 [0] NCCL INFO Using network AWS Libfabric", "loss 3.1")
MUTE = ("NCCL version 2.21.5+cuda12.4", "b05:1:2 [0] NCCL INFO Bootstrap: Using eno1:10.0.0.5<0>")
PINNED = {"NCCL_IB_HCA": "=mlx5_1,mlx5_3"}

#: what each rank says, the settings, who is odd
TABLE: dict[str, tuple[list[Any], dict[str, str], list[tuple[tuple[int, ...], str]]]] = {
    "alike": ([IB, BARE, MUTE], {}, []),
    "all are pinned": ([IB, BARE], PINNED, []),
    "all sockets": ([SOCKET, SOCKET], {}, []),
    "one fell back": ([IB, IB, SOCKET], {}, [((2,), "fell back to Socket, 2 others use IB")]),
    "most fell back": (
        [SOCKET, IB, SOCKET], {}, [((0, 2), "fell back to Socket, 1 other uses IB")],
    ),
    "all fell back": (
        [SOCKET, SOCKET], PINNED,
        [((0, 1), "fell back to Socket, though NCCL_IB_HCA==mlx5_1,mlx5_3")],
    ),
    "sockets are meant": ([SOCKET, SOCKET], {"NCCL_IB_DISABLE": "1"}, []),
    "a port is down": (
        [IB, HALF], PINNED, [((1,), "does not use mlx5_3, which NCCL_IB_HCA names")],
    ),
    "one port of two": ([IB, IB, HALF], {}, [((2,), "uses 1 port, 2 with 2: mlx5_1:1")]),
    "ports not told": ([IB[1:], IB[1:], IB], {}, []),
    "another": ([OFI, OFI, IB], {}, [((2,), "uses IB, 2 others use AWS Libfabric")]),
    "a plugin heeds the HCAs": ([OFI, OFI], PINNED, []),
    "not what was meant": (
        [IB, OFI], {"NCCL_NET": "IB"},
        [((1,), "uses AWS Libfabric, 1 other uses IB, though NCCL_NET=IB")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_who_is_odd(case: str) -> None:
    said, given_, odd = TABLE[case]
    networks = Networks([given_] * len(said))
    for node, lines in enumerate(said):
        for line in lines:
            networks.take(node, line)
        networks.place(node, node)
    assert [(one.nodes, one.what) for one in networks.differing()] == odd


@pytest.mark.parametrize("setting", ["", "NCCL_IB_DISABLE", "NCCL_IB_HCA"])
def test_ports_that_a_check_has_seen(setting: str) -> None:
    networks = Networks([{setting: "^mlx5"}] * 3, {0: "2 x InfiniBand 400 Gb/s"})
    for node in range(3):
        networks.take(node, SOCKET[-1])
        networks.place(node, node)
    told = [(one.nodes, one.what) for one in networks.differing()]
    what = "fell back to Socket, though 2 x InfiniBand 400 Gb/s are ACTIVE"
    assert told == ([] if setting else [((0,), what)])


def test_a_host_is_judged_by_the_rank_that_fell_back() -> None:
    networks = Networks([{}, {}])
    for rank, lines in enumerate((IB, IB, SOCKET, MUTE)):
        for line in lines:
            networks.take(rank, line)
        networks.place(rank, rank // 2)
    hosts = networks.hosts()
    assert (hosts[0].net, hosts[0].devices) == ("IB", ("mlx5_1:1", "mlx5_3:1"))
    assert (hosts[1].net, hosts[1].version) == ("Socket", "2.21.5+cuda12.4")


@given(st.lists(st.text(max_size=60), max_size=4), st.sampled_from([IB[0], SOCKET[2], OFI[0]]))
@settings(max_examples=60)
def test_any_text_is_bounded(parts: list[str], line: str) -> None:
    networks = Networks([{}, {}])
    for part in parts:
        networks.take(0, line.replace("mlx5", part * 300).replace("Socket", part))
    networks.take(1, IB[1])
    networks.place(0, 0)
    networks.place(1, 1)
    assert networks.hosts()[1].net == "IB"
    for said in networks.hosts().values():
        assert len(said.net) <= 60
        assert len(said.devices) <= 32
    assert all(len(one.what) < 4096 for one in networks.differing())
