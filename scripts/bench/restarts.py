#!/usr/bin/env python3
"""How long a second start takes, compared with the first, and a spare until it has taken over.

    scripts/bench/restarts.py --hosts 8 --repeat 10

``first``: from the command to the first line of the first rank, over SSH. ``second``: from
just before the rank that fails exits to the first line of a new rank, so ending all the old
ranks is in it; ``killed``: how much of it that took, from the first death to the last.
``spare``: from cutting a host off to the first new line, with --heartbeat 1 --lease 5; the
lease, the guardian's patience and the sweep bound it from below: see docs/design/restarts.md.

Not a test: times depend on the machine. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from testbed.cluster import Cluster

FAIL = """
echo up $TORCHELASTIC_RESTART_COUNT
[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0
[ $RANK = 1 ] || exec sleep 100
sleep 0.5
date "+end %s%N"
exit 3
"""
STAY = "echo up; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 1000; exit 0"


def dispatch(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "dispatcher", "--label", "none", *words]
    return cluster.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def restart(cluster: Cluster, hostfile: str, ranks: int) -> dict[str, float]:
    """One run that fails and starts again: seconds."""
    logs = os.path.join(cluster.shared, "logs")
    began = time.time()
    process = dispatch(
        cluster, "--max-restarts", "1", "--log-dir", logs, "-H", hostfile,
        "--no-python", "sh", "-c", FAIL,
    )  # fmt: skip
    arrived: list[tuple[float, str]] = []
    assert process.stdout is not None
    for line in process.stdout:
        arrived.append((time.time(), line))
    if process.wait() != 0 or len(arrived) != 2 * ranks + 1:
        raise RuntimeError(f"exit {process.returncode}, {len(arrived)} lines")
    first, again = (next(t for t, line in arrived if line == f"up {n}\n") for n in (0, 1))
    exits = []
    with open(os.path.join(logs, "latest", "dispatch.jsonl")) as file:
        for line in file:
            event = json.loads(line)
            if event["name"] == "rank.exited" and event["context"]["attempt"] == 0:
                exits.append(event["t"])
    end = next(int(line.split()[1]) / 1e9 for _, line in arrived if line.startswith("end"))
    return {"first": first - began, "second": again - end, "killed": exits[-1] - exits[0]}


def replace(hosts: int) -> dict[str, float]:
    """One host of ``hosts`` is cut off, a spare takes over: seconds."""
    with Cluster(hosts + 1) as cluster:
        process = dispatch(
            cluster, "--max-restarts", "1", "--spares", "1", "--heartbeat", "1", "--lease", "5",
            "-H", ",".join(f"{host}:1" for host in cluster.hosts), "--no-python", "sh", "-c", STAY,
        )  # fmt: skip
        assert process.stdout is not None
        for _ in range(hosts):
            process.stdout.readline()
        cluster.cut("n2")
        began = time.monotonic()
        process.stdout.readline()
        ended = time.monotonic()
        process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"exit {process.returncode}")
    return {"spare": ended - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--spares", type=int, default=2, help="cuts to measure")
    options = parser.parse_args()
    times: dict[str, list[float]] = {}
    with Cluster(options.hosts) as cluster:
        hostfile = cluster.hostfile(slots=options.slots)
        for turn in range(options.repeat + 1):
            found = restart(cluster, hostfile, options.hosts * options.slots)
            if turn:  # the first warms the machine up
                for name, seconds in found.items():
                    times.setdefault(name, []).append(seconds)
    ratio = [b / a for a, b in zip(times["first"], times["second"], strict=True)]
    for _ in range(options.spares):
        times.setdefault("spare", []).append(replace(options.hosts)["spare"])
    for name, values in times.items():
        low, mid, high = min(values), statistics.median(values), max(values)
        print(f"{name:8} median {mid:7.3f} s   {low:.3f} to {high:.3f}   of {len(values)}")
    print(f"second / first: median {statistics.median(ratio):.2f}, worst {max(ratio):.2f}")


if __name__ == "__main__":
    main()
