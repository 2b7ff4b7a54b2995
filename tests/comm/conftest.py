"""``mpiexec(n, program)`` runs a program as n real MPI ranks of this host, and says how it went."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code (None: it hung and was killed) and all it said."""

    code: int | None
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return sorted(self.out.splitlines())


#: ``mpiexec(n, program, **environment)``
MpiExec = Callable[..., Ended]


def launcher() -> str | None:
    """hydra's mpiexec: the one beside this Python (PyPI's mpich), else the system's."""
    beside = Path(sys.executable).with_name("mpiexec.hydra")
    return str(beside) if beside.exists() else shutil.which("mpiexec.hydra")


@pytest.fixture(scope="session")
def mpi() -> str:
    """Skips, with the reason, where no MPI ranks can be started."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("needs mpi4py: pip install mpi4py mpich")
    path = launcher()
    if path is None:
        pytest.skip("needs mpiexec.hydra: pip install mpich")
    return path


@pytest.fixture
def nccl() -> None:
    """Skips, with the reason, where there is no NCCL library."""
    from dispatcher.comm import EnvironmentMissing
    from dispatcher.comm.nccl import library

    try:
        library.load_library()
    except EnvironmentMissing as error:
        pytest.skip(f"needs nccl: {error.hint}")


@pytest.fixture
def torch_ranks(mpi: str) -> None:
    """Skips, with the reason, where the ranks have no torch."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch: pip install torch")


#: hydra drops what it has not yet read when a job aborts, so ranks write into files themselves
KEPT = 'exec "$@" >>"$0/out" 2>>"$0/err"'


@pytest.fixture
def mpiexec(mpi: str, tmp_path: Path) -> MpiExec:
    """``mpiexec(n, program, **environment)``; a program is indented Python text."""

    def run(count: int, program: str, *arguments: str, limit: float = 180, **env: str) -> Ended:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NCCL_", "PMI", "GLOO_", "DISPATCH_", "HYDRA_"))
            and name
            not in (
                "PYTHONUNBUFFERED",
                "RANK",
                "WORLD_SIZE",
                "LOCAL_RANK",
                "MASTER_ADDR",
                "MASTER_PORT",
            )
        }
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        text = textwrap.dedent(program)
        kept = Path(tempfile.mkdtemp(dir=tmp_path))
        for name in ("out", "err"):
            (kept / name).touch()
        rank = [sys.executable, "-W", "error", "-c", text, *arguments]
        command = [mpi, "-n", str(count), "sh", "-c", KEPT, str(kept), *rank]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **env},
        )
        try:
            out, err = process.communicate(timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code = None
            process.terminate()  # hydra takes its ranks along
            try:
                out, err = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        return Ended(code, (kept / "out").read_text() + out, (kept / "err").read_text() + err)

    return run
