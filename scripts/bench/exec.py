#!/usr/bin/env python3
"""How long ``hostname`` on many hosts takes: dispatch exec beside pdsh, pssh, clush and libraries.

    scripts/bench/exec.py --hosts 64 --repeat 5
    scripts/bench/exec.py --hosts 64 --beside ../older    # this dispatch and that of a checkout

All take turns in one run on one cluster (scripts/cluster), each turn in another order and after a
rest, in which the hosts clean up after the turn before. A turn counts only when it exits 0 with a
line a host. Wall time, and CPU of the client's process tree ("kept": over connections made before,
without the CPU of their holder); ratios are the medians of the ratios within a turn. Not a test:
times depend on the machine. Peers that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial

import peers
import turns

REFERENCE = "pdsh"
#: seconds before a turn
REST = 1.0
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


def commands(hosts: list[str], beside: str | None) -> tuple[dict[str, list[str]], list[str]]:
    """The argv of each peer that is here, and the names of those that are not."""
    names = ",".join(hosts)
    if beside:
        both = {"dispatch": peers.CHECKOUT, peers.BESIDE: beside}
        words = ["exec", "-w", names, "--", "hostname"]
        return {name: [*peers.dispatch(place), *words] for name, place in both.items()}, []
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


def rested(argv: list[str], lines: int) -> turns.Turn:
    """One turn, when the hosts are at rest."""
    time.sleep(REST)
    return turns.one_turn(argv, lines)


def measure(hosts: list[str], repeat: int, beside: str | None) -> turns.Result:
    """Turns of every peer; runs on the login host."""
    found, missing = commands(hosts, beside)
    ways = {name: partial(rested, argv, len(hosts)) for name, argv in found.items()}
    if beside:
        return turns.take(ways, repeat, missing)
    os.makedirs(HOLDER, mode=0o700, exist_ok=True)
    connect = [*KEPT, *peers.dispatch(), "connect"]
    subprocess.run([*connect, "-w", ",".join(hosts)], check=True)
    try:
        return turns.take(ways, repeat, missing)
    finally:
        subprocess.run([*connect, "--close"], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="compare parallel shells on the cluster rig")
    parser.add_argument("--beside", metavar="CHECKOUT", help="compare with its dispatch")
    options = turns.options_of(parser, 64, 5)
    if options.inside:
        hosts = sys.stdin.read().split()
        json.dump(measure(hosts, options.repeat, options.beside), sys.stdout)
        return 0
    result = turns.on_login(__file__, options.hosts, beside=options.beside)
    print(
        f"{options.hosts} hosts, hostname, {options.repeat} turns, {os.cpu_count()} cores; seconds"
    )
    turns.show(result, peers.BESIDE if options.beside else REFERENCE, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
