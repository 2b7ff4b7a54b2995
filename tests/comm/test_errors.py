"""Ranks are named with their hosts, also those that never spoke."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.comm.errors import CommError, describe, fold


@given(st.sets(st.integers(0, 60)))
def test_folding_keeps_every_rank(ranks: set[int]) -> None:
    unfolded = set()
    for part in filter(None, fold(ranks).split(",")):
        first, _, last = part.partition("-")
        unfolded |= set(range(int(first), int(last or first) + 1))
    assert unfolded == ranks
    assert fold([7, 3, 4, 3, 5, 0]) == "0,3-5,7"


def test_many_ranks_in_few_words() -> None:
    places = {3: "gpu01", **dict.fromkeys(range(8, 16), "gpu02")}
    assert describe([3, *range(8, 16)], places) == "rank 3 on gpu01; ranks 8-15 on gpu02"
    assert describe([7], {}) == "rank 7 on an unknown host"


def test_hosts_come_in_the_order_of_their_first_rank() -> None:
    places = {0: "b", 1: "a", 2: "b"}
    assert describe([2, 1, 0, 1], places) == "ranks 0,2 on b; rank 1 on a"


def test_an_error_shows_its_hint() -> None:
    assert str(CommError("comm: x", hint="do y")) == "comm: x\nhint: do y"
    assert str(CommError("comm: x")) == "comm: x"
    plain = CommError("x")
    assert (plain.shared, plain.code, plain.missing, plain.hint) == (False, 0, (), None)
