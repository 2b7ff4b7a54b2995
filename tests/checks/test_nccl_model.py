"""What NCCL does with one host's devices: the truth table, and the filters' grammar."""

from __future__ import annotations

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from checks.samples import HUNG, MISSING, call, network_host, port_text
from dispatcher.checks.check import Seen
from dispatcher.checks.nccl_model import (
    effective,
    host_net,
    is_on,
    parse_conf,
    parse_environment,
    parse_filter,
    predict,
)
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


@cases(("settings", "expected"), TABLE)
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
    assert net(NCCL_NET="Libfabric") == "Libfabric"  # as its newer versions call themselves
    assert predict(PORTS, NETDEVS, {"NCCL_NET": "Other"}).net == "Other"  # from elsewhere


@given(st.text(alphabet="^=,:mlx5_01-", max_size=30), st.sampled_from(["mlx5_0", "mlx5_10"]))
def test_any_filter_is_one_and_turns_round(text: str, name: str) -> None:
    found = parse_filter(text)
    if not text.startswith("^"):
        assert parse_filter("^" + text).passes(name, 1) != found.passes(name, 1)


@cases(
    ("text", "name", "port", "passes"),
    [
        ("", "mlx5_0", 1, True), ("=", "mlx5_0", 1, True), ("^", "mlx5_0", 1, False),
        ("^=", "mlx5_0", 1, False), ("mlx5_0:1", "mlx5_0", 1, True),
        ("mlx5_0:1", "mlx5_0", 2, False), ("mlx5_0:1", "mlx5_0", -1, True),
        ("mlx5_0:x", "mlx5_0", 2, True), ("mlx5_0:1:9", "mlx5_0", 1, True),
        ("mlx5_0:\u0661", "mlx5_0", 2, True), ("=mlx5", "mlx5_0", 1, False),
        ("^=mlx5", "mlx5_0", 1, True), (",,mlx5_0,", "mlx5_0", 1, True), (":1", "mlx5_0", 1, True),
        ("a,mlx5", "mlx5_0", 1, True), ("^a,mlx5", "mlx5_0", 1, False),
    ],
)  # fmt: skip
def test_filters(text: str, name: str, port: int, passes: bool) -> None:
    assert parse_filter(text).passes(name, port) == passes
    if port == -1:
        assert parse_filter(text).passes(name) == passes


@cases(
    ("text", "on"),
    [("1", True), ("0", False), ("", False), ("yes", False), ("0x0", False), ("0x1", True),
     ("-1", True), ("00", False)],
)  # fmt: skip
def test_numbers_that_switch_something_on(text: str, on: bool) -> None:
    assert is_on(text) == on


@cases(
    ("settings", "line"),
    [
        ({"NCCL_NET": "socket"},
         "NET/Socket : Using [0]ib0:10.2.0.5 [1]ib1:10.3.0.5; OOB ib0:10.2.0.5"),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, "fails: NCCL_NET=IB but NCCL_IB_DISABLE=1"),
        ({"NCCL_NET": "IB", "NCCL_IB_HCA": "x"},
         "fails: NCCL_NET=IB but no port is ACTIVE and let pass"),
        ({"NCCL_NET": "Efa", "NCCL_IB_DISABLE": "1"},
         "NET/Efa : Using [0]ib0:10.2.0.5 [1]ib1:10.3.0.5; OOB ib0:10.2.0.5"),
    ],
)  # fmt: skip
def test_what_nccl_will_say(settings: dict[str, str], line: str) -> None:
    assert predict(PORTS, NETDEVS, settings).line() == line


def test_a_plugin_that_is_named_or_refused() -> None:
    def predicted(**settings: str) -> str:
        return predict(PORTS, NETDEVS, settings, "Efa").line()

    assert predicted(NCCL_NET="Efa").startswith("NET/Efa : Using [0]ib0")
    assert predicted(NCCL_NET="Efa", NCCL_NET_PLUGIN="none").startswith("fails")
    assert predicted(NCCL_NET="IB").startswith("NET/IB")
    assert predicted(NCCL_SOCKET_IFNAME="xy").startswith("fails")


def test_no_more_ports_and_interfaces_than_nccl_takes() -> None:
    ports = tuple(Port(f"mlx5_{n}", 1, "ACTIVE", layer=IB, gbps=2.0) for n in range(40))
    found = predict(ports, NETDEVS, {})
    assert (len(found.ports), found.gbps, found.interfaces) == (32, 64.0, ())
    netdevs = tuple(Netdev(f"eth{n}", True, (f"10.0.0.{n}",)) for n in range(20))
    assert len(predict((), netdevs, {}).interfaces) == 16
    assert predict(PORTS[:1] + (Port("x", 1, "ACTIVE"),), NETDEVS, {}).gbps == 100.0


@cases(
    ("names", "taken"),
    [
        (["lo", "docker0", "virbr0"], ["docker0"]), (["lo", "virbr0"], ["lo"]),
        (["virbr0"], ["virbr0"]), (["lo", "eth0", "docker0", "eth1"], ["eth0", "eth1"]),
        (["lo", "eth0", "ibs0"], ["ibs0"]),
    ],
)  # fmt: skip
def test_which_interfaces_are_taken_where_none_is_named(names: list[str], taken: list[str]) -> None:
    netdevs = tuple(Netdev(name, True, ("10.0.0.1",)) for name in names)
    assert [device.name for device in predict((), netdevs, {}).interfaces] == taken


def test_settings_in_files_and_in_the_environment() -> None:
    assert parse_conf("A=1 # x\n B = 2\n#C=3\nD\n=4\nA=9\n") == {"A": "9", "B": "2"}
    text = "NCCL_A=1=2\nNCCL_C=\nPATH=/x\nGLOO_SOCKET_IFNAME=eth0\nNCCL_D\nXNCCL_E=1\n"
    assert parse_environment(text) == {
        "NCCL_A": "1=2", "NCCL_C": "", "GLOO_SOCKET_IFNAME": "eth0",
    }  # fmt: skip
    assert effective({"A": "1"}, [{"A": "2", "B": "2"}, {"B": "3", "C": "3"}]) == {
        "A": "1", "B": "2", "C": "3",
    }  # fmt: skip


HOST = (
    port_text("mlx5_0", "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", "InfiniBand", "ib0")
    + """\
== netdevs
netdev eth0 flags=1043 mtu=1500 type=1 addresses=10.0.0.5
== nccl_env
NCCL_DEBUG=INFO
NCCL_NET=IB
== /home/me/.nccl.conf
NCCL_NET=IB
NCCL_DEBUG=WARN
== /etc/nccl.conf
NCCL_NET=Socket
NCCL_ALGO=Ring
== /proc/net/route
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
"""
)


def test_a_host_s_settings_and_what_hides_them() -> None:
    found = host_net(network_host(HOST))
    assert found.settings == {"NCCL_DEBUG": "INFO", "NCCL_NET": "IB", "NCCL_ALGO": "Ring"}
    assert found.overridden == {"NCCL_DEBUG", "NCCL_NET"}
    of_run = host_net(network_host(HOST), {"NCCL_NET": "Socket", "NCCL_X": "1"})
    assert (of_run.settings["NCCL_NET"], of_run.settings["NCCL_X"]) == ("Socket", "1")
    assert (found.login, found.route, found.plugin, found.unread) == (None, "eth0", None, "")
    assert found.ports == (Port("mlx5_0", 1, "ACTIVE", "LINKUP", 400.0, IB, ("ib0",)),)
    assert found.netdevs == (Netdev("eth0", True, ("10.0.0.5",), 1500),)


@cases(
    ("part", "field", "value"),
    [
        ("login\nSSH_CONNECTION=10.0.0.9 50000 fe80::1%eth0 22", "login", "fe80::1"),
        ("login\nSSH_CONNECTION=10.0.0.9 50000 10.0.0.5 22", "login", "10.0.0.5"),
        ("login\nSSH_CONNECTION=10.0.0.9 x 10.0.0.5 22", "login", None),
        ("libnccl\n\tlibnccl-net.so (libc6) => /opt/ofi/libnccl-net.so", "plugin", "AWS Libfabric"),
        ("libnccl\n\tlibnccl-net.so.0 (libc6) => /opt/amazon/x.so", "plugin", "AWS Libfabric"),
        ("libnccl\n\tlibnccl-net.so (libc6) => /usr/lib/x.so", "plugin", "libnccl-net.so"),
        ("libnccl\nlibnccl.so.2 (libc6) => /usr/lib/libnccl.so.2", "plugin", None),
    ],
)
def test_what_else_a_host_tells(part: str, field: str, value: str | None) -> None:
    assert getattr(host_net(network_host(f"{HOST}== {part}")), field) == value


def test_a_host_that_did_not_answer_all_is_read_as_far_as_it_goes() -> None:
    assert host_net(Seen("n1")).unread == "its network is unknown"
    odd = {"rdma": call([1]), "netdevs": call(7), "login": HUNG, "route": MISSING}
    assert host_net(Seen("n1", odd)).unread
    some = host_net(Seen("n1", {**odd, "netdevs": call("netdev e flags=41 addresses=10.0.0.5")}))
    assert (some.unread, some.ports, [d.name for d in some.netdevs]) == ("", (), ["e"])
