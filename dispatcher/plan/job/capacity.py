"""How many ranks each node of a plan has room for, and what it gets. Pure.

Without ``--nproc-per-node`` a node has the slots of the hostfile, else one rank per GPU, else one.
``gpu`` is one per GPU; N is N, and more than the slots is over-subscription. ``--map-by
ppr:N:WHAT`` is N for each WHAT of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from dispatcher.model import names
from dispatcher.model.errors import InternalError, NoGpu, PlanError, TooManyRanks, UnknownHost
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.plan.job import binding, devices, placement
from dispatcher.plan.job.binding import Topology
from dispatcher.plan.job.devices import NodePlan
from dispatcher.plan.job.request import Nproc


class Asked(Protocol):
    """What a ``JobPlan`` tells of how many ranks are wanted."""

    @property
    def nodes(self) -> tuple[NodePlan, ...]: ...
    @property
    def np(self) -> int | None: ...
    @property
    def nproc_per_node(self) -> Nproc | None: ...
    @property
    def map_by(self) -> str: ...
    @property
    def mapping(self) -> placement.MapBy: ...
    @property
    def numbering(self) -> str: ...
    @property
    def oversubscribe(self) -> bool: ...
    @property
    def rankfile(self) -> tuple[placement.Placed, ...]: ...


def shared_out(
    plan: Asked,
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
        raise too_many(n_ranks)
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


def by_rankfile(plan: Asked, nodes: Sequence[NodePlan]) -> tuple[tuple[int, ...], ...]:
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


def check_slots(plan: Asked, there: Mapping[int, Topology | None]) -> None:
    """Nothing, if hosts have the CPUs that the rankfile names. Raises: PlanError."""
    for node in plan.nodes:
        for rank in node.ranks:
            one = plan.rankfile[rank]
            why = binding.slot(one.slot, there.get(node.index)).why
            if why:
                hint = f"dispatch exec -w {node.host.name} lscpu -e=CPU,CORE,SOCKET"
                where = f"{one.origin}: slot={one.slot}: {node.host.name}"
                raise PlanError(f"{where}: {why}", hint=hint)


def _by_units(
    plan: Asked, node: NodePlan, gpu_counts: Mapping[int, int], there: Topology | None
) -> int:
    """How many ranks ``node`` has with so many on each of its sockets, or whatever it is."""
    what, each = plan.mapping.within, plan.mapping.each or 1
    count = gpu_counts.get(node.index, 0) if node.gpus is None else len(node.gpus)
    found = count if what == "gpu" else binding.count(what, there)
    name, asked = node.host.name, f"--map-by {plan.map_by}"
    if not found:
        raise PlanError(f"{asked}: {name} tells of no {what}", hint="--map-by ppr:N:node")
    slots, most = node.host.slots, node.host.max_slots
    if most is not None and found * each > most:
        raise TooManyRanks(f"{asked}: {name} takes at most {most}, not {found * each}")
    if slots is not None and found * each > slots and not plan.oversubscribe:
        ranks = plural(found * each, "rank")
        raise TooManyRanks(
            f"{asked}: {ranks} on {name}, which has {plural(slots, 'slot')}",
            hint="--oversubscribe",
        )
    return found * each


def too_many(n_ranks: int) -> PlanError:
    """The error that ``n_ranks`` are more than can be told apart."""
    return TooManyRanks(f"{n_ranks} ranks: at most {names.MOST_RANKS} can be placed")


def counted(plan: Asked, gpu_counts: Mapping[int, int]) -> list[NodePlan]:
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
            check_chosen(node, count)
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


def check_chosen(node: NodePlan, count: int) -> None:
    """Nothing, if ``node`` has the GPUs that were chosen. Raises: PlanError.

    count: how many there are; with none nothing is said, the ranks may need none.
    """
    missing = [slot for slot in node.slots if slot.isdigit() and int(slot) >= count]
    if missing and count:
        raise NoGpu(f"{node.host.name}: no GPU {missing[0]}: it has {plural(count, 'GPU')}")


def _capacity(plan: Asked, nodes: Sequence[NodePlan]) -> list[int]:
    """Ranks each node has room for, by the table above."""
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
