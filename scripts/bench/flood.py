#!/usr/bin/env python3
"""How much output comes back, how fast, how whole, and what it costs the login node.

    scripts/bench/flood.py                            dispatch and the peers that are installed
    scripts/bench/flood.py --hosts 8 --mb 40 dispatch hydra
    scripts/bench/flood.py --repeat 5 --beside ../older     this dispatch and that of a checkout

Every host writes the same file of 100-byte lines, each with its number and an md5 of itself, as
fast as it can. ``to a pipe``: labelled lines to one program that only reads. ``to files``: one
file a host. Then every line is checked: ``broken`` are lines that no host wrote, ``lost`` the
bytes of lines that did not come whole. ``cpu`` is that of the launcher and its ssh children,
``rss`` that of its largest process. With ``--rate 20`` the program takes 20 MB/s only; nothing
may be lost then either.

Not a test: it prints, the tests judge.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import mmap
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import peers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from testbed.cluster import Cluster

WIDTH = 100
LABEL = re.compile(rb"(?:\[(?:1,)?(\d+)\](?:<stdout>)?:? ?|(n\d+): )")


def flood_file(path: str, size: int) -> None:
    """Write ``size`` bytes of numbered lines, each with an md5 of what stands before it."""
    with open(path, "wb") as file:
        for number in range(size // WIDTH):
            text = b"%09d " % number + b"x" * (WIDTH - 44)
            file.write(text + b" " + hashlib.md5(text).hexdigest().encode() + b"\n")


def commands(
    hosts: list[str], path: str, place: str, beside: str | None
) -> dict[str, tuple[str, list[str]]]:
    """name -> ("pipe" or the folder of files where its output goes, argv)."""
    cat = ["cat", path]
    slots = os.path.join(place, "hosts-slots")
    with open(slots, "w") as file:
        file.writelines(f"{host} slots=1\n" for host in hosts)
    lines = os.path.join(place, "hosts-lines")
    with open(lines, "w") as file:
        file.writelines(f"{host}\n" for host in hosts)
    count, names = str(len(hosts)), ",".join(hosts)
    files = os.path.join(place, "files")
    dispatch = [*peers.dispatch(beside and peers.CHECKOUT), "-H", slots]
    quiet = ["--only-ranks", "none", "--log-dir", files]
    if beside:
        older = [*peers.dispatch(beside), *dispatch[-2:]]
        return {
            "dispatch": ("pipe", [*dispatch, "--no-python", *cat]),
            peers.BESIDE: ("pipe", [*older, "--no-python", *cat]),
            "dispatch files": (files, [*dispatch, *quiet, "--no-python", *cat]),
            f"{peers.BESIDE}, files": (files, [*older, *quiet, "--no-python", *cat]),
        }
    return {
        "dispatch": ("pipe", [*dispatch, "--no-python", *cat]),
        "hydra": (
            "pipe",
            ["mpiexec.hydra", "-launcher", "ssh", "-f", lines, "-n", count, "-l", *cat],
        ),
        "openmpi": (
            "pipe",
            ["mpirun.openmpi", "--allow-run-as-root", "--hostfile", slots, "-n", count,
             "--tag-output", *cat],
        ),
        "pdsh": ("pipe", ["pdsh", "-R", "ssh", "-w", names, " ".join(cat)]),
        "clush": ("pipe", ["clush", "-w", names, " ".join(cat)]),
        "dispatch files": (files, [*dispatch, *quiet, "--no-python", *cat]),
        "pssh files": (
            files,
            ["parallel-ssh", "-h", lines, "-t", "0", "-o", files, " ".join(cat)],
        ),
    }  # fmt: skip


def measure(argv: list[str], out: str, result: str, rate: float, room: int) -> None:
    """Run ``argv`` here with a pipe as its output, read at ``rate`` bytes/s (0: as it comes).

    Who reads is a process of its own, so that ours is small when ``argv`` is started from it: a
    fork counts with the memory it shares. Runs on the login node; writes what it found as JSON to
    ``result``.
    """
    come, go = os.pipe()
    told, tell = os.pipe()
    reader = os.fork()
    if reader == 0:
        os.close(go)
        read(come, tell, out, rate, room)
        os._exit(0)
    os.close(come)
    os.close(tell)
    os.read(told, 1)
    began = time.monotonic()
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=go)
    os.close(go)
    _, status, used = os.wait4(process.pid, 0)
    if not os.read(told, 1):
        sys.exit(f"{argv[0]}: what it said was not read to its end")
    seconds = time.monotonic() - began
    os.waitpid(reader, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    with open(result, "w") as file:
        json.dump([code, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024], file)


def read(come: int, tell: int, out: str, rate: float, room: int) -> None:
    """Read ``come`` to its end, ``room`` bytes at most; says a byte when ready and when done.

    Only reads, into memory that was there before: at these rates writing a file would take as
    much of the machine as the launcher does. It is written to ``out`` when all was read.
    """
    memory = mmap.mmap(-1, room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    view = memoryview(memory)
    os.write(tell, b".")
    began = time.monotonic()
    total = 0
    while size := os.readv(come, [view[total : total + (1 << 20)]]):
        total += size
        ahead = total / rate - (time.monotonic() - began) if rate else 0
        if ahead > 0:
            time.sleep(ahead)
        if total == room:
            sys.exit(f"more than {room} bytes")
    os.write(tell, b".")
    with open(out, "wb") as file:
        file.write(view[:total])


def judged(blocks: Iterable[bytes], flood: bytes, n_hosts: int) -> tuple[int, int]:
    """(lines that nobody wrote, bytes missing) of what each host is said to have written."""
    broken = arrived = 0
    whole: set[bytes] = set()
    for block in blocks:
        if block == flood:
            arrived += len(block)
            continue
        whole = whole or set(flood.splitlines())
        lines = block.splitlines()
        good = {line for line in lines if line in whole}
        broken += sum(line not in whole for line in lines)
        arrived += len(good) * WIDTH
    return broken, n_hosts * len(flood) - arrived


def labelled(path: str) -> Iterable[bytes]:
    """What each label stands before, put together."""
    found: dict[bytes, list[bytes]] = collections.defaultdict(list)
    with open(path, "rb") as file:
        for line in file:
            match = LABEL.match(line)
            who = (match[1] or match[2]) if match else b"?"
            found[who].append(line[match.end() if match else 0 :])
    return [b"".join(lines) for lines in found.values()]


def in_files(folder: str) -> Iterable[bytes]:
    """The files of a folder of pssh's, or of dispatch's newest run."""
    latest = os.path.join(folder, "latest")
    for root, _, names in os.walk(latest + "/" if os.path.exists(latest) else folder):
        for name in names:
            if not name.endswith((".json", ".jsonl", ".err")):
                with open(os.path.join(root, name), "rb") as file:
                    yield file.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="which to run [all that are installed]")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--mb", type=int, default=40, help="from each host")
    parser.add_argument("--rate", type=float, default=0, help="of the reader, MB/s [0: any]")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write every turn there")
    parser.add_argument("--beside", metavar="CHECKOUT", help="compare with its dispatch")
    parser.add_argument("--measure", nargs=4, metavar=("OUT", "RESULT", "ROOM", "ARGV"))
    options = parser.parse_args()
    if options.measure:
        out, result, room, argv = options.measure
        measure(json.loads(argv), out, result, options.rate * 1e6, int(room))
        return
    share = ["--share", os.path.realpath(options.beside)] if options.beside else []
    with Cluster(options.hosts, *share) as cluster:
        path = os.path.join(cluster.shared, "flood")
        flood_file(path, options.mb * 1_000_000)
        with open(path, "rb") as file:
            flood = file.read()
        print(f"{options.hosts} hosts, {options.mb} MB each, lines of {WIDTH} bytes")
        print(f"{'':24}{'s':>8}{'MB/s':>8}{'cpu s/GB':>10}{'rss MiB':>9}{'broken':>9}{'lost':>12}")
        known = commands(cluster.hosts, path, cluster.shared, options.beside)
        chosen = [name for name in known if not options.names or name in options.names]
        missing = [name for name in chosen if shutil.which(known[name][1][0]) is None]
        turns: dict[str, list[dict[str, float]]] = {n: [] for n in chosen if n not in missing}
        for _ in range(options.repeat):
            for name in random.sample(list(turns), len(turns)):
                turns[name].append(show(name, *known[name], cluster, flood, options.rate))
        for name in missing:
            print(f"not installed here: {name}")
    if options.json:
        with open(options.json, "w") as out:
            json.dump(turns, out, indent=1)


def show(
    name: str, kind: str, argv: list[str], cluster: Any, flood: bytes, rate: float
) -> dict[str, float]:
    """Flood once, and print and return what came of it."""
    out, result = (os.path.join(cluster.shared, part) for part in ("out", "result"))
    words = [sys.executable, os.path.abspath(__file__), "--rate", str(rate)]
    room = 2 * len(cluster.hosts) * len(flood)  # for labels
    process = cluster.popen([*words, "--measure", out, result, str(room), json.dumps(argv)])
    process.wait()
    with open(result) as file:
        code, seconds, cpu, rss = json.load(file)
    parts: Callable[[str], Iterable[bytes]] = labelled if kind == "pipe" else in_files
    broken, lost = judged(parts(out if kind == "pipe" else kind), flood, len(cluster.hosts))
    size = len(cluster.hosts) * len(flood)
    print(
        f"{name:24}{seconds:8.1f}{size / seconds / 1e6:8.1f}{cpu / size * 1e9:10.1f}{rss:9.0f}"
        f"{broken:9}{lost:12,}" + (f"   exit code {code}" if code else ""),
        flush=True,
    )
    shutil.rmtree(kind, ignore_errors=True)
    return {"rate": size / seconds / 1e6, "wall": seconds, "cpu": cpu, "rss": rss,
            "broken": broken, "lost": lost}  # fmt: skip


if __name__ == "__main__":
    main()
