"""A plan whose hosts have changed, or some of whose hosts are not fit.

A plan whose hosts have changed: another host in a node's seat, or fewer nodes.

A *seat* is a node's place in the plan: its number and its ranks. A host that
takes a seat takes both, so nobody else's rank changes. Where nobody can, the
node drops out and the others close up: same order, same number of ranks on
each, new ranks and a new world size. Pure.

A plan without the hosts that are not fit: spares in their seats, or fewer seats. Pure.

What is decided before the start here is what ``core.run.tables`` decides between two attempts,
for hosts that nobody has connected to yet: a spare that fits takes the seat and its ranks;
where there is none, the node drops out, if the user allowed that, and the others close up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dispatcher.model.frozen import Value, value
from dispatcher.model.host import visible
from dispatcher.plan.job import placement
from dispatcher.plan.job.job_plan import JobPlan, NodePlan


def seated(
    plan: JobPlan, node: int, host: NodePlan, gpus: int = 0, said: str | None = None
) -> NodePlan | None:
    """``host`` in the seat of ``node``; None if it has no room for that node's ranks.

    gpus: how many the host has, as counted there; 0 where it has none. said: its
    ``CUDA_VISIBLE_DEVICES``. What there is to be seen bounds a host whose slots nobody has
    said; without GPUs it takes what it is given.
    """
    seat = plan.nodes[node]
    if plan.is_open:
        return replace(host, index=node, ranks=())
    slots = host.slots
    if not slots and seat.slots:
        seen = gpus if said is None or plan.devices == "node" else len(visible(said, gpus))
        if gpus and seen < len(seat.slots):
            return None
        slots = tuple(map(str, range(len(seat.slots))))
    most = host.host.max_slots
    if len(slots) < min(len(seat.slots), len(seat.ranks)):
        return None
    if most is not None and most < len(seat.ranks):
        return None
    slots = slots[: len(seat.slots)] if seat.slots else slots
    return NodePlan(node, host.host, slots, seat.ranks, named=host.named)


def replaced(plan: JobPlan, seats: Mapping[int, NodePlan]) -> JobPlan:
    """``plan`` with other hosts in some seats, as ``seated`` made them."""
    return replace(plan, nodes=tuple(seats.get(node.index, node) for node in plan.nodes))


def shrunk(plan: JobPlan, gone: frozenset[int]) -> JobPlan:
    """``plan`` without the nodes ``gone``; the others are numbered anew, and so are all ranks."""
    kept = [node for node in plan.nodes if node.index not in gone]
    if plan.is_open:
        return replace(
            plan, nodes=tuple(replace(node, index=index) for index, node in enumerate(kept))
        )
    counts = [len(node.ranks) for node in kept]
    ranks = placement.ranks_of(counts, plan.map_by)
    return replace(
        plan,
        np=None if plan.np is None else sum(counts),
        nodes=tuple(
            replace(node, index=index, ranks=ranks[index]) for index, node in enumerate(kept)
        ),
    )


@value
class Exclusion(Value):
    """``host`` is not used, ``why``; ``by`` has its seat, None for nobody (or it was a spare)."""

    host: str
    why: str
    by: str | None = None


@value
class Fitness(Value):
    """plan: without the unfit hosts. vacant: nodes of the old plan it cannot do without."""

    plan: JobPlan
    excluded: tuple[Exclusion, ...] = ()
    vacant: tuple[int, ...] = ()


def without(plan: JobPlan, unfit: Mapping[int, str], *, shrink: bool) -> Fitness:
    """``plan`` without the hosts ``unfit`` (number -> why not; spares count after the nodes).

    shrink: with fewer nodes rather than not at all; ``--min-nodes`` says how few.
    """
    waiting = [spare for spare in plan.spares if spare.index not in unfit]
    seats: dict[int, NodePlan] = {}
    excluded = []
    vacant = []
    for node in plan.nodes:
        if node.index not in unfit:
            continue
        place = None
        for spare in waiting:
            place = seated(plan, node.index, spare)
            if place is not None:
                seats[node.index] = place
                waiting.remove(spare)
                break
        else:
            vacant.append(node.index)
        by = place.host.name if place is not None else None
        excluded.append(Exclusion(node.host.name, unfit[node.index], by))
    excluded += [
        Exclusion(spare.host.name, unfit[spare.index])
        for spare in plan.spares
        if spare.index in unfit
    ]
    least = plan.restarts.min_nodes or (1 if shrink else len(plan.nodes))
    if len(plan.nodes) - len(vacant) < least:
        return Fitness(plan, tuple(excluded), tuple(vacant))
    left = shrunk(replaced(plan, seats), frozenset(vacant))
    spares = tuple(replace(spare, index=i) for i, spare in enumerate(waiting, len(left.nodes)))
    return Fitness(replace(left, spares=spares), tuple(excluded))
