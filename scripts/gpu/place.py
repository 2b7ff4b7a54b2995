"""Where ``scripts/gpu`` runs its commands, what is kept of them, what has to be carried there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = ROOT / "tests" / "scripts" / "gpu_stand_ins"
#: seconds for everything, less what the last step may need to end
LIMIT = 570.0
#: what is carried besides, in the versions of constraints.txt
CARRIED = ("paramiko", "ClusterShell", "click", "rich", "mpi4py", "mpich")
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (34, 28, 17)] + ["manylinux2014_x86_64"]
#: runs the real one, and keeps what it says under the name of its words
RECORDER = """#!/bin/sh
name=$(printf %s "$*" | tr -c 'A-Za-z0-9.=-' _ | cut -c1-120)
at="{keep}/nvidia-smi/$name"
"{real}" "$@" >"$at.$$" 2>&1; code=$?
cat "$at.$$"; mv "$at.$$" "$at.txt"
echo "$code: nvidia-smi $*" >>"{keep}/nvidia-smi/codes"
exit $code
"""
#: each rank as a host of its own, to NCCL: what ranks.py is told, and for other programs
TWO_HOSTS = {"GPU_TWO_HOSTS": "1"}
OTHER_HOSTS = ("--no-python", "sh", "-c", 'NCCL_HOSTID=host$RANK exec "$0" "$@"', sys.executable)
SOCKET = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MNNVL_ENABLE": "0"}
#: what a process says that did not end well, whatever its exit code
BROKEN = re.compile(
    r"terminate called|core dumped|Aborted|Segmentation fault|Traceback|ImportError"
)
NOTHING: Mapping[str, str] = MappingProxyType({})


class Surprise(Exception):
    """It was not as expected; the text is what was seen."""


class Impossible(Exception):
    """It cannot be run here; the text says why, and what to do."""


class Unseen(Exception):
    """It cannot be seen here; the text says why."""


@dataclass(frozen=True)
class Done:
    """How a command ended (code None: it was late), all it said, and after how many seconds."""

    code: int | None
    text: str
    seconds: float

    def must(self, wanted: bool, what: str) -> None:
        """Raises: Surprise, with ``what`` was wanted and the last words, unless it was so."""
        if not wanted:
            words = " / ".join(self.text.strip().splitlines()[-3:])
            raise Surprise(f"not {what}: exit {self.code}, {self.seconds:.0f} s: {words[-400:]}")

    def well(self) -> Done:
        """Itself. Raises: Surprise, unless it ended with 0 and nothing broke on the way."""
        self.must(self.code == 0, "exit 0")
        self.must(not BROKEN.search(self.text), "a quiet end")
        return self


@dataclass
class Place:
    """Where it runs: the folder of what is kept, the ranks' variables, when it must be over."""

    keep: Path
    env: dict[str, str]
    end: float
    played: bool = False
    hang: int = 30  # seconds, of --hang-timeout

    def run(self, name: str, *argv: str, limit: float = 60) -> Done:
        """A command, all it says in NAME.log; killed with what it started when it is late."""
        began = time.monotonic()
        left = min(limit, self.end - began)
        if left < 1:
            raise Surprise("no time was left for it")
        log = self.keep / f"{name}.log"
        with open(log, "ab") as file:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env=self.env, cwd=self.keep, start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = process.wait(left)
            except subprocess.TimeoutExpired:
                code = None
                process.send_signal(signal.SIGTERM)  # dispatch then ends its ranks
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        text = log.read_text(errors="replace")
        return Done(code, text, time.monotonic() - began)

    def python(self, name: str, *argv: str, limit: float = 60) -> Done:
        """A Python program."""
        return self.run(name, sys.executable, *argv, limit=limit)

    def dispatch(self, name: str, *words: str, limit: float = 60) -> Done:
        """A command of dispatch."""
        return self.run(name, sys.executable, "-m", "dispatcher", *words, limit=limit)

    def ranks(
        self, name: str, count: int, *words: str, limit: float = 60, before: Sequence[str] = (),
        hosts: bool = False, env: Mapping[str, str] = NOTHING,
    ) -> Done:  # fmt: skip
        """The ranks of a program on this host and GPU 0. hosts: as two hosts, to NCCL."""
        told = {**(SOCKET if count > 1 else {}), **(TWO_HOSTS if hosts else {}), **env}
        exports = [word for pair in told.items() for word in ("-x", "=".join(pair))]
        how = (*exports, *before)
        return self.dispatch(name, "-H", f"localhost:{count}", *how, *words, limit=limit)


def prepare(keep: Path, *, played: bool) -> Place:
    """The folder, a nvidia-smi that keeps what it says, all variables. Raises: Impossible."""
    env = {n: v for n, v in os.environ.items() if not n.startswith(("NCCL_", "DISPATCH_", "PMI"))}
    path = f"{STAND_INS}:{env['PATH']}" if played else env["PATH"]
    real = shutil.which("nvidia-smi", path=path)
    if real is None:
        raise Impossible(
            "gpu: nvidia-smi: not found: a GPU and its driver are needed\n"
            "  hint: python scripts/gpu --stand-ins shows the table without them"
        )
    (keep / "nvidia-smi").mkdir(parents=True, exist_ok=True)
    (keep / "bin").mkdir(exist_ok=True)
    recorder = keep / "bin" / "nvidia-smi"
    recorder.write_text(RECORDER.format(keep=keep, real=real))
    recorder.chmod(0o755)
    places = [str(STAND_INS), str(ROOT / "tests" / "comm")] if played else []
    if (wheels := ROOT / "wheels").is_dir():
        site = Path(f"{keep}-site")
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(site)
        (library,) = site.glob("mpich-*.data/data/lib/libmpi.so.12")
        env["MPI4PY_LIBMPI"] = str(library)
        places.append(str(site))
    env["PYTHONPATH"] = ":".join([*places, str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    env["PATH"] = f"{keep / 'bin'}:{path}"
    env.update(CUDA_VISIBLE_DEVICES="0", OMP_NUM_THREADS="1")
    return Place(keep, env, time.monotonic() + LIMIT, played)


def archive(keep: Path, table: str) -> Path:
    """Put what was kept into one file beside ``keep``, and the table into another; the first."""
    keep.with_name(keep.name + ".txt").write_text(table)
    return Path(shutil.make_archive(str(keep), "gztar", keep.parent, keep.name))


def pack(folder: Path, python: str) -> str:
    """Fill ``folder`` with what has to be carried; the command to run there. Raises: Impossible."""
    wheels = folder / "wheels"
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "scripts" / "gpu" / "place.py").exists() or (folder / ".git").exists():
            raise Impossible(f"gpu: {folder}: not empty, and not made by --pack: name another")
        shutil.rmtree(folder)
    wheels.mkdir(parents=True)
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check",
         "--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms,
         "-c", str(ROOT / "scripts" / "packages" / "constraints.txt"), "-d", str(wheels), *CARRIED],
        check=True,
    )  # fmt: skip
    for name in ("dispatcher", "examples", "scripts/gpu"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    print(f"made {folder}; there, with a Python {python} that has torch, run")
    return f"python3 {folder.name}/scripts/gpu --keep {folder.name}-kept"
