"""The tables of a run: its hosts, its ranks, which host has which node. Pure.

``HostTable``: the state of each host, by its number. A host is *linked* from the order to
reach it until it is given up; *out* when it will not be used any more; *armed* while ranks may
live there. One that is given up while armed is *fenced*: its ranks are surely dead only after a
time (``restart.fence``), or never, if its lease rests (``pause``).
``RankTable``: where each rank is, whether it lives, which of its events must still come (J-4).
``Assigned``: the host of each node. An attempt numbers nodes; all other parts number hosts.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.mpi_events import WorldPlaced
from dispatcher.core.events.run_events import Facts
from dispatcher.core.run import restart
from dispatcher.core.run.restart import Assignment, assign_hosts
from dispatcher.model.frozen import Value
from dispatcher.model.names import plural
from dispatcher.plan.job import placement
from dispatcher.plan.job.job_plan import Change, JobPlan, NodePlan
from dispatcher.plan.job.request import Limits

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Value)


class Deadlines(dict[K, float]):
    """Deadlines: key -> time; finds the earliest without a search.

    ``_heap`` may have keys that were deleted or moved, which ``earliest`` skips.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def __setitem__(self, key: K, when: float) -> None:
        if self.get(key) == when:
            return
        super().__setitem__(key, when)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, key))

    def earliest(self) -> float | None:
        """The earliest of the times; None if there is none."""
        heap = self._heap
        while heap and self.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[tuple[float, K]]:
        """(time, key) of all that is due, the earliest first; each is returned only once.

        The caller deletes the key or moves its time.
        """
        found = []
        while (first := self.earliest()) is not None and first <= now:
            when, _, key = heapq.heappop(self._heap)
            found.append((when, key))
        return found


class HostTable:
    """The state of each host. planned: as first planned, spares last. limits: of the run."""

    def __init__(self, planned: Sequence[NodePlan], limits: Limits) -> None:
        self.planned = tuple(planned)
        self.linked: set[int] = set()
        self.facts: dict[int, Facts] = {}  # of hosts whose agent found nothing wrong
        self.out: dict[int, str] = {}  # host -> why
        self.faults: Counter[int] = Counter()  # attempts that ended there
        self.silent: Deadlines[int] = Deadlines()  # host -> when its next heartbeat must be here
        self._limits = limits
        self.armed: set[int] = set()  # hosts where ranks may live
        self.over: set[int] = set()  # given up when their agent's process had ended
        self.fenced: dict[int, float] = {}  # given up armed -> when ranks are surely dead there
        self.back: dict[int, float] = {}  # lost host -> when to try to reach it again
        self._tries: Counter[int] = Counter()
        self._resting: dict[int, bool] = {}  # ordered to rest its lease -> whether it does

    def name(self, host: int) -> str:
        """The name of ``host``, as the user wrote it."""
        return self.planned[host].host.name

    @property
    def answering(self) -> set[int]:
        """Hosts with an agent that has answered and takes orders."""
        return self.linked & self.facts.keys()

    def unlink(self, host: int, now: float, *, over: bool = False, unheard: float = 0.0) -> None:
        """Give up ``host``. over: its agent's process has ended; unheard: see ``NodeLost``."""
        self.linked.discard(host)
        self.silent.pop(host, None)
        if host in self.armed:
            self.armed.discard(host)
            rests = host in self._resting
            knows = host in self.facts and self.facts[host].self_fencing
            after = restart.fence(self._limits, self_fencing=knows)
            self.fenced[host] = math.inf if rests else now + max(restart.SWEEP, after - unheard)
            if over:
                self.over.add(host)

    def fences(self) -> dict[int, float]:
        """Hosts that were given up and can be checked -> when their ranks are surely dead."""
        used = Counter(self.facts[host].machine for host in self.answering) if self.fenced else {}
        return {host: when for host, when in self.fenced.items() if self._is_alone(host, used)}

    def _is_alone(self, host: int, used: Mapping[str, int]) -> bool:
        """Whether each other host in use is another machine. used: machine -> number of hosts."""
        known = self.facts.get(host)
        if known is None or not known.machine:
            return False
        return used.get(known.machine, 0) == (host in self.linked)

    def dead_at(self) -> float:
        """When the ranks of all hosts that were given up are surely dead; inf: never."""
        return max(self.fenced.values(), default=0.0)

    def may_run_on(self, now: float) -> dict[str, float]:
        """Names of hosts that stopped responding -> seconds for which ranks may live on there."""
        left = {host: when - now for host, when in self.fenced.items() if host not in self.over}
        return {self.name(host): round(s, 1) for host, s in left.items() if 0 < s < math.inf}

    def undead(self) -> list[str]:
        """Names of hosts that were given up and whose ranks may live for ever."""
        return [self.name(host) for host, when in self.fenced.items() if when == math.inf]

    def rest(self, host: int) -> None:
        """Note that ``host`` gets the order to let its lease rest."""
        self._resting[host] = False

    def rests(self, host: int) -> bool:
        """Note that the lease of ``host`` rests, so that it sends no beat; False if not ordered."""
        if host in self._resting:
            self._resting[host] = True
        return host in self._resting

    def is_resting(self, host: int) -> bool:
        """Whether ``host`` reported that its lease rests, and nothing since."""
        return self._resting.get(host, False)

    def resumed(self, host: int) -> None:
        """Note a heartbeat of ``host``: if its lease rested, it has gone on."""
        if self._resting.get(host):
            del self._resting[host]

    def await_return(self, host: int, now: float) -> None:
        """Plan tries to reach ``host``, which was lost, once its ranks are dead."""
        dead = max(now, self.fenced.get(host, now))
        if dead < math.inf:
            self.back[host] = dead + restart.look_for(self._tries[host])
            self._tries[host] += 1

    def returning(self, now: float) -> list[int]:
        """Lost hosts to reconnect to now; each is returned once."""
        due = [host for host, when in self.back.items() if when <= now]
        for host in due:
            del self.back[host]
        due = [host for host in due if host not in self.linked]  # as after failed checks
        for host in due:
            self.facts.pop(host, None)
            self.linked.add(host)
        return due

    def came_back(self, host: int) -> bool:
        """Note that ``host`` is ready; return whether it was out before."""
        self.over.discard(host)
        return self.out.pop(host, None) is not None

    def waiting(self, assigned: Collection[int]) -> list[int]:
        """Hosts without a node that may get one, also those whose agent has yet to answer."""
        return [h for h in sorted(self.linked) if h not in assigned and h not in self.out]

    def expect_heartbeat(self, host: int, now: float) -> None:
        """Note activity of ``host``: its next heartbeat must come in time."""
        if host in self.linked:
            self.silent[host] = max(self.silent.get(host, 0.0), now + self._limits.silence)

    def expect_nothing(self, hosts: Iterable[int]) -> None:
        """Do not wait for heartbeats of ``hosts``, which the attempt watches from now on."""
        for host in hosts:
            self.silent.pop(host, None)

    def overdue(self, now: float) -> list[int]:
        """Hosts whose heartbeat has not come in time; each is returned once."""
        earliest = self.silent.earliest()
        if earliest is None or earliest > now:
            return []
        found = [host for host, when in self.silent.items() if when <= now]
        self.expect_nothing(found)
        return found


class RankTable:
    """nodes: rank -> node, of every rank ever called. statuses: rank -> how it ended."""

    def __init__(self) -> None:
        self.nodes: dict[int, int] = {}
        self.statuses: dict[int, int] = {}
        self._called: dict[int, set[int]] = {}  # node -> ranks that were ever called there
        self._alive: dict[int, int] = {}  # rank -> node; spawn ordered, not yet exited
        self._load: Counter[int] = Counter()  # node -> living ranks
        self.n_spawned = 0  # living ranks that others have spawned
        self._streams: dict[int, int] = {}  # rank -> streams not yet ended

    def call(self, rank: int, node: int) -> None:
        """Note that ``rank`` is being started on ``node``."""
        self.nodes[rank] = self._alive[rank] = node
        self._load[node] += 1
        self.n_spawned += rank >= placement.FIRST
        self._called.setdefault(node, set()).add(rank)
        self._streams[rank] = 2

    def is_alive(self, rank: int, node: int) -> bool:
        """Whether ``rank`` lives, on ``node``."""
        return self._alive.get(rank) == node

    def absent(self, rank: int, node: int) -> bool:
        """Note that ``rank`` could not be started on ``node``; False if it is not alive there."""
        if not self.is_alive(rank, node):
            return False
        self._bury(rank)
        self._streams.pop(rank, None)
        return True

    def exited(self, rank: int, node: int, status: int) -> bool:
        """Note that ``rank`` was reaped on ``node``; False if it is not alive there."""
        if not self.is_alive(rank, node):
            return False
        self._bury(rank)
        self.statuses[rank] = status
        return True

    def _bury(self, rank: int) -> None:
        self._load[self._alive.pop(rank)] -= 1
        self.n_spawned -= rank >= placement.FIRST

    def stream_ended(self, rank: int) -> bool:
        """Note that one of the rank's streams is complete; False if both were already."""
        left = self._streams.get(rank, 0)
        if left > 1:
            self._streams[rank] = left - 1
        elif left:
            del self._streams[rank]
        return left > 0

    def lose(self, node: int) -> None:
        """Give up all ranks on ``node``, and their output."""
        self.give_up(node)
        for rank in self._called.get(node, ()):
            if self.nodes[rank] == node:
                self._streams.pop(rank, None)

    def give_up(self, node: int) -> None:
        """Give up the ranks that still live on ``node``."""
        for rank in self._called.get(node, ()):
            if self.is_alive(rank, node):
                self._bury(rank)
                self._streams.pop(rank, None)

    @property
    def is_done(self) -> bool:
        """Whether all ranks have exited and all their streams have ended."""
        return not self._alive and not self._streams

    def awaits(self, node: int) -> bool:
        """Whether a rank on ``node`` lives or has an open stream."""
        return any(self.nodes[rank] == node for rank in (*self._alive, *self._streams))

    def living(self) -> list[int]:
        """The nodes that have living ranks, in order."""
        return sorted(node for node, count in self._load.items() if count)

    def unfinished(self) -> list[int]:
        """The nodes that have living ranks or open streams, in order."""
        return sorted({*self.living(), *(self.nodes[rank] for rank in self._streams)})

    def alive(self) -> list[int]:
        """The living ranks."""
        return list(self._alive)

    def load(self) -> Mapping[int, int]:
        """How many ranks live on each node that ever had any."""
        return self._load


class Assigned:
    """The host of each node of the latest plan. hosts: node -> host; nodes: host -> node.

    homes: rank -> the host where it runs or last ran, and its number there.
    """

    def __init__(self, hosts: Iterable[int]) -> None:
        self.homes: dict[int, tuple[int, int]] = {}
        #: the latest plan and its hosts, with nodes that were dropped; None where none are
        self._whole: tuple[JobPlan, tuple[int, ...]] | None = None
        self.assign(hosts)

    def assign(self, hosts: Iterable[int]) -> None:
        """Give the nodes of the plan to ``hosts``, in order."""
        self.hosts = tuple(hosts)
        self.nodes = {host: node for node, host in enumerate(self.hosts)}

    def follow(self, assignment: Assignment, change: Change) -> None:
        """Use ``assignment`` for the next attempt, with its plan changed by ``change``."""
        self.assign(assignment.hosts)
        whole = assignment.whole
        self._whole = None if whole is None else (change.of(whole[0]), whole[1])

    def started(self, plan: JobPlan, node: int) -> None:
        """Note that the ranks of ``node`` are about to be started on its host."""
        for local, rank in enumerate(plan.nodes[node].ranks):
            self.homes[rank] = (self.hosts[node], local)

    def spawned(self, world: WorldPlaced) -> None:
        """Note that the ranks of ``world`` are about to be started on its hosts."""
        for rank, host in enumerate(world.nodes):
            self.homes[world.first + rank] = (host, rank)

    def next(self, plan: JobPlan, table: HostTable, most: int, *, distinct: bool) -> Assignment:
        """Choose the hosts of the next attempt, after ``plan``.

        most: attempts that may end on a host. distinct: no two nodes may be on one machine.
        """
        plan, hosts = self._whole or (plan, self.hosts)
        waiting = table.waiting(hosts)
        return assign_hosts(
            plan,
            hosts,
            bad={host for host in hosts if host in table.out},
            faulty={host for host in hosts if table.faults[host] >= most},
            free={h: (table.planned[h], table.facts[h]) for h in waiting if h in table.facts},
            awaited=any(host not in table.facts for host in waiting),
            distinct={h: f.machine for h, f in table.facts.items()} if distinct else None,
        )

    def changes(self, assignment: Assignment, table: HostTable) -> list[ev.Event]:
        """The events that describe ``assignment``, which comes next, to the user."""
        told: list[ev.Event] = []
        for host in assignment.excluded:
            faults = table.faults[host]
            table.out.setdefault(host, f"{plural(faults, 'attempt')} ended there")
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


def for_hosts(it: V, assigned: Sequence[int]) -> V:
    """Replace the nodes in an attempt's action, event or cause by the hosts that have them."""
    node, nodes = vars(it).get("node"), vars(it).get("nodes")
    if nodes is not None:
        return replace(it, nodes=tuple(assigned[node] for node in nodes))
    return it if node is None or assigned[node] == node else replace(it, node=assigned[node])
