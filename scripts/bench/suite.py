#!/usr/bin/env python3
"""All comparisons with the peers in one go: tables of ratios, JSON of every turn, and plots.

    scripts/bench/suite.py --out /tmp/bench                  at 8 and at 64 hosts, 5 turns each
    scripts/bench/suite.py --hosts 8 --only exec --only launch

Each bench is a program of its own beside this one, and prints its own table. What all of them
found is then put together: for every load dispatch's median ratio, turn by turn, to the peer
that did best. Plots are drawn with matplotlib, which is used for nothing else and need not be
installed. Peers that are not installed are left out and named, and every version is told.

Not a test: it takes most of an hour, and times depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata

import series
from series import Series

HERE = os.path.dirname(os.path.abspath(__file__))

#: bench -> its program and what else it is told
BENCHES = {
    "exec": ("exec.py",),
    "launch": ("start.py",),
    "mpi_init": ("start.py", "--mpi"),
    "flood": ("flood.py", "--mb", "{mb}"),
    "failure": ("endings.py", "--only", "rank exits 42", "--patience", "10",
                "--launcher", "dispatch", "--launcher", "openmpi", "--launcher", "hydra"),
    "copy": ("put.py",),
}  # fmt: skip
#: MB that flood all hosts together
FLOOD = 320

VERSIONS = {
    "ssh": ("ssh", "-V"),
    "hydra": ("mpiexec.hydra", "--version"),
    "openmpi": ("mpirun.openmpi", "--version"),
    "pdsh": ("pdsh", "-V"),
    "pssh": ("parallel-ssh", "--version"),
    "clush": ("clush", "--version"),
    "deepspeed": ("deepspeed", "--version"),
    "rsync": ("rsync", "--version"),
}
PACKAGES = ("paramiko", "cryptography", "asyncssh", "mpi4py", "mpich")


def versions() -> list[str]:
    """A line for the machine and one for each peer."""
    cores = f"{os.cpu_count()} cores"
    lines = [f"Python {platform.python_version()}, Linux {platform.release()}, {cores}"]
    for name, argv in VERSIONS.items():
        if shutil.which(argv[0]) is None:
            lines.append(f"{name}: not installed here")
            continue
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).strip().splitlines()
        # a line that begins with a bracket is a warning with its date
        told = (line for line in said if any(c.isdigit() for c in line) and line[0] != "[")
        number = next(told, "?")
        lines.append(f"{name}: {' '.join(number.split())[:60]}")
    for name in PACKAGES:
        try:
            lines.append(f"{name}: {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed here")
    return lines


def run(bench: str, hosts: int, repeat: int, out: str) -> list[Series]:
    """Carry out one bench; what it found, [] if it failed."""
    program, *words = BENCHES[bench]
    words = [word.format(mb=max(1, FLOOD // hosts)) for word in words]
    file = os.path.join(out, f"{bench}-{hosts}.json")
    argv = [sys.executable, os.path.join(HERE, program), *words, "--hosts", str(hosts)]
    print(f"\n== {bench}, {hosts} hosts", flush=True)
    done = subprocess.run([*argv, "--repeat", str(repeat), "--json", file], check=False)
    if done.returncode:
        print(f"failed: {bench} at {hosts} hosts: exit code {done.returncode}")
        return []
    return series.read(file)


def summary(found: list[Series]) -> list[str]:
    """A line for each load: dispatch beside the peer that did best."""
    lines = [f"{'bench':10}{'hosts':>6}  {'ratio':>6}  {'of':14}load"]
    for one in found:
        best = one.best_peer()
        for ours in (peer for peer in one.turns if peer.startswith("dispatch")):
            ratio = None if best is None else one.ratio(ours, best)
            shown = "-" if ratio is None else f"{ratio:.2f}"
            more = f" ({ours})" if ours != "dispatch" else ""
            lines.append(
                f"{one.bench:10}{one.hosts:6}  {shown:>6}  {best or '-':14}{one.what}{more}"
                + (", more is better" if one.better == "higher" else "")
            )
    return lines


def plot(found: list[Series], out: str) -> str:
    """Draw a picture for each bench, a panel a load; what came of it, in words."""
    try:
        import matplotlib
    except ImportError:
        return "plots: not drawn; pip install matplotlib"
    matplotlib.use("agg")
    from matplotlib import pyplot

    names = []
    for bench in dict.fromkeys(one.bench for one in found):
        panels = [one for one in found if one.bench == bench and one.turns]
        if not panels:
            continue
        figure, axes = pyplot.subplots(
            1, len(panels), figsize=(5 * len(panels), 3.2), squeeze=False, layout="constrained"
        )
        for one, axis in zip(panels, axes[0], strict=True):
            shown = sorted(one.turns, key=one.median, reverse=one.better == "lower")
            colours = ["tab:blue" if peer.startswith("dispatch") else "silver" for peer in shown]
            axis.barh(shown, [one.median(peer) for peer in shown], color=colours)
            for row, peer in enumerate(shown):
                values = [turn[one.measure] for turn in one.turns[peer]]
                axis.plot(values, [row] * len(values), "|", color="black", markersize=8)
            unit = "MB/s" if one.measure == "rate" else "seconds"
            axis.set_title(f"{one.hosts} hosts: {one.what}", fontsize=9)
            axis.set_xlabel(f"{unit}, median and every turn", fontsize=8)
            axis.tick_params(labelsize=8)
        names.append(os.path.join(out, f"{bench}.png"))
        figure.savefig(names[-1], dpi=120)
        pyplot.close(figure)
    return "plots: " + ", ".join(names)


def main() -> int:
    parser = argparse.ArgumentParser(description="compare dispatch with its peers, all benches")
    parser.add_argument("--hosts", action="append", type=int, help="repeatable [8 and 64]")
    parser.add_argument("--only", action="append", choices=list(BENCHES), help="repeatable")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", default="bench", metavar="DIR")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    known = versions()
    print("\n".join(known), flush=True)
    found: list[Series] = []
    asked = 0
    for bench in options.only or BENCHES:
        for hosts in options.hosts or (8, 64):
            asked += 1
            found += run(bench, hosts, options.repeat, options.out)
    lines = summary(found)
    print("\n== all", *lines, plot(found, options.out), sep="\n")
    with open(os.path.join(options.out, "summary.txt"), "w") as file:
        file.write("\n".join([*known, "", *lines, ""]))
    return 0 if len({(one.bench, one.hosts) for one in found}) == asked else 1


if __name__ == "__main__":
    sys.exit(main())
