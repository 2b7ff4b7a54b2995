#!/usr/bin/env python3
"""How a job ends when something goes wrong: exit code, time, and what is left behind.

    scripts/bench/endings.py                         dispatch
    scripts/bench/endings.py --launcher openmpi      or hydra, pdsh, clush

Every rank says it is up, starts a child and sleeps; then one thing goes wrong. ``ended`` is
the time from there to the end of the launcher, ``empty`` to the moment when no rank and no child
is left on any host still standing (a cut host counts: it must clean up alone), ``left`` is how
many were still there when we gave up waiting. A launcher that does not end is killed then.

Not a test: it prints, the tests judge.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import peers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from testbed.cluster import Cluster, wait_for

# One rank: RANK is not set by every launcher, so "the first on n2" is known by a lock.
RANK = """
import os, signal, socket, subprocess, sys, time
kind = sys.argv[1]
if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "9999"])
print("up", flush=True)
chosen = False
if socket.gethostname() == "n2":
    try:
        os.mkdir(sys.argv[2])
        chosen = True
    except FileExistsError:
        pass
if chosen and kind in ("exit", "crash"):
    while not os.path.exists(sys.argv[2] + "/go"):
        time.sleep(0.01)
    if kind == "exit":
        sys.exit(42)
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(9999)
"""


class Job:
    """A launcher with all its ranks up, and the means to hurt it."""

    def __init__(self, cluster: Cluster, launcher: str, ranks: int, kind: str, place: str) -> None:
        self.cluster = cluster
        self.place = place
        script = os.path.join(cluster.shared, "rank.py")
        with open(script, "w") as file:
            file.write(RANK)
        program = ["/usr/bin/env", "python3", script, kind, place]
        argv = peers.command(launcher, cluster.hosts, ranks, program, cluster.shared)
        self.output = open(place + ".out", "w+")  # noqa: SIM115 - closed in close()
        self.process = cluster.popen(
            argv, stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True
        )
        wanted = len(cluster.hosts) * ranks
        wait_for(lambda: self._up() >= wanted, 60, lambda: f"ranks up: {self._text()}")

    def _text(self) -> str:
        with open(self.output.name, errors="replace") as file:
            return file.read()

    def _up(self) -> int:
        return self._text().count("up")  # not by line: some launchers tear lines

    def master(self) -> int:
        """The launcher itself, as this machine counts; it is the oldest process on login."""
        return min(process.outer for process in self.cluster.census(["login"]))

    def go(self) -> None:
        with open(os.path.join(self.place, "go"), "w"):
            pass

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.output.close()
        for process in self.cluster.census():
            try:
                os.kill(process.outer, signal.SIGKILL)
            except ProcessLookupError:
                pass


def rank_fails(job: Job) -> None:
    job.go()


def interrupt(job: Job) -> None:
    os.kill(job.master(), signal.SIGINT)


def terminate(job: Job) -> None:
    os.kill(job.master(), signal.SIGTERM)


def kill_master(job: Job) -> None:
    os.kill(job.master(), signal.SIGKILL)


def cut(job: Job) -> None:
    job.cluster.cut("n2")


def power_off(job: Job) -> None:
    job.cluster.power_off("n2")


ENDINGS: dict[str, tuple[str, Callable[[Job], None]]] = {
    "rank exits 42": ("exit", rank_fails),
    "rank segfaults": ("crash", rank_fails),
    "Ctrl-C": ("sleep", interrupt),
    "Ctrl-C, ranks ignore it": ("stubborn", interrupt),
    "TERM to the launcher": ("sleep", terminate),
    "kill -9 of the launcher": ("sleep", kill_master),
    "one host cut off": ("sleep", cut),
    "one host loses power": ("sleep", power_off),
}


def play(cluster: Cluster, launcher: str, ranks: int, name: str, patience: float) -> list[str]:
    """One ending; the cells of its row."""
    kind, hurt = ENDINGS[name]
    place = os.path.join(cluster.shared, "".join(c if c.isalnum() else "-" for c in name))
    job = Job(cluster, launcher, ranks, kind, place)
    try:
        started = time.monotonic()
        hurt(job)
        ended: float | None = None
        empty: float | None = None
        while (ended is None or empty is None) and time.monotonic() - started < patience:
            now = time.monotonic() - started
            if ended is None and job.process.poll() is not None:
                ended = now
            empty = (empty or now) if not cluster.on_hosts() else None
            time.sleep(0.01)
        code = job.process.poll()
        shown = "-" if code is None else str(128 - code if code < 0 else code)
        return [
            name,
            shown,
            "never" if ended is None else f"{ended:.2f}",
            "never" if empty is None else f"{empty:.2f}",
            str(len(cluster.on_hosts())),
        ]
    finally:
        job.close()
        if hurt is cut:
            cluster.mend("n2")


def main() -> int:
    parser = argparse.ArgumentParser(description="how jobs end on the cluster rig")
    parser.add_argument("--launcher", choices=peers.NAMES, default="dispatch")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--patience", type=float, default=60.0, metavar="S")
    parser.add_argument("--only", action="append", choices=list(ENDINGS), help="repeatable")
    options = parser.parse_args()
    if not peers.installed(options.launcher):
        print(f"{options.launcher}: not installed here", file=sys.stderr)
        return 2
    rows = [["", "exit", "ended s", "empty s", "left"]]
    for name in options.only or ENDINGS:
        with Cluster(options.hosts) as cluster:
            rows.append(play(cluster, options.launcher, options.ranks, name, options.patience))
    print(f"{options.launcher}, {options.hosts} hosts x {options.ranks} ranks and a child each")
    for row in rows:
        print(f"{row[0]:26}" + "".join(f"{cell:>9}" for cell in row[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
