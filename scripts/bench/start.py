#!/usr/bin/env python3
"""How long from the command to its end, when every rank only says its host's name.

    scripts/bench/start.py --hosts 8 --repeat 20
    scripts/bench/start.py --hosts 8 --repeat 20 --mpi    # after MPI_Init, a bcast and a barrier
    scripts/bench/start.py --hosts 8 --mpi openmpi        # the same with Open MPI's mpirun
    scripts/bench/start.py --hosts 64 --kept 5            # and on kept hosts, after 5 s of rest
    scripts/bench/start.py --hosts 64 --beside ../older   # this dispatch and that of a checkout

With --mpi it is MPICH's own mpiexec against dispatch, both over libfabric's TCP; with --mpi openmpi
the system's mpirun against dispatch, both with the ranks that this mpirun is for. Ranks are nice
there, since they spin and all hosts share this machine; for that to count where each has a session
of its own, ``sysctl kernel.sched_autogroup_enabled=0``.

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
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import peers
import turns

LIMIT = 120
#: ranks that wait spin; on hosts with cores of their own they would keep nobody else from running
SPINNING = ("nice", "-n", "19")
#: whose ranks -> what stands before their program
MPI = {
    "mpich": SPINNING,
    "openmpi": (*SPINNING, "env", "MPI4PY_MPIABI=openmpi", "OMPI_MCA_btl_tcp_if_include=eth0"),
}


def reference(options: argparse.Namespace) -> str:
    """The launcher that the ratios compare with."""
    if options.beside:
        return peers.BESIDE
    return "openmpi" if options.mpi == "openmpi" else "hydra"


def measure(hosts: list[str], options: argparse.Namespace, place: str) -> turns.Result:
    """Turns of every launcher; runs on the login host."""
    rank = os.path.join(turns.HERE, "mpi_rank.py")
    program = [*MPI[options.mpi], sys.executable, rank] if options.mpi else ["hostname"]
    some = options.mpi or options.beside
    wanted = options.only or (("dispatch", reference(options)) if some else peers.NAMES)
    missing = [name for name in wanted if not peers.installed(name)]
    lines = len(hosts) * options.ranks
    found: dict[str, Callable[[], turns.Turn]] = {
        name: partial(
            turns.one_turn,
            peers.command(name, hosts, options.ranks, program, place, options.beside),
            lines,
        )
        for name in wanted
        if name not in missing
    }
    if options.kept is not None and "dispatch" in found:
        found["dispatch, kept hosts"] = kept(hosts, options, program, place)
    return turns.take(found, options.repeat, missing)


def kept(
    hosts: list[str], options: argparse.Namespace, program: list[str], place: str
) -> Callable[[], turns.Turn]:
    """A turn of dispatch where ``dispatch connect`` keeps connections; it rests before each."""
    folder = os.path.join(place, "kept")
    os.mkdir(folder, 0o700)
    here = ["env", f"XDG_RUNTIME_DIR={folder}"]
    connect = [*here, *peers.dispatch(), "connect", "-w", ",".join(hosts)]
    subprocess.run(connect, check=True, stdout=sys.stderr)
    command = [*here, *peers.command("dispatch", hosts, options.ranks, program, place)]

    def turn() -> turns.Turn:
        time.sleep(options.kept)
        return turns.one_turn(command, len(hosts) * options.ranks)

    return turn


def main() -> int:
    parser = argparse.ArgumentParser(description="compare launchers' start-up on the cluster rig")
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument(
        "--mpi", nargs="?", const="mpich", choices=MPI, help="ranks start MPI, by mpi4py"
    )
    parser.add_argument("--only", action="append", help="this launcher only; repeatable")
    parser.add_argument(
        "--kept",
        type=float,
        metavar="SECONDS",
        help="dispatch also on kept hosts, so many seconds after its last run there",
    )
    parser.add_argument("--beside", metavar="CHECKOUT", help="compare with its dispatch")
    options = turns.options_of(parser, 8, 20)
    if options.inside:
        json.dump(measure(sys.stdin.read().split(), options, options.inside), sys.stdout)
        return 0
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    env = {"PATH": path, "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
    result = turns.on_login(
        __file__, options.hosts, limit=LIMIT * options.repeat, env=env, beside=options.beside
    )
    what = f"MPI_Init + bcast + barrier ({options.mpi})" if options.mpi else "hostname"
    print(
        f"{options.hosts} hosts x {options.ranks} ranks of {what}, {options.repeat} turns, "
        f"{os.cpu_count()} cores, Linux {platform.release()}; seconds"
    )
    turns.show(result, reference(options), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
