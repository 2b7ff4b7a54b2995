"""Makes those orders for agents, as frames, that need more of the plan than their action has.

Their contents follow from the plan and from the hosts' reports. Parts that are the same for every
node of a plan are made once (``@once_a_plan``): else a start would take time by the square of
the nodes, on the one loop. The variables of PMIx are the same that libpmix sets for its clients
(``PMIx_server_setup_fork``), with one port for all protocol versions.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dispatcher.bootstrap import payload
from dispatcher.core.events.mpi_events import Segment, World
from dispatcher.core.events.run_events import Facts, RanksBound
from dispatcher.core.run.mpi_manager import process_mapping
from dispatcher.model.host import Host
from dispatcher.plan.job.binding import DEALT, Binding, bindings, group_bindings
from dispatcher.plan.job.devices import VARIABLE
from dispatcher.plan.job.job_plan import JobPlan, NodePlan
from dispatcher.plan.job.node_launchers import PER_NODE, fill_words, world_values
from dispatcher.plan.job.parts import PartPlan
from dispatcher.plan.job.rank_environment import (
    Bound,
    omp_threads,
    rank_environment,
    spawned_environment,
)
from dispatcher.plan.variables import RESERVED_PREFIXES, SCRUB_NAMES, SCRUB_PREFIXES
from dispatcher.remote.host.own_folder import shm_link
from dispatcher.remote.protocol.frames import CONTROL, control, encode
from dispatcher.remote.protocol.packing import listed, pack, pair

T = TypeVar("T")


def once_a_plan(make: Callable[[JobPlan], T]) -> Callable[[JobPlan], T]:
    """``make`` with a cache of its result for the latest plan (the same object)."""
    latest: list[tuple[JobPlan, T]] = []

    @functools.wraps(make)
    def made(plan: JobPlan) -> T:
        if not latest or latest[0][0] is not plan:
            latest[:] = [(plan, make(plan))]
        return latest[0][1]

    return made


#: modules of the agent that serve PMIx
PARTS = (
    "pmi.pmix_bridge", "pmi.pmix_server", "pmi.libpmix", "pmi.pmix_upcalls",
)  # fmt: skip

#: where to come, under the names by which versions 2 to 5 look
URIS = tuple(f"PMIX_SERVER_URI{version}".encode() for version in ("2", "21", "3", "4", "41"))

#: where Open MPI's ranks keep shared memory; killed ranks would leave it in /dev/shm
SEGMENTS = tuple(
    f"OMPI_MCA_{part}_backing_directory" for part in ("btl_vader", "btl_sm", "osc_sm", "osc_rdma")
)


def is_offered(plan: JobPlan) -> bool:
    """Whether ranks find PMIx beside PMI-1."""
    return plan.mpi == "auto"


def variables(
    plan: JobPlan, node: int, rank: int, kvs_name: str, folder: str | None
) -> dict[str, str]:
    """The variables of ``rank`` on ``node``, without the address of PMI, which its agent knows.

    kvs_name: of its world. folder: the agent's own on its host, if the rank shares memory with
    others.
    """
    env = dict.fromkeys(SEGMENTS, shm_link(folder)) if folder else {}
    return env | {
        "PMIX_NAMESPACE": kvs_name,
        "PMIX_RANK": str(rank),
        "PMIX_HOSTNAME": hostnames(plan)[node],
        # libpmix 3 takes a server without a version for an old one, and no rank finds data that
        # ranks of another world have put; our server is never older than the ranks' libpmix
        "PMIX_VERSION": "9.9.9",
        "PMIX_SECURITY_MODE": "native",
        "PMIX_BFROP_BUFFER_TYPE": "PMIX_BFROP_BUFFER_NON_DESC",
        "PMIX_GDS_MODULE": "hash",
        # the first connection waits until the library is there
        "PMIX_MCA_ptl_base_handshake_wait_time": "60",
        # MPICH 5 does not choose by itself between the two that it finds
        "MPIR_CVAR_PMI_VERSION": "1",
        # Open MPI 4 looks for PMIx only where it knows the launcher; this one sets nothing else
        "JSM_JSRUN_PORT": "1",
    }


@once_a_plan
def hostnames(plan: JobPlan) -> list[str]:
    """A name for each node that PMIx can hold in a list; the names are readable, and differ."""
    names: list[str] = []
    taken = set()
    for node in plan.nodes:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", node.host.name)[:60]
        names.append(f"{name}-{node.index}" if name in taken else name)
        taken.add(names[-1])
    return names


def pmix_order(plan: JobPlan, node: int) -> bytes:
    """The order to serve the ranks of ``node``, as a frame."""
    return _joined(_pmix(plan), {"node": node})


@once_a_plan
def _pmix(plan: JobPlan) -> bytes:
    hosts = [
        [name.encode(), list(place.ranks)]
        for name, place in zip(hostnames(plan), plan.nodes, strict=True)
    ]
    parts = payload.parts(PARTS)
    return pack({"type": "serve_pmix", "parts": parts, "hosts": hosts, **_apps(plan)})


def _joined(base: bytes, own: Mapping[str, object], **packed: bytes) -> bytes:
    """A control frame of a dict that was packed before, and of one host's fields; ``packed`` are
    fields that are packed already.
    """
    fields = b"".join(pack(name) + value for name, value in packed.items())
    return encode(CONTROL, base[:-1] + fields + pack(own)[1:])


def world_order(plan: JobPlan, world: World, node: int, kvs_name: str) -> bytes:
    """The order to let the ranks of ``node`` meet with the ranks of ``world``, as a frame."""
    known = _of_world(plan, world, kvs_name)
    return _joined(known.met, {"node": known.nodes.get(node)})


class _OfWorld:
    """The part of the orders about ``world`` that is the same for every node: made once."""

    def __init__(self, plan: JobPlan, world: World, kvs_name: str) -> None:
        self.of = plan, world, kvs_name
        self.job = _spawned_job(plan, world, kvs_name)
        self.ranks_of = world.ranks_of()
        self.nodes = {node: place for place, node in enumerate(sorted(self.ranks_of))}

    @functools.cached_property
    def met(self) -> bytes:
        """``world_order`` without its node, packed."""
        names = hostnames(self.of[0])
        hosts = [[names[one].encode(), list(self.ranks_of[one])] for one in self.nodes]
        known = {key: self.job[key] for key in ("world", "first", "name", "size", "apps")}
        return pack({"type": "share_world", "hosts": hosts, "nodes": list(self.nodes), **known})


#: the latest worlds, and how many of them are kept
_worlds: list[_OfWorld] = []
_MOST_WORLDS = 8


def _of_world(plan: JobPlan, world: World, kvs_name: str) -> _OfWorld:
    for known in _worlds:
        if known.of[0] is plan and known.of[1] is world and known.of[2] == kvs_name:
            return known
    _worlds[:] = [*_worlds[1 - _MOST_WORLDS :], _OfWorld(plan, world, kvs_name)]
    return _worlds[-1]


def prepare_order(
    plan: JobPlan, place: NodePlan, token: bytes, credit: int, attempt: int = 0, *, head: bool
) -> bytes:
    """The agent's first order, as a frame: its settings, and the checks before a start.

    head: whether ranks will meet on that host, so that a port is kept free.
    """
    host = place.host
    watched = plan.restarts.progress_file
    exports = {**dict(plan.exports), **dict(host.env)}
    # a spare may have to run any of them
    parts = plan.parts_at(place) if place.index < len(plan.nodes) else plan.every_part
    first, more = parts[0], parts[1:]
    check: dict[str, bytes] = {}
    if first is plan.every_part[0]:
        check, program = _needed(plan, host, first), first.program
        several = len(plan.nodes) > 1 and not plan.allow_different_code
        if (several or plan.restarts.most) and program.kind != "command":
            # the folder that Python looks in first
            script = program.argv[0] if program.kind == "script" else ""
            check["code"] = raw(os.path.dirname(script))
        if plan.modules:
            check["modules"] = raw(" ".join(plan.modules))
            check |= {"pythonpath": raw(exports["PYTHONPATH"])} if "PYTHONPATH" in exports else {}
    else:  # hosts compare what most of them run
        more = parts
    if plan.named and first.cwd == plan.cwd:
        check["named"] = raw("\0".join(one.name for one in plan.named))
    if plan.iface is not None:
        check["iface"] = raw(plan.iface)
    if _looks_where(plan):
        within = [plan.mapping.within] if plan.mapping.within in DEALT else []
        # cores are counted socket by socket
        within = ["core", "socket"] if plan.names_cpus or within == ["core"] else within
        words = [*(within if plan.bind_to == "auto" and within else [plan.bind_to, *within])]
        words += ["nics"] * plan.near_hca
        uuid = any("GPU-" in name for name in (*place.slots, exports.get(VARIABLE, "")))
        check["bind"] = raw(" ".join(words + ["uuid"] * uuid))
    limits = plan.limits
    return control(
        "prepare",
        parts=payload.parts(_parts(plan)),
        run_id=plan.run_id,
        node=place.index,
        attempt=attempt,
        check=check,
        path=_path(first, host),
        cwd=raw(first.cwd),
        reserve=(plan.master_port or 0) if head else None,
        watch=raw(watched) if head and watched is not None else None,
        token=token,
        heartbeat=limits.heartbeat,
        lease=limits.lease,
        lifeline_grace=limits.lifeline_grace,
        credit=credit,
        **_further(plan, place, more),
    )


def _further(plan: JobPlan, place: NodePlan, parts: Sequence[PartPlan]) -> dict[str, object]:
    host = place.host
    more = [[raw(part.cwd), _path(part, host), _needed(plan, host, part)] for part in parts]
    for ranks, words in plan.wrappers:
        part = next((plan.part_of(rank) for rank in place.ranks if rank in ranks), None)
        if part is not None:
            more.append([raw(part.cwd), _path(part, host), {"program": raw(words[0])}])
    return {"more": more} if more else {}


def _needed(plan: JobPlan, host: Host, part: PartPlan) -> dict[str, bytes]:
    """The files that must be on ``host`` for the ranks of ``part``."""
    program = part.program
    if program.kind != "command":
        check = {"program": raw(host.python or part.python)}
        return check | ({"script": raw(program.argv[0])} if program.kind == "script" else {})
    check = {"program": raw(program.argv[0])}
    return check | ({"mpi": b"pmi1"} if plan.mpi == "pmi1" and plan.world_size != 1 else {})


def _path(part: PartPlan, host: Host) -> bytes | None:
    path = {**dict(part.exports), **dict(host.env)}.get("PATH")
    return None if path is None else raw(path)


def _parts(plan: JobPlan) -> list[str]:
    """The modules that agents need for this plan beyond those of every run."""
    by_port = plan.mpi != "none" and plan.pmi_port
    wanted = {
        "agent.rank_stdin": plan.stdin != "none",
        "host.tcp_peer": by_port or is_offered(plan),
        "pmi.pmi_port": by_port,
        "host.binding": _looks_where(plan),
        "probe.compared": bool(plan.named or plan.modules),
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def _looks_where(plan: JobPlan) -> bool:
    counted = plan.mapping.each is not None and plan.mapping.within in DEALT
    return plan.bind_to != "none" or plan.near_hca or counted


def bindings_of(plan: JobPlan, node: int, facts: Facts) -> list[Binding]:
    """Where each rank of ``node`` runs on its host, given the host's ``facts``."""
    place, there = plan.nodes[node], facts.topology
    more = plan.mapping, plan.slots_of(place)
    return bindings(plan.bind_to, plan.devices, place, facts.gpus, there, *more)


def ranks_bound(plan: JobPlan, node: int, facts: Facts) -> RanksBound | None:
    """A report on ``bindings_of``; None if there is nothing to report."""
    is_asked = plan.bind_to not in ("auto", "none") or bool(plan.mapping.within or plan.names_cpus)
    untold = plan.bind_to == "none" or (facts.topology is None and not is_asked)
    if untold and not plan.report_bindings:
        return None
    found, members = bindings_of(plan, node, facts), plan.nodes[node].ranks
    bound, unbound = (group_bindings(found, members, bound=which) for which in (True, False))
    return RanksBound(node, bound, unbound, is_asked, plan.report_bindings)


def start_order(
    plan: JobPlan, node: int, facts: Facts, addr: str, port: int, kvs_name: str, restart: int = 0
) -> bytes:
    """The order to spawn the node's ranks; variables that all ranks share are sent once."""
    members = plan.nodes[node].ranks
    environments = []
    words = []
    bound_to, folder = bindings_of(plan, node, facts), facts.error_folder
    # a lone rank may be another launcher, whose ranks make their shared memory where they like
    segments = folder if plan.world_size > 1 else None
    hostname = addr if node == 0 else next(iter(facts.addresses), None)
    for rank, binding in zip(members, bound_to, strict=True):
        bound = Bound(
            master_addr=addr,
            master_port=port,
            omp_threads=omp_threads(len(binding.cpus), binding.sharers)
            if binding.cpus
            else omp_threads(facts.cores, len(members)),
            error_file=f"{folder}/rank-{rank}.json" if folder else None,
            hostname=hostname,
            iface=dict(facts.ifaces).get(hostname or ""),
            gpus=_gpus(plan.nodes[node], facts),
            nics=binding.nics,
        )
        environment = rank_environment(plan, rank, bound, restart=restart)
        if is_offered(plan):
            environment = variables(plan, node, rank, kvs_name, segments) | environment
        argv = plan.argv(rank)
        if plan.per_node:
            values = _place(plan, rank, facts, addr, port, restart)
            argv = fill_words(argv, values)
            environment = {name: str(values[name.lower()]) for name in PER_NODE} | environment
        words.append((_words(argv), [pack(raw(plan.part_of(rank).cwd))] if plan.parts else []))
        environments.append(environment)
    common, own = _common(environments)
    ranks = [
        listed((pack(rank), argv, env, *cwd))
        for rank, (argv, cwd), env in zip(members, words, own, strict=True)
    ]
    fields = {
        "stdin": [rank for rank in members if plan.reads_stdin(rank)],
        "bind": [
            [rank, one.cpus, one.nodes if plan.mem_bind == "local" else ()]
            for rank, one in zip(members, bound_to, strict=True)
            if one.cpus
        ],
    }
    known = _starts(plan)
    if kvs_name not in known:
        pmi = None if plan.mpi == "none" else pmi_job(plan, kvs_name)
        known[kvs_name] = pack({"type": "start_ranks", "scrub": SCRUB, "pmi": pmi})
    return _joined(known[kvs_name], fields, ranks=listed(ranks), common=common)


@once_a_plan
def _starts(plan: JobPlan) -> dict[str, bytes]:
    """The packed part of start orders that is equal for all nodes, by the ranks' key space."""
    return {}


def _gpus(node: NodePlan, facts: Facts) -> int:
    return facts.gpus if node.gpus is None else len(node.gpus)


def _place(
    plan: JobPlan, rank: int, facts: Facts, addr: str, port: int, restart: int
) -> dict[str, object]:
    """The values of the placeholders for the only process of a node."""
    node = plan.nodes[plan.ranks[rank].node]
    return {
        **world_values(plan, _gpus(node, facts) or 1),
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


def pmi_job(plan: JobPlan, kvs_name: str) -> dict[str, object]:
    """The description of the job for an agent's PMI server."""
    return {
        "world": 0,
        "first": 0,
        "name": kvs_name.encode(),
        "size": plan.world_size,
        "universe": universe(plan),
        "mapping": _mapping(plan),
        "patience": plan.limits.mpi_stall_warning,
        "port": plan.pmi_port,
        "pmix": list(URIS) if is_offered(plan) else [],
        "hook": hook() if any(p.program.kind != "command" for p in plan.every_part) else None,
        **_apps(plan),
    }


def _apps(plan: JobPlan) -> dict[str, list[int]]:
    """The ranks of each program in turn, if there are several; the place is MPI_APPNUM."""
    return {"apps": [part.size for part in plan.parts]} if plan.parts else {}


@once_a_plan
def _mapping(plan: JobPlan) -> bytes:
    return process_mapping([place.node for place in plan.ranks]).encode()


@once_a_plan
def universe(plan: JobPlan) -> int:
    """How many ranks the hosts have room for, spawned ranks included: MPI_UNIVERSE_SIZE."""
    return sum(max(len(node.slots), len(node.ranks)) for node in plan.nodes)


@functools.cache
def hook() -> bytes:
    """The source of the module that ranks in Python load first; see ``dispatcher.remote.rank``."""
    with open(payload.path_of("rank.sitecustomize"), "rb") as file:
        return file.read()


def _common(environments: Sequence[Mapping[str, str]]) -> tuple[bytes, list[bytes]]:
    """The variables that all ``environments`` share, and the rest of each, packed."""
    shared = set(environments[0].items()).intersection(*(env.items() for env in environments[1:]))
    common = dict(item for item in environments[0].items() if item in shared)
    own = [
        listed([pair(raw(n), raw(v)) for n, v in env.items() if n not in common])
        for env in environments
    ]
    return listed([pair(raw(n), raw(v)) for n, v in common.items()]), own


@functools.lru_cache(maxsize=1 << 8)
def _words(argv: tuple[str, ...]) -> bytes:
    return pack([raw(word) for word in argv])


def raw(text: str) -> bytes:
    """The bytes the user gave: surrogateescape brings back those that were not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def spawn_order(
    plan: JobPlan, world: World, node: int, facts: Facts, addr: str, kvs_name: str
) -> bytes:
    """The order to spawn the ranks of ``world`` on ``node``, whose agent reported ``facts``.

    addr: the address of node 0. kvs_name: of the planned world; this one's derives from it.
    """
    known = _of_world(plan, world, kvs_name)
    members = known.ranks_of[node]
    hostname = addr if node == 0 else next(iter(facts.addresses), None)
    bound = Bound(
        master_addr=addr,
        master_port=0,
        omp_threads=omp_threads(facts.cores, len(plan.nodes[node].ranks)),
        hostname=hostname,
        iface=dict(facts.ifaces).get(hostname or ""),
    )
    name = f"{kvs_name}_{world.index}"
    environments = []
    for local, rank in enumerate(members):
        environment = spawned_environment(plan, node, local, len(members), bound)
        environment |= _asked_for(world.segment(rank))
        if is_offered(plan):
            environment |= variables(plan, node, rank, name, facts.error_folder)
        environments.append(environment)
    common, own = _common(environments)
    ranks = []
    for rank, env in zip(members, own, strict=True):
        segment = world.segment(rank)
        info = dict(segment.info)
        wdir, path = info.get(b"wdir", b""), info.get(b"path", b"")
        number, argv = pack(world.number(rank)), pack(segment.argv)
        ranks.append(listed((number, argv, env, pack(wdir), pack(path))))
    order = pack({"type": "spawn_ranks", "scrub": SCRUB, "pmi": known.job})
    return _joined(order, {}, ranks=listed(ranks), common=common)


def _asked_for(segment: Segment) -> dict[str, str]:
    """Variables that who spawned ``segment`` wants it to have: lines of the info key ``env``."""
    lines = [line for key, text in segment.info if key == b"env" for line in text.split(b"\n")]
    words = [os.fsdecode(line).partition("=") for line in lines]
    return {
        name: value
        for name, equals, value in words
        if name and equals and not name.startswith(RESERVED_PREFIXES)
    }


def _spawned_job(plan: JobPlan, world: World, kvs_name: str) -> dict[str, object]:
    """The description of the spawned world for the agents' PMI servers.

    Its nodes are numbered from 0: MPICH takes a 0 inside a mapping for the place to begin again.
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
        "patience": plan.limits.mpi_stall_warning,
        "hook": hook() if any(_is_python(s.argv[0]) for s in world.segments) else None,
        "apps": [segment.nprocs for segment in world.segments],
        "pmix": list(URIS) if is_offered(plan) else [],
        "preput": world.preput,
    }


def _is_python(program: bytes) -> bool:
    return os.path.basename(program).startswith((b"python", b"pypy"))


#: variables of its host that no rank gets: names, and beginnings of names
SCRUB = [raw(name) for name in SCRUB_NAMES] + [raw(prefix) + b"*" for prefix in SCRUB_PREFIXES]
