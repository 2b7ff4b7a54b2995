#!/usr/bin/env python3
"""What defining a class of values costs, and making one: ours beside those of dataclasses.

    scripts/bench/values.py

A start of the launcher defines about a hundred such classes. Not a test.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

from dispatcher.model.frozen import Value, value

REPEAT, MADE = 200, 20_000


def fresh(base: type[Any]) -> type[Any]:
    class Exited(base):  # type: ignore[misc]
        """A class as the events are."""

        rank: int
        host: str
        words: tuple[str, ...] = ()
        attempt: int = dataclasses.field(default=0, kw_only=True)

    return Exited


def main() -> None:
    ways: dict[str, tuple[type[Any], Callable[[type[Any]], type[Any]]]] = {
        "value": (Value, value),
        "dataclass(frozen=True)": (object, dataclasses.dataclass(frozen=True)),
        "dataclass(frozen=True, slots=True)": (
            object,
            dataclasses.dataclass(frozen=True, slots=True),
        ),
    }
    defining: dict[str, list[float]] = {name: [] for name in ways}
    making: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(REPEAT):
        for name, (base, decorate) in ways.items():
            plain = fresh(base)
            started = time.perf_counter()
            cls = decorate(plain)
            defining[name].append(time.perf_counter() - started)
            if turn % 20:
                continue
            started = time.perf_counter()
            for rank in range(MADE):
                cls(rank, "gpu01", attempt=1)
            making[name].append((time.perf_counter() - started) / MADE)
    for name in ways:
        per_class = statistics.median(defining[name]) * 1e6
        each = statistics.median(making[name]) * 1e6
        print(f"{name:36} a class {per_class:6.0f} us   one of them {each:5.2f} us")


if __name__ == "__main__":
    main()
