"""Makes a rank's environment, the user's variables and then ours, and its arguments.

Lowest first, a later source wins: ``--iface``; the login node's variables that cross; env files;
``-x``; ``env=`` of the hostfile; RANK and its like, for which a user's value is an error. All goes
on top of the host's own environment less ``SCRUB``. CUDA_VISIBLE_DEVICES (see ``devices``) and
OMP_NUM_THREADS yield to the user's. ROLE_* describe a rank's own program. The agent adds PMI_RANK,
PMI_SIZE and PMI_FD. ``describe_plan`` shows a plan and its ranks' variables, for ``--dry-run`` and
``plan.json``.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dispatcher.model.frozen import Value, value
from dispatcher.plan.job import devices
from dispatcher.plan.variables import redacted

if TYPE_CHECKING:
    from dispatcher.model import formats
    from dispatcher.plan.job.job_plan import JobPlan
    from dispatcher.plan.job.request import Limits, Restarts


#: with _include or _exclude, the interfaces of Open MPI's own TCP
_OPEN_MPI = "OMPI_MCA_btl_tcp_if"


@value
class Bound(Value):
    """Values that only the hosts have, known once they are up.

    master_addr: address of node 0 that the other nodes reach. master_port: free on it. omp_threads:
    ``omp_threads(cores, local ranks)`` of this rank's host, or None to leave the variable alone.
    error_file: where torch writes the rank's exception, or None for no such variable. hostname: an
    address of the rank's host by which MPI there may be reached, or None if it has none. gpus: how
    many its ranks may use. nics: RDMA devices near to the rank's GPU. iface: the interface of that
    hostname where gloo would find none that others reach, or None.
    """

    master_addr: str
    master_port: int
    omp_threads: int | None = None
    error_file: str | None = None
    hostname: str | None = None
    gpus: int = 0
    nics: tuple[str, ...] = ()
    iface: str | None = None


def omp_threads(cores: int, local_ranks: int) -> int:
    """Threads for each rank so that a node's ranks share its cores; at least 1."""
    return max(1, cores // max(1, local_ranks))


def interface(name: str | None) -> dict[str, str]:
    """Variables that keep every library of a rank on the network interface ``name``.

    NCCL's ``=`` asks for exactly this name (eth1 would take eth10, too). MPICH and
    Intel MPI have no own variable for it: libfabric and UCX below them do.
    """
    if name is None:
        return {}
    names = (
        "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE", "FI_SOCKETS_IFACE",
        "UCX_NET_DEVICES", "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE", f"{_OPEN_MPI}_include",
    )  # fmt: skip
    return {"NCCL_SOCKET_IFNAME": f"={name}"} | dict.fromkeys(names, name)


def rank_environment(
    plan: JobPlan, rank: int, bound: Bound | None = None, *, restart: int = 0
) -> dict[str, str]:
    """Every variable set for ``rank``, user's and ours; the host's own come below these.

    bound None shows placeholders ``<...>`` for values that only the hosts have: for
    display, never to be run.
    """
    place = plan.ranks[rank]
    node = plan.nodes[place.node]
    part = plan.part_of(rank)
    local_size = len(node.ranks)
    env = spawned_environment(plan, place.node, place.local_rank, local_size, bound, part.exports)
    env |= {
        "RANK": str(rank), "WORLD_SIZE": str(plan.world_size),
        "LOCAL_RANK": str(place.local_rank), "LOCAL_WORLD_SIZE": str(local_size),
        "NODE_RANK": str(node.index), "GROUP_RANK": str(node.index),
        "GROUP_WORLD_SIZE": str(len(plan.nodes)), "ROLE_NAME": part.name or "default",
        "ROLE_RANK": str(rank - part.first), "ROLE_WORLD_SIZE": str(part.size),
        "TORCHELASTIC_RUN_ID": plan.run_id, "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.restarts.most),
    }  # fmt: skip
    if plan.mpi != "none":
        env |= {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(plan.world_size)}
        local = {"LOCAL_RANK": place.local_rank, "LOCAL_SIZE": local_size}
        local["NODE_RANK"] = place.local_rank  # its number on its node
        env |= {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in local.items()}
    if plan.limits.hang_timeout:
        env.setdefault("NCCL_RAS_ADDR", ras_address(plan.run_id))
    if plan.rank_hosts is not None:
        env["DISPATCH_HOSTS"] = plan.rank_hosts
    if bound is None:
        first = plan.nodes[0].host.name
        env["MASTER_ADDR"] = plan.master_addr or f"<address of {first}>"
        env["MASTER_PORT"] = str(plan.master_port or f"<free port on {first}>")
        env["TORCHELASTIC_ERROR_FILE"] = "<chosen on the host>"
    else:
        env["MASTER_ADDR"] = bound.master_addr
        env["MASTER_PORT"] = str(bound.master_port)
        if bound.error_file is not None:
            env["TORCHELASTIC_ERROR_FILE"] = bound.error_file
            if plan.limits.hang_timeout:
                env["DISPATCH_STACKS"] = posixpath.dirname(bound.error_file)
    return env


def ras_address(run_id: str) -> str:
    """The address of NCCL's RAS on each host of this run; other runs have others.

    Any 127.*.*.* is this machine's own, so the port may be NCCL's usual one on every host.
    """
    digest = zlib.crc32(run_id.encode())
    first, second, third = (digest >> shift & 255 for shift in (16, 8, 0))
    return f"127.{1 + first % 254}.{second}.{1 + third % 254}:28028"


def spawned_environment(
    plan: JobPlan,
    node: int,
    local_rank: int,
    local_size: int,
    bound: Bound | None,
    exports: devices.Exports | None = None,
) -> dict[str, str]:
    """Every variable set for a rank that another one spawned on ``node``.

    It is the ``local_rank``-th of the ``local_size`` ranks of its world on that host. It has no
    RANK, WORLD_SIZE, MASTER_ADDR: with them it would join its parents' process group. MPI gives it
    its rank. exports: the user's variables, if they differ from the whole job's.
    """
    place = plan.nodes[node]
    user = {**dict(plan.exports if exports is None else exports), **dict(place.host.env)}
    env = {**interface(plan.iface), **user}
    if f"{_OPEN_MPI}_exclude" in user and f"{_OPEN_MPI}_include" not in user:
        env.pop(f"{_OPEN_MPI}_include", None)  # MPI_Init refuses both
    gpus = devices.visible_devices(plan.devices, place, local_rank)
    if gpus is not None:
        if bound is None and not place.named and plan.devices != "node":
            gpus = f"<{gpus}, unless {place.host.name} has chosen others>"
        env.setdefault(devices.VARIABLE, gpus)
        said = devices.typed_value(plan.exports, place)
        if plan.devices == "rank" and place.gpus and env[devices.VARIABLE] == said:
            env[devices.VARIABLE] = gpus  # one of those that -x chose
    if plan.near_hca and (bound is None or bound.nics):
        near = "<those near to its GPU>" if bound is None else ",".join(bound.nics)
        env.setdefault("NCCL_IB_HCA", f"={near}")  # NCCL takes = for exact names
    if bound is not None and bound.iface is not None and len(plan.nodes) > 1:
        env.setdefault("GLOO_SOCKET_IFNAME", bound.iface)
        env.setdefault("TP_SOCKET_IFNAME", bound.iface)
    threads = _threads(plan, bound)
    if threads is not None:
        env.setdefault("OMP_NUM_THREADS", threads)
    env |= {"MPI_LOCALRANKID": str(local_rank), "MPI_LOCALNRANKS": str(local_size)}
    env |= {"DISPATCH_RUN_ID": plan.run_id, "DISPATCH_HOST": place.host.name}
    if bound is not None and bound.gpus:
        env["DISPATCH_GPUS"] = str(bound.gpus)
    if bound is not None and plan.mpi != "none" and bound.hostname is not None:
        env["PMI_HOSTNAME"] = bound.hostname
    return env


def _threads(plan: JobPlan, bound: Bound | None) -> str | None:
    """The value of ``OMP_NUM_THREADS`` by policy, or None to leave it alone."""
    if isinstance(plan.omp, int):
        return str(plan.omp)
    if plan.omp == "keep":
        return None
    if bound is None:
        return "<cores / local ranks>"
    return None if bound.omp_threads is None else str(bound.omp_threads)


#: fields of ``Limits`` and ``Restarts`` -> their keys in plan.json
_KEYS = {
    "max_missed_heartbeats": "beats_lost", "mpi_stall_warning": "mpi_patience",
    "fanout": "connect_window", "max_host_failures": "host_faults",
}  # fmt: skip


def limits_record(limits: Limits | Restarts) -> dict[str, Any]:
    """The fields as plan.json has them."""
    return {_KEYS.get(name, name): item for name, item in vars(limits).items()}


def describe_plan(plan: JobPlan) -> formats.Plan:
    """Hosts, ranks, commands and environments, JSON-ready, secrets hidden.

    ``<...>`` stands for values that only the hosts know. An open plan has no ranks to show.
    """
    shared = dict(plan.exports)
    if plan.rank_hosts:  # as long as all hosts' names: once, and not for each rank
        shared["DISPATCH_HOSTS"] = plan.rank_hosts

    def own(rank: int) -> Iterator[tuple[str, str]]:
        every = rank_environment(plan, rank).items()
        return ((name, value) for name, value in every if shared.get(name) != value)

    described: formats.Plan = {
        "schema": "plan/1",
        "run_id": plan.run_id, "name": plan.name,
        "world_size": plan.world_size or None, "cwd": plan.cwd,
        "nodes": [
            {"index": node.index, "host": node.host.name, "user": node.host.user,
             "port": node.host.port, "origin": node.host.origin, "slots": list(node.slots) or None,
             "ranks": list(node.ranks), "environment": redacted(dict(node.host.env))}
            for node in plan.nodes
        ],
        "spares": [
            {"host": spare.host.name, "slots": list(spare.slots) or None} for spare in plan.spares
        ],
        "exports": redacted(shared),
        "ranks": [
            {"rank": place.rank, "host": plan.nodes[place.node].host.name,
             "local_rank": place.local_rank, "argv": list(plan.argv(place.rank)),
             "environment": redacted(dict(own(place.rank)))}
            for place in plan.ranks
        ],
        "limits": limits_record(plan.limits), "restarts": limits_record(plan.restarts),
        "bind_to": plan.bind_to, "mem_bind": plan.mem_bind, "notices": list(plan.notices),
    }  # fmt: skip
    if plan.parts:
        described["parts"] = [
            {"name": part.name, "ranks": list(range(part.first, part.first + part.size)),
             "cwd": part.cwd, "argv": list(part.program.argv)}
            for part in plan.parts
        ]  # fmt: skip
    return described
