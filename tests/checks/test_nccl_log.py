"""Which host uses another network than was meant: a table of what hosts say, and any bytes."""

from __future__ import annotations

from typing import Any

from cases import cases, examples
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.checks.nccl_log import Networks, NetworkUse, meant, understand

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


@cases("case", TABLE)
def test_who_is_odd(case: str) -> None:
    said, given_, odd = TABLE[case]
    networks = Networks([given_] * len(said))
    for node, lines in enumerate(said):
        for line in lines:
            networks.take(node, line)
        networks.place(node, node)
    assert [(one.nodes, one.what) for one in networks.differing()] == odd


@cases("setting", ["", "NCCL_IB_DISABLE", "NCCL_IB_HCA"])
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


@cases(
    ("words", "understood", "use"),
    [
        ("NCCL INFO NET/IB : Using [0]a:1/IB [1]b:2/RoCE; OOB e:[3]c:1<0>", True,
         NetworkUse("IB", ("a:1", "b:2"))),
        # NIC merging: https://github.com/NVIDIA/nccl net_ib.cc of v2.21.5-1 to v2.23.4-1
        ("NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [1]={[2] mlx5_2:1/"
         "RoCE, [3] mlx5_3:1/RoCE} [RO]; OOB bond0:172.21.17.82<0>", True,
         NetworkUse("IB", ("mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"))),
        # a port twice, once by its direct path, and with rail and plane: net_ib/init.cc of v2.30.7
        ("NCCL INFO NET/IB : Using [0]mlx5_0:1:0:1/IB [1]mlx5_0_dma:1:0:1/IB [2]mlx5_1:1::1/IB "
         "[3]mlx5_1_dma:1/IB [RO]; OOB eth0:10.0.0.2<0>", True,
         NetworkUse("IB", ("mlx5_0:1", "mlx5_1:1"))),
        ("NCCL INFO NET/IB : Using [RO]; OOB e<0>", False, NetworkUse()),
        ("NCCL INFO NET/Socket: Using [0]e:10.0.0.1<0>", True, NetworkUse("Socket")),
        ("NCCL INFO Initialized NET plugin IB", True, NetworkUse("IB")),
        ("NCCL INFO Assigned NET plugin AWS Libfabric to comm", True, NetworkUse("AWS Libfabric")),
        ("NCCL INFO Channel 00 : 0[0] -> 1[0] via NET/IB/0", True, NetworkUse("IB")),
        ("NCCL version 2.21.5+cuda12.4", True, NetworkUse("", (), "2.21.5+cuda12.4")),
        ("NCCL INFO comm 0x1", False, NetworkUse()),
    ],
)  # fmt: skip
def test_one_line(words: str, understood: bool, use: NetworkUse) -> None:
    found = NetworkUse()
    assert understand(words, found) == understood
    assert found == use


def test_the_last_word_counts_and_what_was_known_besides_stays() -> None:
    networks = Networks([{}])
    networks.place(0, 0)
    for line in (*SOCKET, *IB, MUTE[0]):
        networks.take(0, line)
    assert networks.hosts() == {0: NetworkUse("IB", ("mlx5_1:1", "mlx5_3:1"), "2.21.5+cuda12.4")}
    assert not networks.take(0, "loss 3.1")
    assert networks.take(0, "NCCL INFO Using network Socket")
    assert networks.hosts()[0].devices == ()  # sockets use none


def test_everybody_has_spoken_when_each_host_has() -> None:
    networks = Networks([{}, {}])
    assert networks.differing() == []
    for rank in range(4):
        networks.place(rank, rank // 2)
    said = [(0, IB[1]), (9, IB[1]), (3, MUTE[0]), (2, IB[1])]  # of rank 9 nobody knows the host
    spoken = []
    for rank, line in said:
        networks.take(rank, line)
        spoken.append(networks.everybody)
    assert spoken == [False, False, False, True]
    assert set(networks.hosts()) == {0, 1}


def test_what_most_ranks_of_a_host_say_is_the_host_s() -> None:
    networks = Networks([{}])
    for rank, line in enumerate((OFI[0], IB[1], OFI[0], IB[0])):
        networks.place(rank, 0)
        networks.take(rank, line)
    networks.place(9, 0)
    networks.take(9, OFI[0])
    assert networks.hosts()[0].net == "AWS Libfabric"
    assert networks.hosts()[0].devices == ("mlx5_1:1", "mlx5_3:1")


@cases(
    ("settings", "why"),
    [
        ({}, ""), ({"NCCL_NET": "IB", "NCCL_IB_HCA": "x"}, "NCCL_NET=IB"),
        ({"NCCL_IB_HCA": "=x"}, "NCCL_IB_HCA==x"), ({"NCCL_IB_HCA": "^x"}, ""),
        ({"NCCL_IB_HCA": "="}, ""), ({"NCCL_IB_HCA": "x", "NCCL_IB_DISABLE": "1"}, ""),
        ({"NCCL_IB_HCA": "x", "NCCL_IB_DISABLE": "0"}, "NCCL_IB_HCA=x"),
    ],
)  # fmt: skip
def test_which_setting_asks_for_a_network(settings: dict[str, str], why: str) -> None:
    assert meant(settings) == why


@cases(
    ("said", "given_", "odd"),
    [
        ([IB, IB, SOCKET, SOCKET, SOCKET], {}, [((2, 3, 4),
         "fell back to Socket, 2 others use IB")]),
        ([SOCKET, IB], {"NCCL_NET": "Socket"},
         [((1,), "uses IB, 1 other uses Socket, though NCCL_NET=Socket")]),
        ([OFI, IB, SOCKET], {"NCCL_NET": "ib"},
         [((0,), "uses AWS Libfabric, 2 others use IB or Socket, though NCCL_NET=ib"),
          ((2,), "fell back to Socket, 2 others use AWS Libfabric or IB, though NCCL_NET=ib")]),
        ([IB, IB, IB, HALF, HALF], {}, [((3, 4), "uses 1 port, 3 with 2: mlx5_1:1")]),
        ([HALF, HALF, IB], {}, [((2,), "uses 2 ports, 2 with 1: mlx5_1:1 mlx5_3:1")]),
        ([IB, HALF], {"NCCL_IB_HCA": "=mlx5_1:1,mlx5_3:2"},
         [((0, 1), "does not use mlx5_3:2, which NCCL_IB_HCA names")]),
        ([IB, HALF], {"NCCL_IB_HCA": "=mlx5_1"}, []),
        ([IB, HALF], {"NCCL_IB_HCA": "mlx5"}, [((1,), "uses 1 port, 1 with 2: mlx5_1:1")]),
    ],
)  # fmt: skip
def test_how_it_is_told(
    said: list[Any], given_: dict[str, str], odd: list[tuple[tuple[int, ...], str]]
) -> None:
    networks = Networks([given_] * len(said))
    for node, lines in enumerate(said):
        networks.place(node, node)
        for line in lines:
            networks.take(node, line)
    assert [(one.nodes, one.what) for one in networks.differing()] == odd


@given(st.lists(st.text(max_size=60), max_size=4), st.sampled_from([IB[0], SOCKET[2], OFI[0]]))
@examples(60)
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
