"""The orders every agent gets, as frames: ``prepare``, ``start`` and ``release``.

What they hold is told in ``remote.protocol.frames``; the plan decides all of it, together
with what the hosts have said of themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from dispatcher.bootstrap import payload
from dispatcher.core.events.actions import LookInside
from dispatcher.core.events.run_events import Facts
from dispatcher.core.run.kvs import process_mapping
from dispatcher.plan.job.job_plan import JobPlan, NodePlan
from dispatcher.plan.job.per_node import PER_NODE, filled
from dispatcher.plan.job.rank_environment import (
    SCRUB_NAMES,
    SCRUB_PREFIXES,
    Bound,
    omp_threads,
    rank_environment,
)
from dispatcher.remote.protocol.frames import control
from dispatcher.runner.run import pmix
from dispatcher.runner.run.once import once_a_plan
from dispatcher.transport.base import Common


def prepare_order(
    plan: JobPlan,
    place: NodePlan,
    token: bytes,
    credit: int,
    attempt: int = 0,
    *,
    head: bool,
    equal: int = 0,
) -> bytes:
    """The agent's first order, as a frame: what to be, and what to look at before a start.

    head: whether ranks will meet there, so that a port is kept free. equal: bytes of the window
    in which it looks for what was sent before; 0: in none.
    """
    host = place.host
    watched = plan.restarts.progress_file
    exports = {**dict(plan.exports), **dict(host.env)}
    program = plan.program
    check: dict[str, bytes] = {}
    if program.kind == "command":
        check["program"] = raw(program.argv[0])
        if plan.mpi == "pmi1" and plan.world_size != 1:
            check["mpi"] = b"pmi1"
    else:
        check["program"] = raw(host.python or plan.python)
    if program.kind == "script":
        check["script"] = raw(program.argv[0])
    if plan.iface is not None:
        check["iface"] = raw(plan.iface)
    limits = plan.limits
    return control(
        "prepare",
        parts=payload.parts(_parts(plan)),
        run_id=plan.run_id,
        node=place.index,
        attempt=attempt,
        check=check,
        path=raw(exports["PATH"]) if "PATH" in exports else None,
        cwd=raw(plan.cwd),
        reserve=(plan.master_port or 0) if head else None,
        watch=raw(watched) if head and watched is not None else None,
        token=token,
        heartbeat=limits.heartbeat,
        lease=limits.lease,
        lifeline_grace=limits.lifeline_grace,
        credit=credit,
        equal=equal,
    )


def _parts(plan: JobPlan) -> list[str]:
    """What the agents need for this plan beyond what every run needs."""
    wanted = {
        "agent.rank_stdin": plan.stdin != "none",
        "pmi.pmi_port": plan.mpi != "none" and plan.pmi_port,
        "protocol.dedup": plan.send_equal_once,
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def start_order(
    plan: JobPlan,
    node: int,
    facts: Facts,
    addr: str,
    port: int,
    kvs_name: str,
    restart: int = 0,
) -> bytes:
    """The order to spawn the node's ranks; what their environments share is sent once."""
    members = plan.nodes[node].ranks
    environments = {}
    words = {}
    for rank in members:
        folder = facts.error_folder
        bound = Bound(
            master_addr=addr,
            master_port=port,
            omp_threads=omp_threads(facts.cores, len(members)),
            error_file=f"{folder}/rank-{rank}.json" if folder else None,
            hostname=addr if node == 0 else next(iter(facts.addresses), None),
            gpus=_gpus(plan.nodes[node], facts),
        )
        environment = rank_environment(plan, rank, bound, restart=restart)
        if pmix.is_offered(plan):
            environment = pmix.variables(plan, rank, kvs_name, folder) | environment
        words[rank] = plan.argv(rank)
        if plan.per_node:
            values = _place(plan, rank, facts, addr, port, restart)
            words[rank] = filled(words[rank], values)
            environment = {name: str(values[name.lower()]) for name in PER_NODE} | environment
        environments[rank] = environment
    first = environments[members[0]]
    common = {
        name: value
        for name, value in first.items()
        if all(env.get(name) == value for env in environments.values())
    }
    return control(
        "start",
        ranks=[
            [
                rank,
                [raw(word) for word in words[rank]],
                pairs((n, v) for n, v in environments[rank].items() if n not in common),
            ]
            for rank in members
        ],
        common=pairs(common.items()),
        scrub=[raw(name) for name in SCRUB_NAMES] + [raw(p) + b"*" for p in SCRUB_PREFIXES],
        stdin=[rank for rank in members if plan.reads_stdin(rank)],
        pmi=None if plan.mpi == "none" else pmi_job(plan, kvs_name),
    )


def _gpus(node: NodePlan, facts: Facts) -> int:
    """How many GPUs there are for ranks on the host ``facts`` speak of."""
    return facts.gpus if node.gpus is None else len(node.gpus)


def _place(
    plan: JobPlan, rank: int, facts: Facts, addr: str, port: int, restart: int
) -> dict[str, object]:
    """The values of the placeholders for the one process of a node."""
    node = plan.nodes[plan.ranks[rank].node]
    return {
        "nnodes": len(plan.nodes),
        "node_rank": node.index,
        "nproc_per_node": len(node.slots) or _gpus(node, facts) or 1,
        "master_addr": f"[{addr}]" if ":" in addr else addr,
        "master_port": port,
        "address": addr if node.index == 0 else next(iter(facts.addresses), node.host.name),
        "host": node.host.name,
        "is_first_node": int(node.index == 0),
        "run_id": plan.run_id,
        "restart": restart,
    }


def release_order(world: int, fence: str, epoch: int, packets: Sequence[bytes]) -> Common:
    """The order to let the members of a fence go, the same for all nodes."""
    return Common(control("pmi_release", world=world, fence=fence, epoch=epoch, keys=packets))


def look_order(action: LookInside) -> bytes:
    """The order to say who is inside MPI, with what finds that out."""
    versions = [list(library) for library in action.versions]
    parts = payload.parts(("pmi.inside",))
    return control("mpi_look", parts=parts, over=action.over, versions=versions)


def pmi_job(plan: JobPlan, kvs_name: str) -> dict[str, object]:
    """What an agent's PMI server must know of the job."""
    return {
        "world": 0,
        "first": 0,
        "name": kvs_name.encode(),
        "size": plan.world_size,
        "universe": universe(plan),
        "mapping": _mapping(plan),
        "patience": plan.limits.mpi_patience,
        "port": plan.pmi_port,
        "pmix": list(pmix.URIS) if pmix.is_offered(plan) else [],
        "hook": None if plan.program.kind == "command" else hook(),
    }


@once_a_plan
def _mapping(plan: JobPlan) -> bytes:
    return process_mapping([place.node for place in plan.ranks]).encode()


@once_a_plan
def universe(plan: JobPlan) -> int:
    """How many ranks the hosts have room for, spawned ones included: MPI_UNIVERSE_SIZE."""
    return sum(max(len(node.slots), len(node.ranks)) for node in plan.nodes)


@functools.cache
def hook() -> bytes:
    """The source of what ranks run in Python load first; see ``dispatcher.remote.rank``."""
    with open(payload.path_of("rank.sitecustomize"), "rb") as file:
        return file.read()


def pairs(items: Iterable[tuple[str, str]]) -> list[list[bytes]]:
    return [[raw(name), raw(value)] for name, value in items]


def raw(text: str) -> bytes:
    """The bytes the user gave: surrogateescape brings back those that were not UTF-8."""
    return text.encode("utf-8", "surrogateescape")
