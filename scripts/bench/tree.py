#!/usr/bin/env python3
"""Many hosts, flat and by a tree: when all ranks run, and what the launcher takes for it.

    scripts/bench/tree.py --hosts 64 --repeat 3 --branches auto,8 --delay 0,50

One rank a host. ``up`` is the time until every rank has said a word; ``exec`` that of
``dispatch exec hostname``. CPU, memory, threads and descriptors are the launcher's; ``idle`` is
its CPU while nothing happens, in per cent of a core. ``flat, all`` lets all hosts connect at
once, instead of --window. --delay puts a round trip of so many ms
between the launcher and the hosts (scripts/testbed/delay.py, whose own CPU is that of the
machine as well), none among the hosts. Turns alternate; medians. Not a test: hosts and
launcher share this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import peers
import turns

DELAY = str(Path(__file__).parents[1] / "testbed" / "delay.py")
LIMITS = ["--connect-timeout", "120"]
IDLE = 6.0
COLUMNS = ("up", "exec", "cpu", "exec cpu", "rss", "threads", "fds", "idle")


@contextmanager
def far_away(hosts: list[str], delay: float, config: str) -> Iterator[list[str]]:
    """The options by which dispatch goes the long way."""
    if not delay:
        yield []
        return
    argv = [sys.executable, DELAY, "--seconds", str(delay / 1000), *hosts]
    relay = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert relay.stdin is not None
    assert relay.stdout is not None
    try:
        lines: list[str] = []
        while not lines or not lines[-1].startswith("# ready"):
            lines.append(relay.stdout.readline())
            if not lines[-1]:
                raise RuntimeError("the relay did not start")
        Path(config).write_text("".join(lines) + "Host *\n")
        yield ["-F", config]
    finally:
        relay.stdin.close()
        relay.wait(10)


def run(hosts: list[str], words: list[str]) -> dict[str, float]:
    """One turn of ``dispatch run``."""
    rank = ["--no-python", "sh", "-c", "echo up; exec sleep 1000"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*peers.dispatch(), *LIMITS, *words, "-H", ":1,".join(hosts) + ":1", *rank],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in hosts:
        if not process.stdout.readline():
            raise RuntimeError(process.communicate()[1])
    found = {"up": time.monotonic() - began}
    proc = Path(f"/proc/{process.pid}")
    status = (proc / "status").read_text()
    found["cpu"] = _cpu(proc)
    found["rss"] = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024
    found["threads"] = int(re.findall(r"Threads:\s+(\d+)", status)[0])
    found["fds"] = len(os.listdir(proc / "fd"))
    time.sleep(2)
    before = _cpu(proc)
    time.sleep(IDLE)
    found["idle"] = (_cpu(proc) - before) / IDLE * 100
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    return found


def _cpu(proc: Path) -> float:
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def exec_(hosts: list[str], words: list[str]) -> dict[str, float]:
    """One turn of ``dispatch exec hostname``."""
    turn = turns.one_turn(
        [*peers.dispatch(), "exec", "-t", "120", *words, "-w", ",".join(hosts), "--", "hostname"],
        len(hosts),
    )
    return {"exec": turn["wall"], "exec cpu": turn["cpu"]}


def measure(hosts: list[str], options: argparse.Namespace) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    ways = {"flat": ["--fanout", str(options.window)], "flat, all": ["--fanout", str(len(hosts))]}
    ways.update((f"tree {k}", [f"--fanout-tree={k}"]) for k in options.branches)
    for delay in options.delay:
        config = f"/tmp/bench-tree-{os.getpid()}"
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        with far_away(hosts, delay, config) as way_there:
            for _ in range(options.repeat):
                for name, words in ways.items():
                    found = exec_(hosts, [*words, *way_there])
                    if not options.exec_only:
                        found.update(run(hosts, [*words, *way_there]))
                    taken[name].append(found)
        for name, found_all in taken.items():
            seen = [column for column in COLUMNS if column in found_all[0]]
            medians = {c: statistics.median(t[c] for t in found_all) for c in seen}
            rows.append({"hosts": len(hosts), "delay": delay, "way": name, **medians})
    return rows


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description="flat and by a tree, on the cluster rig")
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--branches", type=lambda text: text.split(","), default=["auto"])
    parser.add_argument("--delay", type=numbers, default=[0.0], help="ms of a round trip")
    parser.add_argument("--window", type=int, default=64, help="hosts that connect at once")
    parser.add_argument("--exec-only", action="store_true")
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        json.dump(measure(sys.stdin.read().split(), options), sys.stdout)
        return 0
    rows = turns.on_login(__file__, options.hosts)
    print("hosts  rtt ms  way        " + " ".join(f"{column:>8}" for column in COLUMNS))
    for row in rows:
        values = " ".join(f"{row.get(column, 0.0):8.2f}" for column in COLUMNS)
        print(f"{row['hosts']:5}  {row['delay']:6.0f}  {row['way']:<9}  {values}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
