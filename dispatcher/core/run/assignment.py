"""Which host has which node of the plan, from one attempt to the next. Pure.

``assign_hosts`` decides: a spare for a node whose host is lost, or fewer nodes. ``Assigned`` has
what it came to. An attempt speaks of nodes, everybody else of hosts, so whatever passes between
them changes its number here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, ReleaseFence
from dispatcher.core.events.run_events import Facts
from dispatcher.core.run.tables import HostTable
from dispatcher.model.frozen import Value, value
from dispatcher.model.names import plural
from dispatcher.plan.job import reassignment
from dispatcher.plan.job.job_plan import Change, JobPlan, NodePlan


@value
class Assignment(Value):
    """The next attempt's ``plan`` and the host of each of its nodes.

    swaps: (host that leaves, host that takes its node, that node's ranks). dropped: hosts
    whose nodes are no more. excluded: of both, those that still answer but where too many
    attempts have ended. vacant: nodes that no host can take and the run cannot do without;
    awaited: a host that may take one has yet to answer. With a vacant node nothing can begin.
    whole: plan and hosts with the nodes that were dropped, where these were last; if one of these
    hosts is back later, its node is as well.
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
    ``--min-nodes`` allows. faulty: hosts better not used: likewise, but where neither
    is possible they stay. free: hosts that wait for a node, the first that fits takes
    it. awaited: more may come. distinct: host -> its machine, if no two nodes may
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


def for_hosts(action: Action, assigned: Sequence[int]) -> Action:
    """``action`` of an attempt, which means nodes of its plan, for the hosts that have them."""
    if isinstance(action, ReleaseFence):
        return replace(action, nodes=tuple(assigned[node] for node in action.nodes))
    node = action.node  # type: ignore[attr-defined]
    return action if assigned[node] == node else replace(action, node=assigned[node])  # type: ignore[call-arg]


class Assigned:
    """Who has which node of the latest plan. hosts: node -> host; nodes: host -> node.

    homes: rank -> the host where it runs or last ran, and its number there, of all that were
    started.
    """

    def __init__(self, hosts: Iterable[int]) -> None:
        self.homes: dict[int, tuple[int, int]] = {}
        #: the latest plan and its hosts, with nodes that were dropped; None where none are
        self._whole: tuple[JobPlan, tuple[int, ...]] | None = None
        self.assign(hosts)

    def assign(self, hosts: Iterable[int]) -> None:
        """The nodes of the plan go to ``hosts``, in order."""
        self.hosts = tuple(hosts)
        self.nodes = {host: node for node, host in enumerate(self.hosts)}

    def follow(self, assignment: Assignment, change: Change) -> None:
        """The next attempt begins so, with its plan changed by ``change``."""
        self.assign(assignment.hosts)
        whole = assignment.whole
        self._whole = None if whole is None else (change.of(whole[0]), whole[1])

    def started(self, plan: JobPlan, node: int) -> None:
        """The ranks of ``node`` are about to be started where it is now."""
        for local, rank in enumerate(plan.nodes[node].ranks):
            self.homes[rank] = (self.hosts[node], local)

    def outward(self, event: ev.Event) -> ev.Event:
        """An event of an attempt's own, with hosts in place of nodes."""
        match event:
            case mpi_events.WorldPlaced(_, _, first, nodes):
                for rank, node in enumerate(nodes):
                    self.homes[first + rank] = (self.hosts[node], rank)
                return replace(event, nodes=tuple(self.hosts[node] for node in nodes))
            case mpi_events.SpawnRefused(node) | ev.NodeNoticed(node):
                return replace(event, node=self.hosts[node])
        return event

    def next(self, plan: JobPlan, table: HostTable, most: int, *, distinct: bool) -> Assignment:
        """What may follow ``plan``, by what is known of hosts.

        most: attempts that may end on a host. distinct: no two nodes may be on one machine.
        """
        plan, hosts = self._whole or (plan, self.hosts)
        waiting = table.waiting(hosts)
        return assign_hosts(
            plan,
            hosts,
            bad={host for host in hosts if host in table.out},  # also who was given up
            faulty={host for host in hosts if table.faults[host] >= most},
            free={h: (table.planned[h], table.facts[h]) for h in waiting if h in table.facts},
            awaited=any(host not in table.facts for host in waiting),
            distinct={h: f.machine for h, f in table.facts.items()} if distinct else None,
        )

    def changes(self, assignment: Assignment, table: HostTable) -> list[ev.Event]:
        """What the user should know of ``assignment``, which is to follow."""
        told: list[ev.Event] = []
        for host in assignment.excluded:
            faults = table.faults[host]
            table.leave_out(host, f"{plural(faults, 'attempt')} ended there")
        for old, new, ranks in assignment.swaps:
            told.append(ev.HostReplaced(old, new, ranks, table.out[old]))
        counts = tuple(len(node.ranks) for node in assignment.plan.nodes)
        gone = [host for host in assignment.dropped if host in self.hosts]
        told += [ev.HostLeftOut(host, table.out[host]) for host in gone]
        if gone:
            told.append(ev.WorldShrunk(assignment.hosts, counts))
        elif len(assignment.hosts) > len(self.hosts):
            told.append(ev.WorldGrown(assignment.hosts, counts))
        return told
