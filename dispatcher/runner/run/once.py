"""What is the same for every node of a plan, made once: ``@once_a_plan``.

Each node's orders name things that depend on all nodes. Made anew for each, a start would take
time by the square of their number, on the one loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from dispatcher.plan.job.job_plan import JobPlan

T = TypeVar("T")


def once_a_plan(make: Callable[[JobPlan], T]) -> Callable[[JobPlan], T]:
    """``make``, which remembers what it made of the latest plan; nobody may change that.

    Plans are told apart by identity: to compare two takes as long as to make it.
    """
    latest: list[tuple[JobPlan, T]] = []

    @functools.wraps(make)
    def made(plan: JobPlan) -> T:
        if not latest or latest[0][0] is not plan:
            latest[:] = [(plan, make(plan))]
        return latest[0][1]

    return made
