"""Ranks are named with their hosts, also those that never spoke."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.comm.errors import describe, fold


@given(st.sets(st.integers(0, 60)))
def test_folding_keeps_every_rank(ranks: set[int]) -> None:
    unfolded = set()
    for part in filter(None, fold(ranks).split(",")):
        first, _, last = part.partition("-")
        unfolded |= set(range(int(first), int(last or first) + 1))
    assert unfolded == ranks


def test_many_ranks_in_few_words() -> None:
    places = {3: "gpu01", **dict.fromkeys(range(8, 16), "gpu02")}
    assert describe([3, *range(8, 16)], places) == "rank 3 on gpu01; ranks 8-15 on gpu02"
    assert describe([7], {}) == "rank 7 on an unknown host"
