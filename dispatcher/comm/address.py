"""Where the other ranks can reach this one, found by trying and not by guessing.

``candidates`` lists this host's addresses, best first. ``reach`` connects to the
first that answers and says which interface of this host that took, so that gloo can
be told to use the same: it goes by the host's name otherwise, and on many systems
that is 127.0.1.1.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dispatcher.comm.errors import Unreachable

_SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"
#: Bridges of this host alone: the same address may exist on the other host too.
_LAST = ("docker", "virbr", "br-", "veth", "lxc", "cni")


@dataclass(frozen=True)
class Route:
    """address and port that answered; local is the address of our end."""

    address: str
    port: int
    local: str


def candidates(env: Mapping[str, str], one_host: bool) -> list[str]:
    """Addresses of this host to offer, best first: MASTER_ADDR, then the interfaces'.

    Only the loopback one when all ranks are on this host. Names are left to be looked
    up by whoever connects.
    """
    if one_host:
        return [LOOPBACK]
    found = [env["MASTER_ADDR"]] if env.get("MASTER_ADDR") else []
    by_name = interfaces()
    names = sorted(by_name, key=lambda name: name.startswith(_LAST))
    found += [by_name[name] for name in names if not by_name[name].startswith("127.")]
    return list(dict.fromkeys(found + _addresses_v6()))


def interfaces() -> dict[str, str]:
    """name -> IPv4 address of every interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def _addresses_v6() -> list[str]:
    """Global IPv6 addresses, from the kernel's table."""
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as lines:
            rows = [line.split() for line in lines]
    except OSError:
        return []
    # columns: address, index, prefix length, scope (00 is global), flags, name
    return [
        socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))
        for row in rows
        if len(row) == 6 and row[3] == "00"
    ]


def interface_of(address: str) -> str | None:
    """The name of the interface that has this IPv4 address."""
    return next((name for name, mine in interfaces().items() if mine == address), None)


def reach(addresses: Sequence[str], port: int, seconds: float) -> Route:
    """The first of these addresses that takes a connection; each has ``seconds`` to do so.

    Raises Unreachable with what each of them answered.
    """
    problems = []
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=seconds) as link:
                return Route(link.getpeername()[0], port, link.getsockname()[0])
        except OSError as error:
            problems.append(f"{address} port {port}: {error.strerror or error}")
    raise Unreachable(
        f"comm: cannot reach rank 0: {'; '.join(problems) or 'it offered no address'}",
        hint="export MASTER_ADDR=<an address of rank 0's host that the others reach>",
    )
