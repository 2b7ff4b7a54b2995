"""Who is far from the others? One rule for all who look for slow ranks; pure.

The median says what is usual and the median distance from it how much is: neither moves when
a few ranks are odd, however far they are away. With less than half of the ranks odd, the
others are not taken for odd ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

#: median distances that are one standard deviation where figures are spread normally
SIGMA = 1.4826


@dataclass(frozen=True)
class Outlier:
    """``rank`` has ``value`` where ``usual`` is the median of all."""

    rank: int
    value: float
    usual: float


def outliers(
    figures: Mapping[int, float],
    share: float,
    *,
    fewest: int,
    least: float = 0.0,
    sigmas: float = 0.0,
) -> list[Outlier]:
    """The ranks that are away from the median, the farthest first; [] for fewer than ``fewest``.

    share: of the median, that they are away at least; least: the same as a figure; sigmas: the
    same in standard deviations of all, as the median distance tells them.
    """
    if len(figures) < fewest:
        return []
    usual = median(figures.values())
    spread = SIGMA * median(abs(value - usual) for value in figures.values())
    away = max(share * abs(usual), least, sigmas * spread)
    found = [
        Outlier(rank, value, usual)
        for rank, value in figures.items()
        if abs(value - usual) >= away and value != usual
    ]
    return sorted(found, key=lambda one: (-abs(one.value - usual), one.rank))
