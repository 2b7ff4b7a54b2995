"""Where the hosts' keys meet: the barriers of MPI's process managers. Pure.

Each node commits once an epoch, when all its members of a group are in; when every node that has
living members has committed, the fence opens and each of those nodes gets all the packets. A packet
is opaque here: what one host packed only the others unpack, so this stays cheap and cannot be made
to unpack a bomb.

Groups are written as agents write them, ``WORLD:TAG`` or ``0,2,5:TAG``, and long ones of PMIx with
spans, ``0-7,12:TAG``. Of PMI-1, those within one node never come here. A tag from ``ONCE`` on is
that of a meeting (a group that is made, worlds that connect): it has no epochs, and nothing of it
is kept when it is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dispatcher.model.frozen import Value, value

#: the first tag of meetings
ONCE = 20000000000
#: bytes of all packets of one fence; with what else is in the order it fits a control frame
FENCE_LIMIT = 15 << 20
#: bytes that one node may have lying in fences that are not open yet, and in the names of fences
#: that it was the first to come to; what a member of a group takes here, and a name beside itself
NODE_LIMIT, MEMBER, NAMED = 4 << 20, 512, 128


class FenceError(ValueError):
    """A node committed what it may not; its link cannot be trusted any more."""


@value
class Release(Value):
    """A fence that opens: each of ``nodes`` gets ``packets``. once: it was a meeting."""

    fence: str
    epoch: int
    nodes: tuple[int, ...]
    packets: tuple[bytes, ...]
    once: bool = False


@dataclass
class _Fence:
    """A group's barrier in one epoch: its members by node, and who has committed."""

    members: Mapping[int, frozenset[int]]
    epoch: int
    cost: int  # for each node that is in, beside its packet
    once: bool = False
    packets: dict[int, bytes] = field(default_factory=dict)
    size: int = 0  # bytes of all packets


class Fences:
    """The fences of one world. ranks_of: node -> its ranks.

    others: rank -> node of more that may take part, though they are not of this world.
    """

    def __init__(
        self, ranks_of: Mapping[int, Sequence[int]], others: Mapping[int, int] | None = None
    ) -> None:
        self._nodes = {rank: node for node, ranks in ranks_of.items() for rank in ranks}
        self._others = others or {}
        self._world = {node: frozenset(ranks) for node, ranks in ranks_of.items() if ranks}
        self._fences: dict[str, _Fence] = {}  # those that somebody waits in
        self._epochs: dict[str, int] = {}  # of those that have opened
        self._lying: Counter[int] = Counter()  # bytes, by node
        self._named: Counter[int] = Counter()
        self._ended: set[int] = set()

    def commit(self, node: int, name: str, epoch: int, packet: bytes) -> Release | None:
        """``node`` is in with all its members; the release if that was the last one.

        Raises: FenceError for a group that cannot be, one the node has no part
        in, an epoch that is not the present one, or too many bytes.
        """
        fence = self._fences.get(name) or self._new(name)
        if node not in fence.members or node in fence.packets or epoch != fence.epoch:
            raise FenceError(f"barrier {name[:60]} epoch {epoch}: out of turn")
        if fence.size + len(packet) > FENCE_LIMIT:
            raise FenceError(f"the keys of one barrier take more than {FENCE_LIMIT} bytes")
        lying = self._lying[node] + fence.cost + len(packet)
        named = self._named[node]
        if name not in self._fences and name not in self._epochs and not fence.once:
            named += len(name) + NAMED
        if (lying > NODE_LIMIT and self._lying[node]) or named > NODE_LIMIT:
            raise FenceError(f"its barriers take more than {NODE_LIMIT} bytes here")
        self._lying[node], self._named[node] = lying, named
        self._fences[name] = fence
        fence.packets[node] = packet
        fence.size += len(packet)
        return self._complete(name, fence)

    def _new(self, name: str) -> _Fence:
        members, tag = self._members(name)
        cost = 0 if members is self._world else MEMBER * sum(map(len, members.values()))
        once = tag >= ONCE
        return _Fence(members, self._epochs.get(name, 0), cost + once * (len(name) + NAMED), once)

    def ended(self, rank: int) -> list[Release]:
        """``rank`` ended well; the fences that open because nobody else was missing."""
        self._ended.add(rank)
        found = [self._complete(name, fence) for name, fence in [*self._fences.items()]]
        return [release for release in found if release is not None]

    def missing(self, name: str, epoch: int) -> list[int]:
        """The nodes that the fence still waits for in ``epoch``; [] when it has opened."""
        fence = self._fences.get(name)
        if fence is None or fence.epoch != epoch or not fence.packets:
            return []
        return [node for node in fence.members if self._is_missing(fence, node)]

    def _is_missing(self, fence: _Fence, node: int) -> bool:
        return node not in fence.packets and not fence.members[node] <= self._ended

    def _complete(self, name: str, fence: _Fence) -> Release | None:
        if not fence.packets:
            return None
        if not self._ended and len(fence.packets) < len(fence.members):
            return None  # the usual case, without a look at each node
        if any(self._is_missing(fence, node) for node in fence.members):
            return None
        release = Release(
            name,
            fence.epoch,
            tuple(sorted(fence.packets)),
            tuple(fence.packets.values()),
            fence.once,
        )
        for node, packet in fence.packets.items():
            self._lying[node] -= fence.cost + len(packet)
        del self._fences[name]
        if not fence.once:
            self._epochs[name] = fence.epoch + 1
        return release

    def _members(self, name: str) -> tuple[Mapping[int, frozenset[int]], int]:
        """node -> its members, and the tag."""
        group, _, tag = name.rpartition(":")
        if not (tag.isascii() and tag.isdigit()) or len(tag) > 11:
            raise FenceError(f"not a barrier: {name[:60]}")
        if group == "WORLD":
            return self._world, int(tag)
        members: dict[int, set[int]] = {}
        for first, last in _spans(group):
            for rank in range(first, last + 1):  # which ends where no rank is
                node = self._nodes.get(rank, self._others.get(rank))
                if node is None:
                    raise FenceError(f"barrier {name[:60]}: no rank {rank}")
                members.setdefault(node, set()).add(rank)
        return {node: frozenset(own) for node, own in members.items()}, int(tag)


def _spans(group: str) -> list[tuple[int, int]]:
    """The first and the last of each run of ranks; those of spans must rise."""
    spans: list[tuple[int, int]] = []
    top = -1
    for word in group.split(","):
        first, dash, last = word.partition("-")
        numbers = (first, last) if dash else (first, first)
        if not all(n.isascii() and n.isdigit() and len(n) < 11 for n in numbers):
            raise FenceError(f"not a group: {group[:60]}")
        span = int(numbers[0]), int(numbers[1])
        if dash and span[0] <= top:
            raise FenceError(f"not a group: {group[:60]}")
        spans.append(span)
        top = max(top, span[1])
    return spans
