"""Where the hosts' keys meet: fences of a job across its nodes. Pure, no clock.

Each node commits once an epoch, when all its members of a group are in; when
every node that has living members has committed, the fence opens and each of
those nodes gets all the packets. A packet is opaque here: what one host packed
only the others unpack, so this stays cheap and cannot be made to unpack a bomb.

Groups are written as agents write them: ``WORLD:TAG`` or ``0,2,5:TAG``. Groups
within one node never come here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dispatcher.model.frozen import Value, value

#: bytes of all packets of one fence; with what else is in the order it fits a control frame
FENCE_LIMIT = 15 << 20


class FenceError(ValueError):
    """A node committed what it may not; its link cannot be trusted any more."""


@value
class Release(Value):
    """A fence that opens: each of ``nodes`` gets ``packets``."""

    fence: str
    epoch: int
    nodes: tuple[int, ...]
    packets: tuple[bytes, ...]


@dataclass
class _Fence:
    """A group's barrier: its members by node, and who has committed in this epoch."""

    members: Mapping[int, frozenset[int]]
    epoch: int = 0
    packets: dict[int, bytes] = field(default_factory=dict)
    size: int = 0  # bytes of all packets


class Fences:
    """The fences of one job. ranks_of: node -> its ranks."""

    def __init__(self, ranks_of: Mapping[int, Sequence[int]]) -> None:
        self._nodes = {rank: node for node, ranks in ranks_of.items() for rank in ranks}
        self._fences: dict[str, _Fence] = {}
        self._ended: set[int] = set()

    def commit(self, node: int, name: str, epoch: int, packet: bytes) -> Release | None:
        """``node`` is in with all its members; the release if that was the last one.

        Raises: FenceError for a group that cannot be, one the node has no part
        in, an epoch that is not the present one, or too many bytes.
        """
        fence = self._fences.get(name)
        if fence is None:
            fence = _Fence(self._members(name))
        if node not in fence.members or node in fence.packets or epoch != fence.epoch:
            raise FenceError(f"barrier {name[:60]} epoch {epoch}: out of turn")
        if fence.size + len(packet) > FENCE_LIMIT:
            raise FenceError(f"the keys of one barrier take more than {FENCE_LIMIT} bytes")
        self._fences[name] = fence
        fence.packets[node] = packet
        fence.size += len(packet)
        return self._complete(name, fence)

    def ended(self, rank: int) -> list[Release]:
        """``rank`` ended well; the fences that open because nobody else was missing."""
        self._ended.add(rank)
        found = (self._complete(name, fence) for name, fence in self._fences.items())
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
            name, fence.epoch, tuple(sorted(fence.packets)), tuple(fence.packets.values())
        )
        fence.packets, fence.size = {}, 0
        fence.epoch += 1
        return release

    def _members(self, name: str) -> dict[int, frozenset[int]]:
        group, _, tag = name.rpartition(":")
        if not tag.isdigit() or len(tag) > 11:
            raise FenceError(f"not a barrier: {name[:60]}")
        ranks = self._nodes.keys() if group == "WORLD" else _ranks(group)
        members: dict[int, set[int]] = {}
        for rank in ranks:
            if rank not in self._nodes:
                raise FenceError(f"barrier {name[:60]}: no rank {rank}")
            members.setdefault(self._nodes[rank], set()).add(rank)
        return {node: frozenset(own) for node, own in members.items()}


def _ranks(group: str) -> list[int]:
    words = group.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise FenceError(f"not a group: {group[:60]}")
    return [int(word) for word in words]


def process_mapping(node_of: Sequence[int]) -> str:
    """The value of ``PMI_process_mapping``: which ranks share a node, as runs.

    node_of: the node of each rank, in order of ranks. A block (X,Y,Z) says: nodes
    X to X+Y-1 have Z consecutive ranks each. Source: MPICH's PMI v1 wiki.
    """
    runs: list[list[int]] = []  # node, count
    for node in node_of:
        if runs and runs[-1][0] == node:
            runs[-1][1] += 1
        else:
            runs.append([node, 1])
    blocks: list[list[int]] = []  # first node, nodes, ranks on each
    for node, count in runs:
        if blocks and blocks[-1][2] == count and sum(blocks[-1][:2]) == node:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1, count])
    return "(vector" + "".join(f",({a},{b},{c})" for a, b, c in blocks) + ")"
