"""Places a spawned world: a rank's request and the hosts' load in, a ``World`` out. Pure.

Each segment takes free slots first, host by host; the other ranks go one to a host in turn,
the least loaded first, never above a host's ``max_slots``. The info keys ``host`` (``hosts``),
``wdir``, ``path`` and ``env`` are used. Keys that would choose other hosts are refused; all
others are hints, which MPI allows dispatch to ignore.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from dispatcher.core.events.mpi_events import PmiSpawnAsked, Segment, World
from dispatcher.model.host import LOCAL_NAMES
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.plan.job import placement
from dispatcher.plan.job.job_plan import NodePlan

#: bytes of all arguments of all ranks of one world
MOST_WORDS = 4 << 20
#: ranks that a node may spawn at once, and how many more each second. The run keeps 0.9 KiB of each
#: to its end, for the report: so a program that spawns without end takes 11 MiB and then 3 an hour,
#: and has 86,400 ranks a day
SPAWNED_AT_ONCE, SPAWNED_A_SECOND = 3 * placement.MOST_SPAWNED, 1.0

HOSTS = frozenset({b"host", b"hosts"})
REFUSED = frozenset({b"hostfile", b"add-host", b"add-hostfile", b"arch", b"file"})


class NotSpawned(ValueError):
    """This world is refused; the text is the reason, with the names of ``nodes`` in its middle.

    ``str`` joins the names, because that takes 7 ms for a thousand hosts.
    """

    def __init__(self, why: str, nodes: Iterable[NodePlan] = (), more: str = "") -> None:
        super().__init__(why)
        self._nodes, self._more = nodes, more

    def __str__(self) -> str:
        names = fold(node.host.name for node in self._nodes)
        return f"{self.args[0]}{names}{self._more}"


class Hosts:
    """Finds hosts of a job by the plan's names, or their own (``hostnames``).

    here: hosts on the launcher's own machine, with other names than ``LOCAL_NAMES``.
    """

    def __init__(
        self, nodes: Sequence[NodePlan], hostnames: Mapping[int, str], here: Collection[int] = ()
    ) -> None:
        self.nodes = nodes
        self._hostnames = hostnames
        self._here = here

    @cached_property
    def _called(self) -> dict[str, list[NodePlan]]:
        planned: dict[str, list[NodePlan]] = {}
        own: dict[str, list[NodePlan]] = {}
        for node in self.nodes:
            planned.setdefault(node.host.name, []).append(node)
            if node.index in self._hostnames:
                own.setdefault(self._hostnames[node.index], []).append(node)
        return own | planned

    def named(self, text: bytes) -> Sequence[NodePlan]:
        """The nodes that ``text`` lists, with commas between, in that order. Raises: Refused."""
        found: dict[int, NodePlan] = {}
        words = text.decode("utf-8", "backslashreplace").split(",")
        for name in dict.fromkeys(map(str.strip, words)):  # a report has room for 300,000
            if name not in self._called:
                why = f"{name[:80] or 'no name'}: not a host of this job, which has "
                raise NotSpawned(why, self.nodes)
            found.update({node.index: node for node in self._called[name]})
        return tuple(found.values())

    def allowed(
        self, named: Sequence[NodePlan], asker: NodePlan, using: Collection[int] | None
    ) -> Sequence[NodePlan]:
        """The nodes of ``named`` where ``asker`` may start ranks. Raises: Refused.

        A host that only claims to be on the launcher's machine may start nothing on it.
        """
        selected = [node for node in named if using is None or node.index in using]
        if not selected:
            raise NotSpawned("no rank on ", named, " uses MPI")
        if asker.host.name not in LOCAL_NAMES:
            selected = [n for n in selected if n.index == asker.index or not self._is_here(n)]
        if not selected:
            raise NotSpawned("another host may start nothing on this machine")
        return selected

    def _is_here(self, node: NodePlan) -> bool:
        return node.host.name in LOCAL_NAMES or node.index in self._here


def place(
    event: PmiSpawnAsked,
    index: int,
    hosts: Hosts,
    load: Mapping[int, int],
    spawned: int = 0,
    using: Collection[int] | None = None,
    most: float = SPAWNED_AT_ONCE,
) -> World:
    """Place the world that ``event`` asks for, as number ``index``. Raises: Refused.

    load: living ranks of each node. spawned: how many of all are spawned. using: nodes whose
    ranks use MPI; None: all. Other nodes get no rank, and this machine none for another host.
    most: ranks that the node which asks may spawn now.
    """
    wanted = sum(segment.nprocs for segment in event.segments)
    if index > placement.MOST_WORLDS:
        raise NotSpawned(f"this job has spawned {placement.MOST_WORLDS} times, which is the most")
    if wanted + spawned > placement.MOST_SPAWNED:
        living = f" and {spawned} live" if spawned else ""
        raise NotSpawned(
            f"{wanted} processes wanted{living}: at most {placement.MOST_SPAWNED} at the same time"
        )
    if wanted > most:
        asked = plural(wanted, "process", "processes")
        host = hosts.nodes[event.node].host.name
        raise NotSpawned(
            f"{asked} wanted: {host} has spawned {SPAWNED_AT_ONCE}, and may one more each second"
        )
    if min((segment.nprocs for segment in event.segments), default=0) < 1:
        raise NotSpawned("0 processes wanted")
    words = sum(len(word) * s.nprocs for s in event.segments for word in s.argv)
    words += sum(len(text) * s.nprocs for s in event.segments for _, text in s.info)
    if words > MOST_WORDS:
        raise NotSpawned(f"arguments of {words} bytes: at most {MOST_WORDS} for all processes")
    taken = Counter(load)
    rooms: dict[bytes | None, _Room] = {}  # names of hosts -> what is free there
    for segment in event.segments:
        if not segment.argv or not segment.argv[0]:
            raise NotSpawned("no program is named")
        text = _hosts_of(segment)
        if text not in rooms:
            named = hosts.nodes if text is None else hosts.named(text)
            asker = hosts.nodes[event.node]
            rooms[text] = _Room(hosts.allowed(named, asker, using), taken)
    nodes = [node for s in event.segments for node in rooms[_hosts_of(s)].take(s.nprocs)]
    return World(index, event.rank, event.segments, event.preput, tuple(nodes))


def _hosts_of(segment: Segment) -> bytes | None:
    """The names of the hosts that the segment may use; None: all. Raises: Refused."""
    found = None
    for key, text in segment.info:
        if key in REFUSED:
            raise NotSpawned(f"the info key {key.decode()} is not supported, use host")
        if key in HOSTS:
            found = text
    return found


class _Room:
    """The free slots on ``nodes``, kept as a heap so that no segment searches all nodes again.

    taken: node -> its ranks, with those of this world, whichever hosts their segments name.
    """

    def __init__(self, nodes: Sequence[NodePlan], taken: Counter[int]) -> None:
        self._nodes = nodes
        self._taken = taken

    @cached_property
    def _order(self) -> list[tuple[int, int]]:
        """(load, place in ``nodes``) of each that may take more, as a heap.

        The load may be older than the latest segment with other hosts.
        """
        order = [(self._load(at), at) for at in range(len(self._nodes))]
        heapq.heapify(order)
        return order

    def _excess(self, at: int) -> int:
        """Ranks above the node's slots; a negative number is free slots."""
        node = self._nodes[at]
        return self._taken[node.index] - (len(node.slots) or len(node.ranks))

    def _load(self, at: int) -> int:
        return max(-1, self._excess(at))  # all nodes with free slots are equal

    def _most(self, at: int) -> int:
        """How many more ranks the node may ever get."""
        node = self._nodes[at]
        if node.host.max_slots is None:
            return placement.MOST_SPAWNED
        return max(0, node.host.max_slots - self._taken[node.index])

    def take(self, wanted: int) -> list[int]:
        """The node of each of ``wanted`` ranks: free slots first, then in turn. Raises: Refused."""
        given: Counter[tuple[int, int]] = Counter()
        turn: list[tuple[int, int]] = []
        left = wanted
        while left > len(turn) and self._order:
            load, at = heapq.heappop(self._order)
            if load == self._load(at) >= 0:
                turn += [(load, at)] if self._most(at) else []
                continue
            count = min(left, max(0, -self._excess(at)))
            self._give(given, (0, at), count)
            left -= count
            heapq.heappush(self._order, (self._load(at), at))
        came = turn
        while left and turn:
            each = max(1, min(left // len(turn), *(self._most(at) for _, at in turn)))  # rounds
            for one in turn[:left]:
                self._give(given, one, each)
                left -= each
            turn = [one for one in turn if self._most(one[1])]
        for _, at in came:
            heapq.heappush(self._order, (self._load(at), at))
        if left:
            asked = plural(wanted, "process", "processes")
            most = f" take {wanted - left} more (max_slots)"
            raise NotSpawned(f"{asked} wanted: ", self._nodes, most)
        return [node for one in sorted(given) for node in [self._nodes[one[1]].index] * given[one]]

    def _give(self, given: Counter[tuple[int, int]], one: tuple[int, int], count: int) -> None:
        given[one] += count
        self._taken[self._nodes[one[1]].index] += count
