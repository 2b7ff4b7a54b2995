"""Where a spawned world goes: a rank's request and the hosts' load in, a ``World`` out. Pure.

A world may use all hosts of the job. Each of its segments takes free slots first,
host by host, so that ranks which talk most share a host; what is left when all
slots are taken is dealt out one a host in turn, beginning with the least loaded,
never above a host's ``max_slots``. MPI has no word for "wait until there is room".

Of the info keys ``host`` (or ``hosts``: names with commas between), ``wdir``, ``path`` and
``env`` are honoured. Keys that would choose other hosts are refused, since to
ignore them would be a silent lie; all others are hints, which MPI lets us ignore.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from dispatcher.core.events.mpi_events import PmiSpawnAsked, World
from dispatcher.model.host import LOCAL_NAMES
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.plan.job import placement
from dispatcher.plan.job.job_plan import NodePlan

#: bytes of all arguments of all ranks of one world
MOST_WORDS = 4 << 20

HOSTS = frozenset({b"host", b"hosts"})
REFUSED = frozenset({b"hostfile", b"add-host", b"add-hostfile", b"arch", b"file"})


class Refused(ValueError):
    """This world cannot be; the text says why, with the names of ``nodes`` in its middle.

    They are put together by who reads it: for a thousand hosts that takes 7 ms, and of most
    refusals nobody reads the reason.
    """

    def __init__(self, why: str, nodes: Iterable[NodePlan] = (), more: str = "") -> None:
        super().__init__(why)
        self._nodes, self._more = nodes, more

    def __str__(self) -> str:
        names = fold(node.host.name for node in self._nodes)
        return f"{self.args[0]}{names}{self._more}"


class Hosts:
    """The hosts of a job, by their names. hostnames: node -> what the host calls itself.

    That is good in ``host`` like the plan's name.
    """

    def __init__(self, nodes: Sequence[NodePlan], hostnames: Mapping[int, str]) -> None:
        self.nodes = nodes
        self._hostnames = hostnames

    @cached_property
    def _called(self) -> dict[str, list[NodePlan]]:
        planned: dict[str, list[NodePlan]] = {}
        own: dict[str, list[NodePlan]] = {}
        for node in self.nodes:
            planned.setdefault(node.host.name, []).append(node)
            if node.index in self._hostnames:
                own.setdefault(self._hostnames[node.index], []).append(node)
        return own | planned

    def named(self, info: Iterable[tuple[bytes, bytes]]) -> Sequence[NodePlan]:
        """The nodes that ``info`` lets a segment use, in the order they are named.

        Raises: Refused.
        """
        named: Sequence[NodePlan] = self.nodes
        for key, text in info:
            if key in REFUSED:
                raise Refused(f"the info key {key.decode()} is not supported, use host")
            if key not in HOSTS:
                continue
            found: dict[int, NodePlan] = {}
            words = text.decode("utf-8", "backslashreplace").split(",")
            for name in dict.fromkeys(map(str.strip, words)):  # a report has room for 300,000
                if name not in self._called:
                    why = f"{name[:80] or 'no name'}: not a host of this job, which has "
                    raise Refused(why, self.nodes)
                found.update({node.index: node for node in self._called[name]})
            named = tuple(found.values())
        return named


def place(
    event: PmiSpawnAsked,
    index: int,
    hosts: Hosts,
    load: Mapping[int, int],
    spawned: int = 0,
    using: Collection[int] | None = None,
) -> World:
    """The world that ``event`` asks for, as number ``index``.

    load: living ranks of each node. spawned: how many of all are spawned ones.
    using: nodes whose ranks use MPI; None: all. Others get no rank, and this machine none that
    another host asks for.

    Raises: Refused.
    """
    wanted = sum(segment.nprocs for segment in event.segments)
    if index > placement.MOST_WORLDS:
        raise Refused(f"this job has spawned {placement.MOST_WORLDS} times, which is the most")
    if wanted + spawned > placement.MOST_SPAWNED:
        living = f" and {spawned} live" if spawned else ""
        raise Refused(
            f"{wanted} processes wanted{living}: at most {placement.MOST_SPAWNED} at the same time"
        )
    words = sum(len(word) * s.nprocs for s in event.segments for word in s.argv)
    words += sum(len(text) * s.nprocs for s in event.segments for _, text in s.info)
    if words > MOST_WORDS:
        raise Refused(f"arguments of {words} bytes: at most {MOST_WORDS} for all processes")
    asker = hosts.nodes[event.node]
    taken = {node.index: load.get(node.index, 0) for node in hosts.nodes}
    nodes: list[int] = []
    for segment in event.segments:
        if not segment.argv or not segment.argv[0]:
            raise Refused("no program is named")
        named = hosts.named(segment.info)
        selected = [node for node in named if using is None or node.index in using]
        if not selected:
            raise Refused("no rank on ", named, " uses MPI")
        if asker.host.name not in LOCAL_NAMES:
            selected = [node for node in selected if node.host.name not in LOCAL_NAMES]
        if not selected:
            raise Refused("another host may start nothing on this machine")
        for node, count in _shares(segment.nprocs, selected, taken):
            nodes += [node] * count
            taken[node] += count
    return World(index, event.rank, event.segments, event.preput, tuple(nodes))


def _shares(
    wanted: int, nodes: Sequence[NodePlan], taken: Mapping[int, int]
) -> list[tuple[int, int]]:
    """(node, ranks) for ``wanted`` ranks: free slots first, then in turn."""

    def capacity(node: NodePlan) -> int:
        return (len(node.slots) or len(node.ranks)) - taken[node.index]

    # all nodes with free slots are equal, and the sort is stable
    order = sorted(nodes, key=lambda node: max(0, -capacity(node)))
    most = [
        None if node.host.max_slots is None else max(0, node.host.max_slots - taken[node.index])
        for node in order
    ]
    free = [max(0, capacity(node)) for node in order]
    try:
        counts = placement.shares(free, wanted, most=most, oversubscribe=True)
    except placement.TooFewSlots as full:
        asked = plural(wanted, "process", "processes")
        raise Refused(f"{asked} wanted: ", nodes, f" take {full.most} more (max_slots)") from None
    return [(node.index, count) for node, count in zip(order, counts, strict=True) if count]
