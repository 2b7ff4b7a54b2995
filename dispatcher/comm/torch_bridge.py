"""torch.distributed, started from the same bootstrap: no port is guessed or told beforehand.

Rank 0 opens a ``TCPStore`` on a port the system picks (on loopback alone when all
ranks are on one host), its addresses cross MPI, and each rank proves that it
reaches one before torch is asked to. With a GPU on every rank the group is nccl and
bound to the device, so the communicator is built now and a bad fabric shows here;
otherwise it is gloo. One path for both.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import secrets
import socket
from typing import Any

from dispatcher.comm import rank_hosts
from dispatcher.comm.errors import CommError, EnvironmentMissing
from dispatcher.comm.exchange import Exchange

_TOKEN = "dispatch/token"  # noqa: S105 - the key's name
_CONNECT = 5.0


def load_torch(backend: str) -> Any:
    """The module torch, able to do ``backend``; EnvironmentMissing if not."""
    try:
        torch: Any = importlib.import_module("torch")
        distributed: Any = importlib.import_module("torch.distributed")
    except (ImportError, OSError) as error:
        raise EnvironmentMissing(
            f"torch: cannot be imported: {error}", hint="pip install torch"
        ) from error
    if backend == "nccl" and not (torch.cuda.is_available() and distributed.is_nccl_available()):
        raise EnvironmentMissing(
            f"torch: version {torch.__version__} sees no gpu, though the driver does",
            hint="a torch built for cuda, or comm.init(device='cpu')",
        )
    return torch


def init_torch(
    exchange: Exchange, *, backend: str, device: int | None, one_host: bool, timeout: float
) -> Any:
    """The process group of all ranks, ready on every one of them; gives the module torch.

    device is this rank's GPU, None for gloo; timeout is the group's own, in seconds.
    Raises the same CommError on every rank if any cannot import torch or reach rank 0.
    """
    loaded: list[Any] = []

    def load() -> bytes:
        loaded.append(load_torch(backend))
        return b""

    exchange.assemble("importing torch", timeout, step=load)
    torch = loaded[0]
    store = _store(exchange, torch, one_host, timeout)
    distributed = torch.distributed
    if distributed.is_initialized():
        raise CommError("comm: torch: the process group exists already")
    options: dict[str, Any] = {}
    if backend == "nccl":
        options["device_id"] = torch.device("cuda", device)
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore("default_pg", store),
        rank=exchange.rank,
        world_size=exchange.size,
        timeout=datetime.timedelta(seconds=timeout),
        **options,
    )
    return torch


def _store(exchange: Exchange, torch: Any, one_host: bool, timeout: float) -> Any:
    """The store that rank 0 hosts, as each rank's client of it."""
    hosted: list[Any] = []

    def host() -> bytes:
        token = secrets.token_hex(8)
        store, port = _host(torch, one_host, timeout)
        store.set(_TOKEN, token)
        hosted.append(store)
        offer = {
            "port": port,
            "token": token,
            "addresses": rank_hosts.candidates(os.environ, one_host),
        }
        return json.dumps(offer).encode()

    offer = json.loads(exchange.share(host, "opening the store", timeout))

    def connect() -> bytes:
        if exchange.rank == 0:
            return b""
        route = rank_hosts.reach(offer["addresses"], offer["port"], _CONNECT)
        store = _join(torch, route, timeout)
        if store.get(_TOKEN).decode() != offer["token"]:
            raise CommError(
                f"{route.address} port {route.port}: another service than rank 0's store",
                hint="export MASTER_ADDR=<an address of rank 0's host that the others reach>",
            )
        hosted.append(store)
        _tell_gloo(route.local)
        return route.address.encode()

    used = exchange.assemble("reaching the store", timeout, step=connect, answer=_most_used)
    if exchange.rank == 0:
        _tell_gloo(used.decode() or rank_hosts.LOOPBACK)
    return hosted[0]


def _host(torch: Any, one_host: bool, timeout: float) -> tuple[Any, int]:
    if one_host or not socket.has_dualstack_ipv6():
        listener = socket.create_server((rank_hosts.LOOPBACK if one_host else "", 0), backlog=1024)
    else:
        listener = socket.create_server(
            ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
        )
    port = int(listener.getsockname()[1])
    store = torch.distributed.TCPStore(
        rank_hosts.LOOPBACK,
        port,
        None,
        True,
        datetime.timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # torch closes it
    )
    return store, port


def _join(torch: Any, route: rank_hosts.Route, timeout: float) -> Any:
    limit = datetime.timedelta(seconds=timeout)
    try:
        return torch.distributed.TCPStore(
            route.address, route.port, None, False, limit, wait_for_workers=False
        )
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise CommError(f"torch store at {route.address} port {route.port}: {first}") from error


def _most_used(reports: list[bytes]) -> list[bytes]:
    """For each rank the address of rank 0 that most ranks took."""
    taken = [report for report in reports if report]
    best = max(taken, key=taken.count) if taken else b""
    return [best] * len(reports)


def _tell_gloo(local: str) -> None:
    """gloo uses the interface that reached rank 0, unless the user named one."""
    name = rank_hosts.interface_of(local)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
