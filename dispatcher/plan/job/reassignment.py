"""A plan whose hosts have changed: another host for a node, or fewer nodes. Pure.

A host that takes the place of another takes its number and its ranks. Where none can, the node
drops out and the others close up: new ranks, a new world size. ``core.run.restart`` decides
between two attempts; ``without_hosts`` and its like before the start, for hosts that are not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dispatcher.model.frozen import Value, value
from dispatcher.model.host import visible
from dispatcher.plan.job import placement
from dispatcher.plan.job.job_plan import JobPlan, NodePlan


def with_host(
    plan: JobPlan, node: int, host: NodePlan, gpus: int = 0, variable: str | None = None
) -> NodePlan | None:
    """``host`` in the place of ``node``; None if it has no room for that node's ranks.

    gpus: how many were counted on the host. variable: its ``CUDA_VISIBLE_DEVICES``. GPUs that ranks
    can see bound a host without a slot count; a host without GPUs takes any number.
    """
    taken = plan.nodes[node]
    if plan.is_open:
        return replace(host, index=node, ranks=())
    slots = host.slots
    if not slots and taken.slots:
        seen = gpus if variable is None or plan.devices == "node" else len(visible(variable, gpus))
        if gpus and seen < len(taken.slots):
            return None
        slots = tuple(map(str, range(len(taken.slots))))
    most = host.host.max_slots
    if len(slots) < min(len(taken.slots), len(taken.ranks)):
        return None
    if most is not None and most < len(taken.ranks):
        return None
    slots = slots[: len(taken.slots)] if taken.slots else slots
    return NodePlan(node, host.host, slots, taken.ranks, named=host.named)


def replaced(plan: JobPlan, nodes: Mapping[int, NodePlan]) -> JobPlan:
    """``plan`` with some ``nodes`` as ``with_host`` made them; by index."""
    return replace(plan, nodes=tuple(nodes.get(node.index, node) for node in plan.nodes))


def shrunk(plan: JobPlan, gone: frozenset[int]) -> JobPlan:
    """``plan`` without the nodes ``gone``; the others and all ranks are renumbered."""
    if not gone:
        return plan
    remaining = [node for node in plan.nodes if node.index not in gone]
    if plan.is_open:
        return replace(
            plan, nodes=tuple(replace(node, index=index) for index, node in enumerate(remaining))
        )
    counts = [len(node.ranks) for node in remaining]
    ranks = placement.ranks_of(counts, plan.numbering)
    return replace(
        plan,
        np=None if plan.np is None else sum(counts),
        nodes=tuple(
            replace(node, index=index, ranks=ranks[index]) for index, node in enumerate(remaining)
        ),
    )


@value
class Exclusion(Value):
    """``host`` is not used, ``why``; ``by`` has its place, None if none has (or it was a spare)."""

    host: str
    why: str
    by: str | None = None


@value
class Fitness(Value):
    """plan: without the unfit hosts. vacant: nodes of the old plan it cannot do without."""

    plan: JobPlan
    excluded: tuple[Exclusion, ...] = ()
    vacant: tuple[int, ...] = ()


def without_hosts(plan: JobPlan, unfit: Mapping[int, str], *, shrink: bool) -> Fitness:
    """``plan`` without the hosts ``unfit`` (number -> why not; spares count after the nodes).

    shrink: with fewer nodes rather than not at all; ``--min-nodes`` says how few.
    """
    waiting = [spare for spare in plan.spares if spare.index not in unfit]
    nodes: dict[int, NodePlan] = {}
    excluded = []
    vacant = []
    for node in plan.nodes:
        if node.index not in unfit:
            continue
        place = None
        for spare in waiting:
            place = with_host(plan, node.index, spare)
            if place is not None:
                nodes[node.index] = place
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
    # of several programs one might be left without ranks, and a rankfile names all
    may_shrink = shrink and not plan.parts and not plan.rankfile
    least = plan.restarts.min_nodes or (1 if may_shrink else len(plan.nodes))
    if len(plan.nodes) - len(vacant) < least:
        return Fitness(plan, tuple(excluded), tuple(vacant))
    left = shrunk(replaced(plan, nodes), frozenset(vacant))
    spares = tuple(replace(spare, index=i) for i, spare in enumerate(waiting, len(left.nodes)))
    return Fitness(replace(left, spares=spares), tuple(excluded))
