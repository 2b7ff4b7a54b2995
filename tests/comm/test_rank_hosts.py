"""Ranks are named with their hosts, also those that never spoke."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.comm import rank_hosts
from dispatcher.comm.rank_hosts import Seat


def test_the_launchers_local_rank_is_taken() -> None:
    assert rank_hosts.local_rank({"LOCAL_RANK": "3", "MPI_LOCALRANKID": "1"}) == 3
    assert rank_hosts.local_rank({"MPI_LOCALRANKID": "1"}) == 1
    assert rank_hosts.local_rank({"LOCAL_RANK": "x"}) is None
    assert rank_hosts.local_size({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}) == 4


def test_ranks_of_a_key_are_numbered_together() -> None:
    seats = [Seat(0, "a", "k1"), Seat(1, "a", "k2"), Seat(2, "a", "k1")]
    assert rank_hosts.settle(seats) == {0: (0, 2), 2: (1, 2), 1: (0, 1)}


def test_a_missing_rank_is_on_the_host_of_its_neighbours() -> None:
    present = [Seat(8, "gpu02", "k", local_rank=0, local_size=8)]
    assert rank_hosts.whereabouts([9, 15, 16], present, "") == {9: "gpu02", 15: "gpu02"}


def test_the_launchers_list_knows_every_host() -> None:
    assert rank_hosts.whereabouts([1, 2], [], "gpu01:2,gpu02:2") == {1: "gpu01", 2: "gpu02"}


@pytest.mark.parametrize("text", ["", "gpu01", "gpu01:x", ":3", "a:1,b", "a:-1"])
def test_a_list_of_another_form_says_nothing(text: str) -> None:
    assert rank_hosts.listed(text) == {}


@given(st.sets(st.integers(0, 60)))
def test_folding_keeps_every_rank(ranks: set[int]) -> None:
    unfolded = set()
    for part in filter(None, rank_hosts.fold(ranks).split(",")):
        first, _, last = part.partition("-")
        unfolded |= set(range(int(first), int(last or first) + 1))
    assert unfolded == ranks


def test_many_ranks_in_few_words() -> None:
    places = {3: "gpu01", **dict.fromkeys(range(8, 16), "gpu02")}
    assert rank_hosts.describe([3, *range(8, 16)], places) == "rank 3 on gpu01; ranks 8-15 on gpu02"
    assert rank_hosts.describe([7], {}) == "rank 7 on an unknown host"
