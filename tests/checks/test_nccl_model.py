"""What NCCL does with one host's devices: the truth table, and the filters' grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.checks.nccl_model import parse_filter, predict
from dispatcher.checks.network import IB, ROCE, Netdev, Port

PORTS = (
    Port("mlx5_0", 1, "ACTIVE", "LINKUP", 100.0, ROCE, ("ens1f0",)),
    Port("mlx5_1", 1, "ACTIVE", "LINKUP", 200.0, IB, ("ib0",)),
    Port("mlx5_2", 1, "DOWN", "DISABLED", 40.0, ROCE, ("ens1f1",)),
    Port("mlx5_3", 1, "ACTIVE", "LINKUP", 200.0, IB, ("ib1",)),
)
NETDEVS = (
    Netdev("lo", True, ("127.0.0.1",)),
    Netdev("eno1", True, ("10.0.0.5",)),
    Netdev("ens1f0", True, ("10.1.0.5",)),
    Netdev("ib0", True, ("10.2.0.5",), ipoib=True),
    Netdev("ib1", True, ("10.3.0.5",), ipoib=True),
    Netdev("docker0", False, ("172.17.0.1",)),
)
BOTH = "IB mlx5_1:1/IB mlx5_3:1/IB"
SOCKETS = "Socket ib0 ib1"

#: settings -> what NCCL then uses
TABLE = [
    ({}, "IB mlx5_0:1/RoCE mlx5_1:1/IB mlx5_3:1/IB mixed"),
    ({"NCCL_IB_HCA": "=mlx5_1,mlx5_3"}, BOTH),
    ({"NCCL_IB_HCA": "^=mlx5_0"}, BOTH),
    ({"NCCL_IB_HCA": "=mlx5_1,mlx5_2"}, "IB mlx5_1:1/IB"),
    ({"NCCL_IB_HCA": "=mlx5_2"}, SOCKETS),
    ({"NCCL_IB_HCA": "mlx5_9"}, SOCKETS),
    ({"NCCL_IB_HCA": "mlx5_1:2"}, SOCKETS),
    ({"NCCL_IB_HCA": "^"}, SOCKETS),
    ({"NCCL_IB_HCA": "=mlx5"}, SOCKETS),
    ({"NCCL_IB_HCA": ""}, "IB mlx5_0:1/RoCE mlx5_1:1/IB mlx5_3:1/IB mixed"),
    ({"NCCL_IB_HCA": "=mlx5_0"}, "IB mlx5_0:1/RoCE"),
    ({"NCCL_IB_HCA": "mlx5_9", "NCCL_NET": "IB"}, "fatal"),
    ({"NCCL_IB_DISABLE": "1"}, SOCKETS),
    ({"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=eno1"}, "Socket eno1"),
    ({"NCCL_SOCKET_IFNAME": "eth9"}, "fatal"),
    ({"NCCL_SOCKET_IFNAME": "eth9", "NCCL_IB_DISABLE": "1"}, "fatal"),
    ({"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "^ib"}, "Socket lo eno1 ens1f0"),
    ({"NCCL_IB_DISABLE": "1", "NCCL_NET": "IB"}, "fatal"),
]


@pytest.mark.parametrize(("settings", "expected"), TABLE)
def test_the_truth_table(settings: dict[str, str], expected: str) -> None:
    found = predict(PORTS, NETDEVS, settings)
    if found.fatal:
        words = "fatal"
    else:
        used = [f"{p.name}/{p.layer}" for p in found.ports] or [d.name for d in found.interfaces]
        words = " ".join([found.net or "", *used, *(["mixed"] if found.mixed else [])])
    assert words == expected


def test_the_ranks_meet_over_the_first_interface_that_fits() -> None:
    def bootstrap(**settings: str) -> str:
        device = predict(PORTS, NETDEVS, settings).bootstrap
        assert device is not None
        return device.name

    assert bootstrap() == "ib0"
    assert bootstrap(NCCL_SOCKET_IFNAME="=eno1") == "eno1"
    assert bootstrap(NCCL_SOCKET_IFNAME="e") == "ib0"  # one character is ignored
    assert bootstrap(NCCL_SOCKET_IFNAME="^ib") == "lo"


def test_without_anything_else_even_lo_is_taken() -> None:
    assert (
        predict((), NETDEVS[:1], {}).line()
        == "NET/Socket : Using [0]lo:127.0.0.1; OOB lo:127.0.0.1"
    )
    assert predict((), (), {}).fatal == "no socket interface found"
    for wanted, what in (("ib", "NCCL_SOCKET_IFNAME=ib: "), ("^", "")):
        found = predict((), (), {"NCCL_SOCKET_IFNAME": wanted})
        assert found.fatal == f"{what}no socket interface found"


def test_a_prefix_takes_the_longer_names_too() -> None:
    ports = tuple(Port(f"mlx5_{n}", 1, "ACTIVE", layer=IB) for n in (1, 2, 10, 11))
    named = [p.device for p in predict(ports, NETDEVS, {"NCCL_IB_HCA": "mlx5_1"}).ports]
    assert named == ["mlx5_1", "mlx5_10", "mlx5_11"]


def test_a_plugin_goes_first_unless_it_is_refused() -> None:
    def net(**settings: str) -> str | None:
        return predict(PORTS, NETDEVS, settings, plugin="AWS Libfabric").net

    assert net() == "AWS Libfabric"
    assert net(NCCL_IB_DISABLE="1") == "AWS Libfabric"
    assert net(NCCL_NET_PLUGIN="none") == "IB"
    assert net(NCCL_NET="Socket") == "Socket"
    assert predict(PORTS, NETDEVS, {"NCCL_NET": "Other"}).fatal


def test_the_line_is_nccl_s_own() -> None:
    found = predict(PORTS, NETDEVS, {"NCCL_IB_HCA": "=mlx5_1", "NCCL_SOCKET_IFNAME": "=eno1"})
    assert found.line() == "NET/IB : Using [0]mlx5_1:1/IB; OOB eno1:10.0.0.5"


@given(st.text(alphabet="^=,:mlx5_01-", max_size=30), st.sampled_from(["mlx5_0", "mlx5_10"]))
def test_any_filter_is_one_and_turns_round(text: str, name: str) -> None:
    found = parse_filter(text)
    if not text.startswith("^"):
        assert parse_filter("^" + text).passes(name, 1) != found.passes(name, 1)
