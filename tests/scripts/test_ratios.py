"""The table of ratios to an older tree and to peers."""

from __future__ import annotations

import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "scripts", "bench"))

import ratios


def turns(*walls: float) -> list[dict[str, float]]:
    return [{"wall": wall, "cpu": 2.0} for wall in walls]


def test_each_ratio_is_within_a_turn() -> None:
    found = {"dispatch": turns(1, 2, 3), "dispatch, beside": turns(2, 2, 2), "hydra": turns(1, 4)}
    assert [" ".join(row.split()) for row in ratios.rows("launch", found)] == [
        "launch 2.000 1.00 1.00 dispatch, beside",
        "launch 2.000 0.75 1.00 hydra",
    ]


def test_files_are_compared_with_files() -> None:
    found = {"dispatch files": turns(3), "dispatch, beside, files": turns(2), "hydra": turns(1)}
    (row,) = ratios.rows("output", found)
    assert row.split() == [
        "output,",
        "to",
        "files",
        "3.000",
        "1.50",
        "1.00",
        "dispatch,",
        "beside,",
        "files",
    ]
