"""Peers that take turns on one cluster, in another order each time, and the table of their times.

So a busy machine hurts them all alike, and a ratio within a turn means something when no time
does. Half of a bench runs outside: it makes the cluster and shows the result (``on_login``);
the other half, the same script with ``--inside``, measures on the login host and prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from testbed.cluster import Cluster

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKOUT = os.path.dirname(os.path.dirname(HERE))
#: seconds after which one turn counts as hung; it is killed and done again
HUNG = 30
#: seconds of one turn: wall, and cpu of the process tree
Turn = dict[str, float]
Result = dict[str, Any]


def options_of(parser: argparse.ArgumentParser, hosts: int, repeat: int) -> argparse.Namespace:
    """What was asked for, with the options that benches share."""
    parser.add_argument("--hosts", type=int, default=hosts)
    parser.add_argument("--repeat", type=int, default=repeat)
    parser.add_argument("--json", metavar="FILE", help="write every turn there")
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    return parser.parse_args()


def on_login(
    script: str,
    hosts: int,
    *,
    limit: float | None = None,
    env: Mapping[str, str] | None = None,
    beside: str | None = None,
) -> Any:
    """What ``script --inside DIR`` and our own options print, as JSON, on a new cluster's login.

    It finds the names of the hosts on its standard input; DIR is the same on all of them, and so
    is the checkout ``beside``.
    """
    with Cluster(hosts, *(["--share", os.path.realpath(beside)] if beside else [])) as cluster:
        argv = [sys.executable, script, "--inside", cluster.shared, *sys.argv[1:]]
        ended = subprocess.run(
            cluster.argv(argv), input="\n".join(cluster.hosts), stdout=subprocess.PIPE, text=True,
            check=True, timeout=limit, cwd=CHECKOUT, env={**os.environ, **(env or {})},
        )  # fmt: skip
    return json.loads(ended.stdout)


def one_turn(argv: Sequence[str], lines: int) -> Turn:
    """Run a command to its end: ``{wall, cpu}`` in seconds.

    Raises: RuntimeError when it failed or printed fewer than ``lines`` lines with a host's
    name; TimeoutError when it hung, as MPI libraries do now and then.
    """
    with open(os.devnull) as nothing:
        started = time.monotonic()
        process = subprocess.Popen(
            argv, stdin=nothing, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        alarm = threading.Timer(HUNG, process.terminate)
        alarm.start()
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            out, err = process.stdout.read(), process.stderr.read()  # some kilobytes at most
        alarm.cancel()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if wall >= HUNG:
        raise TimeoutError(f"hung for {HUNG} s")
    said = sum(any(word.startswith(b"n") for word in line.split()) for line in out.splitlines())
    if process.returncode != 0 or said < lines:
        tail = (out + err).decode(errors="replace")[-2000:]
        raise RuntimeError(f"exit {process.returncode}, {said} of {lines} lines\n{tail}")
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime}


def take(peers: Mapping[str, Callable[[], Turn]], repeat: int, missing: Sequence[str]) -> Result:
    """``repeat`` turns of each of ``peers``, after one that warms and does not count.

    turns: the times by name. failed: why the first did not work. hung: how often it hung.
    missing: those that are not installed.
    """
    turns: dict[str, list[Turn]] = {}
    failed: dict[str, str] = {}
    for name, turn in peers.items():
        try:
            turn()
            turns[name] = []
        except (RuntimeError, TimeoutError, subprocess.CalledProcessError) as error:
            failed[name] = str(error)[-500:]
    hung = dict.fromkeys(turns, 0)
    shuffle = random.Random(1)
    for number in range(repeat):
        for name in shuffle.sample(list(turns), len(turns)):
            while hung[name] < repeat:
                try:
                    turns[name].append(peers[name]())
                    break
                except TimeoutError:
                    hung[name] += 1
        if sys.stderr.isatty():
            print(f"\rturn {number + 1} of {repeat} ", end="", file=sys.stderr, flush=True)
    return {"turns": turns, "missing": list(missing), "failed": failed, "hung": hung}


def show(result: Result, reference: str | None = None, file: str | None = None) -> None:
    """Print the table of ``result``, and which peers are not in it and why.

    reference: the peer that the ratios compare with; None for the quickest of dispatch's peers.
    file: is to get the turns, as JSON.
    """
    if file:
        with open(file, "w") as out:
            json.dump(result["turns"], out, indent=1)
    middle = {
        name: statistics.median(turn["wall"] for turn in turns)
        for name, turns in result["turns"].items()
        if name != "dispatch"
    }
    print(table(result["turns"], reference or min(middle, key=middle.__getitem__, default="")))
    for name in result["missing"]:
        print(f"not installed here: {name}")
    for name, why in result["failed"].items():
        print(f"failed: {name}: {why}")
    for name, times in result["hung"].items():
        if times:
            print(f"hung for {HUNG} s, killed, not counted: {name}, {times} times")


def table(turns: Mapping[str, Sequence[Turn]], reference: str) -> str:
    """Seconds of each peer, and the medians of the ratios to ``reference`` within a turn."""
    head = ("launcher", "median", "min", "max", "cpu", f"of {reference}", f"cpu of {reference}")
    rows: list[tuple[str, ...]] = [head]
    for name, mine in turns.items():
        walls = [turn["wall"] for turn in mine]
        cpu = statistics.median(turn["cpu"] for turn in mine)
        ratios = []
        for what in ("wall", "cpu"):
            pairs = zip(mine, turns.get(reference, []), strict=False)
            found = [turn[what] / other[what] for turn, other in pairs]
            ratios.append(f"{statistics.median(found):.2f}" if found else "-")
        spread = (statistics.median(walls), min(walls), max(walls), cpu)
        rows.append((name, *(f"{seconds:.3f}" for seconds in spread), *ratios))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )  # fmt: skip
