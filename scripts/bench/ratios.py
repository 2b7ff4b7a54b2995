#!/usr/bin/env python3
"""What this tree costs beside an older one and beside other launchers, as one table of ratios.

    git worktree add ../older v0.2.0
    scripts/bench/ratios.py ../older                  # about eight minutes
    scripts/bench/ratios.py ../older --row 'launch'   # the rows whose name begins so

Each row is a bench of this folder on a cluster of its own, in which all take turns. A ratio is the
median over the turns of ours by theirs: below 1.00, ours is the faster, or takes less processor
time of the launcher's machine. Not a test: times depend on the machine. Without bytecode on disk
every start compiles, so PYTHONDONTWRITEBYTECODE must not be set.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import peers
from turns import HERE, Turn

#: ours -> the same of the older tree
PAIRS = {"dispatch": peers.BESIDE, "dispatch files": f"{peers.BESIDE}, files"}
ONLY = ("--only",)
LAUNCH = [*ONLY, "dispatch", *ONLY, peers.BESIDE, *ONLY, "hydra"]
#: name -> script, its options, whether it knows the older tree
ROWS = {
    "launch, 1 host": ("start.py", ["--hosts", "1", "--repeat", "15", *LAUNCH], True),
    "launch, 8 hosts": ("start.py", ["--hosts", "8", "--repeat", "12", *LAUNCH], True),
    "launch, 64 hosts": ("start.py", ["--hosts", "64", "--repeat", "8", *LAUNCH], True),
    "exec, 64 hosts": ("exec.py", ["--hosts", "64", "--repeat", "8"], True),
    "output, 8 x 40 MB": ("flood.py", ["--repeat", "4"], True),
    "output, peers": ("flood.py", ["--repeat", "3", "dispatch", "hydra"], False),
    "put 10 MB, 64 hosts": (
        "put.py",
        ["--hosts", "64", "--repeat", "3", "--load", "big", *ONLY, "dispatch", *ONLY, "clush"],
        False,
    ),
}  # fmt: skip


def turns_of(script: str, options: list[str]) -> dict[str, list[Turn]]:
    """The turns of a bench, by the name of who ran. Raises: CalledProcessError."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        argv = [sys.executable, os.path.join(HERE, script), *options, "--json", file.name]
        subprocess.run(argv, check=True, stdout=sys.stderr)
        found: dict[str, list[Turn]] = json.load(file)
    if script == "put.py":  # by load
        (found,) = found.values()  # type: ignore[assignment]
    return found


def rows(title: str, found: Mapping[str, Sequence[Turn]]) -> Iterator[str]:
    """The rows of the table for the turns of one bench."""
    for ours, older in PAIRS.items():
        rivals = [older]
        if ours == "dispatch":
            rivals += [name for name in found if name not in (*PAIRS, *PAIRS.values())]
        for rival in (name for name in rivals if ours in found and name in found):
            mine, theirs = found[ours], found[rival]
            row = f"{title if ours == 'dispatch' else title + ', to files':28}"
            row += f"{statistics.median(turn['wall'] for turn in mine):9.3f}"
            for what in ("wall", "cpu"):
                pairs = zip(mine, theirs, strict=False)
                row += f"{statistics.median(one[what] / other[what] for one, other in pairs):8.2f}"
            yield f"{row}  {rival}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("older", metavar="CHECKOUT")
    parser.add_argument("--row", default="", help="only the rows whose name begins so")
    options = parser.parse_args()
    if "PYTHONDONTWRITEBYTECODE" in os.environ:
        parser.error("PYTHONDONTWRITEBYTECODE is set: unset it first")
    print(f"{'':28}{'ours, s':>9}{'ratio':>8}{'cpu':>8}  to", flush=True)
    for title in (title for title in ROWS if title.startswith(options.row)):
        script, words, both = ROWS[title]
        found = turns_of(script, [*words, "--beside", options.older] if both else words)
        for row in rows(title, found):
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
