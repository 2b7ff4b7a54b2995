"""One process a host: ``--per-node`` with its placeholders, and torchrun by ``--launcher``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rig import Cluster

DISPATCH = [sys.executable, "-m", "dispatcher"]

TRAIN = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
sys.stdout.write(f"sum {total.item():.0f} of {dist.get_world_size()} {sys.argv[1:]}\\n")
dist.destroy_process_group()
"""


def run(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run([*DISPATCH, *words])


def test_every_host_is_told_its_place(cluster: Cluster) -> None:
    said = "{node_rank}/{nnodes} {host} of {nproc_per_node} first {is_first_node} {other} $0"
    done = run(
        cluster, "-H", "n1:2,n2:3", "--per-node", "--no-python", "sh", "-c",
        f'echo "{said} ${{OMP_NUM_THREADS-free}} ${{PMI_RANK-none}}" $NNODES $NODE_RANK '
        "$NPROC_PER_NODE", "{master_port}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert len(lines) == 2
    assert lines[0].startswith("[0] 0/2 n1 of 2 first 1 {other} ")
    assert lines[1].startswith("[1] 1/2 n2 of 3 first 0 {other} ")
    ports = {line.split()[-6] for line in lines}
    assert len(ports) == 1
    assert ports.pop().isdigit()
    assert lines[0].endswith(" free none 2 0 2")
    assert lines[1].endswith(" free none 2 1 3")


def test_placeholders_are_only_for_those_who_ask(cluster: Cluster) -> None:
    done = run(cluster, "-H", "n1", "--no-python", "echo", "{node_rank}")
    assert done.stdout == "[0] {node_rank}\n"


def test_numbers_that_contradict(cluster: Cluster) -> None:
    done = run(cluster, "-H", "n1", "--per-node", "--nproc-per-node", "2", "--no-python", "true")
    assert done.returncode == 2
    assert "excludes --nproc-per-node" in done.stderr


def test_torchrun_meets_by_itself(cluster: Cluster) -> None:
    pytest.importorskip("torch")
    script = Path(cluster.shared, "train.py")
    script.write_text(TRAIN)
    done = run(cluster, "-H", "n[1-2]", "--launcher", "torchrun", str(script), "--lr", "{lr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 3 of 2 ['--lr', '{lr}']\n") == 2
