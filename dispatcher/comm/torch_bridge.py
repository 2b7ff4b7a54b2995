"""torch.distributed, started from the same bootstrap: the user names no port.

Rank 0 opens a ``TCPStore`` on a port the system picks, its addresses cross MPI, and each rank
proves that it reaches one (``docs/guides/comm.md``). gloo must use the interface that did: it goes
by the host's name otherwise, and on many systems that is 127.0.1.1.
"""

from __future__ import annotations

import atexit
import datetime
import fcntl
import importlib
import json
import os
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.comm.errors import CommError, EnvironmentMissing, Unreachable
from dispatcher.comm.exchange import Aside, Exchange

_TOKEN = "dispatch/token"  # noqa: S105 - the key's name
_CONNECT = 5.0
_SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"
#: Bridges of this host alone: the same address may exist on the other host too.
_LAST = ("docker", "virbr", "br-", "veth", "lxc", "cni")


def uses_nccl(backend: str) -> bool:
    """Whether torch's ``nccl`` or ``cpu:gloo,cuda:nccl`` needs GPUs."""
    return "nccl" in (part.rpartition(":")[2] for part in backend.lower().split(","))


def load_torch(backend: str) -> Any:
    """The module torch, able to do ``backend``; EnvironmentMissing if not."""
    try:
        torch: Any = importlib.import_module("torch")
        distributed: Any = importlib.import_module("torch.distributed")
    except (ImportError, OSError) as error:
        raise EnvironmentMissing(
            f"torch: cannot be imported: {error}", hint="pip install torch"
        ) from error
    if uses_nccl(backend) and not (torch.cuda.is_available() and distributed.is_nccl_available()):
        raise EnvironmentMissing(
            f"torch: version {torch.__version__} sees no gpu, though the driver does",
            hint="a torch built for cuda, or comm.init(device='cpu')",
        )
    return torch


def init_torch(
    exchange: Exchange, *, backend: str, device: int | None, one_host: bool, timeout: float
) -> Any:
    """The process group of all ranks, ready on every one of them; gives the module torch.

    device is this rank's GPU, None without one; timeout is the group's own, in seconds, and the
    limit of each step. Raises the same CommError on every rank if any cannot import torch,
    reach rank 0 or join in time, or wants another backend than rank 0.
    """
    loaded: list[Any] = []

    def load() -> bytes:
        if device is None and uses_nccl(backend):
            raise EnvironmentMissing(
                f"torch: backend {backend!r}: needs gpus, and no rank has one",
                hint="comm.init(require_gpu=True) says why; without backend it is gloo",
            )
        loaded.append(load_torch(backend))
        return backend.encode()

    exchange.assemble("importing torch", timeout, step=load, answer=_agreed)
    torch = loaded[0]
    store = _store(exchange, torch, one_host, timeout)
    distributed = torch.distributed
    if distributed.is_initialized():
        raise CommError("comm: torch: the process group exists already")
    options: dict[str, Any] = {}
    if uses_nccl(backend):
        options["device_id"] = torch.device("cuda", device)
        torch.cuda.set_device(device)

    def join() -> bytes:
        try:
            if options:
                torch.cuda.set_device(device)  # for this thread, too
            distributed.init_process_group(
                backend,
                store=distributed.PrefixStore("default_pg", store),
                rank=exchange.rank,
                world_size=exchange.size,
                timeout=datetime.timedelta(seconds=timeout),
                **options,
            )
        except (RuntimeError, ValueError) as error:
            raise CommError(f"torch: process group: {str(error).splitlines()[0]}") from error
        return b""

    # a rank that has connected may end, and gloo would fail in ranks that still connect to it;
    # NCCL starts in here and knows no deadline, so it has a thread that can be left behind
    exchange.assemble(
        "joining the process group",
        timeout,
        step=Aside(join, "torch-join"),
        hint="export NCCL_DEBUG=INFO and run again" if options else None,
    )
    if not options:
        atexit.register(leave, distributed)
    return torch


def leave(distributed: Any) -> None:
    """Take the process group down, if there is one: else gloo's threads may abort the process."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _agreed(backends: list[bytes]) -> list[bytes]:
    for rank, backend in enumerate(backends):
        if backend != backends[0]:
            raise CommError(
                f"comm: torch: rank {rank} asks for the backend {backend.decode()!r},"
                f" rank 0 for {backends[0].decode()!r}"
            )
    return backends


def process_group(torch: Any, everyone: Sequence[Sequence[int]], rank: int, timeout: float) -> Any:
    """This rank's group out of ``everyone``, equal groups that hold each rank of the world once.

    All ranks call it with equal arguments; timeout, in seconds, is for the groups. One split of the
    world's communicator makes them all if torch can do that (all backends split, NCCL is bound to a
    device, and there is ``ProcessGroup.split_group``, as in torch 2.13). Else there is a
    ``new_group`` for each; but a rank alone makes only its own if no NCCL is split for it.
    """
    distributed = torch.distributed
    limit = datetime.timedelta(seconds=timeout)
    world = distributed.group.WORLD
    bound = getattr(world, "bound_device_id", None)
    if bound and hasattr(world, "split_group") and _all_split(world):
        return distributed.split_group(split_ranks=[list(each) for each in everyone], timeout=limit)
    if not bound and len(everyone[0]) == 1:
        return distributed.new_group([rank], timeout=limit, use_local_synchronization=True)
    made = [distributed.new_group(list(each), timeout=limit) for each in everyone]
    return next(group for group, each in zip(made, everyone, strict=True) if rank in each)


def _all_split(world: Any) -> bool:
    backends = (world._get_backend(kind) for kind in world._device_types)
    return all(getattr(backend, "supports_splitting", False) for backend in backends)


def _store(exchange: Exchange, torch: Any, one_host: bool, timeout: float) -> Any:
    """The store that rank 0 hosts, as each rank's client of it."""
    hosted: list[Any] = []
    ours = LOOPBACK  # our end of the connection

    def host() -> bytes:
        token = secrets.token_hex(8)
        store, port = _host(torch, one_host, timeout)
        store.set(_TOKEN, token)
        hosted.append(store)
        offer = {"port": port, "token": token, "addresses": candidates(os.environ, one_host)}
        return json.dumps(offer).encode()

    offer = json.loads(exchange.share(host, "opening the store", timeout))

    def connect() -> bytes:
        nonlocal ours
        if exchange.rank == 0:
            return b""
        port = offer["port"]
        address, ours = reach(offer["addresses"], port, _CONNECT)
        store = _join(torch, address, port, timeout)
        if store.get(_TOKEN).decode() != offer["token"]:
            raise CommError(
                f"{address} port {port}: another service than rank 0's store",
                hint="export MASTER_ADDR=<an address of rank 0's host that the others reach>",
            )
        hosted.append(store)
        return address.encode()

    used = exchange.assemble("reaching the store", timeout, step=connect, answer=_most_used)
    _tell_gloo(used.decode(), ours)
    return hosted[0]


def _host(torch: Any, one_host: bool, timeout: float) -> tuple[Any, int]:
    if one_host or not socket.has_dualstack_ipv6():
        listener = socket.create_server((LOOPBACK if one_host else "", 0), backlog=1024)
    else:
        listener = socket.create_server(
            ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
        )
    port = int(listener.getsockname()[1])
    store = torch.distributed.TCPStore(
        LOOPBACK,
        port,
        None,
        True,
        datetime.timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # torch closes it
    )
    return store, port


def _join(torch: Any, address: str, port: int, timeout: float) -> Any:
    limit = datetime.timedelta(seconds=timeout)
    try:
        return torch.distributed.TCPStore(address, port, None, False, limit, wait_for_workers=False)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise CommError(f"torch store at {address} port {port}: {first}") from error


def _most_used(reports: list[bytes]) -> list[bytes]:
    """For each rank the address of rank 0 that most ranks used, ranks on other hosts first."""
    loopback = (b"127.", b"::1")
    taken = [report for report in reports if report and not report.startswith(loopback)]
    taken = taken or [report for report in reports if report]
    best = max(taken, key=taken.count) if taken else b""
    return [best] * len(reports)


def _tell_gloo(used: str, ours: str) -> None:
    """gloo uses the interface over which ranks reached rank 0, unless the user named one.

    That has the address they took where it is this host's: a rank beside rank 0 may have come by
    another, as Debian's ``/etc/hosts`` gives a host's own name 127.0.1.1. Else it has our end.
    """
    name = interface_of(used) or interface_of(ours)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def candidates(env: Mapping[str, str], one_host: bool) -> list[str]:
    """Addresses of this host to offer, best first: MASTER_ADDR, then the interfaces'.

    Only the loopback address when all ranks are on this host. The rank that connects
    looks names up.
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


def reach(addresses: Sequence[str], port: int, seconds: float) -> tuple[str, str]:
    """The first of these addresses that takes a connection, and the address of our end of it.

    Each has ``seconds`` to do so. Raises Unreachable with what each of them answered.
    """
    problems = []
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=seconds) as link:
                return link.getpeername()[0], link.getsockname()[0]
        except OSError as error:
            problems.append(f"{address} port {port}: {error.strerror or error}")
    raise Unreachable(
        f"comm: cannot reach rank 0: {'; '.join(problems) or 'it offered no address'}",
        hint="export MASTER_ADDR=<an address of rank 0's host that the others reach>",
    )
