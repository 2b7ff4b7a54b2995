"""One host's network as the advisor wants it, out of texts; pure.

The texts are what the tools print (``ibstatus``, ``ibdev2netdev``, ``rdma link``, ``ip addr``,
``ip route``, ``env``) or what a survey sent, written in the same notations; one file
may hold several of them. Settings of a conf file stand below a line ``# /etc/nccl.conf``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dispatcher.checks.nccl.nccl_model import HostNet, effective, parse_conf, parse_environment
from dispatcher.checks.network import default_route
from dispatcher.checks.network import parse as parse_netdevs
from dispatcher.checks.rdma_ports import parse as parse_ports
from dispatcher.checks.rdma_ports import sysfs_lines

#: the readings of a survey that ``text_of`` makes a text of
READINGS: tuple[tuple[Any, ...], ...] = (
    (
        "rdma", "file",
        [
            b"/sys/class/infiniband/*/ports/*/" + name
            for name in (b"state", b"phys_state", b"rate", b"link_layer")
        ]
        + [b"/sys/class/infiniband/*/device/net/", b"/sys/class/infiniband/*/device/numa_node"],
        5.0, 256 << 10,
    ),
    ("netdevs", "call", ["netdevs"], 5.0, 64 << 10),
    ("route", "file", [b"/proc/net/route"], 5.0, 64 << 10),
    ("login", "call", ["environment", ["SSH_CONNECTION"]], 5.0, 4096),
    ("nccl_env", "call", ["environment", ["NCCL_", "GLOO_SOCKET_IFNAME"]], 5.0, 64 << 10),
    ("nccl_conf", "file", [b"~/.nccl.conf", b"/etc/nccl.conf"], 5.0, 64 << 10),
    (
        "libnccl", "run",
        [b"/bin/sh", b"-c", b"PATH=$PATH:/sbin:/usr/sbin; ldconfig -p | grep libnccl; :"],
        5.0, 64 << 10,
    ),
)  # fmt: skip

_CONF = re.compile(r"^# (\S*nccl\S*\.conf)\s*$", re.M)
_PLUGIN = re.compile(r"libnccl-net\S*\.so\S*(?: .*=> (\S+))?")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_LOGIN = re.compile(r"^SSH_CONNECTION=\S+ \d+ (\S+) \d+$", re.M)


def from_text(text: str, settings: Mapping[str, str] | None = None) -> HostNet:
    """What ``text`` tells of one host. settings: of a run, before what stands there."""
    pieces = _CONF.split(text)
    head, files = pieces[0], [parse_conf(piece) for piece in pieces[2::2]]
    environment = {**parse_environment(head), **(settings or {})}
    plugin = _PLUGIN.search(head)
    login = _LOGIN.search(head)
    version = _VERSION.search(text)
    ports, netdevs = parse_ports(head), parse_netdevs(head)
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
        route=default_route(head),
        plugin=_plugin_name(plugin[1] or "") if plugin else None,
        version=version[1] if version else "",
        unread="" if ports or netdevs else "nothing known of its network",
    )


def _plugin_name(path: str) -> str:
    if "ofi" in path or "amazon" in path:
        return "AWS Libfabric"
    return "libnccl-net.so"


def _plain(readings: Mapping[str, Any], *names: str) -> Iterable[str]:
    for name in names:
        if isinstance(readings.get(name), str):
            yield readings[name]


def text_of(readings: Mapping[str, Any]) -> str:
    """A survey's readings (name -> unpacked value, or text) as a text for ``from_text``."""
    lines = [
        *sysfs_lines(readings.get("rdma") or []),
        *_plain(readings, "netdevs", "login", "nccl_env", "libnccl"),
        *(content for _, content in readings.get("route") or []),
    ]
    for path, content in readings.get("nccl_conf") or []:
        lines += [f"# {path}", content]
    return "\n".join(lines) + "\n"
