"""The network of a host: interfaces, routes, RDMA ports, NVSwitch; pure.

RDMA ports are read from five notations of the same facts, from the fullest to the poorest::

    sysfs         mlx5_0/ports/1|4: ACTIVE|5: LinkUp|400 Gb/sec (4X NDR)|InfiniBand|ib0,|0
                  one line a port; ``docs/design/checks.md`` has what prints it by hand
    ibstatus      a block a port, of infiniband-diags
    rdma link     link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth1
    rdma -j link  the same as JSON
    ibdev2netdev  mlx5_0 port 1 ==> eth1 (Up)

``parse_ports`` knows which one it has before it. A text that breaks off gives the ports
that stand in it whole; lines that are nothing known are skipped, since tools and
terminals add words of their own. Only ``link_layer`` tells InfiniBand from RoCE:
the name of the speed (EDR, NDR) says nothing about it.

Interfaces and the route out of the host come in three notations: lines of ``survey``
(``netdev NAME key=value ...``), and for texts pasted by hand ``ip -br addr`` and ``ip addr``.
Order is the kernel's, which matters: NCCL and gloo take the first that fits.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dispatcher.checks.check import Finding, Seen, Unread, critical, ok, warn

IB, ROCE, OTHER, UNKNOWN = "IB", "RoCE", "other", "?"


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device, ``mlx5_0`` port 1.

    state: ACTIVE, DOWN, INIT, ARMED ..., upper case. physical: LINKUP, POLLING,
    DISABLED ...; "" when not said. gbps: rate in Gb/s, None when not said.
    layer: IB, RoCE, other (Amazon's EFA, which NCCL leaves to a plugin), or ? where the notation
    does not tell. netdevs: its network devices.
    """

    device: str
    number: int
    state: str
    physical: str = ""
    gbps: float | None = None
    layer: str = UNKNOWN
    netdevs: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Whether it can be used; by NCCL without a plugin only if it is of no other layer."""
        return self.state == "ACTIVE"

    @property
    def name(self) -> str:
        """``mlx5_0:1``, as NCCL writes it."""
        return f"{self.device}:{self.number}"


#: a device's name, as the kernel gives them; no other goes into settings of NCCL
_NAME = re.compile(r"[\w.@:-]{1,64}", re.ASCII)
_STATE = re.compile(r"(?:\d+:\s*)?([A-Za-z_]+)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb/sec", re.ASCII)
_SYSFS = re.compile(r"([\w.-]+)/ports/(\d{1,3})\|(.*)", re.ASCII)
_IBSTATUS = re.compile(r"Infiniband device '([\w.-]+)' port (\d{1,3}) status:", re.ASCII)
_RDMA = re.compile(r"link ([\w.-]+)/(\d{1,3})\s(.*)", re.ASCII)
_IBDEV = re.compile(r"([\w.-]+) port (\d{1,3}) ==> ([\w.@-]+) \((\w+)\)", re.ASCII)


def parse_ports(text: str) -> tuple[Port, ...]:
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
    )


def _lines(text: str) -> Iterable[Port]:
    for line in text.splitlines():
        line = line.strip()
        if match := _SYSFS.fullmatch(line):
            fields = match[3].split("|")
            port = _port(match[1], match[2], *fields[:5]) if len(fields) > 3 else None
        elif match := _RDMA.match(line):
            port = _rdma(match[1], int(match[2]), match[3].split())
        elif match := _IBDEV.match(line):
            state = "ACTIVE" if match[4].lower() == "up" else "DOWN"
            port = Port(match[1], int(match[2]), state, netdevs=(match[3],))
        else:
            continue
        if port is not None:
            yield port


def _port(
    device: str, number: str, state: str, physical: str, rate: str, layer: str, netdevs: str = ""
) -> Port | None:
    """A port in the kernel's words, as sysfs and ibstatus have them; None: the text breaks off."""
    if not _word(state):
        return None
    names = tuple(filter(_NAME.fullmatch, re.split(r"[,\s]+", netdevs)))
    return Port(
        device, int(number), _word(state), _word(physical), _gbps(rate), _layer(layer), names
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
        words = [fields.get(name, "") for name in ("state", "phys state", "rate", "link_layer")]
        port = _port(head[1], head[2], *words) if "link_layer" in fields else None
        if port is not None:
            yield port


def _rdma(device: str, number: int, words: list[str]) -> Port | None:
    pairs = dict(zip(words[::2], words[1::2], strict=False))
    if "state" not in pairs or "physical_state" not in pairs:
        return None
    # an InfiniBand port has a subnet prefix and a lid; a port with a network device is RoCE
    layer = IB if "lid" in pairs else ROCE if "netdev" in pairs else UNKNOWN
    netdevs = tuple(filter(_NAME.fullmatch, [pairs.get("netdev", "")]))
    state, physical = pairs["state"].upper(), pairs["physical_state"].replace("_", "").upper()
    return Port(device, number, state, physical, None, layer, netdevs)


def _json(text: str) -> Iterable[Port]:
    for match in list(re.finditer(r"^[ \t]*\[\s*\{", text, re.M))[:16]:
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
    if not isinstance(device, str) or not _NAME.fullmatch(device) or type(number) is not int:
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
    known = {"infiniband": IB, "ib": IB, "ethernet": ROCE, "unknown": OTHER}
    return known.get(text.strip().lower(), UNKNOWN)


def sysfs_lines(files: Sequence[Sequence[str]]) -> Iterable[str]:
    """Lines of ``ports``' first notation from [path, content] of single files."""
    netdevs: dict[str, str] = {}
    ports: dict[tuple[str, str], dict[str, str]] = {}
    for path, content in files:
        parts = path.strip("/").split("/")[3:]  # mlx5_0 ports 1 state | mlx5_0 device net
        if len(parts) == 4 and parts[1] == "ports":
            ports.setdefault((parts[0], parts[2]), {})[parts[3]] = content.strip()
        elif parts[1:] == ["device", "net"]:
            netdevs[parts[0]] = ",".join(content.split())
    for (device, port), fields in ports.items():
        words = [fields.get(name, "") for name in ("state", "phys_state", "rate", "link_layer")]
        yield "|".join([f"{device}/ports/{port}", *words, netdevs.get(device, "")])


#: IFF_ flags of netdevice(7)
UP, RUNNING = 0x1, 0x40
#: ARPHRD_INFINIBAND of if_arp.h: IP over InfiniBand
INFINIBAND = 32


@dataclass(frozen=True)
class Netdev:
    """One interface. addresses: numeric, IPv4 first. lower: what a bond, bridge or VLAN lies on."""

    name: str
    running: bool
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    ipoib: bool = False
    lower: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether NCCL would take it: running, with an address other hosts could use."""
        return self.running and bool(self.addresses)

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""


_BRIEF = re.compile(
    r"([\w.-]+)(?:@[\w.-]+)?\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT)\b(.*)", re.ASCII
)
_LONG = re.compile(r"\d+: ([\w.-]+)(?:@[\w.-]+)?: <([^>]*)>(.*)", re.ASCII)
_INET = re.compile(r"\s+inet6? (\S+)")


def parse_netdevs(text: str) -> tuple[Netdev, ...]:
    """The interfaces that ``text`` tells of, in its order; () for nothing known."""
    found: dict[str, Netdev] = {}
    last = ""
    for line in text.splitlines():
        if line.startswith("netdev "):
            device = _own(line.split()[1:])
        elif match := _LONG.match(line):
            mtu = re.search(r"\bmtu (\d{1,6})", match[3])
            flags = match[2].split(",")
            running = "UP" in flags and "NO-CARRIER" not in flags
            device = Netdev(match[1], running, (), int(mtu[1]) if mtu else None)
        elif match := _INET.match(line):
            if last in found:
                here = found[last]
                found[last] = replace(here, addresses=_sorted([*here.addresses, match[1]]))
            continue
        elif match := _BRIEF.match(line):
            running = match[2] in ("UP", "UNKNOWN")
            device = Netdev(match[1], running, _sorted(match[3].split()))
        else:
            continue
        if device is not None:
            device = replace(device, ipoib=device.ipoib or device.name.startswith("ib"))
            found[device.name] = device
            last = device.name
    return tuple(found.values())


def _own(words: list[str]) -> Netdev | None:
    if not words or not _NAME.fullmatch(words[0]):
        return None
    fields = dict(word.partition("=")[::2] for word in words[1:])
    flags = _number(fields.get("flags", ""), 16) or 0
    return Netdev(
        words[0],
        flags & RUNNING != 0 and flags & UP != 0,
        _sorted([value for value in fields.get("addresses", "").split(",") if value]),
        _number(fields.get("mtu", "")),
        _number(fields.get("type", "")) == INFINIBAND,
        tuple(filter(_NAME.fullmatch, fields.get("lower", "").split(","))),
    )


def _number(text: str, base: int = 10) -> int | None:
    try:
        value = int(text, base)
    except ValueError:
        return None
    return value if 0 <= value < 1 << 32 else None


def _sorted(texts: list[str]) -> tuple[str, ...]:
    """The addresses among ``texts`` without their prefix length, IPv4 first, link-local out."""
    found = []
    for text in texts:
        try:
            address = ipaddress.ip_address(text.partition("/")[0].partition("%")[0])
        except ValueError:
            continue
        if not (address.version == 6 and address.is_link_local):
            found.append(address)
    return tuple(dict.fromkeys(str(a) for a in sorted(found, key=lambda a: a.version)))


def default_route(text: str) -> str | None:
    """The interface of the default route, of /proc/net/route or ``ip route``; None for none."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000":
            return words[0]
        if words[:1] == ["default"] and "dev" in words[:-1]:
            return words[words.index("dev") + 1]
    return None


#: counters of a port that must not rise: by any amount a broken link, or a poor one
BROKEN = ("link_downed", "link_error_recovery")
POOR = (
    "symbol_error", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "local_ack_timeout_err", "rnr_nak_retry_err",
    "out_of_sequence",
)  # fmt: skip


def ports_of(seen: Seen) -> tuple[Port, ...]:
    """The RDMA ports. Raises: Unread."""
    return parse_ports("\n".join(sysfs_lines(seen.value("rdma") or [])) + "\n")


def ports(seen: Seen) -> Finding:
    """Every port that has a cable is ACTIVE; value: how many of which layer and rate."""
    there = ports_of(seen)
    if "/sys/class/infiniband/" in seen.files("kernel") and not there:
        names = seen.files("kernel")["/sys/class/infiniband/"].split()
        if names:
            raise Unread("the ports in /sys/class/infiniband")
    kinds: dict[str, int] = {}
    for port in there:
        if port.active:
            kind = f"{port.layer} {port.gbps or 0:.0f} Gb/s"
            kinds[kind] = kinds.get(kind, 0) + 1
    value = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
    stuck = [p.name for p in there if p.physical == "LINKUP" and not p.active]
    if stuck:
        text = f"{', '.join(stuck)}: the link is up, but not ACTIVE"
        return critical(text, "InfiniBand: is there a subnet manager? sminfo", value)
    layers = {port.layer for port in there if port.active}
    if len(layers) > 1:
        return Finding(ok().level, "InfiniBand and RoCE: see dispatch check --nccl", None, value)
    return ok(value)


def counters(seen: Seen) -> Finding:
    """Errors between our two visits: a link that errs while nobody uses it is no good."""
    before, after = (_counts(seen, later=later) for later in (False, True))
    rises: dict[str, list[str]] = {}
    for path, count in after.items():
        rise = count - before.get(path, count)
        if rise > 0:
            parts = path.strip("/").split("/")  # sys class infiniband DEV ports 1 counters NAME
            rises.setdefault(parts[-1], []).append(f"{parts[3]}:{parts[5]} +{rise}")
    remedy = "look at the cable: ibdiagnet, mlxlink; swap it"
    for names, make in ((BROKEN, critical), (POOR, warn)):
        found = [f"{name} {' '.join(rises[name])}" for name in names if name in rises]
        if found:
            return make("; ".join(found), remedy)
    return ok()


def _counts(seen: Seen, *, later: bool) -> dict[str, int]:
    found = {}
    for path, content in seen.files("ib counters", later=later).items():
        if path.rsplit("/", 1)[-1] in (*BROKEN, *POOR):
            if not content.strip().isdigit():
                raise Unread(f"{path}: {content.strip()[:20]!r}")
            found[path] = int(content)
    return found


def manager(seen: Seen) -> Finding:
    """On NVSwitch systems NVLink works only while the fabric manager does."""
    if "nvidia-nvswitch" not in seen.files("kernel").get("/dev/", ""):
        return ok(text="no NVSwitch")
    reading = seen.reading("fabric manager")
    if reading.hung:
        return critical("systemctl does not answer", "look at the host's console")
    state = reading.text.strip()
    if state == "active":
        return ok("active")
    if reading.status in (126, 127):
        raise Unread(f"systemctl: {reading.why()}")
    return critical(
        f"the fabric manager is {state or 'not there'}", "systemctl start nvidia-fabricmanager"
    )
