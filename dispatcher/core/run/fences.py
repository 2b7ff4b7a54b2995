"""Exchanges the hosts' keys: the barriers of MPI's process managers. Pure.

Each node commits once an epoch, when all its members of a group are in; when every node with
living members has, the fence opens and each gets all the packets. dispatch never unpacks them, so
they may hold anything. Groups are written ``WORLD:TAG`` or ``0,2,5:TAG``, and long ones
``0-7,12:TAG``; ranks rise. Tags from ``ONCE`` on are for meetings (a group that is made,
worlds that connect), which have no epochs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, groupby

from dispatcher.model.frozen import Value, value
from dispatcher.model.names import size

#: the first tag of meetings
ONCE = 20000000000
#: bytes of all packets of one fence; with the rest of the order it fits a control frame
FENCE_LIMIT = 15 << 20
#: bytes that one node may have in fences that are not open yet, and in the names of fences
#: that it was the first to come to: of all worlds together
NODE_LIMIT = 4 << 20
#: memory of such a fence for each node that is in, beside its packet: so 4,096 may wait for
#: others, where each rank is in one at a time, or in some by its threads. Memory of a member of a
#: group, and of a name beside its characters
WAITING, MEMBER, NAMED = 1 << 10, 512, 128

_SPAN = re.compile("([0-9]{1,10})(?:-([0-9]{1,10}))?")


class FenceError(ValueError):
    """A node made an impossible commit; its link cannot be trusted any more."""


@value
class Release(Value):
    """A fence that opens: each of ``nodes`` gets ``packets``. once: it was a meeting."""

    fence: str
    epoch: int
    nodes: tuple[int, ...]
    packets: tuple[bytes, ...]
    once: bool = False


class Account:
    """The bytes of each node in the fences of all worlds, and in the names of fences."""

    def __init__(self) -> None:
        self.lying: Counter[int] = Counter()
        self.named: Counter[int] = Counter()


@dataclass
class _Fence:
    """A group's barrier in one epoch: its members by node, and the nodes that have committed."""

    members: Mapping[int, Set[int]]
    epoch: int
    cost: int  # for each node that is in, beside its packet
    awaited: int  # nodes that have yet to come
    once: bool = False
    packets: dict[int, bytes] = field(default_factory=dict)
    size: int = 0  # bytes of all packets


class Fences:
    """The fences of one world. ranks_of: node -> its ranks.

    others: rank -> node of all that may take part, where also ranks of other worlds do. account:
    counts the nodes' bytes.
    """

    def __init__(
        self,
        ranks_of: Mapping[int, Sequence[int]],
        others: Mapping[int, int] | None = None,
        account: Account | None = None,
    ) -> None:
        self._nodes = {rank: node for node, ranks in ranks_of.items() for rank in ranks}
        self._others = others or {}
        self._world = {node: frozenset(ranks) for node, ranks in ranks_of.items() if ranks}
        self._fences: dict[str, _Fence] = {}  # those in which a node waits
        self._groups: dict[int, set[str]] = {}  # rank -> fences of groups that it is a member of
        self._epochs: dict[str, int] = {}  # of fences that have opened
        self._account = account or Account()
        self._named: Counter[int] = Counter()  # its bytes for names in this world
        self._ended: set[int] = set()
        self._ended_nodes: set[int] = set()  # nodes whose ranks of this world have all ended

    def commit(self, node: int, name: str, epoch: int, packet: bytes) -> Release | None:
        """Note that ``node`` is in with all its members; return the release if it was the last.

        Raises: FenceError for an impossible group or epoch, or too many bytes.
        """
        fence = self._fences.get(name) or self._new(name)
        if node not in fence.members or node in fence.packets or epoch != fence.epoch:
            raise FenceError(f"barrier {name[:60]} epoch {epoch}: out of turn")
        if fence.size + len(packet) > FENCE_LIMIT:
            raise FenceError(f"the keys of one barrier take more than {size(FENCE_LIMIT)}")
        account, lying = self._account, fence.cost + len(packet)
        is_named = name not in self._fences and name not in self._epochs and not fence.once
        named = is_named * (len(name) + NAMED)
        is_too_much = 0 < account.lying[node] > NODE_LIMIT - lying  # a single one may be as large
        if is_too_much or account.named[node] + named > NODE_LIMIT:
            raise FenceError(f"its barriers take more than {size(NODE_LIMIT)} of dispatch's memory")
        account.lying[node] += lying
        account.named[node] += named
        self._named[node] += named
        fence.packets[node] = packet
        fence.size += len(packet)
        fence.awaited -= not self._has_ended(fence, node)
        if fence.awaited and name not in self._fences:
            self._fences[name] = fence
            for rank in self._grouped(fence):
                self._groups.setdefault(rank, set()).add(name)
        return self._complete(name, fence)

    def _new(self, name: str) -> _Fence:
        members, tag = self._members(name)
        once, epoch = tag >= ONCE, self._epochs.get(name, 0)
        cost = WAITING + once * (len(name) + NAMED)
        if members is self._world:
            return _Fence(members, epoch, cost, len(members) - len(self._ended_nodes), once)
        awaited = sum(not own <= self._ended for own in members.values())
        cost += MEMBER * sum(map(len, members.values()))
        return _Fence(members, epoch, cost, awaited, once)

    def _grouped(self, fence: _Fence) -> Iterable[int]:
        """The members of a group; none for the world, whose nodes ``ended`` knows."""
        return () if fence.members is self._world else chain.from_iterable(fence.members.values())

    def ended(self, rank: int) -> list[Release]:
        """Note that ``rank`` exited with 0; return the fences that waited only for it."""
        node = self._nodes.get(rank, self._others.get(rank))
        if node is None or rank in self._ended:
            return []
        self._ended.add(rank)
        names = [*self._groups.get(rank, ())]
        if rank in self._nodes and self._world[node] <= self._ended:
            self._ended_nodes.add(node)
            names += [name for name, one in self._fences.items() if one.members is self._world]
        found = []
        for name in names:  # not each of all: ranks end by the thousand
            fence = self._fences[name]
            fence.awaited -= node not in fence.packets and self._has_ended(fence, node)
            found.append(self._complete(name, fence))
        return [release for release in found if release is not None]

    def close(self) -> None:
        """Take this world's bytes off the account, because the world is over."""
        for fence in self._fences.values():
            self._pay_back(fence)
        self._account.named.subtract(self._named)

    def _pay_back(self, fence: _Fence) -> None:
        for node, packet in fence.packets.items():
            self._account.lying[node] -= fence.cost + len(packet)

    def missing(self, name: str, epoch: int) -> list[int]:
        """The nodes that the fence still waits for in ``epoch``; [] when it has opened."""
        fence = self._fences.get(name)
        if fence is None or fence.epoch != epoch:
            return []
        left = fence.members.keys() - fence.packets.keys()
        return sorted(node for node in left if not self._has_ended(fence, node))

    def _has_ended(self, fence: _Fence, node: int) -> bool:
        """Whether the fence need not wait for ``node``, because its members exited with 0."""
        if fence.members is self._world:
            return node in self._ended_nodes
        return fence.members[node] <= self._ended

    def _complete(self, name: str, fence: _Fence) -> Release | None:
        if fence.awaited:
            return None
        release = Release(
            name,
            fence.epoch,
            tuple(sorted(fence.packets)),
            tuple(fence.packets.values()),
            fence.once,
        )
        self._pay_back(fence)
        if self._fences.pop(name, None) is not None:  # else no node had to wait
            for rank in self._grouped(fence):
                self._groups[rank].discard(name)
                if not self._groups[rank]:
                    del self._groups[rank]
        if not fence.once:
            self._epochs[name] = fence.epoch + 1
        return release

    def _members(self, name: str) -> tuple[Mapping[int, Set[int]], int]:
        """node -> its members, and the tag."""
        group, _, tag = name.rpartition(":")
        if not (tag.isascii() and tag.isdigit()) or len(tag) > 11:
            raise FenceError(f"not a barrier: {name[:60]}")
        if group == "WORLD":
            return self._world, int(tag)
        members: dict[int, set[int]] = {}
        where = self._others or self._nodes
        for first, last in _spans(group):
            for node, own in groupby(range(first, last + 1), where.get):
                if node is None:  # before any more ranks are looked up
                    raise FenceError(f"barrier {name[:60]}: of ranks that do not exist")
                members.setdefault(node, set()).update(own)
        return members, int(tag)


def _spans(group: str) -> list[tuple[int, int]]:
    """The first and the last of each run of ranks, which rise; a single rank is both."""
    spans: list[tuple[int, int]] = []
    top = -1
    for word in group.split(","):
        found = _SPAN.fullmatch(word)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (-1, -1)
        if not top < first <= last:  # each rank once, so that a short name is little work
            raise FenceError(f"not a group: {group[:60]}")
        spans.append((first, last))
        top = last
    return spans
