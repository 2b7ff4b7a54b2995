#!/usr/bin/env python3
"""How long a copy to many hosts takes: dispatch put beside pdcp, pscp, prsync and clush --copy.

    scripts/bench/put.py --hosts 16 --repeat 5
    scripts/bench/put.py --hosts 64 --load big --only dispatch --only clush
    scripts/bench/put.py --hosts 8 --load large

``copy`` has two loads: one file of 10 MB that does not compress (``big`` is that alone, ``large``
is one of 300 MB), and a tree of 2000 files of 0.5 to 8 KB. All take turns in one run on one cluster
(scripts/cluster), each turn in another order, to an empty folder. A turn counts only when it exits
0 and every host has as many bytes as the source. The peers get a cheap key exchange (curve25519),
which makes them faster than they are by default. Wall time, and CPU of the client's process tree.
Ratios to the best peer are the medians of the ratios within a turn. Not a test: times depend on the
machine. Peers that are not installed are left out and named (Debian: pdsh pssh clustershell rsync).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from functools import partial

import peers
import turns

KEX = "KexAlgorithms=curve25519-sha256"
THERE = "/tmp/bench-copy"
LOADS = {"one file of 10 MB": "big", "2000 small files": "tree", "one file of 300 MB": "large"}
FILES = {"big": 10_000_000, "large": 300_000_000}
#: which of them are measured, by --load
MEASURED = {"copy": ("big", "tree"), "big": ("big",), "large": ("large",)}


def commands(hosts: list[str], source: str) -> dict[str, list[str]]:
    """The argv of each way to copy ``source`` to ``THERE``, an empty folder on every host."""
    names, blanks = ",".join(hosts), " ".join(hosts)
    return {
        "dispatch": [*peers.dispatch(), "put", "-w", names, source, THERE + "/"],
        "dispatch --fanout-tree": [
            *(*peers.dispatch(), "put", "--fanout-tree", "-w", names, source, THERE + "/"),
        ],
        "pdcp": ["pdcp", "-R", "ssh", "-f", "64", "-w", names, "-r", "-p", source, THERE],
        "pscp": ["parallel-scp", "-p", "64", "-O", KEX, "-r", "-H", blanks, source, THERE],
        "prsync": ["parallel-rsync", "-p", "64", "-O", KEX, "-a", "-r", "-H", blanks, source,
                   THERE + "/"],
        "clush": ["clush", "-f", "64", "-o", f"-o{KEX}", "-w", names, "-p", "-c", source,
                  "--dest", THERE],
    }  # fmt: skip


def everywhere(hosts: list[str], text: str) -> str:
    """What shell text says on all hosts, identical answers once; raises when one fails."""
    where = ["-t", "60", "-w", ",".join(hosts)]
    argv = [*peers.dispatch(), "exec", "-b", "-N", *where, "--shell", text]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def one_turn(argv: list[str], hosts: list[str], size: int) -> turns.Turn:
    """Copy once into an empty folder: ``{wall, cpu}``. Raises: RuntimeError unless all is there."""
    everywhere(hosts, f"rm -rf {THERE}; mkdir {THERE}")
    turn = turns.one_turn(argv, 0)
    count = f"find {THERE} -type f -exec cat {{}} + | wc -c"
    said = everywhere(hosts, count).split()
    if said[-1:] != [str(size)]:
        raise RuntimeError(f"{size} bytes were sent, hosts have: {' '.join(said)[:300]}")
    return turn


def make(place: str, names: Collection[str]) -> dict[str, int]:
    """The sources ``names``, in ``place``: load -> bytes."""
    noise = random.Random(1)
    made = {name: size for name, size in FILES.items() if name in names}
    for name, size in made.items():
        with open(os.path.join(place, name), "wb") as file:
            for _ in range(size // 10_000_000):
                file.write(noise.randbytes(10_000_000))
    if "tree" not in names:
        return made
    total = 0
    for number in range(2000):
        folder = os.path.join(place, "tree", f"d{number % 20}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"f{number}"), "wb") as file:
            total += file.write(noise.randbytes(noise.randint(500, 8000)))
    return {**made, "tree": total}


def measure(hosts: list[str], repeat: int, only: list[str], load: str) -> dict[str, turns.Result]:
    """Turns of every peer and load; runs on the login host."""
    result = {}
    with tempfile.TemporaryDirectory() as place:
        sizes = make(place, MEASURED[load])
        for title, name in LOADS.items():
            if name not in sizes:
                continue
            found = commands(hosts, os.path.join(place, name))
            found = {peer: argv for peer, argv in found.items() if not only or peer in only}
            missing = [peer for peer, argv in found.items() if shutil.which(argv[0]) is None]
            ways = {
                peer: partial(one_turn, argv, hosts, sizes[name])
                for peer, argv in found.items()
                if peer not in missing
            }
            result[title] = turns.take(ways, repeat, missing)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="compare copies to many hosts on the cluster rig")
    parser.add_argument("--only", action="append", default=[], metavar="PEER")
    parser.add_argument("--load", choices=MEASURED, default="copy")
    options = turns.options_of(parser, 16, 5)
    if options.inside:
        hosts = sys.stdin.read().split()
        json.dump(measure(hosts, options.repeat, options.only, options.load), sys.stdout)
        return 0
    env = {"PDSH_SSH_ARGS_APPEND": f"-o{KEX}"}
    found = {}
    for load, result in turns.on_login(__file__, options.hosts, env=env).items():
        print(f"{options.hosts} hosts, {load}, {options.repeat} turns, {os.cpu_count()} cores; s")
        turns.show(result)
        found[load] = result["turns"]
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
