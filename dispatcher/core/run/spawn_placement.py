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

from collections.abc import Collection, Mapping, Sequence

from dispatcher.core.events.mpi_events import PmiSpawnAsked, Segment, World
from dispatcher.model.host import LOCAL_NAMES
from dispatcher.model.hostset import fold
from dispatcher.model.names import plural
from dispatcher.plan.job import placement
from dispatcher.plan.job.job_plan import JobPlan, NodePlan

#: bytes of all arguments of all ranks of one world
MOST_WORDS = 4 << 20

HOSTS = frozenset({b"host", b"hosts"})
REFUSED = frozenset({b"hostfile", b"add-host", b"add-hostfile", b"arch", b"file"})


class Refused(ValueError):
    """This world cannot be; the text says why."""


def place(
    event: PmiSpawnAsked,
    index: int,
    plan: JobPlan,
    load: Mapping[int, int],
    spawned: int = 0,
    hostnames: Mapping[int, str] | None = None,
    using: Collection[int] | None = None,
) -> World:
    """The world that ``event`` asks for, as number ``index``.

    load: living ranks of each node. spawned: how many of all are spawned ones.
    hostnames: node -> what the host calls itself, good in ``host`` like the plan's name.
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
    asker = plan.nodes[event.node]
    taken = {node.index: load.get(node.index, 0) for node in plan.nodes}
    nodes: list[int] = []
    for segment in event.segments:
        if not segment.argv or not segment.argv[0]:
            raise Refused("no program is named")
        named = _selected(segment, plan, hostnames or {})
        selected = [node for node in named if using is None or node.index in using]
        if not selected:
            raise Refused(f"no rank on {fold(node.host.name for node in named)} uses MPI")
        if asker.host.name not in LOCAL_NAMES:
            selected = [node for node in selected if node.host.name not in LOCAL_NAMES]
        if not selected:
            raise Refused("another host may start nothing on this machine")
        for node, count in _shares(segment.nprocs, selected, taken):
            nodes += [node] * count
            taken[node] += count
    return World(index, event.rank, event.segments, event.preput, tuple(nodes))


def _selected(segment: Segment, plan: JobPlan, hostnames: Mapping[int, str]) -> Sequence[NodePlan]:
    """The nodes that the segment may use, in the order they are named."""
    named: Sequence[NodePlan] = plan.nodes
    for key, text in segment.info:
        if key in REFUSED:
            raise Refused(f"the info key {key.decode()} is not supported, use host")
        if key not in HOSTS:
            continue
        found: dict[int, NodePlan] = {}
        for word in text.decode("utf-8", "backslashreplace").split(","):
            name = word.strip()
            nodes = [node for node in plan.nodes if node.host.name == name] or [
                node for node in plan.nodes if hostnames.get(node.index) == name
            ]
            if not nodes:
                known = fold(node.host.name for node in plan.nodes)
                raise Refused(
                    f"{name[:80] or 'no name'}: not a host of this job, which has {known}"
                )
            found.update({node.index: node for node in nodes})
        named = tuple(found.values())
    return named


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
        names = fold(node.host.name for node in nodes)
        asked = plural(wanted, "process", "processes")
        raise Refused(f"{asked} wanted: {names} take {full.most} more (max_slots)") from None
    return [(node.index, count) for node, count in zip(order, counts, strict=True) if count]
