"""The examples run as they are, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# unbuffered, a line is two writes, and mpiexec puts another rank's between them
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
ENVIRON["OMP_NUM_THREADS"] = "1"  # threads of several ranks would wait for each other's cores


def run(mpi: str, count: int, *command: str) -> list[str]:
    ended = subprocess.run(
        [mpi, "-n", str(count), sys.executable, str(EXAMPLES / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=180,
        env=ENVIRON,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_ring(mpi: str) -> None:
    assert "the token came back as 6, right" in run(mpi, 4, "mpi_ring.py")
    assert "the token came back as 0, right" in run(mpi, 1, "mpi_ring.py")


@pytest.mark.torch
@pytest.mark.usefixtures("torch_ranks")
def test_bandwidth(mpi: str) -> None:
    lines = run(mpi, 3, "nccl_over_mpi.py", "--largest", "128K", "--repeat", "2")
    assert "# Out of bounds values : 0 OK" in lines
    assert "# Floor                : none is known for 3 x CPU on 1 hosts" in lines
    half = ["time", "algbw", "busbw", "#wrong"]  # as nccl-tests have it
    (head,) = [line.split() for line in lines if "redop" in line]
    assert head == ["#", "size", "count", "type", "redop", "root", *half, *half]
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[:5] for row in rows] == [
        ["65536", "16384", "float", "sum", "-1"],
        ["131072", "32768", "float", "sum", "-1"],
    ]
    for length, *_, us, algbw, busbw, wrong in [
        row[:1] + row[at : at + 4] for row in rows for at in (5, 9)
    ]:
        assert wrong == "0"
        assert float(algbw) == pytest.approx(int(length) / float(us) / 1e3, abs=0.02)
        assert float(busbw) == pytest.approx(float(algbw) * 4 / 3, abs=0.02)  # 2 (n-1) / n


@pytest.mark.torch
@pytest.mark.usefixtures("torch_ranks")
def test_training(mpi: str) -> None:
    lines = run(mpi, 2, "train_comm.py", "--steps", "4")
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step")]
    assert len(losses) == 2
    assert losses[1] < losses[0]


@pytest.mark.torch
@pytest.mark.usefixtures("torch_ranks")
def test_training_goes_on_where_only_rank_0_has_the_state(mpi: str, tmp_path: Path) -> None:
    def train(hosts: str, steps: int) -> list[str]:
        command: list[str] = []
        for host in hosts:
            (tmp_path / host).mkdir(exist_ok=True)
            script = str(EXAMPLES / "train_comm.py")
            words = [script, "--steps", str(steps), "--batch", "2", "--out", "topics", "--resume"]
            command += [":", "-n", "1", "-wdir", str(tmp_path / host), sys.executable, *words]
        ended = subprocess.run(
            [mpi, *command[1:]], capture_output=True, text=True, timeout=180, env=ENVIRON
        )
        assert ended.returncode == 0, ended.stderr
        return [line for line in ended.stdout.splitlines() if line.startswith(("res", "done"))]

    assert train("a", 2)[0].startswith("done: 2 steps")
    resuming, done = train("ab", 3)
    assert resuming == "resuming after step 2"
    assert done.startswith("done: 1 steps")
