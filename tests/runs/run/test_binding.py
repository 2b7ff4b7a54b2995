"""Ranks run on the CPUs that they were promised; a machine of two NUMA nodes is played for them.

In a mount namespace of its own the run finds that machine's sysfs and its driver's proc files over
the real ones; its two CPUs are this machine's, so that the ranks can really be bound.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from numa_machines import SMALL, with_idle_node

from ..conftest import Desk

SHOW = ("--no-python", "sh", "-c", "grep -o 'Cpus_allowed_list.*' /proc/self/status; "
        "echo OMP $OMP_NUM_THREADS")  # fmt: skip
COVERED = ("sys/devices/system/node", "sys/bus/pci/devices", "proc/driver")


def on(machine_root: Path, desk: Desk, *words: str) -> subprocess.CompletedProcess[str]:
    """``dispatch`` of two local ranks on the machine whose files are below the folder."""
    mounts = "".join(f"mount --bind {machine_root}/{one} /{one} && " for one in COVERED)
    argv = [os.fsdecode(word) for word in desk.argv("-H", "localhost:2", "-v", *words, *SHOW)]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh", *argv],
        cwd=desk.folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts over the machine's own files")
def test_ranks_run_beside_their_gpus(desk: Desk, tmp_path: Path) -> None:
    if not shutil.which("unshare") or not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs unshare, and CPUs 0 and 1")
    SMALL.write(tmp_path / "two")
    with_idle_node(SMALL).write(tmp_path / "one")
    free = [Path("/proc/self/status").read_text().partition("allowed_list:\t")[2].split()[0]] * 2
    for root, words, cpus, told in (
        ("two", (), ("0", "1"), "rank 0 on CPU 0 of NUMA node 0; rank 1 on CPU 1 of NUMA node 1"),
        ("two", ("-x", "CUDA_VISIBLE_DEVICES=1,0"), ("1", "0"), "rank 0 on CPU 1 of NUMA node 1"),
        ("two", ("--bind-to", "none"), free, "2 ranks start"),
        ("two", ("--per-node",), free[:1], "rank 0 not bound: its GPUs are at several NUMA nodes"),
        ("one", (), ("0", "0"), "ranks 0-1 on CPU 0 of NUMA node 0"),
    ):
        done = on(tmp_path / root, desk, *words)
        assert done.returncode == 0, done.stderr
        for rank, cpu in enumerate(cpus):
            assert f"[{rank}] Cpus_allowed_list:\t{cpu}\n" in done.stdout, (root, words)
        assert told in done.stderr
    assert "[0] OMP 1\n" in done.stdout  # two ranks on one CPU


def test_nobody_leaves_the_cpus_that_dispatch_may_use(desk: Desk) -> None:
    mine = sorted(os.sched_getaffinity(0))
    for cpus, told in (
        (mine[-1:], "note: localhost: not bound: ranks 0-1: fewer cores (1) than ranks (2) at"),
        (mine[:2], "localhost: rank 0 on CPU 0 of NUMA node 0; rank 1 on CPU 1 of"),
    ):
        done = desk.run("-H", "localhost:2", "-v", "--bind-to", "core", *SHOW,
                        preexec_fn=lambda cpus=cpus: os.sched_setaffinity(0, cpus))  # fmt: skip
        assert done.returncode == 0, done.stderr
        for rank in (0, 1):
            cpu = cpus[rank % len(cpus)]
            assert f"[{rank}] Cpus_allowed_list:\t{cpu}\n" in done.stdout
        if mine[:2] == [0, 1] or "not" in told:
            assert told in done.stderr


def test_a_dry_run_tells_the_rule(desk: Desk) -> None:
    done = desk.run("-H", "localhost:2", "--dry-run", "--bind-to", "gpu", "--mem-bind", "local",
                    "--near-hca", *SHOW)  # fmt: skip
    assert "bound to    the NUMA node of its GPU, for memory too\n" in done.stdout
    assert "NCCL_IB_HCA==<those near to its GPU>\n" in done.stdout
    (desk.folder / "places").write_text("rank 0=localhost slot=0\n")
    done = desk.run("-H", "localhost:2", "--dry-run", "--rankfile", "places", *SHOW)
    assert "bound to    the CPUs that the rankfile names\n" in done.stdout
    done = desk.run("-H", "localhost:2", "--bind-to", "numa", "--per-node", *SHOW)
    assert (done.returncode, "error: --bind-to numa: with one" in done.stderr) == (2, True)
