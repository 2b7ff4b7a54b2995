"""The advice on NCCL's settings, and what is wrong with those that hosts have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cases import cases

from checks.test_nccl_model import NETDEVS, PORTS
from dispatcher.checks.nccl_advice import DEBUGGING, NcclAdvice, advise
from dispatcher.checks.nccl_model import HostNet
from dispatcher.checks.network import IB, OTHER, ROCE, Netdev, Port

HOST = HostNet(PORTS, NETDEVS, login="10.0.0.5", route="eno1")


def cluster(*changes: Mapping[str, object]) -> dict[str, HostNet]:
    hosts = {}
    for number, change in enumerate(changes, 1):
        hosts[f"b{number:02}"] = replace(HOST, **change)  # type: ignore[arg-type]
    return hosts


def said(advice: NcclAdvice) -> list[tuple[str, str, str]]:
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


def test_good_settings_need_no_words() -> None:
    good = {"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_1,mlx5_3", "NCCL_SOCKET_IFNAME": "=eno1",
            "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}  # fmt: skip
    advice = advise(cluster({"settings": good}, {"settings": good}))
    assert advice.messages == ()
    assert advice.now == advice.then


#: one port of each kind, so that nothing is to be said of them
ONE = (Port("mlx5_0", 1, "ACTIVE", "LINKUP", 200.0, IB, ("ib0",)),)
TEN = (*ONE, replace(ONE[0], device="mlx5_1"), replace(ONE[0], device="mlx5_10"))
ETH = Netdev("eno1", True, ("10.0.0.5",), 1500)
IPOIB = Netdev("ib0", True, ("10.2.0.5",), 4092, ipoib=True)
PLAIN = HostNet(ONE, (ETH,), {}, login="10.0.0.5")
INNER_REMEDY = "NCCL_SOCKET_IFNAME= the interface between the hosts"


def told(
    settings: Mapping[str, str], count: int = 2, **changes: Any
) -> list[tuple[str, str, str | None]]:
    """(level, text, remedy) of what is said of so many alike hosts."""
    host = replace(PLAIN, settings=settings, **changes)
    advice = advise({f"h{n}": host for n in range(count)})
    hosts = tuple(f"h{n}" for n in range(count))
    assert {message.hosts for message in advice.messages} <= {hosts}
    return [(m.level.name, m.text, m.remedy) for m in advice.messages]


def test_nothing_is_said_of_a_plain_host() -> None:
    assert told({}) == told({}, count=1) == []


@cases(
    ("settings", "changes", "level", "text", "remedy"),
    [
        ({"NCCL_SOCKET_IFNAME": "eth9"}, {}, "CRITICAL",
         "NCCL does not start: NCCL_SOCKET_IFNAME=eth9: no socket interface found",
         "name one that is up with an address; there is: eno1"),
        ({"NCCL_SOCKET_IFNAME": "eth9"}, {"netdevs": (replace(ETH, running=False),)}, "CRITICAL",
         "NCCL does not start: NCCL_SOCKET_IFNAME=eth9: no socket interface found",
         "name one that is up with an address; there is: none"),
        ({"NCCL_NET": "gIB"}, {}, "WARN",
         "NCCL_NET=gIB: ldconfig knows no plugin, and without one NCCL does not start",
         "LD_LIBRARY_PATH= the folder of libnccl-net.so"),
        ({"NCCL_NET": "x", "NCCL_NET_PLUGIN": "none"}, {}, "CRITICAL",
         "NCCL does not start: NCCL_NET=x but NCCL_NET_PLUGIN=none", None),
        ({"NCCL_IB_HCA": "x"}, {}, "CRITICAL",
         "NCCL_IB_HCA=x: no such port is ACTIVE, so NCCL falls back to Socket silently",
         "NCCL_NET=IB makes that an error"),
        ({"NCCL_IB_DISABLE": "1"}, {}, "WARN", "NCCL_IB_DISABLE=1 although mlx5_0:1 are ACTIVE",
         "unset it"),
        ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "x"}, {}, "WARN",
         "NCCL_IB_DISABLE=1 although mlx5_0:1 are ACTIVE", "unset it"),
        ({"NCCL_NET": "Socket"}, {"netdevs": (ETH, IPOIB)}, "WARN",
         "data goes by IP over InfiniBand (ib0), several times slower", None),
        ({"NCCL_SOCKET_IFNAME": "=lo"}, {"netdevs": (Netdev("lo", True, ("127.0.0.1",)), ETH)},
         "CRITICAL", "ranks would meet at 127.0.0.1 (lo), which no other host reaches",
         INNER_REMEDY),
        ({"NCCL_SOCKET_IFNAME": "=br-7"}, {"netdevs": (Netdev("br-7", True, ("172.18.0.1",)), ETH)},
         "CRITICAL", "ranks would meet over br-7, which only this host has", INNER_REMEDY),
        ({"NCCL_SOCKET_IFNAME": "^lo"}, {}, "WARN", "NCCL_SOCKET_IFNAME=^lo takes docker too",
         "a list with ^ replaces the built-in ^docker,lo,virbr"),
        ({"NCCL_SOCKET_IFNAME": "^ib0"}, {}, "WARN",
         "NCCL_SOCKET_IFNAME=^ib0 takes lo and docker too",
         "a list with ^ replaces the built-in ^docker,lo,virbr"),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_7"}, {}, "WARN",
         "NCCL_IB_HCA names mlx5_7, which is not there", None),
        ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_0:2"}, {}, "WARN",
         "NCCL_IB_HCA names mlx5_0, which is not there", None),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_1"},
         {"ports": (*ONE, Port("mlx5_1", 1, "DOWN", "DISABLED", 200.0, IB))}, "WARN",
         "NCCL_IB_HCA names mlx5_1, which is DOWN: the job runs with 200 Gb/s",
         "NCCL does not report this"),
        *(({"NCCL_IB_HCA": hca}, {"ports": TEN}, "WARN",
           "NCCL_IB_HCA: mlx5_1 is a prefix and takes mlx5_1, mlx5_10", remedy)
          for hca, remedy in (("mlx5_1", "NCCL_IB_HCA==mlx5_1"), ("mlx5_1,mlx5", None),
                              ("mlx5_1:1,mlx5_0", "NCCL_IB_HCA==mlx5_1:1,mlx5_0"))),
        ({}, {"ports": (*ONE, Port("mlx5_1", 1, "ACTIVE", "LINKUP", 200.0, ROCE))}, "WARN",
         "InfiniBand and RoCE side by side: mlx5_0:1/IB mlx5_1:1/RoCE",
         "connections between the two fail; name ports of one kind"),
        *(({}, {"ports": (*ONE, Port("mlx5_1", 1, state, "LINKUP", 200.0, layer))}, "WARN",
           f"mlx5_1:1 has its link up but is {state}", remedy)
          for state in ("DOWN", "INIT", "ARMED")
          for layer, remedy in ((IB, "no subnet manager answers it"), (ROCE, None))),
        ({"NCCL_COMM_ID": "x"}, {}, "WARN",
         "NCCL_COMM_ID is set: communicators of one job get in each other's way",
         "remove it; the id is broadcast"),
        ({"NCCL_IB_GID_INDEX": "3"}, {}, "WARN",
         "NCCL_IB_GID_INDEX=3: it may differ between hosts",
         "remove it; NCCL 2.21 and later find it themselves"),
        ({"NCCL_DEBUG_FILE": "/l/%h"}, {}, "WARN",
         "NCCL_DEBUG_FILE=/l/%h: ranks overwrite each other's file", "put %h and %p into its name"),
        ({"NCCL_DEBUG_FILE": "/l/%p"}, {}, "WARN",
         "NCCL_DEBUG_FILE=/l/%p: ranks overwrite each other's file", "put %h and %p into its name"),
        ({}, {"overridden": frozenset({"NCCL_NET"})}, "WARN",
         "NCCL_NET of a nccl.conf is hidden by the environment", None),
        *(({name: "1"}, {}, "WARN", f"{name}=1 is for finding faults",
           "remove it unless you measured it") for name in DEBUGGING),
    ],
)  # fmt: skip
def test_one_trouble(
    settings: dict[str, str], changes: dict[str, Any], level: str, text: str, remedy: str | None
) -> None:
    assert told(settings, **changes) == [(level, text, remedy)]


@cases(
    ("settings", "changes"),
    [
        ({"NCCL_IB_HCA": "x", "NCCL_NET": "Socket"}, {}),  # it was said what is meant
        ({"NCCL_IB_DISABLE": "1"}, {"ports": ()}),
        ({"NCCL_IB_DISABLE": "0"}, {}),
        ({"NCCL_IB_DISABLE": ""}, {}),
        ({"NCCL_NET": "Socket"}, {"netdevs": (ETH, replace(IPOIB, ipoib=False, running=False))}),
        ({"NCCL_SOCKET_IFNAME": "^"}, {"netdevs": (replace(ETH, name="eth0"),)}),
        ({"NCCL_SOCKET_IFNAME": "^docker,lo"}, {}),
        ({"NCCL_IB_HCA": "^mlx5_9"}, {}),
        ({"NCCL_IB_HCA": "mlx5_0"}, {}),
        ({"NCCL_IB_HCA": "mlx5"}, {"ports": TEN}),  # all of a kind are meant
        ({"NCCL_IB_HCA": "=mlx5_0:1"}, {}),
        ({"NCCL_IB_HCA": "mlx5_0:1"}, {}),
        ({"NCCL_DEBUG_FILE": "/l/%h.%p"}, {}),
        ({}, {"ports": (*ONE, Port("mlx5_1", 1, "DOWN", "POLLING", 200.0, IB))}),
        ({"NCCL_NET": "IB"}, {}),
        ({"NCCL_NET": "Libfabric"}, {"plugin": "AWS Libfabric"}),
    ],
)
def test_no_trouble(settings: dict[str, str], changes: dict[str, Any]) -> None:
    assert told(settings, **changes) == []


def test_a_host_alone_may_meet_itself_anywhere() -> None:
    lo = {"netdevs": (Netdev("lo", True, ("127.0.0.1",)), ETH)}
    assert told({"NCCL_SOCKET_IFNAME": "=lo"}, count=1, **lo) == []


def test_what_cannot_be_read_of_a_host_is_all_that_is_said_of_it() -> None:
    advice = advise(
        {"h0": replace(PLAIN, unread="no answer", settings={"NCCL_NET": "x"}), "h1": PLAIN}
    )
    assert said(advice) == [("INCOMPLETE", "h0", "no answer")]
    assert (list(advice.now), list(advice.then)) == (["h1"], ["h1"])


@cases(
    ("odd", "level", "text"),
    [
        ({"settings": {"NCCL_NET": "Socket"}}, "CRITICAL",
         "would use Socket, most hosts IB: they cannot talk to each other"),
        ({"ports": (replace(ONE[0], layer=ROCE),)}, "CRITICAL",
         "would use RoCE ports, most hosts IB"),
        ({"ports": (*ONE, replace(ONE[0], device="mlx5_1"))}, "WARN",
         "has 2 good ports, most hosts 1"),
        ({"ports": (replace(ONE[0], gbps=100.0),)}, "WARN",
         "its ports run at 100 Gb/s, on most hosts at 200"),
        ({"netdevs": (replace(ETH, mtu=9000),)}, "WARN", "MTU 9000, on most hosts 1500"),
        ({"settings": {"NCCL_X": "1"}}, "WARN", "NCCL_X=1, on most hosts (unset)"),
    ],
)  # fmt: skip
def test_the_one_that_is_unlike_the_others(odd: dict[str, Any], level: str, text: str) -> None:
    advice = advise({"a": PLAIN, "odd": replace(PLAIN, **odd), "c": PLAIN})
    assert (level, "odd", text) in said(advice)
    assert all(hosts == "odd" for _, hosts, _ in said(advice))


def test_what_may_well_differ() -> None:
    for other in (
        replace(PLAIN, netdevs=(replace(ETH, mtu=None),)),
        replace(PLAIN, settings={"NCCL_RAS_ADDR": "x", "NCCL_HOSTID": "7"}),
    ):
        assert advise({"a": PLAIN, "b": PLAIN, "c": other}).messages == ()


def test_of_as_many_hosts_the_first_are_usual() -> None:
    advice = advise({n: replace(PLAIN, settings={"NCCL_X": n}) for n in ("1", "2")})
    assert said(advice) == [("WARN", "2", "NCCL_X=2, on most hosts 1")]


# -- the advice itself ------------------------------------------------------------------


def test_devices_are_named_with_the_port_where_only_some_are_good() -> None:
    two = (ONE[0], replace(ONE[0], number=2, gbps=100.0), replace(ONE[0], device="mlx5_1"))
    advice = advise({"h0": replace(PLAIN, ports=two)})
    assert advice.settings["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1"


def test_infiniband_goes_before_faster_roce_and_roce_before_sockets() -> None:
    both = (ONE[0], Port("r", 1, "ACTIVE", "LINKUP", 400.0, ROCE, ("e2",)))
    assert advise({"h0": replace(PLAIN, ports=both)}).settings["NCCL_IB_HCA"] == "=mlx5_0"
    only = replace(PLAIN, ports=both[1:])
    assert advise({"h0": replace(PLAIN, ports=both), "h1": only}).settings["NCCL_IB_HCA"] == "=r"
    down = replace(PLAIN, ports=(replace(ONE[0], state="DOWN"),))
    assert advise({"h0": down}).settings["NCCL_NET"] == "Socket"
    assert "NCCL_NET" not in advise({"h0": replace(PLAIN, ports=())}).settings


def test_what_a_plugin_alone_can_use_is_left_to_it() -> None:
    efa = replace(PLAIN, ports=(Port("rdmap16s27", 1, "ACTIVE", "LINKUP", 100.0, OTHER),))
    advice = advise({"h0": efa, "h1": efa})
    assert advice.now["h0"].net == advice.then["h0"].net == "Socket"
    assert "NCCL_NET" not in advice.settings  # the plugin may come with the ranks' own variables
    (message,) = advice.messages
    assert message.text.startswith("rdmap16s27:1 can be used by a plugin only, and ldconfig knows ")
    there = replace(efa, plugin="AWS Libfabric")
    assert advise({"h0": there, "h1": there}).messages == ()


@cases(
    ("changes", "hca"),
    [
        ({"login": "10.0.0.5"}, "=r2"), ({"login": None, "route": "eno1"}, "=r2"),
        ({"login": None, "route": None}, "=r1,r2"), ({"login": "10.9.9.9"}, "=r1,r2"),
    ],
)  # fmt: skip
def test_the_host_s_own_card_is_left_alone(changes: dict[str, Any], hca: str) -> None:
    ports = (Port("r1", 1, "ACTIVE", "LINKUP", 100.0, ROCE, ("eno1",)),
             Port("r2", 1, "ACTIVE", "LINKUP", 100.0, ROCE, ("e2",)))  # fmt: skip
    host = replace(PLAIN, ports=ports, **changes)
    assert advise({"h0": host}).settings["NCCL_IB_HCA"] == hca
    alone = replace(host, ports=ports[:1])  # if there is no other
    assert advise({"h0": alone}).settings["NCCL_IB_HCA"] == "=r1"


def test_the_host_s_own_card_may_be_below_a_bond() -> None:
    """The port of a bond is told by the cards of which it is made."""

    def hca(*below: str) -> str:
        ports = (Port("mlx5_bond_0", 1, "ACTIVE", "LINKUP", 200.0, ROCE, ("ens1f0",)),
                 Port("mlx5_2", 1, "ACTIVE", "LINKUP", 200.0, ROCE, ("ens2",)))  # fmt: skip
        netdevs = (
            Netdev("ens2", True, ("10.1.0.5",)), Netdev("bond0", True, lower=below),
            Netdev("bond0.7", True, ("10.0.0.5",), lower=("bond0",)),
        )  # fmt: skip
        host = replace(PLAIN, ports=ports, netdevs=netdevs)
        return advise({"h0": host}).settings["NCCL_IB_HCA"]

    assert hca("ens1f0", "ens1f1") == "=mlx5_2"
    assert hca("bond0.7", "ens1f1") == "=mlx5_bond_0,mlx5_2"  # a ring of them ends


LO, DOCKER = Netdev("lo", True, ("127.0.0.1",)), Netdev("docker0", True, ("172.17.0.1",))
E1, E2 = Netdev("e1", True, ("10.1.0.1",)), Netdev("e2", True, ("10.2.0.1",))


@cases(
    ("netdevs", "login", "route", "name"),
    [
        ((LO, DOCKER, E1, E2), None, None, "e1"), ((LO, DOCKER, E1, E2), None, "e2", "e2"),
        ((E1, E2), "10.2.0.1", "e1", "e2"), ((IPOIB, E1), None, None, "e1"),
        ((IPOIB,), None, None, "ib0"), ((LO, DOCKER), None, None, None),
        ((LO, DOCKER, E1), "172.17.0.1", "docker0", "e1"),
        ((replace(E1, running=False), E2), None, None, "e2"),
    ],
)  # fmt: skip
def test_where_ranks_should_meet(
    netdevs: tuple[Netdev, ...], login: str | None, route: str | None, name: str | None
) -> None:
    advice = advise({"h0": replace(PLAIN, netdevs=netdevs, login=login, route=route)})
    assert advice.settings.get("GLOO_SOCKET_IFNAME") == name
    assert advice.settings.get("NCCL_SOCKET_IFNAME") == (None if name is None else f"={name}")


def test_hosts_that_meet_elsewhere_are_told_each_their_own() -> None:
    other = replace(PLAIN, netdevs=(E1,), login="10.1.0.1")
    none = replace(PLAIN, netdevs=(LO,), login=None)
    advice = advise({"a": PLAIN, "b": other, "c": none})
    assert advice.own["a"] == {"NCCL_SOCKET_IFNAME": "=eno1", "GLOO_SOCKET_IFNAME": "eno1"}
    assert advice.own["b"] == {"NCCL_SOCKET_IFNAME": "=e1", "GLOO_SOCKET_IFNAME": "e1"}
    assert "c" not in advice.own
    assert advice.of("b") == {"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_0", **advice.own["b"]}
    assert advice.of("c") == {"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_0"}
    same = advise({"a": PLAIN, "c": none})  # not all can be told the same
    assert "NCCL_SOCKET_IFNAME" not in same.settings


def test_what_is_advised_replaces_what_was_chosen_and_nothing_else() -> None:
    settings = {
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "eth9",
        "NCCL_IB_HCA": "x",
        "NCCL_NET": "x",
    }
    advice = advise({"h0": replace(PLAIN, settings=settings)})
    assert advice.now["h0"].fatal
    assert advice.then["h0"].line() == "NET/IB : Using [0]mlx5_0:1/IB; OOB eno1:10.0.0.5"
    refused = replace(PLAIN, plugin="Efa", settings={"NCCL_NET_PLUGIN": "none"})
    assert advise({"h0": refused}).then["h0"].net == "IB"
    assert "NCCL_NET" not in advise({"h0": refused}).settings  # the plugin knows its own devices


def test_each_host_s_message_is_told_once() -> None:
    twice = replace(HOST, settings={"NCCL_IB_HCA": "=mlx5_1,mlx5_7,mlx5_7"})
    (message,) = [m for m in advise({"a": twice, "b": twice}).messages if "mlx5_7" in m.text]
    assert message.hosts == ("a", "b")
    assert cluster({})["b01"] == HOST
