#!/usr/bin/env python3
"""Each phase of a start beside what docs/design/budget.md allows it.

    scripts/bench/budget.py                             on the rig: 1, 8 and 64 hosts, 5 runs each
    scripts/bench/budget.py --hosts 8 --repeat 10
    scripts/bench/budget.py --trace FILE...             of runs of your own (dispatch --trace FILE)

A run's figure of a phase is its median over hosts or ranks, in ms. Shown are the least and the
median of the runs; ``over`` says that even the least is over the budget, so that a machine which
is busy for a while accuses nobody. The budget is read from the page, which tells what is in a
phase. Runs of another number of hosts get the column of the next larger one.

Not a test: it prints and exits 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import peers
import turns

sys.path.insert(0, turns.CHECKOUT)

PAGE = Path(turns.CHECKOUT, "docs", "design", "budget.md")

#: the time of the ranks themselves
OWN = {"ranks"}
#: phase -> its median of one run, ms
Figures = dict[str, float]


def budget() -> tuple[list[int], dict[str, list[float]]]:
    """The columns' numbers of hosts, and for each phase what it may take with so many, ms."""
    table = next(part for part in PAGE.read_text().split("\n\n") if part.startswith("|"))
    rows = [line.strip("| ").split("|") for line in table.splitlines()]
    head, _, *lines = [[cell.strip() for cell in row] for row in rows]
    return [int(n.split()[0]) for n in head[2:]], {r[0]: [float(n) for n in r[2:]] for r in lines}


def figures(trace: Path) -> tuple[int, Figures]:
    """How many hosts a traced run had, and its phases."""
    elements = json.loads(trace.read_text())
    took: dict[str, list[float]] = defaultdict(list)
    for one in elements:
        if one["ph"] == "X":
            took[one["name"]].append(one["dur"] / 1000)
    hosts = sum(one["name"] == "process_name" for one in elements) - 1
    return hosts, {name: statistics.median(each) for name, each in took.items()}


def measure(hosts: list[str], repeat: int, place: str) -> list[Figures]:
    """Runs over ``hosts``, after one that warms; on the login host."""
    trace = Path(place, "trace.json")
    words = ["--trace", str(trace), "-H", ":1,".join(hosts) + ":1", "--no-python", "hostname"]
    found = []
    for _ in range(repeat + 1):
        subprocess.run([*peers.dispatch(), *words], check=True, capture_output=True)
        found.append(figures(trace)[1])
    return found[1:]


def show(hosts: int, runs: list[Figures]) -> None:
    """Print the table of runs over so many hosts."""
    counts, allowed = budget()
    column = next((at for at, count in enumerate(counts) if count >= hosts), len(counts) - 1)
    print(f"\n{hosts} hosts, {len(runs)} runs; ms     least  median  budget of {counts[column]}")
    for name, limits in allowed.items():
        took = [run[name] for run in runs if name in run]
        if took:
            over = "  over" if min(took) > limits[column] else ""
            middle = statistics.median(took)
            print(f"{name:<28}{min(took):8.1f}{middle:8.1f}{limits[column]:8.0f}{over}")
    others = sorted({name for run in runs for name in run} - allowed.keys() - OWN)
    if others:
        print(f"not in the budget: {', '.join(others)}")


def by_hosts(traces: Iterable[Path]) -> dict[int, list[Figures]]:
    found: dict[int, list[Figures]] = defaultdict(list)
    for trace in traces:
        count, took = figures(trace)
        found[count].append(took)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="phases of a start beside their budget")
    parser.add_argument("--hosts", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--trace", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        names = sys.stdin.read().split()
        wanted = options.hosts or [1, 8, 64]
        found = {n: measure(names[:n], options.repeat, options.inside) for n in wanted}
        json.dump(found, sys.stdout)
        return 0
    if options.trace:
        runs = by_hosts(options.trace)
    else:
        most = max(options.hosts or [64])
        runs = {int(n): took for n, took in turns.on_login(__file__, most).items()}
    for count in sorted(runs):
        show(count, runs[count])
    print(f"\n{os.cpu_count()} cores; what is in a phase: docs/design/budget.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
