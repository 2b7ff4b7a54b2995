"""On which CPUs each rank runs, and which RDMA devices are near to its GPU. Pure.

``--bind-to`` gives a rank CPUs among the CPUs that its agent may use: ``gpu`` takes its GPU's NUMA
node; ``numa`` the same, and ranks without a GPU are dealt to the NUMA nodes in blocks; ``socket``
the socket around that; ``core`` an equal share of whole cores of that; ``auto`` as ``gpu``, but it
binds no rank whose GPUs are at several NUMA nodes. With ``--map-by`` numa, socket or core,
``auto`` binds ranks to these. A rank's GPU is its local rank's among the GPUs it may see.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from dispatcher.model.frozen import Value, value
from dispatcher.model.names import fold_numbers
from dispatcher.plan.job.devices import NodePlan, visible_devices
from dispatcher.plan.job.placement import MapBy

if TYPE_CHECKING:
    from dispatcher.model import bounds

#: --bind-to, --mem-bind
BindTo = Literal["auto", "none", "core", "socket", "numa", "gpu"]
MemBind = Literal["none", "local"]
POLICIES = ("none", "local")
#: the meaning of each --bind-to, before the hosts have reported their CPUs
TARGETS = {
    "auto": "the NUMA node of its GPU, if the host reports it",
    "none": "no CPUs",
    "core": "cores of its own, in the NUMA node of its GPU if it has one",
    "socket": "the socket of its GPU, or else one by its local rank",
    "numa": "the NUMA node of its GPU, or else one by its local rank",
    "gpu": "the NUMA node of its GPU",
}

#: ``--map-by slot``
BY_SLOT = MapBy()
#: units that ranks may be dealt to by number, and bound to then
DEALT = ("auto", "numa", "socket", "core")

#: more CPUs than any machine has
MOST_CPUS = 1 << 13

#: name or UUID, NUMA node or -1, the PCI addresses on the way to it, host bridge first
Device = tuple[str, int, str]
#: the GPUs of each rank; more than one where there are more than ranks
GpusByRank = tuple[tuple[Device, ...], ...]


@value
class Topology(Value):
    """Where things sit on a host: ``remote.host.binding.topology``, checked. CPUs are sets as text.

    nodes: NUMA node -> its CPUs. gpus: in CUDA's order. cores, sockets: where they are asked for.
    """

    allowed: bounds.Text
    nodes: tuple[tuple[Annotated[int, bounds.between(0, bounds.MOST_NODE)], bounds.Text], ...] = ()
    cores: tuple[bounds.Text, ...] = ()
    gpus: tuple[tuple[bounds.Text, bounds.Node, bounds.Text], ...] = ()
    nics: tuple[tuple[bounds.Text, bounds.Node, bounds.Text], ...] = ()
    sockets: tuple[bounds.Text, ...] = ()

    def check(self) -> None:
        """Check that a kernel could report all of it. Raises: ValueError."""
        for texts in ([text for _, text in self.nodes], self.cores, self.sockets, [self.allowed]):
            total = 0
            for text in texts:  # they share no CPU
                total += len(cpu_set(text))
                if total > MOST_CPUS:
                    raise ValueError(f"more than {MOST_CPUS} CPUs")


@value
class Binding(Value):
    """cpus: the CPUs a rank is bound to, () for none, with ``why``. nodes: their NUMA nodes.

    sharers: how many ranks of its host run on the same CPUs. nics: RDMA devices near to its GPU.
    """

    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    why: str = ""
    sharers: int = 1
    nics: tuple[str, ...] = ()


def binding_rule(target: BindTo, mapping: MapBy) -> str:
    """The meaning of ``--bind-to`` for each rank, before the hosts have reported their CPUs."""
    unit = mapping.within
    if target not in DEALT or unit not in DEALT:
        return TARGETS["gpu" if (target, unit) == ("auto", "gpu") else target]
    words = {"numa": "NUMA node"}
    dealt = f"the {words.get(unit, unit)} that it is dealt to"
    if target in ("auto", unit):
        return dealt
    own = "cores of its own, in" if target == "core" else f"the {words.get(target, target)} of"
    return f"{own} {dealt}"


def cpu_set(text: str) -> frozenset[int]:
    """The CPUs of ``0-3,8``. Raises: ValueError for another text, and too large numbers."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < MOST_CPUS or high in found:
            raise ValueError(f"not CPUs: {part[:40]!r}")
        found.update(range(low, high + 1))
    return frozenset(found)


def _numbers(text: str) -> set[int]:
    """The numbers of ``0-3,8``, as many as a host can have CPUs."""
    spans = [part.partition("-") for part in text.split(",")]
    return {
        number
        for first, _, last in spans
        for number in range(int(first), min(int(last or first), MOST_CPUS) + 1)
    }


def bindings(
    target: BindTo,
    policy: str,
    node: NodePlan,
    gpus: int,
    there: Topology | None,
    mapping: MapBy = BY_SLOT,
    slots: Sequence[str] = (),
) -> list[Binding]:
    """For each rank of ``node``, in order of local rank, where it runs.

    policy: of ``--devices``. gpus: how many the host has. there: None if the host reported nothing.
    slots: each rank's CPUs in a rankfile.
    """
    if there is None:
        why = "no GPU, or one NUMA node only" if target == "auto" else "the host reports no CPUs"
        return [Binding(why=why) for _ in node.ranks]
    own = _own_gpus(policy, node, gpus, there)
    return list(_chosen(target, there, own, mapping, tuple(slots)))


def slot(text: str, there: Topology | None) -> Binding:
    """The CPUs that a rankfile's ``text`` means on a host; why not, if it has not got them."""
    if there is None:
        return Binding(why="the host does not report its cores")
    return _Chooser(there, ()).slot(text) if text else Binding()


def count(what: str, there: Topology | None) -> int:
    """How many NUMA nodes, sockets or cores of a host its ranks may run on; 0 if unknown."""
    return 0 if there is None else len(_Chooser(there, ()).units(what))


@functools.lru_cache(maxsize=16)
def _chosen(
    target: BindTo, there: Topology, own: GpusByRank, mapping: MapBy, slots: tuple[str, ...]
) -> tuple[Binding, ...]:
    """``bindings`` for ranks with these GPUs; cached, because most hosts of a cluster are equal."""
    chosen = [Binding(why="not asked") for _ in own]
    chooser = _Chooser(there, own)
    if any(slots) and target != "none":
        chosen = [chooser.slot(text) if text else chosen[0] for text in slots]
    elif target in DEALT and mapping.within in DEALT:
        chosen = chooser.dealt(mapping.within if target == "auto" else target, mapping)
    elif target != "none":
        to_gpu = target == "auto" and mapping.within == "gpu"
        chosen = chooser.choose("gpu" if to_gpu else target)
    sharers = Counter(one.cpus for one in chosen if one.cpus)
    return tuple(
        replace(one, sharers=sharers[one.cpus] or 1, nics=near(there.nics, *its[:1]))
        for one, its in zip(chosen, own, strict=True)
    )


def _own_gpus(policy: str, node: NodePlan, gpus: int, there: Topology) -> GpusByRank:
    """The GPUs of each rank, its own first: none if one is not known."""
    found: list[tuple[Device, ...]] = []
    for local in range(len(node.ranks)):
        text = visible_devices(policy, node, local)
        names = (text.split(",") if text else node.gpus or [*map(str, range(gpus))]) or [""]
        own = names[local % len(names)]
        more = [name for name in names if name != own] if len(names) > len(node.ranks) else []
        devices = [_gpu(there, name) for name in ([own, *more] if node.gpus != () else ())]
        known = tuple(one for one in devices if one is not None)
        found.append(known if len(known) == len(devices) else ())
    return tuple(found)


def _gpu(there: Topology, name: str) -> Device | None:
    if name.isdigit():
        return there.gpus[int(name)] if int(name) < len(there.gpus) else None
    named = [one for one in there.gpus if one[0].startswith(name)]
    return named[0] if len(named) == 1 else None


def near(nics: Sequence[Device], gpu: Device | None = None) -> tuple[str, ...]:
    """Names of the ``nics`` nearest to ``gpu``: below the same PCI switch, else its node's."""
    if gpu is None:
        return ()

    def shared(nic: Device) -> int:
        """PCI bridges on the way to both, the host bridge among them."""
        pairs = zip(nic[2].split("/"), gpu[2].split("/"), strict=False)
        same = [first == second != "" for first, second in pairs]
        return (same + [False]).index(False)

    most = max(map(shared, nics), default=0)
    if most:
        return tuple(nic[0] for nic in nics if shared(nic) == most)
    return tuple(nic[0] for nic in nics if nic[1] == gpu[1] != -1)


class _Chooser:
    """own: the GPUs of each rank."""

    def __init__(self, there: Topology, own: GpusByRank) -> None:
        allowed = cpu_set(there.allowed)
        nodes = there.nodes or ((0, there.allowed),)
        cpus = {number: cpu_set(text) & allowed for number, text in nodes}
        self.nodes = {number: usable for number, usable in cpus.items() if usable}
        self.there = there
        self.own = own
        self.known: dict[str, list[frozenset[int]]] = {}

    def choose(self, target: BindTo) -> list[Binding]:
        homes = [self.home(local, target) for local in range(len(self.own))]
        if target in ("numa", "core", "socket"):
            order = list(self.nodes)
            for local, home in enumerate(homes):
                if isinstance(home, str) and order:
                    homes[local] = order[local * len(order) // len(homes)]
        return [
            Binding(why=home)
            if isinstance(home, str)
            else self.share(homes, local, home)
            if target == "core"
            else self.around(self.nodes[home], "socket")
            if target == "socket"
            else Binding(tuple(sorted(self.nodes[home])), (home,))
            for local, home in enumerate(homes)
        ]  # fmt: skip

    def units(self, what: str) -> list[frozenset[int]]:
        """The CPUs of each NUMA node, socket or core, as far as ranks may run on them.

        In hwloc's order, by which Open MPI counts: units of one socket or NUMA node follow each
        other, whatever numbers the kernel has given to their CPUs.
        """
        if what in self.known:
            return self.known[what]
        nodes = list(self.nodes.values())
        allowed = frozenset().union(*nodes)
        sockets, cores = (
            [cpus for text in texts if (cpus := cpu_set(text) & allowed)]
            for texts in (self.there.sockets, self.there.cores)
        )
        around = sorted((*nodes, *sockets), key=len, reverse=True)

        def order(unit: frozenset[int]) -> list[int]:
            return [min(one) for one in (*around, unit) if unit <= one]

        found = {"numa": nodes, "socket": sockets}.get(what, cores)
        self.known[what] = sorted(found, key=order)
        return self.known[what]

    def slot(self, text: str) -> Binding:
        """The CPUs of ``0:1-2;p7``, see ``placement.Placed``; why not, if some are not there."""
        found: set[int] = set()
        for part in text.split(";"):
            socket, colon, numbers = part.removeprefix("p").rpartition(":")
            what, units, where = "core", self.units("core"), ""
            if part.startswith("p"):
                cpus = sorted(frozenset().union(*self.nodes.values()))
                what, units = "CPU", [frozenset({cpu}) for cpu in cpus]
            elif colon:
                sockets = self.units("socket")
                if int(socket) >= len(sockets):
                    return Binding(why=f"no socket {int(socket)}: ranks may use {len(sockets)}")
                where = f" on socket {int(socket)}"
                units = [unit for unit in units if unit <= sockets[int(socket)]]
            known = {min(unit) if what == "CPU" else at: unit for at, unit in enumerate(units)}
            wanted = sorted(known if numbers == "*" else _numbers(numbers))
            absent = [number for number in wanted if number not in known]
            if absent or not wanted:
                which = absent[0] if absent else ""
                return Binding(why=f"no {what} {which}{where}: ranks may use {len(known)}")
            found.update(*(known[number] for number in wanted))
        return Binding(tuple(sorted(found)), self.numa_of(frozenset(found)))

    def dealt(self, target: str, mapping: MapBy) -> list[Binding]:
        """Bindings of ranks that are dealt to the units of ``mapping``, by their local ranks."""
        units = self.units(mapping.within)
        if not units:
            return [Binding(why=f"the host reports no {mapping.within}") for _ in self.own]
        places = [local // (mapping.each or 1) % len(units) for local in range(len(self.own))]
        if target == "core" and mapping.within != "core":
            return [self.part(units[at], places.count(at), places[:i].count(at), mapping.within)
                    for i, at in enumerate(places)]  # fmt: skip
        return [self.around(units[at], target) for at in places]

    def around(self, cpus: frozenset[int], what: str) -> Binding:
        """The socket, or whatever ``what`` is, that has (most of) these ``cpus``."""
        units = self.units(what)
        if not units:
            return Binding(why=f"the host reports no {what}")
        own = max(units, key=lambda unit: len(unit & cpus))
        return Binding(tuple(sorted(own)), self.numa_of(own))

    def numa_of(self, cpus: frozenset[int]) -> tuple[int, ...]:
        return tuple(number for number, usable in self.nodes.items() if usable & cpus)

    def home(self, local: int, target: BindTo) -> int | str:
        """The NUMA node of the rank's GPU; or why it is not known or not to be bound to."""
        if target == "auto" and len(self.nodes) < 2:
            return "one NUMA node only"
        if target == "auto" and len({node for _, node, _ in self.own[local]}) > 1:
            return "its GPUs are at several NUMA nodes"
        if not self.own[local]:
            return "no GPU that is known"
        number = self.own[local][0][1]
        if number == -1 and len(self.nodes) == 1:
            return next(iter(self.nodes))
        if number == -1:
            return "its GPU's NUMA node is not known"
        return number if number in self.nodes else f"no CPU allowed at NUMA node {number}"

    def share(self, homes: list[int | str], local: int, home: int) -> Binding:
        """The cores at ``home`` for the rank ``local``, which shares them with others evenly."""
        count, place = homes.count(home), homes[:local].count(home)
        return self.part(self.nodes[home], count, place, f"NUMA node {home}")

    def part(self, cpus: frozenset[int], count: int, place: int, where: str) -> Binding:
        """The cores among ``cpus`` of one of ``count`` ranks that share them evenly."""
        usable = [cpu_set(text) & cpus for text in self.there.cores]
        cores = sorted((core for core in usable if core), key=min)
        if len(cores) < count:
            return Binding(why=f"fewer cores ({len(cores)}) than ranks ({count}) at {where}")
        mine = cores[place * len(cores) // count : (place + 1) * len(cores) // count]
        own = frozenset().union(*mine)
        return Binding(tuple(sorted(own)), self.numa_of(own))


def group_bindings(
    found: Sequence[Binding], ranks: Sequence[int], *, bound: bool
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(text, ranks) for ranks with equal bindings, or without one for equal reasons, in order."""
    groups: dict[str, list[int]] = {}
    for rank, one in zip(ranks, found, strict=True):
        if bound == bool(one.cpus):
            which = f"CPU{'s' * (len(one.cpus) > 1)} {fold_numbers(one.cpus)}"
            where = f"{which} of NUMA node {','.join(map(str, one.nodes))}"
            groups.setdefault(where if bound else one.why, []).append(rank)
    return tuple((words, tuple(members)) for words, members in groups.items())
