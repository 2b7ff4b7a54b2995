"""The factor between what a program sees and what a link carries."""

from __future__ import annotations

import pytest

from dispatcher.comm.bandwidth import all_reduce_rates


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_all_reduce(ranks: int, factor: float) -> None:
    assert all_reduce_rates(3000, 0.5, ranks) == (6000.0, 6000.0 * factor)
