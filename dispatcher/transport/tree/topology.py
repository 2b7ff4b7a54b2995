"""The hosts that each host opens in a tree of connections: ``plan_tree(count, branches)``; pure.

The hosts, in their order, are cut into runs of nearly equal length, one for each branch. The first
host of a run opens the rest of it in the same way. So node 0 is always opened from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dispatcher.model.errors import UsageError
from dispatcher.model.names import parse_count
from dispatcher.remote.protocol.copy_frames import host_branches

#: the value of ``--fanout-tree`` without a number
AUTO = "auto"
#: hosts from which on a tree of two levels is as quick as none (``scripts/simulate --tree``)
FEWEST = 32


@dataclass(frozen=True)
class HostTree:
    """A forest: ``parents[i]`` opens host i; None: it is opened from here."""

    parents: tuple[int | None, ...]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The hosts that each host opens."""
        found: list[list[int]] = [[] for _ in self.parents]
        for host, parent in enumerate(self.parents):
            if parent is not None:
                found[parent].append(host)
        return tuple(map(tuple, found))

    @property
    def heads(self) -> tuple[int, ...]:
        """The hosts that are opened from here."""
        return tuple(host for host, parent in enumerate(self.parents) if parent is None)

    @property
    def depth(self) -> int:
        """Levels of hosts; 1: all are opened from here."""
        hosts = range(len(self.parents))
        return max((1 + len(list(self.above(host))) for host in hosts), default=0)

    def above(self, host: int) -> Iterator[int]:
        """The hosts on the way to ``host``, nearest to it first."""
        parent = self.parents[host]
        while parent is not None:
            yield parent
            parent = self.parents[parent]


def plan_tree(count: int, branches: int | None = None) -> HostTree:
    """The tree of ``count`` hosts, each of which opens ``branches`` at most."""
    if branches is None and count < FEWEST:
        return HostTree((None,) * count)
    width = two_levels(count) if branches is None else branches
    parents: list[int | None] = [None] * count

    def cut(hosts: Sequence[int], parent: int | None) -> None:
        for head, *rest in host_branches(hosts, width):
            parents[head] = parent
            cut(rest, head)

    cut(range(count), None)
    return HostTree(tuple(parents))


def two_levels(count: int) -> int:
    """The least number of branches w with w + w * w >= ``count``."""
    width = math.isqrt(count)
    while width * (width + 1) >= count and width > 1:
        width -= 1
    while width * (width + 1) < count:
        width += 1
    return max(1, width)


def parse_branches(text: str) -> int | None:
    """Parse ``--fanout-tree=TEXT``: branches, or None where the number of hosts decides.

    Raises: UsageError.
    """
    if text == AUTO:
        return None
    try:
        branches = parse_count(text, "--fanout-tree")
    except UsageError as error:
        raise UsageError(error.message, hint="--fanout-tree=2, or --fanout-tree alone") from None
    if branches < 2:
        raise UsageError(
            "--fanout-tree=1: a chain, in which every host is reached through all before it",
            hint="--fanout-tree=2, or --fanout-tree alone",
        )
    return branches
