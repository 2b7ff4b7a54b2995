"""What a collective's time says about the hardware; the formulas of nccl-tests.

algbw is bytes / time, what a program sees. busbw is what each link carries in each direction, so
it can be compared with the hardware whatever the number of ranks.
"""

from __future__ import annotations


def all_reduce_rates(size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """(algbw, busbw), bytes/s, of an all-reduce of ``size`` bytes: busbw is 2 (n-1) / n of algbw.

    ranks: n, at least 1. Between two the factor is 1. seconds: above 0.
    """
    algbw = size / seconds
    return algbw, algbw * 2 * (ranks - 1) / ranks
