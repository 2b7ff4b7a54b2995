"""The advisor: what clusters should be told, and what it says about what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cases import cases

from checks.test_nccl_model import NETDEVS, PORTS
from dispatcher.checks.check import Level
from dispatcher.checks.nccl_advice import Advice, advise
from dispatcher.checks.nccl_model import HostNet
from dispatcher.checks.network import IB, ROCE, Port

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
    usual = {"netdevs": tuple(replace(d, mtu=4092) for d in NETDEVS)}
    found = said(
        advise(
            cluster(
                usual, usual, usual, {**usual, "ports": slow}, {**usual, "ports": one},
                {**usual, "netdevs": small},
                {**usual, "settings": {"NCCL_TIMEOUT": "9"}}, {"unread": "no answer"},
            )
        )
    )  # fmt: skip
    assert ("WARN", "b04", "its ports run at 100 Gb/s, on most hosts at 200") in found
    assert ("WARN", "b05", "has 1 good ports, most hosts 2") in found
    assert ("WARN", "b06", "MTU 1500, on most hosts 4092") in found
    assert ("WARN", "b07", "NCCL_TIMEOUT=9, on most hosts (unset)") in found
    assert ("INCOMPLETE", "b08", "no answer") in found


def test_a_link_that_is_up_without_a_subnet_manager() -> None:
    ports = (replace(PORTS[1], state="INIT"), PORTS[3])
    advice = advise(cluster({"ports": ports}))
    assert said(advice) == [("WARN", "b01", "mlx5_1:1 has its link up but is INIT")]
    assert advice.messages[0].remedy == "no subnet manager answers it"


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
