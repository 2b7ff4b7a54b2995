"""A small model of NCCL: the network that it finds on a host, and its choice; pure.

As NCCL's own source has it (net_ib, net_socket, bootstrap): the *bootstrap interface* comes first;
a plugin (libnccl-net.so) goes before NCCL's own networks, whatever NCCL_IB_DISABLE says; IB takes
every ACTIVE port that NCCL_IB_HCA lets pass, InfiniBand *and* RoCE, and if none is left it is
silently Socket, unless NCCL_NET insists; the environment goes before NCCL_CONF_FILE (or else
~/.nccl.conf), and that before /etc/nccl.conf. docs/design/checks.md says what is left out.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dispatcher.checks import network
from dispatcher.checks.check import Level, Seen, Unread
from dispatcher.checks.network import IB, OTHER, ROCE, Netdev, Port
from dispatcher.model.frozen import Value, value

#: NCCL uses no more
MOST_PORTS, MOST_INTERFACES = 32, 16


@dataclass(frozen=True)
class Filter:
    """A parsed NCCL_IB_HCA or NCCL_SOCKET_IFNAME: ``[^][=]name[:port],...``.

    One ``^`` turns the whole list round, one ``=`` makes all names exact; otherwise they are
    prefixes, and mlx5_1 takes mlx5_10 too. names have a port number, or -1 for any.
    """

    negated: bool
    exact: bool
    names: tuple[tuple[str, int], ...]

    def passes(self, name: str, port: int = -1) -> bool:
        """Whether NCCL takes the device: no names mean all. port: of an RDMA device; -1: any."""
        if not self.names:
            return not self.negated
        return self.matches(name, port) != self.negated

    def matches(self, name: str, port: int = -1) -> bool:
        """Whether the list has ``name``, before any ``^``."""
        return any(
            (name == wanted if self.exact else name.startswith(wanted))
            and (number in (-1, port) or port == -1)
            for wanted, number in self.names
        )


_PORT = re.compile(r"[0-9]{1,9}")


def parse_filter(text: str) -> Filter:
    """The filter of ``text``. Any text is a filter; a bad port number means any port."""
    negated = text.startswith("^")
    text = text[negated:]
    exact = text.startswith("=")
    names = []
    for token in text[exact:].split(","):
        name, _, rest = token.partition(":")
        number = rest.partition(":")[0]
        if name:
            names.append((name, int(number) if _PORT.fullmatch(number) else -1))
    return Filter(negated, exact, tuple(names))


@dataclass(frozen=True)
class Prediction:
    """NCCL's choice on one host.

    net: ``IB``, ``Socket``, the name of a plugin, or None when it ends with ``fatal``.
    ports: used by IB; interfaces: used by Socket. bootstrap: where its ranks meet.
    """

    net: str | None
    ports: tuple[Port, ...] = ()
    interfaces: tuple[Netdev, ...] = ()
    bootstrap: Netdev | None = None
    fatal: str | None = None

    @property
    def mixed(self) -> bool:
        return {IB, ROCE} <= {port.layer for port in self.ports}

    @property
    def gbps(self) -> float:
        """The sum of the ports' rates, in Gb/s; 0 for unknown."""
        return sum(port.gbps or 0.0 for port in self.ports)

    def line(self) -> str:
        """In NCCL's own words: ``NET/IB : Using [0]mlx5_1:1/IB; OOB eno1:10.0.0.5``."""
        if self.fatal:
            return f"fails: {self.fatal}"
        oob = f"; OOB {self.bootstrap.name}:{self.bootstrap.address}" if self.bootstrap else ""
        if self.net == "IB":
            used = " ".join(f"[{i}]{p.name}/{p.layer}" for i, p in enumerate(self.ports))
        else:
            used = " ".join(f"[{i}]{d.name}:{d.address}" for i, d in enumerate(self.interfaces))
        return f"NET/{self.net} : Using {used}{oob}"


def predict(
    ports: Sequence[Port],
    netdevs: Sequence[Netdev],
    settings: Mapping[str, str],
    plugin: str | None = None,
) -> Prediction:
    """NCCL's choice of these devices, in their order, under ``settings`` (NAME -> value).

    plugin: the external network plugin that the host has, ``AWS Libfabric``.
    """
    interfaces = _interfaces(netdevs, settings.get("NCCL_SOCKET_IFNAME", ""))
    if not interfaces:
        wanted = settings.get("NCCL_SOCKET_IFNAME", "")
        what = f"NCCL_SOCKET_IFNAME={wanted}: " if len(wanted) > 1 else ""
        return Prediction(None, fatal=f"{what}no socket interface found")
    first = Prediction("Socket", (), interfaces, interfaces[0])
    wanted = settings.get("NCCL_NET", "")
    refused = settings.get("NCCL_NET_PLUGIN") == "none"
    if wanted.upper() not in ("", "IB", "SOCKET"):
        if refused:
            return Prediction(None, fatal=f"NCCL_NET={wanted} but NCCL_NET_PLUGIN=none")
        return replace(first, net=wanted)
    if plugin and not refused and not wanted:
        return replace(first, net=plugin)
    disabled = is_on(settings.get("NCCL_IB_DISABLE", ""))
    usable_ports = () if disabled else _ports(ports, settings.get("NCCL_IB_HCA", ""))
    if wanted.upper() == "IB" and not usable_ports:
        why = "NCCL_IB_DISABLE=1" if disabled else "no port is ACTIVE and let pass"
        return Prediction(None, fatal=f"NCCL_NET=IB but {why}")
    if usable_ports and wanted.upper() in ("", "IB"):
        return replace(first, net="IB", ports=usable_ports, interfaces=())
    return first


def _ports(ports: Sequence[Port], text: str) -> tuple[Port, ...]:
    hca = parse_filter(text)
    usable = [port for port in ports if port.active and port.layer != OTHER]
    return tuple(port for port in usable if hca.passes(port.device, port.number))[:MOST_PORTS]


def _interfaces(netdevs: Sequence[Netdev], text: str) -> tuple[Netdev, ...]:
    usable = [device for device in netdevs if device.usable]
    usual = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
    for one in (text,) if len(text) > 1 else usual:  # NCCL ignores a value of one character
        wanted = parse_filter(one)
        found = tuple(device for device in usable if wanted.passes(device.name))
        if found:
            return found[:MOST_INTERFACES]
    return ()


def is_on(text: str) -> bool:
    """Whether NCCL reads ``text`` as on: a number other than 0."""
    try:
        return int(text, 0) != 0
    except ValueError:
        return False


def parse_conf(text: str) -> dict[str, str]:
    """Names and values of a nccl.conf; other lines are skipped, as NCCL does."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("#")[0].partition("=")
        if equals and name.strip():
            found[name.strip()] = value.strip()
    return found


def parse_environment(text: str) -> dict[str, str]:
    """The settings among lines NAME=VALUE."""
    pairs = (line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    return {name: value for name, value in pairs if name.startswith(("NCCL_", "GLOO_"))}


def effective(environment: Mapping[str, str], files: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The settings that count: ``files`` are in order of precedence, after the environment."""
    return dict(ChainMap(dict(environment), *map(dict, files)))


@dataclass(frozen=True)
class HostNet:
    """One host's network and settings, with the settings as they count now (see ``effective``).

    overridden: names that a conf file sets and the environment hides. login: the
    address we reached it by. route: the interface of its default route. plugin: its
    external network plugin. unread: a reason, if nothing could be read.
    """

    ports: tuple[Port, ...] = ()
    netdevs: tuple[Netdev, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()
    login: str | None = None
    route: str | None = None
    plugin: str | None = None
    unread: str = ""


@value
class NcclMessage(Value):
    """A message about some hosts. level: as for a finding. remedy: a remedy for it."""

    level: Level
    hosts: tuple[str, ...]
    text: str
    remedy: str | None = None


#: the readings of ``host_net``
READINGS: tuple[tuple[Any, ...], ...] = (
    ("rdma", "file", [*network.PORT_FILES, b"/sys/class/infiniband/*/device/net/"],
     5.0, 256 << 10),
    ("netdevs", "call", ["netdevs"], 5.0, 64 << 10),
    ("route", "file", [b"/proc/net/route"], 5.0, 64 << 10),
    ("login", "call", ["environment", ["SSH_CONNECTION"]], 5.0, 4096),
    ("nccl_env", "call", ["environment", ["NCCL_", "GLOO_SOCKET_IFNAME"]], 5.0, 64 << 10),
    ("nccl_conf", "file", [b"~/.nccl.conf", b"/etc/nccl.conf"], 5.0, 64 << 10),
    ("libnccl", "run",
     [b"/bin/sh", b"-c", b"PATH=$PATH:/sbin:/usr/sbin; ldconfig -p | grep libnccl; :"],
     5.0, 64 << 10),
)  # fmt: skip

_PLUGIN = re.compile(r"libnccl-net\S{0,255}\.so\S*(?: .*=> (\S+))?")
_LOGIN = re.compile(r"^SSH_CONNECTION=\S+ \d+ (\S+) \d+$", re.M)


def host_net(seen: Seen, settings: Mapping[str, str] | None = None) -> HostNet:
    """A host's network by its readings. settings: of a run; they override those of the host."""
    files = [parse_conf(text) for text in _files(seen, "nccl_conf").values()]
    environment = {**parse_environment(_text(seen, "nccl_env")), **(settings or {})}
    found = _PLUGIN.search(_text(seen, "libnccl"))
    is_aws = found is not None and any(name in (found[1] or "") for name in ("ofi", "amazon"))
    plugin = "AWS Libfabric" if is_aws else "libnccl-net.so"
    login = _LOGIN.search(_text(seen, "login"))
    ports = network.read_ports(_files(seen, "rdma"))
    netdevs = network.parse_netdevs(_text(seen, "netdevs"))
    return HostNet(
        ports=ports,
        netdevs=netdevs,
        settings=effective(environment, files),
        overridden=frozenset(
            name
            for file in files
            for name, value in file.items()
            if environment.get(name, value) != value
        ),
        login=login[1].partition("%")[0] if login else None,
        route=network.default_route("\n".join(_files(seen, "route").values())),
        plugin=plugin if found else None,
        unread="" if ports or netdevs else "its network is unknown",
    )


def _text(seen: Seen, name: str) -> str:
    reading = seen.readings.get(name)
    if reading is None:
        return ""
    value = reading.text if name == "libnccl" else reading.value()
    return value if isinstance(value, str) else ""


def _files(seen: Seen, name: str) -> dict[str, str]:
    try:
        return seen.files(name)
    except Unread:
        return {}
