"""The order to start one host's part of a spawned world. Loaded when a rank spawns."""

from __future__ import annotations

import os

from dispatcher.core.events.mpi_events import World
from dispatcher.core.events.run_events import Facts
from dispatcher.core.run.mpi_manager import process_mapping
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.rank_environment import (
    SCRUB_NAMES,
    SCRUB_PREFIXES,
    Bound,
    omp_threads,
    spawned_environment,
)
from dispatcher.remote.protocol.frames import control
from dispatcher.runner.run.orders import hook, pairs, raw, universe


def spawn_order(
    plan: JobPlan, world: World, node: int, facts: Facts, addr: str, kvs_name: str
) -> bytes:
    """The order to spawn the ranks of ``world`` on ``node``, whose agent said ``facts``.

    addr: the address of node 0. kvs_name: of the planned world; this one's derives from it.
    """
    members = [rank for rank, place in enumerate(world.nodes) if place == node]
    bound = Bound(
        master_addr=addr,
        master_port=0,
        omp_threads=omp_threads(facts.cores, len(plan.nodes[node].ranks)),
        hostname=addr if node == 0 else next(iter(facts.addresses), None),
    )
    environments = [
        spawned_environment(plan, node, local, len(members), bound) for local in range(len(members))
    ]
    common = {
        name: value
        for name, value in environments[0].items()
        if all(env.get(name) == value for env in environments)
    }
    ranks = []
    for rank, env in zip(members, environments, strict=True):
        segment = world.segment(rank)
        info = dict(segment.info)
        own = pairs((n, v) for n, v in env.items() if n not in common)
        ranks.append(
            [world.number(rank), segment.argv, own, info.get(b"wdir", b""), info.get(b"path", b"")]
        )
    return control(
        "spawn",
        ranks=ranks,
        common=pairs(common.items()),
        scrub=[raw(name) for name in SCRUB_NAMES] + [raw(p) + b"*" for p in SCRUB_PREFIXES],
        pmi=_pmi(plan, world, kvs_name),
    )


def _pmi(plan: JobPlan, world: World, kvs_name: str) -> dict[str, object]:
    """What the agents' PMI servers must know of the world.

    Its nodes are numbered from 0 in order of appearance: MPICH takes a 0 in the
    middle of a mapping for the place to begin again.
    """
    seen: dict[int, int] = {}
    nodes = [seen.setdefault(node, len(seen)) for node in world.nodes]
    return {
        "world": world.index,
        "first": world.number(0),
        "name": f"{kvs_name}_{world.index}".encode(),
        "size": world.size,
        "universe": universe(plan),
        "mapping": process_mapping(nodes).encode(),
        "patience": plan.limits.mpi_patience,
        "hook": hook() if any(_is_python(s.argv[0]) for s in world.segments) else None,
        "apps": [segment.nprocs for segment in world.segments],
        "preput": [word for pair in world.preput for word in pair],
    }


def _is_python(program: bytes) -> bool:
    return os.path.basename(program).startswith((b"python", b"pypy"))
