"""RDMA ports and network interfaces out of recorded and broken texts."""

from __future__ import annotations

from dataclasses import replace

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from checks.samples import HUNG, files, host, kernel, said
from dispatcher.checks import network
from dispatcher.checks.check import Level, Reading, Seen, checked
from dispatcher.checks.network import IB, ROCE, UNKNOWN, Netdev, Port

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


@cases(("text", "expected"), TABLE)
def test_the_notations(text: str, expected: tuple[Port, ...]) -> None:
    assert network.parse_ports(text) == expected
    assert network.parse_ports("some banner\n" + text + "$ \n") == expected


def test_two_texts_of_the_same_ports_are_joined() -> None:
    found = network.parse_ports(IBSTATUS + IBDEV)
    assert found[0] == Port("mlx5_0", 1, "ACTIVE", "LINKUP", 100.0, ROCE, ("ens1f0",))


@cases("text", [IBSTATUS, RDMA, RDMA_JSON, IBDEV, SYSFS])
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


@cases(
    ("line", "port"),
    [
        ("a/ports/2|2: INIT|5: LinkUp|200 Gb/sec (4X HDR)|Ethernet|", Port("a", 2, "INIT", "LINKUP",
         200.0, ROCE)),
        ("a/ports/1|4: ACTIVE||||", Port("a", 1, "ACTIVE")),
        ("a/ports/1|4: ACTIVE|5: LinkUp|2.5 Gb/sec|x|e1,e2", Port("a", 1, "ACTIVE", "LINKUP", 2.5,
         UNKNOWN, ("e1", "e2"))),
        ("a/ports/1|4: ACTIVE|5: LinkUp", None),
        ("a/ports/1||5: LinkUp|10 Gb/sec|IB|", None),
        ("  a/ports/1|Active|linkup|9|ib|x  ", Port("a", 1, "ACTIVE", "LINKUP", None, IB, ("x",))),
        ("link a/1 state ACTIVE physical_state LINK_UP", Port("a", 1, "ACTIVE", "LINKUP")),
        ("link a/1 state active physical_state polling lid 4 netdev e", Port("a", 1, "ACTIVE",
         "POLLING", None, IB, ("e",))),
        ("link a/1 state ACTIVE", None),
        ("link a/1 physical_state LINK_UP netdev e", None),
        ("a port 1 ==> e (up)", Port("a", 1, "ACTIVE", netdevs=("e",))),
        ("a port 1 ==> e (Down)", Port("a", 1, "DOWN", netdevs=("e",))),
        ('[{"ifname": "a", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP", "lid": 3}]',
         Port("a", 1, "ACTIVE", "LINKUP", None, IB)),
        ('[{"ifname": "a", "port": true, "state": "ACTIVE", "physical_state": "LINK_UP"}]', None),
        ('[{"ifname": 7, "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP"}]', None),
        ('[{"ifname": "a", "port": 1, "state": ["ACTIVE"], "physical_state": "LINK_UP"}]', None),
    ],
)  # fmt: skip
def test_one_port_of_each_notation(line: str, port: Port | None) -> None:
    assert network.parse_ports(line + "\n") == (() if port is None else (port,))


def test_what_is_no_port_in_json_is_passed_by() -> None:
    good = '{"ifname": "a", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP"}'
    text = f'[{{"broken": \n [{{"x": 1}}]\n[{good}, 7, {good.replace("a", "b", 1)}]\n'
    found = network.parse_ports(text)
    assert {port.device for port in found} >= {"a"}
    assert network.parse_ports(f"[{good}, 7]")[0].name == "a:1"


def test_blocks_of_ibstatus_end_where_the_next_begins() -> None:
    cut = IBSTATUS.replace("\tlink_layer:\t Ethernet\n", "")
    assert [port.device for port in network.parse_ports(cut)] == ["mlx5_1"]
    assert network.parse_ports(IBSTATUS.replace("4: ACTIVE", ""))[0].device == "mlx5_1"


def test_of_two_texts_each_tells_what_the_other_does_not() -> None:
    first = "a/ports/1|4: ACTIVE|||x|e1\n"
    second = "a/ports/1|1: DOWN|5: LinkUp|40 Gb/sec|InfiniBand|e2,e1\n"
    assert network.parse_ports(first + second) == (
        Port("a", 1, "ACTIVE", "LINKUP", 40.0, IB, ("e1", "e2")),
    )
    assert network.parse_ports(second + first) == (
        Port("a", 1, "DOWN", "LINKUP", 40.0, IB, ("e2", "e1")),
    )
    two = network.parse_ports(second + second.replace("ports/1", "ports/2"))
    assert [port.name for port in two] == ["a:1", "a:2"]


def test_lines_of_sysfs_are_made_of_single_files() -> None:
    place = "/sys/class/infiniband/a/"
    files = [
        (place + "ports/1/state", "4: ACTIVE\n"), (place + "ports/1/rate", "100 Gb/sec\n"),
        (place + "ports/2/state", "1: DOWN\n"), (place + "device/net/", "e1\ne2"),
        ("/sys/class/infiniband/b/ports/1/link_layer", "Ethernet\n"), ("/other", "x"),
        (place + "ports/1/counters/x", "9"),
    ]  # fmt: skip
    assert list(network.sysfs_lines(files)) == [
        "a/ports/1|4: ACTIVE||100 Gb/sec||e1,e2", "a/ports/2|1: DOWN||||e1,e2",
        "b/ports/1||||Ethernet|",
    ]  # fmt: skip


@cases(
    ("text", "device"),
    [
        ("netdev e flags=1043 mtu=9000 type=1 addresses=10.0.0.5",
         Netdev("e", True, ("10.0.0.5",), 9000)),
        ("netdev e flags=42", Netdev("e", False)),  # RUNNING without UP
        ("netdev e flags=1", Netdev("e", False)),
        ("netdev e flags=41", Netdev("e", True)),
        ("netdev e flags=zz mtu=-1", Netdev("e", False)),
        ("netdev e mtu=4294967296", Netdev("e", False)),
        ("netdev e mtu=4294967295", Netdev("e", False, (), (1 << 32) - 1)),
        ("netdev e mtu=0", Netdev("e", False, (), 0)),
        ("netdev x flags=41 type=32", Netdev("x", True, ipoib=True)),
        ("netdev ibs1 flags=41 type=1", Netdev("ibs1", True, ipoib=True)),
        ("netdev e flags=41 addresses=fe80::1,fd00::1%e,10.0.0.1/8,junk,10.0.0.1",
         Netdev("e", True, ("10.0.0.1", "fd00::1"))),
        ("ib1              UP             10.0.0.9/24", Netdev("ib1", True, ("10.0.0.9",),
         ipoib=True)),
        ("e@if3            LOWERLAYERDOWN 10.0.0.9/24", Netdev("e", False, ("10.0.0.9",))),
        ("7: e@if3: <UP,LOWER_UP> mtu 1400 qdisc", Netdev("e", True, (), 1400)),
        ("7: e: <LOWER_UP> state UP", Netdev("e", False)),
        ("7: ib0: <UP>", Netdev("ib0", True, ipoib=True)),
    ],
)  # fmt: skip
def test_one_interface_of_each_notation(text: str, device: Netdev) -> None:
    assert network.parse_netdevs(text + "\n") == (device,)


def test_addresses_belong_to_the_interface_above_them() -> None:
    text = (
        "    inet 9.9.9.9/8 scope host\n2: a: <UP> mtu 1\n    inet 10.0.0.1/8\n"
        "    inet6 fe80::1/64\n"
        "3: b: <UP> mtu 2\n    inet6 fd00::1/64\n    inet 10.0.0.2/8\n"
    )
    assert [(d.name, d.addresses, d.address) for d in network.parse_netdevs(text)] == [
        ("a", ("10.0.0.1",), "10.0.0.1"), ("b", ("10.0.0.2", "fd00::1"), "10.0.0.2"),
    ]  # fmt: skip
    assert network.parse_netdevs("netdev\nnetdev \nnoise\n") == ()
    assert not Netdev("a", True).usable
    assert Netdev("a", True).address == ""


@cases(
    ("text", "name"),
    [
        ("default dev ppp0 scope link", "ppp0"),
        ("default via 10.0.0.1", None),
        ("default via dev", None),
        ("x dev e\ndefault dev f", "f"),
        ("e\t00000000\t0\t0\t0\t0\t0\t000000FF", None),  # no default: a mask
        ("e\t00000001\t0\t0\t0\t0\t0\t00000000", None),
        ("e\t00000000\t0\t0\t0\t0\t0", None),
        ("e\t00000000\t0\t0\t0\t0\t0\t00000000", "e"),
    ],
)
def test_which_route_is_the_default(text: str, name: str | None) -> None:
    assert network.default_route(text) == name


NDR, HDR = "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)"


def rdma_of(*ports: tuple[str, str, str, str, str]) -> Reading:
    """(device, state, physical state, rate, layer)."""
    found = {}
    for device, *texts in ports:
        names = ("state", "phys_state", "rate", "link_layer")
        place = f"/sys/class/infiniband/{device}/ports/1/"
        found.update({place + n: t.encode() for n, t in zip(names, texts, strict=True)})
    return files(found)


@cases(
    ("ports", "level", "text", "value"),
    [
        ([("a", "4: ACTIVE", "5: LinkUp", NDR, "InfiniBand"), ("b", "4: ACTIVE", "5: LinkUp", HDR,
         "InfiniBand"),
          ("c", "4: ACTIVE", "5: LinkUp", NDR, "InfiniBand")], Level.OK, "",
           "1 x IB 200 Gb/s, 2 x IB 400 Gb/s"),
        ([("a", "4: ACTIVE", "5: LinkUp", NDR, "InfiniBand"), ("b", "4: ACTIVE", "5: LinkUp", "",
         "Ethernet")],
         Level.OK, "InfiniBand and RoCE: see dispatch check --nccl",
         "1 x IB 400 Gb/s, 1 x RoCE 0 Gb/s"),
        ([("a", "4: ACTIVE", "5: LinkUp", NDR, "InfiniBand"), ("b", "1: DOWN", "3: Disabled", NDR,
         "Ethernet")],
         Level.OK, "", "1 x IB 400 Gb/s"),
        ([("a", "2: INIT", "5: LinkUp", NDR, "InfiniBand"), ("b", "1: DOWN", "5: LinkUp", NDR,
         "InfiniBand"),
          ("c", "4: ACTIVE", "5: LinkUp", NDR, "InfiniBand")], Level.CRITICAL,
         "a:1, b:1: the link is up, but not ACTIVE", "1 x IB 400 Gb/s"),
        ([("a", "1: DOWN", "2: Polling", NDR, "InfiniBand")], Level.OK, "", ""),
    ],
)  # fmt: skip
def test_ports(
    ports: list[tuple[str, str, str, str, str]], level: Level, text: str, value: str
) -> None:
    found = network.ports(host(rdma=rdma_of(*ports)))
    assert (found.level, found.text, found.value) == (level, text, value)


def test_a_host_without_rdma_has_no_ports() -> None:
    assert network.ports(host(rdma=files({}), kernel=kernel(infiniband=None))).value == ""
    assert network.ports(host(rdma=files({}), kernel=kernel(infiniband=b""))).value == ""


def risen(**counts: tuple[int, int]) -> Seen:
    """A host whose counters of ``mlx5_0`` port 1 were, and are, so."""
    place = "/sys/class/infiniband/mlx5_0/ports/1/counters/"
    before, after = (
        {place + name: b"%d\n" % both[at] for name, both in counts.items()} for at in (0, 1)
    )
    return replace(host(ib_counters=files(before)), later={"ib counters": files(after)})


@cases(
    ("counts", "level", "text"),
    [
        (
            {"link_downed": (1, 3), "symbol_error": (1, 9)},
            Level.CRITICAL,
            "link_downed mlx5_0:1 +2",
        ),
        (
            {"link_error_recovery": (0, 1), "link_downed": (0, 1)},
            Level.CRITICAL,
            "link_downed mlx5_0:1 +1; link_error_recovery mlx5_0:1 +1",
        ),
        (
            {"out_of_sequence": (5, 6), "port_rcv_errors": (0, 2)},
            Level.WARN,
            "port_rcv_errors mlx5_0:1 +2; out_of_sequence mlx5_0:1 +1",
        ),
        ({"link_downed": (9, 3)}, Level.OK, ""),  # it was reset
    ],
)
def test_counters_that_rise(counts: dict[str, tuple[int, int]], level: Level, text: str) -> None:
    found = network.counters(risen(**counts))
    assert (found.level, found.text) == (level, text)
    assert (found.remedy is None) == (level == Level.OK)


def test_a_counter_that_was_not_there_before_has_not_risen() -> None:
    seen = risen(link_downed=(0, 7))
    assert network.counters(replace(seen, readings={"ib counters": files({})})).level == Level.OK


@cases(
    ("reading", "level", "text"),
    [
        (said(b"active\n"), Level.OK, ""),
        (said(b"\n", 3), Level.CRITICAL, "the fabric manager is not there"),
        (said(b"failed\n", 3), Level.CRITICAL, "the fabric manager is failed"),
        (said(b"sh: no\n", 126), Level.INCOMPLETE, "could not be read: systemctl: exit code 126"),
        (said(b"", 127), Level.INCOMPLETE, "could not be read: systemctl: not installed"),
        (HUNG, Level.CRITICAL, "systemctl does not answer"),
    ],
)
def test_the_fabric_manager(reading: Reading, level: Level, text: str) -> None:
    seen = host(kernel=kernel(dev=b"nvidia0\nnvidia-nvswitch0"), fabric_manager=reading)
    found = checked(network.manager, seen)
    assert (found.level, found.text[: len(text)], bool(found.text)) == (level, text, bool(text))
    assert found.value == ("active" if level == Level.OK else "")
