"""Which rank runs on which node, which hosts wait as spares, and the ranks' numbers. Pure.

``block`` fills a node before the next one; ``node`` deals ranks out one a node in turn. Extra
ranks (``--oversubscribe``) are dealt out in turn, never above a node's ``most``. A spawned world
counts from 0 again; on the wire, in events and in the journal each rank of the job has one
number::

    0 ... FIRST-1                    the planned ranks, world 0
    FIRST + (w-1) * MOST_SPAWNED     rank 0 of world w, shown as w.0; its other ranks follow
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dispatcher.model.errors import NoHosts, PlanError, TooFewHosts, UsageError
from dispatcher.model.frozen import Value, value
from dispatcher.model.hostset import fold
from dispatcher.model.names import MOST_RANKS, parse_count, plural, quoted
from dispatcher.plan.hosts.filters import Choice

#: units within a host that ranks are dealt to
WITHIN = ("numa", "socket", "core", "gpu")
MAPPINGS = ("block", "node", *WITHIN, "ppr:N:node", *(f"ppr:N:{what}" for what in WITHIN))


@value
class MapBy(Value):
    """The value of ``--map-by``. across: hosts, ``block`` or ``node``.

    within: the unit that ranks of a host are dealt to, in turn; "" for none. each: this many ranks
    on each unit, in order, on every host; within may then be ``node`` as well.
    """

    across: str = "block"
    within: str = ""
    each: int | None = None


def parse_mapping(text: str) -> MapBy:
    """The value of ``--map-by``; ``slot`` is ``block``. Raises: UsageError."""
    if text in ("block", "slot", "node"):
        return MapBy("node" if text == "node" else "block")
    if text in WITHIN:
        return MapBy(within=text)
    ppr, *rest = text.split(":")
    if ppr == "ppr" and len(rest) == 2 and rest[1] in ("node", *WITHIN):
        return MapBy(within=rest[1], each=parse_count(rest[0], "--map-by ppr:N"))
    known = ", ".join(MAPPINGS)
    raise UsageError(f"--map-by: {quoted(text)} is not one of {known}", hint="--map-by ppr:2:numa")


@value
class Placed(Value):
    """A line of a rankfile: the host of a rank, and its CPUs on it. origin: file and line.

    host: a name, or ``+n1``: the second of the job's. slot: cores of the host (``1-2``) or of one
    of its sockets (``0:1-2``), as they are counted there from 0, CPUs by the kernel's numbers
    (``p4-5``), ``*`` for all of either; several of these with ``;``. "": none are named.
    """

    host: str
    slot: str
    origin: str


_NUMBERS = r"(?:\*|[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*)"
_CPUS = rf"(?:p|[0-9]{{1,5}}:)?{_NUMBERS}"
_PLACED = re.compile(r"rank\s*([0-9]{1,9})\s*=\s*([^\s=]+)(?:\s+slots?\s*=\s*(\S+))?")
_SLOT = re.compile(rf"{_CPUS}(?:;{_CPUS})*")


def parse_rankfile(text: str, source: str) -> tuple[Placed, ...]:
    """The place of each rank in Open MPI's rankfile ``text``, in order. Raises: UsageError."""
    found: dict[int, Placed] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words, origin = line.partition("#")[0].strip(), f"{source}:{number}"
        if not words:
            continue
        match = _PLACED.fullmatch(words)
        if match is None or not _SLOT.fullmatch(match[3] or "*"):
            raise UsageError(f"{origin}: not a place: {quoted(words)}", hint="rank 0=n1 slot=0:0-1")
        rank = int(match[1])
        if rank >= MOST_RANKS:
            raise UsageError(f"{origin}: rank {rank}: there can be {MOST_RANKS} ranks")
        if rank in found:
            raise UsageError(f"{origin}: rank {rank} has a place already: {found[rank].origin}")
        for low, high in re.findall(r"([0-9]+)-([0-9]+)", match[3] or ""):
            if int(low) > int(high):
                raise UsageError(f"{origin}: {low}-{high}: the first is larger than the last")
        found[rank] = Placed(match[2], match[3] or "", origin)
    missing = next(rank for rank in range(len(found) + 1) if rank not in found)
    if missing < len(found) or not found:
        last = f", and one for rank {max(found)}" if found else ""
        raise UsageError(
            f"{source}: no place for rank {missing}{last}", hint=f"rank {missing}=n1 slot=0-1"
        )
    return tuple(found[rank] for rank in range(len(found)))


class TooFewSlots(ValueError):
    """The ranks do not fit: ``asked`` ranks, room for ``free``, at most ``most`` of them ever.

    ``most`` is None where over-subscription has no bound.
    """

    def __init__(self, asked: int, free: int, most: int | None) -> None:
        super().__init__(f"{asked} ranks, {free} slots, at most {most}")
        self.asked = asked
        self.free = free
        self.most = most


def shares(
    free: Sequence[int],
    n_ranks: int,
    *,
    map_by: str = "block",
    most: Sequence[int | None] | None = None,
    oversubscribe: bool = False,
) -> tuple[int, ...]:
    """How many ranks each node gets, ``n_ranks`` in all. free: the slots of each.

    map_by: "block" or "node". most: bound per node when over-subscribed; None for no bound.
    oversubscribe: more ranks than slots may be placed. Raises: TooFewSlots.
    """
    bounds: list[int | None] = list(most) if most is not None else [None] * len(free)
    total = sum(free)
    known = [bound for bound in bounds if bound is not None]
    ceiling = sum(known) if len(known) == len(bounds) else None
    if n_ranks > total and (not oversubscribe or (ceiling is not None and n_ranks > ceiling)):
        raise TooFewSlots(n_ranks, total, ceiling)
    counts = [0] * len(free)
    if map_by == "block":
        left = n_ranks
        for index, slots in enumerate(free):
            counts[index] = min(slots, left)
            left -= counts[index]
    else:
        left = _deal(counts, n_ranks, list(free))
    _deal(counts, left, bounds)
    return tuple(counts)


def _deal(counts: list[int], left: int, bounds: Sequence[int | None]) -> int:
    """Add one rank a node in turn within ``bounds`` until none is left or all are full."""
    open_nodes = list(range(len(counts)))
    while left and open_nodes:
        still = []
        for index in open_nodes:
            bound = bounds[index]
            if left and (bound is None or counts[index] < bound):
                counts[index] += 1
                left -= 1
                still.append(index)
        open_nodes = still
    return left


def ranks_of(counts: Sequence[int], map_by: str = "block") -> tuple[tuple[int, ...], ...]:
    """Global ranks of each node in local-rank order; together 0 to sum(counts)-1, each once."""
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    if map_by == "node":
        places.sort(key=lambda place: place[::-1])
    ranks: list[list[int]] = [[] for _ in counts]
    for rank, (node, _) in enumerate(places):
        ranks[node].append(rank)
    return tuple(map(tuple, ranks))


def divide_hosts(
    choices: Sequence[Choice], nnodes: int | None, spares: int | None, least: int | None = None
) -> tuple[tuple[Choice, ...], tuple[Choice, ...]]:
    """Hosts to use and hosts to spare, both in the order given.

    Hosts that the hostfile calls ``spare`` are spares. ``--spares N`` adds the N that follow the
    first ``--nnodes``, or the last N without that. least: hosts that are enough, if there
    are fewer. Raises: PlanError when there are too few.
    """
    marked = tuple(choice for choice in choices if choice.host.spare)
    others = tuple(choice for choice in choices if not choice.host.spare)
    if not others:
        raise NoHosts(f"{fold(c.host.name for c in marked)}: only spares, no host to start on")
    wanted = spares or 0
    room = len(others) - wanted
    if nnodes is not None and least is not None and least <= room < nnodes:
        nnodes = room
    if nnodes is None:
        if wanted >= len(others):
            raise _too_few(f"--spares {wanted}: no host is left to start on", others)
        first = len(others) - wanted
    elif nnodes > len(others):
        raise _too_few(f"--nnodes {nnodes}", others)
    elif nnodes + wanted > len(others):
        raise _too_few(f"--nnodes {nnodes} --spares {wanted}", others)
    else:
        first = nnodes
    return others[:first], (*others[first : first + wanted], *marked)


def _too_few(asked: str, choices: Sequence[Choice]) -> PlanError:
    count = len(choices)
    names = fold(choice.host.name for choice in choices)
    return TooFewHosts(f"{asked}: only {plural(count, 'host')}: {names}")


#: where spawned ranks begin; above placement.MOST_RANKS
FIRST = 1 << 20
#: ranks of one spawned world at most; and of all that live at the same time
MOST_SPAWNED = 1 << 12
#: a frame holds a rank number in four bytes
MOST_WORLDS = ((1 << 32) - FIRST) // MOST_SPAWNED


def number(world: int, rank: int) -> int:
    """The number of ``rank`` of ``world``."""
    return rank if world == 0 else FIRST + (world - 1) * MOST_SPAWNED + rank


def place(number: int) -> tuple[int, int]:
    """(world, rank in it) of a rank number."""
    if number < FIRST:
        return 0, number
    world, rank = divmod(number - FIRST, MOST_SPAWNED)
    return world + 1, rank


def rank_name(number: int) -> str:
    """The name of the rank in messages: ``3``, or ``1.0`` for a spawned rank."""
    world, rank = place(number)
    return f"{world}.{rank}" if world else str(rank)


_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


class Ranks:
    """A set of rank numbers, as a list of (first, last); ``3 in ranks``."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._spans = spans

    def __contains__(self, rank: int) -> bool:
        return any(first <= rank <= last for first, last in self._spans)


def parse_ranks(text: str, flag: str, size: int | None = None) -> Ranks:
    """Parse ``0,3-5``, ``all`` or ``none``. size: of the world, if known. Raises: UsageError."""
    if text == "all":
        return Ranks([(0, MOST_RANKS - 1)])
    spans = []
    for part in [] if text == "none" else text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"{flag}: not a list of ranks: {text!r}", hint=f"{flag} 0,3-5")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise UsageError(f"{flag}: {part.strip()}: the first is larger than the last")
        if size is not None and last >= size:
            raise UsageError(f"{flag}: {last}: the world's ranks are 0-{size - 1}")
        spans.append((first, last))
    return Ranks(spans)
