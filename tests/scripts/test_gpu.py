"""scripts/gpu: its table with stand-ins, what is kept, and that a surprise is one."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import rig  # noqa: F401 - puts scripts/ on the path
from cases import cases
from gpu import place
from gpu.__main__ import _numbers

ROOT = Path(__file__).parents[2]
GPU = ROOT / "scripts" / "gpu"


def rehearse(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(GPU), *words], capture_output=True, text=True, timeout=200,
        env={**os.environ, **env},
    )  # fmt: skip


@pytest.mark.torch
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("mpich")
def test_the_table_with_stand_ins(tmp_path: Path) -> None:
    """Three steps by nvidia-smi, two ranks over MPI, and NVML that is not there."""
    pytest.importorskip("torch")
    keep = tmp_path / "kept"
    done = rehearse("--stand-ins", "--keep", str(keep), "--only", "1,2,5,11")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines if line[:1].isalpha()][:4] == [
        ["ok", "1."], ["ok", "2."], ["ok", "5."], ["unseen", "11."],
    ]  # fmt: skip
    assert "3 ok, 0 SURPRISE, 1 unseen (11); " in done.stdout
    assert (keep / "table.txt").read_text().splitlines() == lines[:-1]
    assert (tmp_path / "kept.txt").read_text().splitlines() == lines[:-1]
    assert lines[-1] == f"kept in {tmp_path}/kept.tar.gz"
    with tarfile.open(tmp_path / "kept.tar.gz") as kept:
        assert "kept/nvidia-smi/codes" in kept.getnames()
    assert "Link 17: 26.562 GB/s" in (keep / "nvidia-smi" / "nvlink_-s.txt").read_text()
    assert "0: nvidia-smi -q -x\n" in (keep / "nvidia-smi" / "codes").read_text()


def test_a_nvidia_smi_that_fails_is_a_surprise(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\n"
                   "exit 18\n")  # fmt: skip
    smi.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = rehearse("--only", "1", "--keep", str(tmp_path / "kept"), PATH=path)
    assert done.returncode == 1, done.stdout
    assert done.stdout.startswith("SURPRISE  1. ")
    assert "not -L: exit 18" in done.stdout


def test_without_a_gpu_there_is_no_table(tmp_path: Path) -> None:
    done = rehearse("--keep", str(tmp_path / "kept"), PATH="/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nvidia-smi: not found" in done.stderr


@cases(
    ("text", "well"),
    [("fine\n", True), ("terminate called after throwing\n", False), ("ImportError: x\n", False)],
)
def test_what_breaks_behind_a_good_exit_code(text: str, well: bool) -> None:
    done = place.Done(0, text, 1.0)
    if well:
        assert done.well() is done
        return
    with pytest.raises(place.Surprise, match="a quiet end"):
        done.well()


@cases(("cpus", "numbers"), [("3", {3}), ("0-2,8", {0, 1, 2, 8}), ("0-1,4-5", {0, 1, 4, 5})])
def test_lists_of_cpus(cpus: str, numbers: set[int]) -> None:
    assert _numbers(cpus) == numbers


def test_what_is_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the wheels, which come from the index."""
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: asked.append(argv))
    folder = tmp_path / "carried"
    assert place.pack(folder, "3.12") == "python3 carried/scripts/gpu --keep carried-kept"
    assert asked[0][-len(place.CARRIED) :] == list(place.CARRIED)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert {"scripts/gpu/__main__.py", "scripts/gpu/ranks.py", "examples/train_comm.py"} <= there
    assert {"dispatcher/remote/agent/main.py", "wheels"} <= there
    assert not [name for name in there if "__pycache__" in name]
    (folder / "wheels" / "old.whl").touch()
    place.pack(folder, "3.12")  # its own folder is made anew
    assert not (folder / "wheels" / "old.whl").exists()


def test_a_folder_that_somebody_else_filled_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(place.Impossible, match="not empty, and not made by --pack"):
        place.pack(tmp_path, "3.12")
    assert (tmp_path / "thesis.tex").exists()
