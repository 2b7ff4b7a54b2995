#!/usr/bin/env python3
"""What another Python makes of dispatch: a command, a run and a flood, by several in turn.

    scripts/bench/pythons.py --hosts 32 .venv/bin/python python3.14t "PYTHON_GIL=1 python3.14t"

Each has dispatch installed (as files, with compiled modules, not by ``-e``). The hosts' agents run
in whatever Python is there, the same for all. ``flood`` is 100-byte lines from 8 of the hosts
through a pipe. Wall time, and CPU of the launcher; ratios are to the first, within a turn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from functools import partial

import turns

FLOODING = 8


def measure(
    pythons: list[str], hosts: list[str], shared: str, mb: int, repeat: int
) -> turns.Result:
    """What each way gives, by its name; runs on the login host."""
    slots, flood = os.path.join(shared, "slots"), os.path.join(shared, "flood")
    with open(slots, "w") as file:
        file.writelines(f"{host} slots=1\n" for host in hosts)
    with open(flood, "w") as file:
        file.writelines(f"{number:09} {'x' * 89}\n" for number in range(mb * 10_000))
    few = hosts[:FLOODING]
    ways = {
        "exec": (len(hosts), ["exec", "-w", ",".join(hosts), "--", "hostname"]),
        "run": (len(hosts), ["-H", slots, "--no-python", "hostname"]),
        "flood": (len(few) * mb * 10_000, ["exec", "-w", ",".join(few), "--", "cat", flood]),
    }
    found = {}
    for name, (lines, words) in ways.items():
        peers = {
            python: partial(
                turns.one_turn, ["env", *python.split(), "-m", "dispatcher", *words], lines
            )
            for python in pythons
        }
        found[name] = turns.take(peers, repeat, [])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="compare Pythons that run dispatch")
    parser.add_argument("python", nargs="+", help='path, or "NAME=VALUE path"')
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--mb", type=int, default=20, help="of the flood, from each host")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    pythons = [_absolute(python) for python in options.python]
    if options.inside:
        hosts = sys.stdin.read().split()
        json.dump(measure(pythons, hosts, options.inside, options.mb, options.repeat), sys.stdout)
        return 0
    for python in pythons:
        asked = ["env", *python.split(), "-c", "import sys; print(sys.version)"]
        print(f"{python}: {subprocess.check_output(asked, text=True).strip()}")
    for name, result in turns.on_login(__file__, options.hosts).items():
        hosts = min(options.hosts, FLOODING) if name == "flood" else options.hosts
        print(f"\n{name}, {hosts} hosts, {options.repeat} turns; seconds")
        turns.show(result, pythons[0])
    return 0


def _absolute(python: str) -> str:
    *settings, path = python.split()
    return " ".join([*settings, os.path.abspath(shutil.which(path) or path)])


if __name__ == "__main__":
    sys.exit(main())
