"""RDMA ports, interfaces and routes out of what hosts tell, and what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from checks.samples import HUNG, files, host, kernel, said
from dispatcher.checks import network
from dispatcher.checks.check import Level, Reading, Seen, checked
from dispatcher.checks.network import IB, OTHER, ROCE, UNKNOWN, Netdev, Port

PLACE = "/sys/class/infiniband/"
PORTS = {
    "a/ports/1/state": "4: ACTIVE\n", "a/ports/1/phys_state": "5: LinkUp\n",
    "a/ports/1/rate": "400 Gb/sec (4X NDR)\n", "a/ports/1/link_layer": "InfiniBand\n",
    "a/ports/2/state": "1: DOWN\n", "a/ports/2/phys_state": "3: Disabled\n",
    "a/ports/2/link_layer": "InfiniBand\n", "a/device/net/": "e1\ne2",
    "b/ports/1/state": "2: INIT\n", "b/ports/1/rate": "2.5 Gb/sec (1X SDR)\n",
    "b/ports/1/link_layer": "Ethernet\n", "c/ports/1/state": "Active", "c/ports/1/link_layer": "x",
    "d/ports/1/link_layer": "Ethernet", "e/ports/1/state": "4: ACTIVE",
    "e/ports/1/link_layer": "Unknown", "a/ports/1/counters/x": "9",
}  # fmt: skip


def test_ports_are_read_from_the_kernel_s_files() -> None:
    found = network.read_ports({PLACE + name: text for name, text in PORTS.items()} | {"/o": "x"})
    assert found == (
        Port("a", 1, "ACTIVE", "LINKUP", 400.0, IB, ("e1", "e2")),
        Port("a", 2, "DOWN", "DISABLED", None, IB, ("e1", "e2")),
        Port("b", 1, "INIT", "", 2.5, ROCE),
        Port("c", 1, "ACTIVE", "", None, UNKNOWN),  # and nothing of d, whose state is not known
        Port("e", 1, "ACTIVE", "", None, OTHER),
    )
    assert [port.name for port in found if port.active] == ["a:1", "c:1", "e:1"]


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    """And what is right after it, on a line of its own, is read as well."""
    network.read_ports({text: text, f"{PLACE}a/ports/1/state": text, f"{PLACE}a/device/net": text})
    network.parse_netdevs("netdev a " + text)
    assert network.parse_netdevs(f"netdev a {text}\nnetdev ib0 flags=41")[-1].name == "ib0"
    network.default_route(text)


@cases(
    ("line", "device"),
    [
        ("netdev e flags=1043 mtu=9000 type=1 addresses=10.0.0.5",
         Netdev("e", True, ("10.0.0.5",), 9000)),
        ("netdev e flags=42", Netdev("e", False)),  # RUNNING without UP
        ("netdev e flags=1", Netdev("e", False)),
        ("netdev e flags=zz mtu=-1", Netdev("e", False)),
        ("netdev e mtu=4294967296", Netdev("e", False)),
        ("netdev e mtu=4294967295", Netdev("e", False, (), (1 << 32) - 1)),
        ("netdev x flags=41 type=32", Netdev("x", True, ipoib=True)),
        ("netdev ibs1 flags=41 type=1", Netdev("ibs1", True, ipoib=True)),
        ("netdev e flags=41 addresses=fe80::1,fd00::1%e,10.0.0.1/8,junk,10.0.0.1",
         Netdev("e", True, ("10.0.0.1", "fd00::1"))),
        ("netdev e flags=41 lower=f,g;h", Netdev("e", True, lower=("f",))),
        ("netdev", None), ("netdev a;b flags=41", None), ("noise", None),
    ],
)  # fmt: skip
def test_interfaces(line: str, device: Netdev | None) -> None:
    assert network.parse_netdevs(f"{line}\n") == (() if device is None else (device,))


def test_an_interface_without_an_address_is_of_no_use() -> None:
    assert (Netdev("a", True).usable, Netdev("a", True).address) == (False, "")
    assert Netdev("a", True, ("10.0.0.1",)).usable


@cases(
    ("text", "name"),
    [
        ("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
         "eno1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
         "eno2\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n", "eno2"),
        ("e\t00000000\t0\t0\t0\t0\t0\t000000FF", None),  # no default: a mask
        ("e\t00000001\t0\t0\t0\t0\t0\t00000000", None),
        ("e\t00000000\t0\t0\t0\t0\t0", None),
    ],
)  # fmt: skip
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


@cases(
    ("check", "seen", "level", "words"),
    [
        (network.ports, host(rdma=files({})), Level.INCOMPLETE, "could not be read"),
        (network.ports, host(rdma=HUNG), Level.INCOMPLETE, "no answer"),
        (network.counters, host(ib_counters=files({})), Level.INCOMPLETE, "not read"),
        (network.manager, host(), Level.OK, "no NVSwitch"),
    ],
)
def test_a_fabric_that_is_not_read(check: Any, seen: Seen, level: Level, words: str) -> None:
    found = checked(check, seen)
    assert (found.level, words in found.text) == (level, True), found


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
        ({"link_downed": (3, 3), "port_xmit_data": (0, 9)}, Level.OK, ""),
    ],
)
def test_counters_that_rise(counts: dict[str, tuple[int, int]], level: Level, text: str) -> None:
    found = network.counters(risen(**counts))
    assert (found.level, found.text) == (level, text)
    assert (found.remedy is None) == (level == Level.OK)


def test_a_counter_that_was_not_there_before_has_not_risen() -> None:
    seen = risen(link_downed=(0, 7))
    assert network.counters(replace(seen, readings={"ib counters": files({})})).level == Level.OK
    place = "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
    odd = replace(seen, later={"ib counters": files({place: b"?"})})
    assert "'?'" in checked(network.counters, odd).text


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
