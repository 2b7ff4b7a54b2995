"""Rank numbers across worlds: told apart without asking anybody."""

from __future__ import annotations

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model import names
from dispatcher.plan.job import placement as worlds


@given(st.integers(1, worlds.MOST_WORLDS), st.integers(0, worlds.MOST_SPAWNED - 1))
def test_a_number_says_its_world_and_fits_a_frame(world: int, rank: int) -> None:
    number = worlds.number(world, rank)
    assert worlds.place(number) == (world, rank)
    assert worlds.rank_name(number) == f"{world}.{rank}"
    assert names.MOST_RANKS <= worlds.FIRST <= number < 1 << 32


@cases("rank", [0, 7, names.MOST_RANKS - 1])
def test_a_planned_rank_is_its_own_number(rank: int) -> None:
    assert worlds.number(0, rank) == rank
    assert worlds.place(rank) == (0, rank)
    assert worlds.rank_name(rank) == str(rank)
