#!/usr/bin/env python3
"""How long ``hostname`` on many hosts takes: dispatch exec beside pdsh, pssh, clush and libraries.

    scripts/bench/exec.py --hosts 64 --repeat 5

All take turns in one run on one cluster (scripts/cluster), each turn in another order. A turn
counts only when it exits 0 with a line a host. Wall time, and CPU of the client's process tree
("kept" is over connections made before, without the CPU of their holder);
ratios to pdsh are the medians of the ratios within a turn. Not a test: times depend on the
machine. Peers that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys

import peers
import start

CLUSTER = start.CLUSTER
REFERENCE = "pdsh"
#: where the holder of connections is found, by the turns of "dispatch, kept" alone
HOLDER = f"/tmp/bench-exec-{os.getpid()}"
KEPT = ["env", f"XDG_RUNTIME_DIR={HOLDER}"]

PARAMIKO = """
import sys, paramiko
from concurrent.futures import ThreadPoolExecutor
def one(host):
    client = paramiko.SSHClient(); client.load_system_host_keys()
    client.connect(host, timeout=30, banner_timeout=30, auth_timeout=30)
    out = client.exec_command("hostname")[1].read().decode(); client.close(); return out
with ThreadPoolExecutor(64) as pool:
    for host, out in zip(sys.argv[1:], pool.map(one, sys.argv[1:])): print(host + ":", out, end="")
"""
ASYNCSSH = """
import sys, asyncio, asyncssh
async def one(host):
    async with asyncssh.connect(host) as client:
        print(host + ":", (await client.run("hostname")).stdout, end="")
async def all(): await asyncio.gather(*map(one, sys.argv[1:]))
asyncio.run(all())
"""


def commands(hosts: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The argv of each peer that is here, and the names of those that are not."""
    names = ",".join(hosts)
    fast = ["-o", "KexAlgorithms=curve25519-sha256"]
    wanted = {
        "dispatch": [*peers.dispatch(), "exec", "-w", names, "--", "hostname"],
        "dispatch, kept": [*KEPT, *peers.dispatch(), "exec", "-w", names, "--", "hostname"],
        "pdsh": ["pdsh", "-R", "ssh", "-f", "64", "-w", names, "hostname"],
        "pssh": ["parallel-ssh", "-i", "-p", "64", "-H", " ".join(hosts), "hostname"],
        "clush": ["clush", "-f", "64", "-o", " ".join(fast), "-w", names, "hostname"],
        "paramiko pool": [sys.executable, "-c", PARAMIKO, *hosts],
        "asyncssh": [sys.executable, "-c", ASYNCSSH, *hosts],
    }
    missing = [name for name, argv in wanted.items() if shutil.which(argv[0]) is None]
    for name in ("asyncssh",):
        if subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode:
            missing.append(name)
    return {name: argv for name, argv in wanted.items() if name not in missing}, missing


def measure(hosts: list[str], repeat: int) -> dict[str, object]:
    """Turns of every peer; runs on the login host."""
    os.makedirs(HOLDER, mode=0o700, exist_ok=True)
    connect = [*KEPT, *peers.dispatch(), "connect"]
    subprocess.run([*connect, "-w", ",".join(hosts)], check=True)
    try:
        return _measure(hosts, repeat)
    finally:
        subprocess.run([*connect, "--close"], check=False)


def _measure(hosts: list[str], repeat: int) -> dict[str, object]:
    found, missing = commands(hosts)
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in found}
    failed = {}
    for name, argv in list(found.items()):
        try:
            start.one_turn(argv, len(hosts))  # warm: not counted
        except RuntimeError as error:
            failed[name] = str(error)[:500]
            del found[name], turns[name]
    shuffle = random.Random(1)
    for _ in range(repeat):
        order = list(found)
        shuffle.shuffle(order)
        for name in order:
            turns[name].append(start.one_turn(found[name], len(hosts)))
    return {"turns": turns, "missing": missing, "failed": failed}


def main() -> int:
    parser = argparse.ArgumentParser(description="compare parallel shells on the cluster rig")
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        json.dump(measure(sys.stdin.read().split(), options.repeat), sys.stdout)
        return 0
    name = f"exec-{os.getpid()}"
    up = [*CLUSTER, "up", str(options.hosts), "--name", name, "--quiet", "--owner"]
    subprocess.run([*up, str(os.getpid())], check=True)
    try:
        inside = [*CLUSTER, "enter", "--name", name, "login", "--", sys.executable, __file__]
        ended = subprocess.run(
            [*inside, "--inside", *sys.argv[1:]],
            input="\n".join(f"n{i}" for i in range(1, options.hosts + 1)),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        subprocess.run([*CLUSTER, "down", "--name", name], check=False)
    result = json.loads(ended.stdout)
    print(
        f"{options.hosts} hosts, hostname, {options.repeat} turns, {os.cpu_count()} cores; seconds"
    )
    start.REFERENCE = REFERENCE
    print(start.table(result))
    for peer in result["missing"]:
        print(f"not installed here: {peer}")
    for peer, why in result["failed"].items():
        print(f"failed: {peer}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
