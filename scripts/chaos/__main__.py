#!/usr/bin/env python3
"""Faults at random instants of real runs, and a check that each of them ended well.

    python scripts/chaos --runs 200 --seed 1 --log /tmp/chaos.jsonl
    python scripts/chaos --start --hosts 3     # kill agents and guardians as they start, only
    python scripts/chaos --soak 120            # so many minutes of everything in turn

Every run is ``dispatch`` on a terminal, on hosts of the cluster rig (real sshd). One or two faults
are chosen by the seed, at instants from the connecting to the end; the same seed chooses the same.
Two of five runs may start again (``--max-restarts 2``), most of these with one or two spares, and
meet up to three faults. Afterwards must hold: it ended in time, with an exit code that one of the
faults explains; a failure names the host that was hurt; every byte a rank wrote is in its file; no
process and no file of ours is left on any host, a cut one included; the terminal is as it was. Of
attempts: the ranks of one are dead before the next begins, the world keeps its size, a rank that
moved was announced, and a run that could have started again did.

``--soak`` plays such runs, commands, kept connections, jobs in the background and calls of the
Python API on one cluster, and says which number of descriptors, threads, files or bytes grew.
Exits 1 if a run broke a rule or a number grew. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections import Counter
from contextlib import ExitStack
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from testbed.cluster import Cluster, hear_signals

from chaos import runs
from chaos.soak import soak


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, help="[8; 12 for --soak]")
    parser.add_argument("--start", action="store_true", help="kill agents as they start, only")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="of everything in turn")
    parser.add_argument("--log", metavar="FILE", help="a JSON line for every run")
    options = parser.parse_args()
    hear_signals()

    def note(result: dict[str, Any]) -> None:
        if options.log:
            with open(options.log, "a") as log:
                log.write(json.dumps(result) + "\n")
        for kind, trouble in result["broken"]:
            print(f"run {result['run']}: {kind}: {trouble}", flush=True)

    if options.soak:
        return 0 if soak(options.soak, options.hosts or 12, options.seed, note) else 1
    results: list[dict[str, Any]] = []
    cluster: Cluster | None = None
    with ExitStack() as stack:
        for number in range(options.first, options.first + options.runs):
            if cluster is None:
                cluster = stack.enter_context(Cluster(options.hosts or 8))
            dice = random.Random(f"{options.seed} {number}")
            results.append(runs.play(cluster, runs.draw(dice, options.start), number, dice))
            note(results[-1])
            if results[-1]["off"]:
                stack.pop_all().close()
                cluster = None
    bad = [result for result in results if result["broken"]]
    counts = Counter(kind for result in bad for kind, _ in result["broken"])
    times = sorted(result["seconds"] for result in results)
    print(
        f"{len(results)} runs, seed {options.seed}: {len(bad)} broken; "
        f"{sum(r['attempts'] > 1 for r in results)} started again; ended after "
        f"{statistics.median(times):.2f} s in the middle, {times[-1]:.2f} s at most"
    )
    print(", ".join(f"{kind} {counts[kind]}" for kind in runs.KINDS))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
