#!/usr/bin/env python3
"""How long from the command to its end, when every rank only says its host's name.

    scripts/bench/start.py --hosts 8 --repeat 20
    scripts/bench/start.py --hosts 8 --repeat 20 --mpi    # after MPI_Init, a bcast and a barrier

With --mpi it is MPICH's own mpiexec against dispatch, both over libfabric's TCP.

The launchers take turns in one run on the same cluster (scripts/cluster), each turn in another
order, so a busy machine hurts them all alike. A turn counts only when the launcher exits 0 and
printed one line a rank. Reported: wall time, and CPU of the launcher's process tree on the login
host (``wait4``: what it started there and waited for is in, the remote side is not; Open MPI does
not wait for its ssh processes, so it looks cheaper than it is). Ratios are the medians of
the ratios within a turn.

Not a test: times depend on the machine. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import threading
import time

import peers

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKOUT = os.path.dirname(os.path.dirname(HERE))
CLUSTER = [sys.executable, "-IS", os.path.join(CHECKOUT, "scripts", "cluster")]
REFERENCE = "hydra"
LIMIT = 120
#: seconds after which one turn counts as hung; it is killed and done again
HUNG = 30


def one_turn(argv: list[str], lines: int) -> dict[str, float]:
    """Run a launcher to its end: ``{wall, cpu}`` in seconds.

    Raises: RuntimeError when it failed or printed another number of lines; TimeoutError
    when it hung, as MPI libraries do now and then.
    """
    with open(os.devnull) as nothing:
        started = time.monotonic()
        process = subprocess.Popen(
            argv, stdin=nothing, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        alarm = threading.Timer(HUNG, process.terminate)
        alarm.start()
        out, err = process.stdout.read(), process.stderr.read()  # some kilobytes at most
        alarm.cancel()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    process.stderr.close()
    if wall >= HUNG:
        raise TimeoutError
    said = sum(any(word.startswith(b"n") for word in line.split()) for line in out.splitlines())
    if process.returncode != 0 or said < lines:
        tail = (out + err).decode(errors="replace")[-2000:]
        raise RuntimeError(f"exit {process.returncode}, {said} of {lines} lines\n{tail}")
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime}


def measure(hosts: list[str], options: argparse.Namespace, place: str) -> dict[str, object]:
    """Turns of every launcher; runs on the login host."""
    program = [sys.executable, os.path.join(HERE, "mpi_rank.py")] if options.mpi else ["hostname"]
    wanted = options.only or (("dispatch", "hydra") if options.mpi else peers.NAMES)
    missing = [name for name in wanted if not peers.installed(name)]
    found = {
        name: peers.command(name, hosts, options.ranks, program, place)
        for name in wanted
        if name not in missing
    }
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in found}
    failed = {}
    for name, argv in list(found.items()):
        try:
            one_turn(argv, len(hosts) * options.ranks)  # warm: not counted
        except (RuntimeError, TimeoutError) as error:
            failed[name] = str(error) or f"hung for {HUNG} s"
            del found[name], turns[name]
    hung = dict.fromkeys(found, 0)
    shuffle = random.Random(1)
    for turn in range(options.repeat):
        order = list(found)
        shuffle.shuffle(order)
        for name in order:
            while hung[name] < options.repeat:
                try:
                    turns[name].append(one_turn(found[name], len(hosts) * options.ranks))
                    break
                except TimeoutError:
                    hung[name] += 1
        if sys.stderr.isatty():
            print(f"\rturn {turn + 1} of {options.repeat} ", end="", file=sys.stderr, flush=True)
    return {"turns": turns, "missing": missing, "failed": failed, "hung": hung}


def table(result: dict[str, object]) -> str:
    turns: dict[str, list[dict[str, float]]] = result["turns"]  # type: ignore[assignment]
    rows = [("launcher", "median", "min", "max", "cpu", f"of {REFERENCE}", f"cpu of {REFERENCE}")]
    for name, mine in turns.items():
        walls = [turn["wall"] for turn in mine]
        cpu = statistics.median(turn["cpu"] for turn in mine)
        ratios = []
        for what in ("wall", "cpu"):
            pairs = zip(mine, turns.get(REFERENCE, []), strict=False)
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


def main() -> int:
    parser = argparse.ArgumentParser(description="compare launchers' start-up on the cluster rig")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--mpi", action="store_true", help="ranks start MPI (mpi4py and mpich)")
    parser.add_argument("--only", action="append", help="this launcher only; repeatable")
    parser.add_argument("--json", metavar="FILE", help="write every turn there")
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        hosts = sys.stdin.read().split()
        json.dump(measure(hosts, options, options.inside), sys.stdout)
        return 0

    name = f"start-{os.getpid()}"
    owner = ["--owner", str(os.getpid())]
    subprocess.run([*CLUSTER, "up", str(options.hosts), "--name", name, "--quiet", *owner],
                   check=True)  # fmt: skip
    try:
        hosts = subprocess.run(
            [*CLUSTER, "hosts", "--name", name], check=True, capture_output=True, text=True
        ).stdout
        inside = [*CLUSTER, "enter", "--name", name, "login", "--", sys.executable, __file__,
                  "--inside", "/var/tmp", *sys.argv[1:]]  # fmt: skip
        path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        ended = subprocess.run(
            inside,
            input=hosts,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=LIMIT * options.repeat,
            cwd=CHECKOUT,
            env={**os.environ, "PATH": path, "MPIR_CVAR_CH4_NETMOD": "ofi"},
        )
    finally:
        subprocess.run([*CLUSTER, "down", "--name", name], check=False)
    result = json.loads(ended.stdout)
    what = "MPI_Init + bcast + barrier" if options.mpi else "hostname"
    print(
        f"{options.hosts} hosts x {options.ranks} ranks of {what}, {options.repeat} turns, "
        f"{os.cpu_count()} cores, Linux {platform.release()}; seconds"
    )
    print(table(result))
    for launcher in result["missing"]:
        print(f"not installed here: {launcher}")
    print("not comparable: torchrun (starts no process on another host)")
    for launcher, why in result["failed"].items():
        print(f"failed: {launcher}: {why}")
    for launcher, times in result["hung"].items():
        if times:
            print(f"hung for {HUNG} s, killed, not counted: {launcher}, {times} times")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
