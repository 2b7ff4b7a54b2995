"""A plan without the hosts that are not fit: spares in their seats, or fewer seats. Pure.

What is decided before the start here is what ``core.run.seating`` decides between two attempts,
for hosts that nobody has connected to yet: a spare that fits takes the seat and its ranks;
where there is none, the node drops out, if the user allowed that, and the others close up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dispatcher.model.frozen import Value, value
from dispatcher.plan.job import reassignment
from dispatcher.plan.job.job_plan import JobPlan, NodePlan


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
            place = reassignment.seated(plan, node.index, spare)
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
    left = reassignment.shrunk(reassignment.replaced(plan, seats), frozenset(vacant))
    spares = tuple(replace(spare, index=i) for i, spare in enumerate(waiting, len(left.nodes)))
    return Fitness(replace(left, spares=spares), tuple(excluded))
