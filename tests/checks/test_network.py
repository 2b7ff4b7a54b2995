"""RDMA ports and network interfaces out of recorded and broken texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.checks import network
from dispatcher.checks.network import IB, ROCE, UNKNOWN, Port

IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:506b:4bff:fe2b:36f4
\tbase lid:\t 0x0
\tsm lid:\t\t 0x0
\tstate:\t\t 4: ACTIVE
\tphys state:\t 5: LinkUp
\trate:\t\t 100 Gb/sec (4X EDR)
\tlink_layer:\t Ethernet

Infiniband device 'mlx5_1' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:506b:4bff:fe2b:36f5
\tbase lid:\t 0x11
\tsm lid:\t\t 0x1
\tstate:\t\t 1: DOWN
\tphys state:\t 3: Disabled
\trate:\t\t 2.5 Gb/sec (1X SDR)
\tlink_layer:\t InfiniBand

"""
RDMA = """\
link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0np0
link mlx5_1/1 subnet_prefix fe80:0000:0000:0000 lid 12 sm_lid 1 lmc 0 state ACTIVE physical_state LINK_UP
link mlx5_2/1 state DOWN physical_state DISABLED netdev ens1f1np1
"""  # noqa: E501
RDMA_JSON = """\
[{"ifindex":0,"ifname":"mlx5_0","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":"eth1","netdev_index":3},
{"ifindex":1,"ifname":"mlx5_1","port":1,"subnet_prefix":"fe80::","lid":12,"sm_lid":1,"lmc":0,"state":"DOWN","physical_state":"POLLING"}]
"""
IBDEV = "mlx5_0 port 1 ==> ens1f0 (Up)\nmlx5_1 port 1 ==> ib0 (Down)\n"
SYSFS = """\
mlx5_0/ports/1|4: ACTIVE|5: LinkUp|400 Gb/sec (4X NDR)|InfiniBand|ib0,|1
mlx5_bond_0/ports/1|4: ACTIVE|5: LinkUp|200 Gb/sec (2X NDR)|Ethernet|bond0|-1
mlx5_9/ports/1|1: DOWN|2: Polling|10 Gb/sec (4X SDR)|InfiniBand||0
"""

TABLE = [
    (
        IBSTATUS,
        (
            Port("mlx5_0", 1, "ACTIVE", "LINKUP", 100.0, ROCE),
            Port("mlx5_1", 1, "DOWN", "DISABLED", 2.5, IB),
        ),
    ),
    (
        RDMA,
        (
            Port("mlx5_0", 1, "ACTIVE", "LINKUP", None, ROCE, ("ens1f0np0",)),
            Port("mlx5_1", 1, "ACTIVE", "LINKUP", None, IB),
            Port("mlx5_2", 1, "DOWN", "DISABLED", None, ROCE, ("ens1f1np1",)),
        ),
    ),
    (
        RDMA_JSON,
        (
            Port("mlx5_0", 1, "ACTIVE", "LINKUP", None, ROCE, ("eth1",)),
            Port("mlx5_1", 1, "DOWN", "POLLING", None, IB),
        ),
    ),
    (
        IBDEV,
        (
            Port("mlx5_0", 1, "ACTIVE", "", None, UNKNOWN, ("ens1f0",)),
            Port("mlx5_1", 1, "DOWN", "", None, UNKNOWN, ("ib0",)),
        ),
    ),
    (
        SYSFS,
        (
            Port("mlx5_0", 1, "ACTIVE", "LINKUP", 400.0, IB, ("ib0",)),
            Port("mlx5_bond_0", 1, "ACTIVE", "LINKUP", 200.0, ROCE, ("bond0",)),
            Port("mlx5_9", 1, "DOWN", "POLLING", 10.0, IB),
        ),
    ),
    ("Fatal error:  No devices\n", ()),
    ("bash: ibstatus: command not found\n", ()),
    ("", ()),
]


@pytest.mark.parametrize(("text", "expected"), TABLE)
def test_the_notations(text: str, expected: tuple[Port, ...]) -> None:
    assert network.parse_ports(text) == expected
    assert network.parse_ports("some banner\n" + text + "$ \n") == expected


def test_two_texts_of_the_same_ports_are_joined() -> None:
    found = network.parse_ports(IBSTATUS + IBDEV)
    assert found[0] == Port("mlx5_0", 1, "ACTIVE", "LINKUP", 100.0, ROCE, ("ens1f0",))


@pytest.mark.parametrize("text", [IBSTATUS, RDMA, RDMA_JSON, IBDEV, SYSFS])
def test_a_text_that_breaks_off_tells_of_whole_ports_only(text: str) -> None:
    whole = {port.device: port.state for port in network.parse_ports(text)}
    told = 0
    for end in range(len(text) + 1):
        found = network.parse_ports(text[:end])
        for port in found:
            assert whole[port.device].startswith(port.state)
            assert port.state
        if text[:end].endswith("\n"):  # what was told by a whole line stays told
            assert len(found) >= told
            told = len(found)
    assert told == len(whole)


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    """And what is right after it, on a line of its own, is read as well."""
    assert {port.device for port in network.parse_ports(f"{text}\n{RDMA}")} >= {
        "mlx5_0",
        "mlx5_2",
    }
    network.parse_ports("Infiniband device 'a' port 1 status:\n" + text)
    network.parse_netdevs("netdev a " + text)
    assert network.parse_netdevs(f"netdev a {text}\n{OWN}")[-1].name == "ib0"
    assert network.default_route("default via 10.0.0.1 dev eth0\n" + text) == "eth0"


BRIEF = """\
lo               UNKNOWN        127.0.0.1/8 ::1/128
eno1             UP             10.0.0.5/24 fe80::1/64
ib0              DOWN
docker0@if3      UP             172.17.0.1/16
"""
LONG = """\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
2: eno1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default qlen 1000
    inet6 fd00::5/64 scope global
    inet 10.0.0.5/24 brd 10.0.0.255 scope global eno1
3: eno2: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc mq state DOWN
"""
OWN = """\
netdev lo flags=49 mtu=65536 type=772 addresses=127.0.0.1
netdev eno1 flags=1043 mtu=9000 speed=100000 type=1 addresses=10.0.0.5,fd00:0000:0000:0000:0000:0000:0000:0005
netdev ib0 flags=1003 mtu=4092 speed=-1 type=32 addresses=
"""  # noqa: E501


def test_interfaces_in_three_notations() -> None:
    brief, long, own = map(network.parse_netdevs, (BRIEF, LONG, OWN))
    assert [(d.name, d.usable) for d in brief] == [
        ("lo", True), ("eno1", True), ("ib0", False), ("docker0", True),
    ]  # fmt: skip
    assert [(d.name, d.running, d.mtu) for d in long] == [
        ("lo", True, 65536), ("eno1", True, 9000), ("eno2", False, 1500),
    ]  # fmt: skip
    assert long[1].addresses == own[1].addresses == ("10.0.0.5", "fd00::5")
    assert (own[1].ipoib, own[2].ipoib, own[2].running) == (False, True, False)


def test_the_default_route() -> None:
    kernel = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eno1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "eno2\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    )
    assert network.default_route(kernel) == "eno2"
    assert network.default_route("default via 10.0.0.1 dev eno1 proto dhcp\n") == "eno1"
    assert network.default_route("10.0.0.0/24 dev eno1\n") is None
