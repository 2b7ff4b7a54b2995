"""Who runs where, and where other ranks can reach this one.

Ranks are named ``rank 5 on gpu02``. A rank that is missing cannot tell its
host, so it is taken from what is known: the launcher's list (``DISPATCH_HOSTS``,
``name:count,name:count`` in rank order) if there is one, else from a rank of the
same host that did speak: ranks fill a host before the next, so a rank with local
rank l of n on a host means that ranks r-l .. r-l+n-1 are there too.
Pure: environments come as mappings.

Where others reach this rank is found by trying and not by guessing: ``candidates`` lists this
host's addresses, best first. ``reach`` connects to the first that answers and says which
interface of this host that took, so that gloo can be told to use the same: it goes by the
host's name otherwise, and on many systems that is 127.0.1.1.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dispatcher.comm.errors import Unreachable

_LOCAL_RANK = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")


@dataclass(frozen=True)
class Seat:
    """Where a rank sits: ``host`` is the name to show, ``key`` is equal only on the same host.

    local_rank and local_size are None when no launcher told them.
    """

    rank: int
    host: str
    key: str
    local_rank: int | None = None
    local_size: int | None = None

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"


def local_rank(env: Mapping[str, str]) -> int | None:
    """The rank's number on its host as its launcher says, or None."""
    return _first_number(env, _LOCAL_RANK)


def local_size(env: Mapping[str, str]) -> int | None:
    """The number of ranks on this host as the launcher says, or None."""
    return _first_number(env, _LOCAL_SIZE)


def _first_number(env: Mapping[str, str], names: Iterable[str]) -> int | None:
    for name in names:
        text = env.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def settle(seats: Iterable[Seat]) -> dict[int, tuple[int, int]]:
    """(local rank, local size) of every rank: its number among the ranks with its key."""
    by_key: dict[str, list[int]] = {}
    for seat in seats:
        by_key.setdefault(seat.key, []).append(seat.rank)
    return {
        rank: (index, len(ranks))
        for ranks in by_key.values()
        for index, rank in enumerate(sorted(ranks))
    }


def listed(text: str) -> dict[int, str]:
    """rank -> host from ``name:count,...`` in rank order; empty if the text is not of that form."""
    hosts: dict[int, str] = {}
    for item in filter(None, text.split(",")):
        name, colon, count = item.rpartition(":")
        if not (name and colon and count.isascii() and count.isdigit()):
            return {}
        for _ in range(int(count)):
            hosts[len(hosts)] = name
    return hosts


def whereabouts(missing: Iterable[int], present: Iterable[Seat], hosts: str) -> dict[int, str]:
    """rank -> host for those missing ranks whose host is known (``hosts`` is DISPATCH_HOSTS)."""
    known = listed(hosts)
    for seat in present:
        if seat.local_rank is None or seat.local_size is None:
            continue
        first = seat.rank - seat.local_rank
        for rank in range(first, first + seat.local_size):
            known.setdefault(rank, seat.host)
    return {rank: known[rank] for rank in missing if rank in known}


def fold(ranks: Iterable[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def describe(ranks: Iterable[int], places: Mapping[int, str]) -> str:
    """``rank 3 on gpu01; ranks 8-15 on gpu02``: many ranks in few words, unknown hosts said so."""
    by_host: dict[str, list[int]] = {}
    for rank in sorted(set(ranks)):
        by_host.setdefault(places.get(rank, "an unknown host"), []).append(rank)
    return "; ".join(
        f"rank{'s' if len(members) > 1 else ''} {fold(members)} on {host}"
        for host, members in by_host.items()
    )


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
