"""RDMA ports of a host, read from what the kernel and the usual tools print; pure.

Five notations of the same facts, from the fullest to the poorest::

    sysfs         mlx5_0/ports/1|4: ACTIVE|5: LinkUp|400 Gb/sec (4X NDR)|InfiniBand|ib0,|0
                  one line a port, as ``survey`` sends it and ``SYSFS_SCRIPT`` prints it
    ibstatus      a block a port, of infiniband-diags
    rdma link     link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth1
    rdma -j link  the same as JSON
    ibdev2netdev  mlx5_0 port 1 ==> eth1 (Up)

``parse`` knows which one it has before it. A text that breaks off gives the ports
that stand in it whole; lines that are nothing known are skipped, since tools and
terminals add words of their own. Only ``link_layer`` tells InfiniBand from RoCE:
the name of the speed (EDR, NDR) says nothing about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

#: what prints the first notation by hand, to be pasted into a file
SYSFS_SCRIPT = (
    "cd /sys/class/infiniband && for p in */ports/*; do d=${p%%/*}; "
    'echo "$p|$(cat $p/state)|$(cat $p/phys_state)|$(cat $p/rate)|$(cat $p/link_layer)|'
    "$(ls $d/device/net 2>/dev/null | tr '\\n' ,)|$(cat $d/device/numa_node 2>/dev/null)\"; done"
)

IB, ROCE, UNKNOWN = "IB", "RoCE", "?"


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device, ``mlx5_0`` port 1.

    state: ACTIVE, DOWN, INIT, ARMED ..., upper case. physical: LINKUP, POLLING,
    DISABLED ...; "" when not said. gbps: rate in Gb/s, None when not said.
    layer: IB, RoCE, or ? where the notation does not tell. netdevs: its network
    devices. numa: its NUMA node, -1 for none.
    """

    device: str
    number: int
    state: str
    physical: str = ""
    gbps: float | None = None
    layer: str = UNKNOWN
    netdevs: tuple[str, ...] = ()
    numa: int = -1

    @property
    def active(self) -> bool:
        """Whether NCCL would use it."""
        return self.state == "ACTIVE"

    @property
    def name(self) -> str:
        """``mlx5_0:1``, as NCCL writes it."""
        return f"{self.device}:{self.number}"


_STATE = re.compile(r"(?:\d+:\s*)?([A-Za-z_]+)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb/sec", re.ASCII)
_SYSFS = re.compile(r"([\w.-]+)/ports/(\d{1,3})\|(.*)", re.ASCII)
_IBSTATUS = re.compile(r"Infiniband device '([\w.-]+)' port (\d{1,3}) status:", re.ASCII)
_RDMA = re.compile(r"link ([\w.-]+)/(\d{1,3})\s(.*)", re.ASCII)
_IBDEV = re.compile(r"([\w.-]+) port (\d{1,3}) ==> ([\w.@-]+) \((\w+)\)", re.ASCII)


def parse(text: str) -> tuple[Port, ...]:
    """The ports that ``text``, of any of the notations, tells of; () for none or nothing known.

    Texts one after the other are understood too: what two of them say of one port
    is joined (``ibstatus`` knows the layer, ``ibdev2netdev`` the network device).
    """
    found: dict[tuple[str, int], Port] = {}
    for port in (*_json(text), *_blocks(text), *_lines(text)):
        key = (port.device, port.number)
        found[key] = _joined(found[key], port) if key in found else port
    return tuple(found.values())


def _joined(first: Port, second: Port) -> Port:
    return replace(
        first,
        physical=first.physical or second.physical,
        gbps=first.gbps if first.gbps is not None else second.gbps,
        layer=first.layer if first.layer != UNKNOWN else second.layer,
        netdevs=tuple(dict.fromkeys((*first.netdevs, *second.netdevs))),
        numa=max(first.numa, second.numa),
    )


def _lines(text: str) -> Iterable[Port]:
    for line in text.splitlines():
        line = line.strip()
        if match := _SYSFS.fullmatch(line):
            port = _sysfs(match[1], int(match[2]), match[3].split("|"))
        elif match := _RDMA.match(line):
            port = _rdma(match[1], int(match[2]), match[3].split())
        elif match := _IBDEV.match(line):
            state = "ACTIVE" if match[4].lower() == "up" else "DOWN"
            port = Port(match[1], int(match[2]), state, netdevs=(match[3],))
        else:
            continue
        if port is not None:
            yield port


def _sysfs(device: str, number: int, fields: list[str]) -> Port | None:
    if len(fields) < 4 or not _word(fields[0]):
        return None  # the line breaks off
    netdevs = fields[4] if len(fields) > 4 else ""
    numa = fields[5].strip() if len(fields) > 5 else ""
    return Port(
        device,
        number,
        _word(fields[0]),
        _word(fields[1]),
        _gbps(fields[2]),
        _layer(fields[3]),
        tuple(name for name in re.split(r"[,\s]+", netdevs) if name),
        int(numa) if re.fullmatch(r"[0-9]{1,4}", numa) else -1,
    )


def _blocks(text: str) -> Iterable[Port]:
    """ibstatus: a head line, then fields to the next head or blank line."""
    heads = list(_IBSTATUS.finditer(text))
    for head, after in zip(heads, [*heads[1:], None], strict=False):
        body = text[head.end() : after.start() if after else len(text)]
        fields: dict[str, str] = {}
        for line in body.splitlines():
            name, colon, value = line.strip().partition(":")
            if colon:
                fields[name.strip()] = value.strip()
        if "link_layer" not in fields or not _word(fields.get("state", "")):
            continue  # the text breaks off within this block
        yield Port(
            head[1],
            int(head[2]),
            _word(fields["state"]),
            _word(fields.get("phys state", "")),
            _gbps(fields.get("rate", "")),
            _layer(fields["link_layer"]),
        )


def _rdma(device: str, number: int, words: list[str]) -> Port | None:
    pairs = dict(zip(words[::2], words[1::2], strict=False))
    if "state" not in pairs or "physical_state" not in pairs:
        return None
    # an InfiniBand port has a subnet prefix and a lid; a port with a network device is RoCE
    layer = IB if "lid" in pairs else ROCE if "netdev" in pairs else UNKNOWN
    netdevs = (pairs["netdev"],) if "netdev" in pairs else ()
    state, physical = pairs["state"].upper(), pairs["physical_state"].replace("_", "").upper()
    return Port(device, number, state, physical, None, layer, netdevs)


def _json(text: str) -> Iterable[Port]:
    for match in list(re.finditer(r"^\s*\[\s*\{", text, re.M))[:16]:
        try:
            items, _ = json.JSONDecoder().raw_decode(text, text.index("[", match.start()))
        except (ValueError, RecursionError):
            continue
        for item in items:
            port = _from_json(item)
            if port is not None:
                yield port


def _from_json(item: Any) -> Port | None:
    if not isinstance(item, dict):
        return None
    device, number = item.get("ifname"), item.get("port")
    if not isinstance(device, str) or type(number) is not int:
        return None
    words: list[str] = []
    for key in ("state", "physical_state", "netdev", "lid"):
        if isinstance(item.get(key), (str, int)):
            words += [key, str(item[key])]
    return _rdma(device, number, words)


def _word(text: str) -> str:
    """``4: ACTIVE`` -> ``ACTIVE``; "" when there is none."""
    match = _STATE.match(text.strip())
    return match[1].upper() if match else ""


def _gbps(text: str) -> float | None:
    match = _RATE.match(text.strip())
    return float(match[1]) if match else None


def _layer(text: str) -> str:
    # ibstatus prints "IB" where the kernel is too old to know another layer
    return {"infiniband": IB, "ib": IB, "ethernet": ROCE}.get(text.strip().lower(), UNKNOWN)


def sysfs_lines(files: Sequence[Sequence[str]]) -> Iterable[str]:
    """Lines of ``ports``' first notation from [path, content] of single files."""
    about: dict[str, dict[str, str]] = {}
    ports: dict[tuple[str, str], dict[str, str]] = {}
    for path, content in files:
        parts = path.strip("/").split("/")[3:]  # mlx5_0 ports 1 state | mlx5_0 device net
        if len(parts) == 4 and parts[1] == "ports":
            ports.setdefault((parts[0], parts[2]), {})[parts[3]] = content.strip()
        elif len(parts) == 3 and parts[1] == "device":
            about.setdefault(parts[0], {})[parts[2]] = content.strip()
    for (device, port), fields in ports.items():
        more = about.get(device, {})
        words = [fields.get(name, "") for name in ("state", "phys_state", "rate", "link_layer")]
        netdevs = ",".join(more.get("net", "").split())
        yield "|".join([f"{device}/ports/{port}", *words, netdevs, more.get("numa_node", "")])
