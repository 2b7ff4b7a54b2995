"""Which rank runs on which node: slots to ranks, a bijection.

``block`` fills a node before the next one, so that ranks that talk most (tensor
parallel groups) share a node; ``node`` deals ranks out one a node in turn. In
both, rank 0 is on the first node, and a node's ranks rise with the local rank.

Over-subscription (more ranks than slots) happens only when asked for: the extra
ranks are dealt out in turn, never above a node's ``most``.

Knows no hosts, only numbers in host order; ``job`` turns its answers into messages.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_RANKS = 1_000_000
MAPPINGS = ("block", "node")


class NoRoom(ValueError):
    """The ranks do not fit: ``asked`` ranks, room for ``room``, at most ``most`` of them ever.

    ``most`` is None where over-subscription has no bound.
    """

    def __init__(self, asked: int, room: int, most: int | None) -> None:
        super().__init__(f"{asked} ranks, {room} slots, at most {most}")
        self.asked = asked
        self.room = room
        self.most = most


def shares(
    room: Sequence[int],
    n_ranks: int,
    *,
    map_by: str = "block",
    most: Sequence[int | None] | None = None,
    oversubscribe: bool = False,
) -> tuple[int, ...]:
    """How many ranks each node gets; shape (n_nodes,), the sum is ``n_ranks``.

    Args:
      room: slots per node in host order, each >= 0.
      n_ranks: world size, 1 to MOST_RANKS.
      map_by: "block" or "node".
      most: bound per node when over-subscribed, >= room; None is no bound.
      oversubscribe: whether more ranks than slots may be placed.
    Raises: NoRoom when the ranks do not fit.
    """
    bounds: list[int | None] = list(most) if most is not None else [None] * len(room)
    total = sum(room)
    known = [bound for bound in bounds if bound is not None]
    ceiling = sum(known) if len(known) == len(bounds) else None
    if n_ranks > total and (not oversubscribe or (ceiling is not None and n_ranks > ceiling)):
        raise NoRoom(n_ranks, total, ceiling)
    counts = [0] * len(room)
    if map_by == "block":
        left = n_ranks
        for index, slots in enumerate(room):
            counts[index] = min(slots, left)
            left -= counts[index]
    else:
        left = _deal(counts, n_ranks, list(room))
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
    if map_by == "block":
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        return tuple(tuple(range(a, a + n)) for a, n in zip(starts, counts, strict=False))
    ranks: list[list[int]] = [[] for _ in counts]
    rank, turn = 0, 0
    open_nodes = list(range(len(counts)))
    while open_nodes:
        open_nodes = [index for index in open_nodes if turn < counts[index]]
        for index in open_nodes:
            ranks[index].append(rank)
            rank += 1
        turn += 1
    return tuple(map(tuple, ranks))
