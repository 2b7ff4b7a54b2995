"""The advisor: what clusters should be told, and what it says about what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cases import cases

from checks.test_nccl_model import NETDEVS, PORTS
from dispatcher.checks import nccl_log
from dispatcher.checks.check import Level
from dispatcher.checks.nccl_advice import Advice, advise
from dispatcher.checks.nccl_model import (
    HostNet,
    effective,
    from_text,
    parse_conf,
    parse_environment,
    text_of,
)
from dispatcher.checks.network import IB, ROCE, Netdev, Port

HOST = HostNet(PORTS, NETDEVS, login="10.0.0.5", route="eno1")


def cluster(*changes: Mapping[str, object]) -> dict[str, HostNet]:
    hosts = {}
    for number, change in enumerate(changes, 1):
        hosts[f"b{number:02}"] = replace(HOST, **change)  # type: ignore[arg-type]
    return hosts


def said(advice: Advice) -> list[tuple[str, str, str]]:
    return [(m.level.name, ",".join(m.hosts), m.text) for m in advice.messages]


def test_mixed_layers_are_pinned_to_infiniband() -> None:
    advice = advise(cluster({}, {}))
    assert advice.settings == {
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "=mlx5_1,mlx5_3",
        "NCCL_SOCKET_IFNAME": "=eno1",
        "GLOO_SOCKET_IFNAME": "eno1",
    }
    assert advice.own == {}
    assert said(advice) == [
        ("WARN", "b01,b02",
         "InfiniBand and RoCE side by side: mlx5_0:1/RoCE mlx5_1:1/IB mlx5_3:1/IB"),
    ]  # fmt: skip
    assert advice.then["b01"].line() == (
        "NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_3:1/IB; OOB eno1:10.0.0.5"
    )


def test_hosts_with_other_names_get_their_own() -> None:
    other = tuple(replace(p, device=p.device.replace("mlx5", "rocep")) for p in PORTS)
    advice = advise(cluster({}, {"ports": other}))
    assert "NCCL_IB_HCA" not in advice.settings
    assert advice.own["b02"] == {"NCCL_IB_HCA": "=rocep_1,rocep_3"}
    assert advice.of("b02")["NCCL_NET"] == "IB"


def test_roce_only_where_no_host_lacks_it_and_not_the_host_s_own_card() -> None:
    ports = (
        Port("mlx5_0", 1, "ACTIVE", "LINKUP", 100.0, ROCE, ("eno1",)),
        Port("mlx5_1", 1, "ACTIVE", "LINKUP", 400.0, ROCE, ("ens1f0",)),
        Port("mlx5_2", 1, "ACTIVE", "LINKUP", 200.0, ROCE, ("ens1f1",)),
    )
    advice = advise(cluster({"ports": ports}, {"ports": ports}))
    assert advice.settings["NCCL_IB_HCA"] == "=mlx5_1"


def test_only_sockets_where_some_host_has_no_port() -> None:
    advice = advise(cluster({}, {"ports": ()}))
    assert advice.settings["NCCL_NET"] == "Socket"
    assert (
        "CRITICAL",
        "b02",
        "would use Socket, most hosts IB: they cannot talk to each other",
    ) in (said(advice))
    assert {will.net for will in advice.then.values()} == {"Socket"}


def test_a_plugin_is_left_to_itself() -> None:
    advice = advise(cluster({"plugin": "AWS Libfabric"}, {"plugin": "AWS Libfabric"}))
    assert "NCCL_IB_HCA" not in advice.settings
    assert advice.then["b01"].net == "AWS Libfabric"


ONE = [
    ({"NCCL_SOCKET_IFNAME": "eth9"}, "CRITICAL", "NCCL does not start: NCCL_SOCKET_IFNAME=eth9"),
    ({"NCCL_NET": "IB", "NCCL_IB_HCA": "mlx5_9"}, "CRITICAL", "NCCL does not start: NCCL_NET=IB"),
    ({"NCCL_IB_HCA": "mlx5_9"}, "CRITICAL", "falls back to Socket silently"),
    ({"NCCL_SOCKET_IFNAME": "^ib"}, "CRITICAL", "ranks would meet at 127.0.0.1 (lo)"),
    ({"NCCL_SOCKET_IFNAME": "^ib"}, "WARN", "takes lo and docker too"),
    (
        {"NCCL_IB_HCA": "=mlx5_1,mlx5_2"},
        "WARN",
        "names mlx5_2, which is DOWN: the job runs with 200",
    ),
    ({"NCCL_IB_HCA": "=mlx5_1,mlx5_7"}, "WARN", "names mlx5_7, which is not there"),
    ({"NCCL_IB_DISABLE": "1"}, "WARN", "NCCL_IB_DISABLE=1 although mlx5_0:1"),
    ({"NCCL_IB_DISABLE": "1"}, "WARN", "IP over InfiniBand (ib0 ib1)"),
    ({"NCCL_ALGO": "Ring"}, "WARN", "NCCL_ALGO=Ring is for finding faults"),
    ({"NCCL_COMM_ID": "10.0.0.1:1"}, "WARN", "NCCL_COMM_ID is set"),
    ({"NCCL_DEBUG_FILE": "/tmp/log"}, "WARN", "ranks overwrite each other's file"),
    ({"NCCL_IB_GID_INDEX": "3"}, "WARN", "NCCL_IB_GID_INDEX=3"),
]


@cases(("settings", "level", "words"), ONE)
def test_what_is_wrong_with_settings(settings: dict[str, str], level: str, words: str) -> None:
    advice = advise(cluster({"settings": settings}, {"settings": settings}))
    assert any(lv == level and words in text for lv, _, text in said(advice)), said(advice)


def test_good_settings_need_no_words() -> None:
    good = {"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_1,mlx5_3", "NCCL_SOCKET_IFNAME": "=eno1",
            "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}  # fmt: skip
    advice = advise(cluster({"settings": good}, {"settings": good}))
    assert advice.messages == ()
    assert advice.now == advice.then


def test_the_odd_host_is_named() -> None:
    slow = tuple(replace(p, gbps=100.0) if p.layer == IB else p for p in PORTS)
    one = tuple(p for p in PORTS if p.device != "mlx5_3")
    small = tuple(replace(d, mtu=1500) if d.name == "ib0" else d for d in NETDEVS)
    usual = {"netdevs": tuple(replace(d, mtu=4092) for d in NETDEVS), "version": "2.27.5"}
    found = said(
        advise(
            cluster(
                usual, usual, usual, {**usual, "ports": slow}, {**usual, "ports": one},
                {**usual, "netdevs": small}, {**usual, "version": "2.18.1"},
                {**usual, "settings": {"NCCL_TIMEOUT": "9"}}, {"unread": "no answer"},
            )
        )
    )  # fmt: skip
    assert ("WARN", "b04", "its ports run at 100 Gb/s, on most hosts at 200") in found
    assert ("WARN", "b05", "has 1 good ports, most hosts 2") in found
    assert ("WARN", "b06", "MTU 1500, on most hosts 4092") in found
    assert ("CRITICAL", "b07", "has NCCL 2.18.1, most hosts 2.27.5") in found
    assert ("WARN", "b08", "NCCL_TIMEOUT=9, on most hosts (unset)") in found
    assert ("INCOMPLETE", "b09", "no answer") in found


def test_a_link_that_is_up_without_a_subnet_manager() -> None:
    ports = (replace(PORTS[1], state="INIT"), PORTS[3])
    advice = advise(cluster({"ports": ports}))
    assert said(advice) == [("WARN", "b01", "mlx5_1:1 has its link up but is INIT")]
    assert advice.messages[0].remedy == "no subnet manager answers it"


def test_the_environment_goes_before_the_files() -> None:
    files = [parse_conf("NCCL_NET=IB # why\nNCCL_IB_HCA=a\n\n# x\n"), {"NCCL_NET": "Socket"}]
    env = parse_environment("NCCL_IB_HCA==b\nHOME=/root\nexport NCCL_DEBUG=INFO\n")
    assert effective(env, files) == {"NCCL_IB_HCA": "=b", "NCCL_DEBUG": "INFO", "NCCL_NET": "IB"}


PASTED = """\
$ rdma link
link mlx5_1/1 subnet_prefix fe80:0000:0000:0000 lid 12 sm_lid 1 lmc 0 state ACTIVE physical_state LINK_UP
$ ip -br addr
lo               UNKNOWN        127.0.0.1/8
eno1             UP             10.0.0.5/24
$ ip route
default via 10.0.0.1 dev eno1
SSH_CONNECTION=10.0.0.9 50000 10.0.0.5 22
NCCL_IB_HCA=mlx5_1
# /etc/nccl.conf
NCCL_IB_HCA=mlx5_0
NCCL_DEBUG=WARN
"""  # noqa: E501


def test_a_pasted_text_is_a_host() -> None:
    host = from_text(PASTED)
    assert [p.name for p in host.ports] == ["mlx5_1:1"]
    assert host.settings == {"NCCL_IB_HCA": "mlx5_1", "NCCL_DEBUG": "WARN"}
    assert host.overridden == {"NCCL_IB_HCA"}
    assert (host.login, host.route, host.unread) == ("10.0.0.5", "eno1", "")
    assert advise({"b01": host}).settings["NCCL_IB_HCA"] == "=mlx5_1"
    assert from_text("nothing\n").unread


def test_a_survey_is_read_as_a_pasted_text() -> None:
    folder = "/sys/class/infiniband/mlx5_0/"
    readings = {
        "rdma": [
            [folder + "ports/1/state", "4: ACTIVE\n"],
            [folder + "ports/1/phys_state", "5: LinkUp\n"],
            [folder + "ports/1/rate", "400 Gb/sec (4X NDR)\n"],
            [folder + "ports/1/link_layer", "InfiniBand\n"],
            [folder + "device/net/", "ib0"],
        ],
        "netdevs": "netdev eno1 flags=1043 mtu=1500 type=1 addresses=10.0.0.7",
        "route": [["/proc/net/route", "eno1\t00000000\t0100000A\t3\t0\t0\t0\t00000000\t0\t0\t0\n"]],
        "nccl_env": "NCCL_DEBUG=INFO",
        "nccl_conf": [["/etc/nccl.conf", "NCCL_NET=IB\n"]],
        "libnccl": "\tlibnccl-net.so (libc6,x86-64) => /opt/amazon/ofi-nccl/lib/libnccl-net.so\n",
    }  # fmt: skip
    host = from_text(text_of(readings))
    assert host.ports == (Port("mlx5_0", 1, "ACTIVE", "LINKUP", 400.0, IB, ("ib0",)),)
    assert host.netdevs == (Netdev("eno1", True, ("10.0.0.7",), 1500),)
    assert host.settings == {"NCCL_DEBUG": "INFO", "NCCL_NET": "IB"}
    assert (host.route, host.plugin) == ("eno1", "AWS Libfabric")
    assert from_text(text_of({})).unread


LOG = """\
[0] b01:4242:4300 [0] NCCL INFO Bootstrap: Using eno1:10.0.0.1<0>
[0] b01:4242:4300 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_3:1/IB [RO]; OOB eno1:10.0.0.1<0>
[0] b01:4242:4300 [0] NCCL INFO Initialized NET plugin IB
[8] b07:4242:4300 [0] NCCL INFO NET/IB : No device found.
[8] b07:4242:4300 [0] NCCL INFO NET/IB : Using [RO]; OOB eno1:10.0.0.7<0>
[8] b07:4242:4300 [0] NCCL INFO NET/Socket : Using [0]eno1:10.0.0.7<0>
[8] b07:4242:4300 [0] NCCL INFO Using network Socket
[9] b08:4242:4300 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/IB [RO]; OOB eno1:10.0.0.8<0>
[9] step 1 loss 3
"""  # noqa: E501


def test_a_log_tells_who_fell_back() -> None:
    heard = nccl_log.read(LOG.splitlines())
    assert {host: said.net for host, said in heard.items()} == {
        "b01": "IB", "b07": "Socket", "b08": "IB",
    }  # fmt: skip
    meant = ("IB", ("mlx5_1:1", "mlx5_3:1"))
    expected = dict.fromkeys(("b01", "b07", "b08", "b09"), meant)
    assert nccl_log.differences(expected, heard) == [
        ("b07", "fell back to Socket"),
        ("b08", "does not use mlx5_3:1"),
    ]


def test_messages_come_with_the_gravest_first() -> None:
    advice = advise(cluster({"settings": {"NCCL_ALGO": "Ring", "NCCL_IB_HCA": "mlx5_9"}}))
    levels = [message.level for message in advice.messages]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] == Level.CRITICAL


@cases(
    ("settings", "remedy"),
    [
        ({"NCCL_SOCKET_IFNAME": "eth9"}, "name one that is up with an address; there is: "),
        ({"NCCL_NET": "IB", "NCCL_IB_HCA": "mlx5_9"}, None),
    ],
)
def test_an_interface_that_is_not_there_is_answered_with_those_that_are(
    settings: dict[str, str], remedy: str | None
) -> None:
    (message,) = [m for m in advise(cluster({"settings": settings})).messages if "start" in m.text]
    if remedy is None:
        assert message.remedy is None
    else:
        there = " ".join(device.name for device in NETDEVS if device.usable)
        assert message.remedy == remedy + there
