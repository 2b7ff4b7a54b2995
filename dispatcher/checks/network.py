"""The network of a host by our readings: interfaces, routes, RDMA ports, NVSwitch; pure.

Only ``link_layer`` separates InfiniBand from RoCE: the name of the speed (EDR, NDR) does not. The
order of interfaces is the kernel's, which matters: NCCL and gloo take the first that fits.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.checks.check import Finding, Seen, Unread, critical, ok, warn

IB, ROCE, OTHER, UNKNOWN = "IB", "RoCE", "other", "?"


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device, ``mlx5_0`` port 1.

    state: ACTIVE, DOWN, INIT, ARMED ..., upper case. physical: LINKUP, POLLING,
    DISABLED ...; "" if unknown. gbps: rate in Gb/s, None if unknown.
    layer: IB, RoCE, other (Amazon's EFA, which NCCL leaves to a plugin), or ? if the notation
    does not show it. netdevs: its network devices.
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
        """Whether it can be used; NCCL needs a plugin for the layer ``other``."""
        return self.state == "ACTIVE"

    @property
    def name(self) -> str:
        """``mlx5_0:1``, as NCCL writes it."""
        return f"{self.device}:{self.number}"


#: a device's name, as the kernel gives them; no other goes into settings of NCCL
_NAME = re.compile(r"[\w.@:-]{1,64}", re.ASCII)
_STATE = re.compile(r"(?:\d+:\s*)?([A-Za-z_]+)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb/sec", re.ASCII)
_PORT = re.compile(r"/sys/class/infiniband/([\w.-]{1,64})/ports/(\d{1,3})/(\w+)", re.ASCII)
_NETDEVS = re.compile(r"/sys/class/infiniband/([\w.-]{1,64})/device/net/?", re.ASCII)
_LAYERS = {"infiniband": IB, "ethernet": ROCE, "unknown": OTHER}


#: the files that describe ports, except for their network devices
PORT_FILES = [
    b"/sys/class/infiniband/*/ports/*/" + name
    for name in (b"state", b"phys_state", b"rate", b"link_layer")
]


def read_ports(files: Mapping[str, str]) -> tuple[Port, ...]:
    """The ports that ``files`` below /sys/class/infiniband describe (path -> content)."""
    fields: dict[tuple[str, str], dict[str, str]] = {}
    netdevs: dict[str, tuple[str, ...]] = {}
    for path, content in files.items():
        if match := _PORT.fullmatch(path):
            fields.setdefault((match[1], match[2]), {})[match[3]] = content.strip()
        elif match := _NETDEVS.fullmatch(path):
            netdevs[match[1]] = tuple(filter(_NAME.fullmatch, content.split()))
    found = []
    for (device, number), words in fields.items():
        state, physical = (_word(words.get(name, "")) for name in ("state", "phys_state"))
        rate = _RATE.match(words.get("rate", ""))
        layer = _LAYERS.get(words.get("link_layer", "").lower(), UNKNOWN)
        if state:
            gbps = float(rate[1]) if rate else None
            mine = netdevs.get(device, ())
            found.append(Port(device, int(number), state, physical, gbps, layer, mine))
    return tuple(found)


def _word(text: str) -> str:
    """``4: ACTIVE`` -> ``ACTIVE``; "" if there is no such word."""
    match = _STATE.match(text.strip())
    return match[1].upper() if match else ""


#: IFF_ flags of netdevice(7)
UP, RUNNING = 0x1, 0x40
#: ARPHRD_INFINIBAND of if_arp.h: IP over InfiniBand
INFINIBAND = 32


@dataclass(frozen=True)
class Netdev:
    """One interface. addresses: numeric, IPv4 first. lower: devices below a bond or VLAN."""

    name: str
    running: bool
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    ipoib: bool = False
    lower: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether NCCL would use it: running, with an address for other hosts."""
        return self.running and bool(self.addresses)

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""


def parse_netdevs(text: str) -> tuple[Netdev, ...]:
    """The interfaces in the lines of our reading (``netdev NAME key=value ...``)."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["netdev"] and (device := _netdev(words[1:])):
            found[device.name] = device
    return tuple(found.values())


def _netdev(words: list[str]) -> Netdev | None:
    if not words or not _NAME.fullmatch(words[0]):
        return None
    fields = dict(word.partition("=")[::2] for word in words[1:])
    flags = _number(fields.get("flags", ""), 16) or 0
    return Netdev(
        words[0],
        flags & RUNNING != 0 and flags & UP != 0,
        _sorted([value for value in fields.get("addresses", "").split(",") if value]),
        _number(fields.get("mtu", "")),
        _number(fields.get("type", "")) == INFINIBAND or words[0].startswith("ib"),
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
    """The interface of the default route, by /proc/net/route; None for none."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000":
            return words[0]
    return None


#: counters of a port that must not rise: a rise of any amount is a broken link, or a poor link
BROKEN = ("link_downed", "link_error_recovery")
POOR = (
    "symbol_error", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "local_ack_timeout_err", "rnr_nak_retry_err",
    "out_of_sequence",
)  # fmt: skip


def ports(seen: Seen) -> Finding:
    """Every port that has a cable is ACTIVE; value: how many of which layer and rate."""
    there = read_ports(seen.files("rdma"))
    if not there and seen.files("kernel").get("/sys/class/infiniband/", "").strip():
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
        return Finding(ok().level, "InfiniBand and RoCE: see dispatch check --nccl", value)
    return ok(value)


def counters(seen: Seen) -> Finding:
    """Errors between our two visits, of a link that no job uses."""
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
    text = f"the fabric manager is {state or 'not there'}"
    return critical(text, "systemctl start nvidia-fabricmanager")
