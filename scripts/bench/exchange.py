#!/usr/bin/env python3
"""What one exchange of MPI's keys costs the launcher: every host commits some, all get all.

    scripts/bench/exchange.py --hosts 32 --rounds 20
    scripts/bench/exchange.py --hosts 14 --ways flat,2     # a tree of three levels

One rank a host speaks PMI-1 itself: puts a key of --bytes random bytes, waits in the barrier, and
so on. For each way (``flat``, or the branches of ``--fanout-tree``), of one exchange: ``ms``, what
the launcher's machine sent and received (``down``, ``up``: KiB of its network interfaces, SSH
and TCP with it), and the launcher's CPU in ms. Heartbeats are in the figures. Not a test: hosts
and launcher share this machine; the bytes are facts.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import peers
import turns

COLUMNS = ("ms", "down", "up", "cpu")


def rank(rounds: int, size: int) -> None:
    """What runs on each host."""
    with os.fdopen(int(os.environ["PMI_FD"]), "r+b", 0) as pmi:
        me, name = os.environ["PMI_RANK"], ""

        def ask(words: str) -> str:
            pmi.write(f"cmd={words}\n".encode())
            return pmi.readline().decode()

        ask("init pmi_version=1 pmi_subversion=1")
        name = ask("get_my_kvsname").split("kvsname=")[1].split()[0]
        for number in range(rounds + 1):
            value = base64.b64encode(os.urandom(size * 3 // 4)).decode()
            ask(f"put kvsname={name} key=k{number}-{me} value={value}")
            ask("barrier_in")
            if me == "0" and number in (0, rounds):
                print("here", flush=True)
        ask("finalize")


def _spent(pid: int) -> dict[str, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    links = [line.split() for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]]
    counts = {"down": 9, "up": 1}  # its columns
    moved = {
        way: sum(int(link[at]) for link in links if link[0] != "lo:") / 1024
        for way, at in counts.items()
    }
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1000
    return {"ms": time.monotonic() * 1000, "cpu": cpu, **moved}


def measure(hosts: list[str], way: str, options: argparse.Namespace) -> dict[str, float]:
    """One turn: figures of one exchange."""
    tree = [] if way == "flat" else [f"--fanout-tree={way}"]
    program = [sys.executable, __file__, "--rank", str(options.rounds), str(options.bytes)]
    process = subprocess.Popen(
        [*peers.dispatch(), "--connect-timeout", "120", *tree, "-H", ":1,".join(hosts) + ":1",
         "--mpi", "pmi1", "--no-python", *program],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    seen = []
    for _ in range(2):
        if "here" not in process.stdout.readline():
            raise RuntimeError(f"exit code {process.wait()}")
        seen.append(_spent(process.pid))
    process.communicate(timeout=60)
    return {name: (seen[1][name] - seen[0][name]) / options.rounds for name in COLUMNS}


def main() -> int:
    parser = argparse.ArgumentParser(description="the cost of MPI's exchanges, on the cluster rig")
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bytes", type=int, default=600, help="that each host puts in a round")
    parser.add_argument("--ways", default="flat,auto")
    parser.add_argument("--rank", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank(*options.rank)
        return 0
    ways = options.ways.split(",")
    if options.inside:
        hosts = sys.stdin.read().split()
        json.dump({way: measure(hosts, way, options) for way in ways}, sys.stdout)
        return 0
    rows = turns.on_login(__file__, options.hosts)
    print("way   " + " ".join(f"{name:>8}" for name in COLUMNS))
    for way, found in rows.items():
        print(f"{way:<5} " + " ".join(f"{found[name]:8.1f}" for name in COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
