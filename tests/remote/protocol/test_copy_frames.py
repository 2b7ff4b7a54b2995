"""Values of a copy: what is there already, numbers as text, and the branches of a tree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.protocol.copy_frames import numbers, numbers_of, split, starts_of
from dispatcher.remote.protocol.mux import Malformed


@given(st.lists(st.integers(0, 1 << 50)))
def test_numbers_survive_as_text(values: list[int]) -> None:
    assert numbers_of(numbers(values)) == values


def test_what_is_there_already() -> None:
    assert starts_of({"start": "", "seen": ""}) == {}
    assert starts_of({"start": "3 100 5 7", "seen": "aa bb"}) == {3: (100, "aa"), 5: (7, "bb")}


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"start": ""}, {"seen": ""}, {"start": "x", "seen": ""}, {"start": 1, "seen": ""},
        {"start": "1 2", "seen": None}, {"start": "1 2", "seen": ""}, {"start": "1", "seen": "a"},
        {"start": "1 2", "seen": "a b"},
    ],
)  # fmt: skip
def test_what_makes_no_sense(answer: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        starts_of(answer)


@given(st.lists(st.integers(), max_size=40), st.integers(1, 9))
def test_branches_are_runs_of_nearly_equal_length(hosts: list[int], branches: int) -> None:
    found = split(hosts, branches)
    assert [host for branch in found for host in branch] == hosts
    assert len(found) == min(branches, len(hosts))
    sizes = [len(branch) for branch in found]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
