"""Network interfaces of a host and the route out of it, from texts; pure.

Three notations: lines of ``survey`` (``netdev NAME key=value ...``), and for texts
pasted by hand ``ip -br addr`` and ``ip addr``. Order is the kernel's, which matters:
NCCL and gloo take the first that fits.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

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
