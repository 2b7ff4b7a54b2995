"""The network of a host: interfaces, routes, RDMA ports, NVSwitch; pure.

Interfaces and the route out of the host are read from texts in three notations: lines of
``survey`` (``netdev NAME key=value ...``), and for texts pasted by hand ``ip -br addr`` and
``ip addr``. Order is the kernel's, which matters: NCCL and gloo take the first that fits.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from dispatcher.checks.check import Finding, Seen, Unread, critical, ok, warn
from dispatcher.checks.gpu import HANG
from dispatcher.checks.rdma_ports import Port, sysfs_lines
from dispatcher.checks.rdma_ports import parse as parse_ports

#: IFF_ flags of netdevice(7)
UP, LOOPBACK, RUNNING = 0x1, 0x8, 0x40
#: ARPHRD_INFINIBAND of if_arp.h: IP over InfiniBand
INFINIBAND = 32


@dataclass(frozen=True)
class Netdev:
    """One interface. addresses: numeric, IPv4 first; mbps: speed, None when not told."""

    name: str
    running: bool
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    mbps: int | None = None
    ipoib: bool = False

    @property
    def usable(self) -> bool:
        """Whether NCCL would take it: running, with an address other hosts could use."""
        return self.running and bool(self.addresses)

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""


_BRIEF = re.compile(r"([\w.-]+)(?:@[\w.-]+)?\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT)\b(.*)")
_LONG = re.compile(r"\d+: ([\w.-]+)(?:@[\w.-]+)?: <([^>]*)>(.*)")
_INET = re.compile(r"\s+inet6? (\S+)")


def parse(text: str) -> tuple[Netdev, ...]:
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
    if not words:
        return None
    fields = dict(word.partition("=")[::2] for word in words[1:])
    flags = _number(fields.get("flags", ""), 16) or 0
    return Netdev(
        words[0],
        flags & RUNNING != 0 and flags & UP != 0,
        _sorted([value for value in fields.get("addresses", "").split(",") if value]),
        _number(fields.get("mtu", "")),
        _number(fields.get("speed", "")),
        _number(fields.get("type", "")) == INFINIBAND,
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


__all__ = ["HANG", "counters", "manager", "ports"]
