"""The commands inside an allocation: no ``-H``, hosts from the surroundings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def dispatch(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "PBS", "LSB"))}
    return subprocess.run(
        [sys.executable, "-m", "dispatcher", *words],
        env={**clean, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("verb", ["run", "exec"])
def test_hosts_of_a_node_file(tmp_path: Path, verb: str) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("localhost\nlocalhost\n")
    how = ["--no-python"] if verb == "run" else []
    ended = dispatch(verb, *how, "echo", "here", PBS_NODEFILE=str(nodes), PBS_JOBID="4.srv")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("here") == (2 if verb == "run" else 1)
    assert "note: hosts of PBS job 4.srv" in ended.stderr


def test_named_hosts_win(tmp_path: Path) -> None:
    ended = dispatch(
        "--no-python", "-H", "localhost", "echo", "here", PBS_NODEFILE=str(tmp_path / "gone")
    )
    assert ended.returncode == 0, ended.stderr
    assert "PBS" not in ended.stderr


def test_a_stale_variable_is_no_local_run(tmp_path: Path) -> None:
    ended = dispatch("--no-python", "echo", "here", PBS_NODEFILE=str(tmp_path / "gone"))
    assert ended.returncode == 2
    assert "PBS_NODEFILE" in ended.stderr
    assert "here" not in ended.stdout


def test_flux_is_asked(tmp_path: Path) -> None:
    told = tmp_path / "flux"
    told.write_text("#!/bin/sh\n[ \"$*\" = 'getattr hostlist' ] && echo localhost\n")
    told.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = dispatch("--no-python", "echo", "here", FLUX_URI="local:///x", PATH=path)
    assert ended.returncode == 0, ended.stderr
    assert "note: hosts of Flux" in ended.stderr


def test_flux_that_fails_says_why(tmp_path: Path) -> None:
    told = tmp_path / "flux"
    told.write_text("#!/bin/sh\necho 'flux: cannot connect' >&2; exit 3\n")
    told.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = dispatch("--no-python", "echo", "here", FLUX_URI="local:///x", PATH=path)
    assert ended.returncode == 2
    assert "flux: cannot connect" in ended.stderr
