"""Who opens whom: a forest over all hosts, no wider than asked for, no deeper than needed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import UsageError
from dispatcher.transport.tree.topology import FEWEST, parse_branches, plan_tree, two_levels


@cases(
    ("count", "branches", "parents"),
    [
        (0, 2, ()),
        (1, 2, (None,)),
        (2, 2, (None, None)),
        (4, 2, (None, 0, None, 2)),
        (7, 2, (None, 0, 0, None, 3, 3, 5)),
        (6, 2, (None, 0, 0, None, 3, 3)),
        (0, None, ()),
        (31, None, (None,) * 31),
        (3, 64, (None, None, None)),
    ],
)
def test_tables(count: int, branches: int | None, parents: tuple[int | None, ...]) -> None:
    assert plan_tree(count, branches).parents == parents


@given(st.integers(0, 700), st.integers(2, 70))
def test_any_tree(count: int, branches: int) -> None:
    tree = plan_tree(count, branches)
    assert len(tree.parents) == count
    assert all(parent is None or parent < host for host, parent in enumerate(tree.parents))
    assert max(map(len, (tree.heads, *tree.children)), default=0) <= branches
    if count:
        assert tree.heads[0] == 0
        room = sum(branches**level for level in range(1, tree.depth))
        assert count > room / 2  # not a level more than nearly full ones above it need
    for host in range(count):
        way = [host, *tree.above(host)]
        assert way[-1] in tree.heads
        assert all(below in tree.children[above] for below, above in pairwise(way))


@given(st.integers(1, 20_000))
def test_two_levels_are_enough_and_no_narrower_tree_has_them(count: int) -> None:
    width = two_levels(count)
    assert width + width**2 >= count
    assert width == 1 or (width - 1) + (width - 1) ** 2 < count
    if count <= 500:
        assert plan_tree(count).depth == (2 if count >= FEWEST else 1)


def test_what_the_flag_means() -> None:
    assert parse_branches("auto") is None
    assert parse_branches("16") == 16
    for text in ("1", "0", "-2", "x", ""):
        with pytest.raises(UsageError, match="--fanout-tree") as caught:
            parse_branches(text)
        assert caught.value.hint == "--fanout-tree=2, or --fanout-tree alone"
