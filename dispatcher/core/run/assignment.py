"""Which hosts follow those that are lost: a spare for a node, or fewer nodes. Pure.

Loaded between two attempts, since most runs have one; ``tables.Assigned`` has what it came to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dispatcher.core.events.run_events import Facts
from dispatcher.model.frozen import Value, value
from dispatcher.plan.job import reassignment
from dispatcher.plan.job.job_plan import JobPlan, NodePlan


@value
class Assignment(Value):
    """The next attempt's ``plan`` and the host of each of its nodes.

    swaps: (host that leaves, host that takes its node, that node's ranks). dropped: hosts whose
    nodes are no more. excluded: of both, those that still answer but where too many attempts have
    ended. vacant: nodes that no host can take, so that nothing can begin; awaited: one may yet
    come. whole: plan and hosts with the nodes that were dropped, which get them back when they
    return.
    """

    plan: JobPlan
    hosts: tuple[int, ...]
    swaps: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    dropped: tuple[int, ...] = ()
    excluded: tuple[int, ...] = ()
    vacant: frozenset[int] = frozenset()
    awaited: bool = False
    whole: tuple[JobPlan, tuple[int, ...]] | None = None


def assign_hosts(
    plan: JobPlan,
    assigned: Sequence[int],
    *,
    bad: Collection[int],
    faulty: Collection[int],
    free: Mapping[int, tuple[NodePlan, Facts]],
    awaited: bool = False,
    distinct: Mapping[int, str] | None = None,
) -> Assignment:
    """Which hosts follow those that were ``assigned`` to the nodes of ``plan``.

    bad: hosts that cannot be used; their nodes go to others, or are dropped as far as
    ``--min-nodes`` allows. faulty: likewise, but where neither is possible they stay. free: hosts
    that wait for a node. awaited: more may come. distinct: host -> its machine, if no two nodes may
    be on one.
    """
    machines = distinct or {}
    leaving = [n for n, h in enumerate(assigned) if h in bad]
    leaving += [n for n, h in enumerate(assigned) if h in faulty and h not in bad]
    taken = {machines.get(h) for n, h in enumerate(assigned) if n not in leaving} - {None}
    planned: dict[int, NodePlan] = {}
    hosts = dict(enumerate(assigned))
    left = dict(free)
    for node in leaving:
        for host, (own, facts) in left.items():
            place = reassignment.with_host(plan, node, own, facts.gpus, facts.visible)
            if place is not None and machines.get(host) not in taken:
                planned[node], hosts[node] = place, host
                taken |= {machines.get(host)} - {None}
                del left[host]
                break
    unfilled = [node for node in leaving if node not in planned]
    least = plan.restarts.min_nodes
    n_spare = 0 if least is None else max(0, len(assigned) - least)
    musts = frozenset(node for node in unfilled if assigned[node] in bad)
    if musts and awaited:
        return Assignment(plan, tuple(assigned), vacant=musts, awaited=True)
    if len(musts) > n_spare:
        return Assignment(plan, tuple(assigned), vacant=musts)
    gone = frozenset(unfilled[:n_spare])  # the bad ones come first
    remaining = [node for node in range(len(assigned)) if node not in gone]
    changed = [node for node in leaving if node in planned or node in gone]
    full = reassignment.replaced(plan, planned)
    return Assignment(
        plan=reassignment.shrunk(full, gone),
        whole=(full, tuple(hosts[node] for node in range(len(assigned)))) if gone else None,
        hosts=tuple(hosts[node] for node in remaining),
        swaps=tuple((assigned[n], hosts[n], planned[n].ranks) for n in sorted(planned)),
        dropped=tuple(assigned[node] for node in sorted(gone)),
        excluded=tuple(assigned[node] for node in sorted(changed) if assigned[node] not in bad),
    )
