"""The frozen plan of a run: ``plan_job(request, run_id) -> JobPlan``.

Filters, ``--nnodes``, room on each node, placement, environment, in this order; no host is asked.
Where GPUs must be counted first the plan is *open*: it has nodes but no ranks, and ``resolved``
closes it. Nodes that get no rank are left out, with a notice.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import groupby

from dispatcher.model import names
from dispatcher.model.errors import (
    InternalError,
    NoGpu,
    NoHosts,
    PlanError,
    TooFewHosts,
    TooManyRanks,
    UnknownHost,
)
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.plan.hosts.filters import choose_hosts
from dispatcher.plan.job import binding, devices, placement
from dispatcher.plan.job import parts as programs
from dispatcher.plan.job.binding import Topology
from dispatcher.plan.job.compared import MOST_FILES, NamedFile, imported, named_files
from dispatcher.plan.job.devices import NodePlan
from dispatcher.plan.job.parts import PartPlan, Program
from dispatcher.plan.job.placement import MapBy, Placed, Ranks, divide_hosts
from dispatcher.plan.job.request import JobSettings, Request, check_request
from dispatcher.plan.variables import exported

#: characters of DISPATCH_HOSTS at most
LONGEST_RANK_HOSTS = 16 << 10

__all__ = ["Change", "JobPlan", "NodePlan", "RankPlan", "plan_job"]


@value
class RankPlan(Value):
    """Where one rank runs: index of its node, and its number on that node."""

    rank: int
    node: int
    local_rank: int


@value
class JobPlan(JobSettings):
    """All that will happen, before it does. Open (no ranks) until GPUs are counted, if need be."""

    run_id: str
    nodes: tuple[NodePlan, ...]
    program: Program
    cwd: str
    exports: tuple[tuple[str, str], ...] = ()
    rankfile: tuple[Placed, ...] = ()  # the place of each rank, if a rankfile sets it
    spares: tuple[NodePlan, ...] = ()  # without ranks, numbered after the nodes
    parts: tuple[PartPlan, ...] = ()  # the programs, where there are several; program: the first
    notices: tuple[str, ...] = ()
    named: tuple[NamedFile, ...] = ()  # hosts are compared in these, see ``compared``
    modules: tuple[str, ...] = ()  # that the script imports: the same

    @property
    def is_open(self) -> bool:
        """Whether GPUs must be counted before the world size is known."""
        return not any(node.ranks for node in self.nodes)

    @cached_property
    def ranks(self) -> tuple[RankPlan, ...]:
        """Every rank, in order; empty while the plan is open."""
        found = [
            RankPlan(rank, node.index, local)
            for node in self.nodes
            for local, rank in enumerate(node.ranks)
        ]
        return tuple(sorted(found, key=lambda place: place.rank))

    @cached_property
    def rank_hosts(self) -> str | None:
        """``n1:8,n2:8``: hosts and numbers of consecutive ranks, in rank order.

        None where it would be too long for an environment variable; a bound well
        below execve(2)'s 128 KiB leaves room for the others.
        """
        runs = groupby(place.node for place in self.ranks)
        text = ",".join(f"{self.nodes[node].host.name}:{len([*same])}" for node, same in runs)
        return text if len(text) <= LONGEST_RANK_HOSTS else None

    @cached_property
    def world_size(self) -> int:
        """Number of ranks; 0 while the plan is open."""
        return sum(len(node.ranks) for node in self.nodes)

    def reads_stdin(self, rank: int) -> bool:
        """Whether ``rank`` is given the launcher's standard input."""
        return self.stdin in ("all", rank)

    @cached_property
    def mapping(self) -> MapBy:
        return placement.parse_mapping(self.map_by)

    @property
    def numbering(self) -> str:
        """How ranks are numbered: along the slots of a host (block), or one a node in turn."""
        return {"slot": "block", "node": "node"}.get(self.rank_by or "", self.mapping.across)

    @cached_property
    def names_cpus(self) -> bool:
        """Whether a rankfile sets the CPUs of ranks."""
        return self.bind_to != "none" and any(one.slot for one in self.rankfile)

    def slots_of(self, node: NodePlan) -> tuple[str, ...]:
        """The CPUs that a rankfile sets for each rank of ``node``."""
        return tuple(self.rankfile[rank].slot for rank in node.ranks) if self.names_cpus else ()

    @cached_property
    def every_part(self) -> tuple[PartPlan, ...]:
        """The parts; of a job of one program that alone, and it has all ranks."""
        alone = PartPlan("", self.program, self.python, self.cwd, self.exports)
        return self.parts or (replace(alone, size=self.world_size),)

    def part_of(self, rank: int) -> PartPlan:
        """The part that ``rank`` belongs to."""
        if not self.parts:
            return self.every_part[0]
        return next(part for part in self.parts if rank < part.first + part.size)

    def parts_at(self, node: NodePlan) -> tuple[PartPlan, ...]:
        """The parts with ranks on ``node``; while these are not known, those that may have some."""
        if node.ranks and self.parts:
            there = {self.part_of(rank).first for rank in node.ranks}
            return tuple(part for part in self.parts if part.first in there)
        return tuple(part for part in self.every_part if part.runs_on(node.host.name))

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments; where there are several, with ``:`` between them."""
        words = [word for part in self.every_part for word in (":", *part.program.argv)]
        return tuple(words[1:])

    @cached_property
    def wrappers(self) -> tuple[tuple[Ranks, tuple[str, ...]], ...]:
        """The ranks of each ``--wrap``, and the words of its command."""
        return tuple(map(programs.parse_wrap, self.wraps))

    def argv(self, rank: int) -> tuple[str, ...]:
        """The exact argument list of ``rank``; on a host with its own Python, that one."""
        wrapper = [word for ranks, words in self.wrappers if rank in ranks for word in words]
        return (*wrapper, *self._own_argv(rank))

    def _own_argv(self, rank: int) -> tuple[str, ...]:
        part = self.part_of(rank)
        words = part.program.argv
        if self.local_rank_arg is not None:
            local = f"{self.local_rank_arg}={self.ranks[rank].local_rank}"
            words = (words[0], local, *words[1:])
        if part.program.kind == "command":
            return words
        python = self.nodes[self.ranks[rank].node].host.python or part.python
        module = ("-m",) if part.program.kind == "module" else ()
        return (python, "-u", *module, *words)

    def resolved(
        self,
        gpu_counts: Mapping[int, int],
        visible: Mapping[int, str | None] | None = None,
        there: Mapping[int, Topology | None] | None = None,
    ) -> JobPlan:
        """The closed plan, given the number of GPUs of each node by its index.

        visible: their ``CUDA_VISIBLE_DEVICES``. there: the place of CPUs and GPUs on them. Nodes of
        an open plan that are left without ranks drop out and the others are renumbered, in the
        same order. Raises: PlanError when the ranks do not fit, a chosen GPU does not exist, or
        ``gpu`` was asked for on a host that has none.
        """
        nodes = devices.with_gpus(self.nodes, self.devices, self.exports, gpu_counts, visible or {})
        plan = self if nodes == self.nodes else replace(self, nodes=nodes)
        if plan.is_open:
            plan = _placed(plan, gpu_counts, there)
        else:
            for node in plan.nodes:
                if node.named and node.host.slots is None and node.gpus is None:
                    _check_chosen(node, gpu_counts.get(node.index, 0))
        if plan.devices == "rank" and not plan.oversubscribe:
            devices.check_one_each(plan.nodes)
        if plan.names_cpus:
            _check_slots(plan, there or {})
        return plan


@value
class Change(Value):
    """A change to the plan when a person restarts the ranks; all else stays.

    program: None for the same. exports: variables over those that there are.
    """

    program: Program | None = None
    exports: tuple[tuple[str, str], ...] = ()

    def of(self, plan: JobPlan) -> JobPlan:
        """``plan`` with the change."""
        if self == Change():
            return plan

        def over(exports: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
            return tuple((dict(exports) | dict(self.exports)).items())

        parts = tuple(replace(part, exports=over(part.exports)) for part in plan.parts)
        program = self.program or plan.program
        return replace(plan, program=program, exports=over(plan.exports), parts=parts)


def with_compared(plan: JobPlan, here: str = "", sent: Collection[str] = ()) -> JobPlan:
    """``plan`` with the files and modules that its hosts are compared in.

    here: the folder on this machine that stands for the plan's. sent: files that ``--sync`` has
    sent from there. On one host only the program's own file counts, which may change at a restart.
    """
    several = len(plan.nodes) > 1 and not plan.allow_different_code
    if not several and not plan.restarts.most:
        return plan
    here, program = here or plan.cwd, plan.program
    parts = [part.program for part in plan.every_part if part.cwd == plan.cwd]
    words = [one.argv[0] for one in parts if one.kind == "command" and "/" in one.argv[0]]
    words += [word for one in parts for word in one.argv[1:] if several]
    files = {one.name: one for word in words for one in named_files(word, here, sent)}
    modules: tuple[str, ...] = ()
    if several and program.kind == "module":
        modules = (program.argv[0].partition(".")[0],)
    elif several and program.kind == "script":
        modules = imported(posixpath.join(here, program.argv[0]))
    return replace(plan, named=tuple(files.values())[:MOST_FILES], modules=modules)


def plan_job(request: Request, run_id: str) -> JobPlan:
    """The plan for ``request``; open if GPUs must be counted first.

    Raises: UsageError for a value no cluster could honour; PlanError when these hosts cannot.
    """
    check_request(request, run_id)
    mapping = placement.parse_mapping(request.map_by)
    if mapping.each is not None and mapping.within == "node":
        request = replace(request, map_by="block", nproc_per_node=mapping.each)
    choices = choose_hosts(request.hosts.hosts, request.include, request.exclude)
    if not choices:
        filters = {"--include": request.include, "--exclude": request.exclude}
        flags = " and ".join(flag for flag, text in filters.items() if text is not None)
        raise NoHosts(f"no host is left after {flags}")
    least = request.restarts.min_nodes
    choices, spares = divide_hosts(choices, request.nnodes, request.spares, least)
    if least is not None and least > len(choices):
        raise TooFewHosts(f"--min-nodes {least}: only {plural(len(choices), 'host')} to start on")
    nodes = [
        NodePlan(index, _completed(choice.host, request), choice.slots or (), named=choice.named)
        for index, choice in enumerate((*choices, *spares))
    ]
    ours = {
        "run_id": run_id,
        "nodes": tuple(nodes[: len(choices)]),
        "spares": tuple(nodes[len(choices) :]),
        "exports": tuple(exported(request.environ, request.exports, request.env_files).items()),
        "notices": request.hosts.notices,
        "rankfile": request.places,
        "limits": request.limits.for_hosts(len(nodes)),
    }
    # fields of the same name in the request and the plan are copied
    asked = {field.name for field in fields(Request)} & {field.name for field in fields(JobPlan)}
    plan = JobPlan(**{name: getattr(request, name) for name in asked} | ours)
    if request.parts:
        plan = _with_parts(plan, request)
    numbered = plan.rankfile or (
        plan.parts and all(part.nproc_per_node is not None for part in plan.parts)
    )
    unsaid = request.nproc_per_node in (None, "auto") and any(not n.slots for n in plan.nodes)
    open_mapping = plan.mapping.each is not None
    if (unsaid and not numbered) or request.nproc_per_node == "gpu" or open_mapping:
        return _in_order(plan) if plan.parts else plan
    return _placed(plan, {})


def _with_parts(plan: JobPlan, request: Request) -> JobPlan:
    """``plan`` with the programs, which have no ranks as yet; less hosts that none may run on."""

    def exports(part: programs.Part) -> tuple[tuple[str, str], ...]:
        names = (*request.exports, *part.exports)
        files = (*request.env_files, *part.env_files)
        return tuple(exported(request.environ, names, files).items())

    parts = tuple(
        PartPlan(
            name,
            part.program,
            part.python or request.python,
            programs.folder(request.cwd, part.cwd),
            exports(part),
            part.np,
            part.nproc_per_node,
            tuple(part.hosts),
        )
        for name, part in zip(programs.names(request.parts), request.parts, strict=True)
    )
    programs.check_hosts(parts, [host.name for host in request.hosts.hosts])
    return replace(plan, parts=parts, program=parts[0].program)


def _in_order(plan: JobPlan) -> JobPlan:
    """The open ``plan`` with hosts of the first program in front, and without unused hosts.

    Their numbers must stay when GPUs have been counted, and rank 0 belongs on node 0.
    """
    order = programs.by_part(plan.parts, [node.host.name for node in plan.nodes])
    idle = fold(node.host.name for at, node in enumerate(plan.nodes) if at not in order)
    return replace(
        plan,
        nodes=tuple(replace(plan.nodes[at], index=index) for index, at in enumerate(order)),
        spares=tuple(replace(one, index=at) for at, one in enumerate(plan.spares, len(order))),
        notices=(*plan.notices, f"{idle}: left out: no program names it") if idle else plan.notices,
    )


def _completed(host: Host, request: Request) -> Host:
    """``host`` with the run's user and port where it names none."""
    return replace(host, user=host.user or request.user, port=host.port or request.port)


def _placed(
    plan: JobPlan, gpu_counts: Mapping[int, int], there: Mapping[int, Topology | None] | None = None
) -> JobPlan:
    """``plan`` with ranks; every node's room must be known or counted."""
    is_said = plan.parts or plan.rankfile
    nodes = _counted(plan, gpu_counts) if gpu_counts or not is_said else [*plan.nodes]
    parts = plan.parts
    if parts:
        parts, ranks = programs.placed(
            parts,
            nodes,
            map_by=plan.mapping.across,
            rank_by=plan.numbering,
            oversubscribe=plan.oversubscribe,
        )
    elif plan.rankfile:
        ranks = _by_rankfile(plan, nodes)
    else:
        ranks = _shared_out(plan, nodes, gpu_counts, there or {})
    n_ranks = sum(map(len, ranks))
    if isinstance(plan.stdin, int) and plan.stdin >= n_ranks:
        raise TooManyRanks(f"--stdin {plan.stdin}: there are only {plural(n_ranks, 'rank')}")
    if n_ranks > names.MOST_RANKS:
        raise _too_many(n_ranks)
    for text in plan.wraps:
        programs.parse_wrap(text, n_ranks)
    used = [(node, own) for node, own in zip(nodes, ranks, strict=True) if own]
    notices = plan.notices
    if len(used) < len(nodes):
        idle = fold(n.host.name for n, own in zip(nodes, ranks, strict=True) if not own)
        file = plan.rankfile and plan.rankfile[0].origin.rpartition(":")[0]
        why = "the programs need" if parts else f"{file or f'--np {n_ranks}'} needs"
        notices += (f"{idle}: left out: {why} only {plural(len(used), 'node')}",)
    used.sort(key=lambda one: one[1])  # rank 0 is on node 0, whatever its program or a file names
    if gpu_counts and [node.index for node, _ in used] != [*range(len(used))]:
        raise TooManyRanks(  # the hosts have their numbers: they have been counted
            "the programs leave out a host in the middle, as only its GPU count could show",
            hint="slots=N in the hostfile, or fewer hosts",
        )
    return replace(
        plan,
        nodes=tuple(
            replace(node, index=index, ranks=own) for index, (node, own) in enumerate(used)
        ),
        spares=tuple(
            replace(spare, index=index) for index, spare in enumerate(plan.spares, len(used))
        ),
        parts=parts,
        notices=notices,
    )


# -- how many ranks each node has room for -----------------------------------------------


def _shared_out(
    plan: JobPlan,
    nodes: Sequence[NodePlan],
    gpu_counts: Mapping[int, int],
    there: Mapping[int, Topology | None],
) -> tuple[tuple[int, ...], ...]:
    """The ranks of each of ``nodes``, of a job of one program."""
    if plan.mapping.each is None:
        free = _capacity(plan, nodes)
    else:
        free = [_by_units(plan, node, gpu_counts, there.get(node.index)) for node in nodes]
    n_ranks = sum(free) if plan.np is None else plan.np
    if n_ranks > names.MOST_RANKS:
        raise _too_many(n_ranks)
    try:
        counts = placement.shares(
            free,
            n_ranks,
            map_by=plan.mapping.across,
            most=[node.host.max_slots for node in nodes],
            oversubscribe=plan.oversubscribe,
        )
    except placement.TooFewSlots as full:
        raise _too_few_slots(full, plan.oversubscribe, nodes) from None
    return placement.ranks_of(counts, plan.numbering)


def _by_rankfile(plan: JobPlan, nodes: Sequence[NodePlan]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each of ``nodes``, as the plan's rankfile has them."""
    ranks: list[list[int]] = [[] for _ in nodes]
    names = [node.host.name for node in nodes]
    by_place = {f"+n{at}": at for at in range(len(nodes))}
    by_name = {name: at for at, name in enumerate(names) if names.count(name) == 1}
    for rank, one in enumerate(plan.rankfile):
        at = by_place.get(one.host, by_name.get(one.host))
        if at is None and one.host in names:
            raise UnknownHost(f"{one.origin}: {one.host}: two ports of it", hint="+n0, +n1, ...")
        if at is None:
            known = f"this job has {fold(names)}"
            raise UnknownHost(f"{one.origin}: {one.host}: not one of the hosts: {known}")
        host, slots = nodes[at].host, len(nodes[at].slots)
        most = host.max_slots if plan.oversubscribe or not slots else slots
        if most is not None and len(ranks[at]) >= most:
            raise TooManyRanks(
                f"{one.origin}: rank {rank}: {host.name} takes only {plural(most, 'rank')}",
                hint=None if most == host.max_slots else "--oversubscribe",
            )
        ranks[at].append(rank)
    return tuple(map(tuple, ranks))


def _check_slots(plan: JobPlan, there: Mapping[int, Topology | None]) -> None:
    """Check that hosts have the CPUs that the rankfile names. Raises: PlanError."""
    for node in plan.nodes:
        for rank in node.ranks:
            one = plan.rankfile[rank]
            why = binding.slot(one.slot, there.get(node.index)).why
            if why:
                hint = f"dispatch exec -w {node.host.name} lscpu -e=CPU,CORE,SOCKET"
                where = f"{one.origin}: slot={one.slot}: {node.host.name}"
                raise PlanError(f"{where}: {why}", hint=hint)


def _by_units(
    plan: JobPlan, node: NodePlan, gpu_counts: Mapping[int, int], there: Topology | None
) -> int:
    """How many ranks ``node`` has, with a fixed number on each of its sockets, or NUMA nodes."""
    what, each = plan.mapping.within, plan.mapping.each or 1
    count = gpu_counts.get(node.index, 0) if node.gpus is None else len(node.gpus)
    found = count if what == "gpu" else binding.count(what, there)
    name, asked = node.host.name, f"--map-by {plan.map_by}"
    if not found:
        raise PlanError(f"{asked}: {name} reports no {what}", hint="--map-by ppr:N:node")
    slots, most = node.host.slots, node.host.max_slots
    if most is not None and found * each > most:
        raise TooManyRanks(f"{asked}: {name} takes at most {most}, not {found * each}")
    if slots is not None and found * each > slots and not plan.oversubscribe:
        ranks = plural(found * each, "rank")
        raise TooManyRanks(
            f"{asked}: {ranks} on {name}, which has {plural(slots, 'slot')}", hint="--oversubscribe"
        )
    return found * each


def _too_many(n_ranks: int) -> PlanError:
    return TooManyRanks(f"{n_ranks} ranks: at most {names.MOST_RANKS} can be placed")


def _counted(plan: JobPlan, gpu_counts: Mapping[int, int]) -> list[NodePlan]:
    """The nodes with slots taken from, or judged against, the GPUs that were counted."""
    per_gpu = plan.nproc_per_node == "gpu"
    without = []
    nodes = []
    for node in plan.nodes:
        unsaid = not node.slots and not isinstance(plan.nproc_per_node, int)
        count = gpu_counts.get(node.index) if node.gpus is None else len(node.gpus)
        if count is None:
            if unsaid or per_gpu:
                raise InternalError(f"{node.host.name}: its GPUs were not counted")
        elif unsaid:
            most = node.host.max_slots if node.host.max_slots is not None else count
            node = replace(node, slots=tuple(map(str, range(min(count, most)))))
        elif per_gpu or node.host.slots is None:
            _check_chosen(node, count)
        if per_gpu and count == 0:
            without.append(node.host.name)
        nodes.append(node)
    if without:
        raise NoGpu(
            f"--nproc-per-node gpu: no GPU on {fold(without)}",
            hint="CUDA_VISIBLE_DEVICES there hides them; give it another value with -x"
            if devices.hidden(nodes)
            else "leave them out, or say how many ranks: --nproc-per-node 1",
        )
    return nodes


def _check_chosen(node: NodePlan, count: int) -> None:
    """Check that ``node`` has the GPUs that were chosen. Raises: PlanError.

    count: how many there are; 0 is not an error, because the ranks may need none.
    """
    missing = [slot for slot in node.slots if slot.isdigit() and int(slot) >= count]
    if missing and count:
        raise NoGpu(f"{node.host.name}: no GPU {missing[0]}: it has {plural(count, 'GPU')}")


def _capacity(plan: JobPlan, nodes: Sequence[NodePlan]) -> list[int]:
    """Ranks each node has room for, by ``--nproc-per-node``.

    Unset, or auto: the slots of the hostfile, else one per GPU, else one. gpu: one per GPU.
    N: N, and more than the slots is over-subscription.
    """
    if not isinstance(plan.nproc_per_node, int):
        return [len(node.slots) or 1 for node in nodes]
    wanted = plan.nproc_per_node
    for node in nodes:
        most = node.host.max_slots
        if most is not None and wanted > most:
            raise TooManyRanks(f"--nproc-per-node {wanted}: {node.host.name} takes at most {most}")
    full = [node for node in nodes if node.slots and wanted > len(node.slots)]
    if full and not plan.oversubscribe:
        slots = sorted({len(node.slots) for node in full})
        names = fold(node.host.name for node in full)
        raise TooManyRanks(
            f"--nproc-per-node {wanted}: {names}: only {plural(slots[0], 'slot')}",
            hint=f"--oversubscribe, or --nproc-per-node {slots[0]}",
        )
    return [wanted] * len(nodes)


def _too_few_slots(
    full: placement.TooFewSlots, asked: bool, nodes: Sequence[NodePlan]
) -> PlanError:
    names = fold(node.host.name for node in nodes)
    if asked:
        return TooManyRanks(
            f"{plural(full.asked, 'rank')} but {names} take at most {full.most} (max_slots)"
        )
    return TooManyRanks(
        f"{plural(full.asked, 'rank')} but only {plural(full.free, 'slot')} on {names}",
        hint=f"--oversubscribe, or --np {full.free}",
    )
