"""Who sits where: spares into vacant seats, or fewer seats; and orders for those who sit there.

Pure, like all of ``core``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dispatcher.core.events.actions import Action, ReleaseFence
from dispatcher.core.events.run_events import Facts
from dispatcher.model.frozen import Value, value
from dispatcher.plan.job import reassignment
from dispatcher.plan.job.job_plan import JobPlan, NodePlan


@value
class Seating(Value):
    """The next attempt's ``plan`` and the host in each of its seats.

    swaps: (host that leaves, host that takes its seat, that seat's ranks). dropped:
    hosts whose seats are no more. excluded: of both, those that still answer but where
    too many attempts have ended. vacant: seats that nobody can take and the run cannot do without;
    awaited: a host that may take one has yet to answer. With a vacant seat nothing can begin.
    """

    plan: JobPlan
    hosts: tuple[int, ...]
    swaps: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    dropped: tuple[int, ...] = ()
    excluded: tuple[int, ...] = ()
    vacant: frozenset[int] = frozenset()
    awaited: bool = False


def take_seats(
    plan: JobPlan,
    seats: Sequence[int],
    *,
    bad: Collection[int],
    lemons: Collection[int],
    free: Mapping[int, tuple[NodePlan, Facts]],
    awaited: bool = False,
    distinct: Mapping[int, str] | None = None,
) -> Seating:
    """The seating that follows ``plan``, whose seats the hosts ``seats`` had.

    bad: hosts that cannot be used; their seats are filled, or dropped as far as
    ``--min-nodes`` allows. lemons: hosts better not used: likewise, but where neither
    is possible they stay. free: hosts that wait for a seat, the first that fits takes
    it. awaited: more may come. distinct: host -> its machine, if no two seats may
    be on one.
    """
    machines = distinct or {}
    leaving = [n for n, h in enumerate(seats) if h in bad]
    leaving += [n for n, h in enumerate(seats) if h in lemons and h not in bad]
    taken = {machines.get(h) for n, h in enumerate(seats) if n not in leaving} - {None}
    places: dict[int, NodePlan] = {}
    hosts = dict(enumerate(seats))
    left = dict(free)
    for node in leaving:
        for host, (own, facts) in left.items():
            place = reassignment.seated(plan, node, own, facts.gpus, facts.visible)
            if place is not None and machines.get(host) not in taken:
                places[node], hosts[node] = place, host
                taken |= {machines.get(host)} - {None}
                del left[host]
                break
    unfilled = [node for node in leaving if node not in places]
    least = plan.restarts.min_nodes
    n_spare = 0 if least is None else max(0, len(seats) - least)
    musts = frozenset(node for node in unfilled if seats[node] in bad)
    if musts and awaited:
        return Seating(plan, tuple(seats), vacant=musts, awaited=True)
    if len(musts) > n_spare:
        return Seating(plan, tuple(seats), vacant=musts)
    gone = frozenset(unfilled[:n_spare])  # the bad ones come first
    kept = [node for node in range(len(seats)) if node not in gone]
    changed = [node for node in leaving if node in places or node in gone]
    return Seating(
        plan=reassignment.shrunk(reassignment.replaced(plan, places), gone),
        hosts=tuple(hosts[node] for node in kept),
        swaps=tuple((seats[n], hosts[n], places[n].ranks) for n in sorted(places)),
        dropped=tuple(seats[node] for node in sorted(gone)),
        excluded=tuple(seats[node] for node in sorted(changed) if seats[node] not in bad),
    )


def seated(action: Action, seats: Sequence[int]) -> Action:
    """A job's ``action``, which means nodes of its plan, for the hosts in their ``seats``."""
    if isinstance(action, ReleaseFence):
        return replace(action, nodes=tuple(seats[node] for node in action.nodes))
    node = action.node  # type: ignore[attr-defined]
    return action if seats[node] == node else replace(action, node=seats[node])  # type: ignore[call-arg]
