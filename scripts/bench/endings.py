#!/usr/bin/env python3
"""How a job ends when something goes wrong: exit code, time, and what is left behind.

    scripts/bench/endings.py                         dispatch
    scripts/bench/endings.py --launcher openmpi      or hydra, pdsh, clush
    scripts/bench/endings.py --launcher dispatch --launcher openmpi --repeat 10
                                                     taking turns; medians, and of the pairs' ratios

Every rank says it is up, starts a child and sleeps; then one thing goes wrong. ``ended`` is
the time from there to the end of the launcher, ``empty`` to the moment when no rank and no child
is left on any host still standing (a cut host counts: it must clean up alone), ``left`` is how
many were still there when we gave up waiting. A launcher that does not end is killed then.

Not a test: it prints, the tests judge.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import peers
from series import Series, write

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from testbed.cluster import Cluster, hear_signals, wait_for

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


_turns = itertools.count(1)


def play(
    cluster: Cluster, launcher: str, ranks: int, name: str, patience: float
) -> tuple[str, float | None, float | None, int]:
    """One ending: exit code, ``ended``, ``empty`` (None: never) and how many were left."""
    kind, hurt = ENDINGS[name]
    place = os.path.join(cluster.shared, f"turn-{next(_turns)}")
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
        return shown, ended, empty, len(cluster.on_hosts())
    finally:
        job.close()
        if hurt is cut:
            cluster.mend("n2")


def main() -> int:
    parser = argparse.ArgumentParser(description="how jobs end on the cluster rig")
    parser.add_argument("--launcher", action="append", choices=peers.NAMES, help="repeatable")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--patience", type=float, default=60.0, metavar="S")
    parser.add_argument("--only", action="append", choices=list(ENDINGS), help="repeatable")
    parser.add_argument("--json", metavar="FILE", help="write every turn there")
    options = parser.parse_args()
    hear_signals()
    launchers = options.launcher or ["dispatch"]
    for launcher in launchers:
        if not peers.installed(launcher):
            print(f"{launcher}: not installed here", file=sys.stderr)
            return 2
    print(f"{options.hosts} hosts x {options.ranks} ranks and a child each, {options.repeat} turns")
    print(f"{'':26}{'':>9}" + "".join(f"{c:>9}" for c in ("exit", "ended s", "empty s", "left")))
    series: list[Series] = []
    for name in options.only or ENDINGS:
        found: dict[str, list[tuple[str, float | None, float | None, int]]] = {}
        for _ in range(options.repeat):
            for launcher in random.sample(launchers, len(launchers)):
                with Cluster(options.hosts) as cluster:
                    ended = play(cluster, launcher, options.ranks, name, options.patience)
                found.setdefault(launcher, []).append(ended)
        for launcher in launchers:
            turns = found[launcher]
            codes = "/".join(sorted({code for code, _, _, _ in turns}))
            left = max(left for _, _, _, left in turns)
            cells = (codes, middle([t[1] for t in turns]), middle([t[2] for t in turns]), str(left))
            print(f"{name:26}{launcher:>9}" + "".join(f"{cell:>9}" for cell in cells), flush=True)
        for other in launchers[1:]:
            pairs = zip(found[launchers[0]], found[other], strict=True)
            ratios = [a[1] / b[1] for a, b in pairs if a[1] is not None and b[1]]
            if ratios:
                print(f"{'':26}{launchers[0]} / {other}: {statistics.median(ratios):.2f}")
        measured = {
            launcher: [
                {"ended": options.patience if ended is None else ended,
                 "empty": options.patience if empty is None else empty, "left": left}
                for _, ended, empty, left in found[launcher]
            ]
            for launcher in launchers
        }  # fmt: skip
        series.append(Series("failure", name, options.hosts, measured, "ended"))
    if options.json:
        write(options.json, series)
    return 0


def middle(times: list[float | None]) -> str:
    """The median; a time that never came is later than all others."""
    later = sorted(float("inf") if time is None else time for time in times)
    value = later[len(later) // 2]
    return "never" if value == float("inf") else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
