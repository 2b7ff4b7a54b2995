"""dispatch inside real Slurm jobs, over SSH and over srun: slurmctld, one slurmd a host, munge."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import Cluster, wait_for

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "salloc", "srun")
DISPATCH = [sys.executable, "-m", "dispatcher"]
SLEEP = "86399"  # seconds; also how we know our ranks

CONFIGURATION = """
ClusterName=rig
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge.socket
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/ctld.pid
SlurmdPidFile=/run/slurm/d.pid
SlurmctldLogFile=/run/slurm/ctld.log
SlurmdLogFile=/run/slurm/d.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=2
NodeName=n[1-3] CPUs=4 CoresPerSocket=4 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """A cluster of three hosts under Slurm."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = Path(cluster.shared)
        self.environ = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        (self.folder / "slurm.conf").write_text(CONFIGURATION)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for host in ("login", *cluster.hosts):
            slurm = "slurmctld" if host == "login" else f"slurmd -N {host}"
            self.run(
                "sh", "-ec", "mkdir -p /run/slurm/state /run/slurm/spool; "
                f"munged --force --key-file={key} --socket=/run/munge.socket"
                " --pid-file=/run/munged.pid --log-file=/run/munged.log"
                f" --seed-file=/run/munge.seed; {slurm}",
                host=host,
            )  # fmt: skip
        wait_for(self.is_idle, 60, "Slurm's nodes are idle")

    def run(
        self, *argv: str, host: str = "login", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(list(argv), host, env=self.environ, check=check, timeout=60)

    def is_idle(self) -> bool:
        """False too while there is nobody to ask: slurmctld may not listen yet."""
        told = self.run("sinfo", "-h", "-o", "%T %D", check=False)
        return bool(told.stdout.split() == ["idle", "3"])

    def batch(self, text: str, *options: str) -> tuple[int, str]:
        """Exit code and output of a batch script, on the nodes of ``options``."""
        script, output = self.folder / "job.sh", self.folder / "job.out"
        script.write_text(f"#!/bin/sh\ncd {os.getcwd()}\n{text}\necho ended with $?\n")
        output.unlink(missing_ok=True)
        self.run("sbatch", "-o", str(output), *options, str(script))

        def ended() -> re.Match[str] | None:  # sbatch --wait looks every ten seconds only
            return re.search(r"ended with (\d+)\n", output.read_text() if output.exists() else "")

        found = wait_for(ended, 120, "the batch script has ended")
        assert found is not None
        return int(found[1]), output.read_text()

    def ranks(self) -> list[tuple[str, int, str]]:
        return [found for found in self.cluster.on_hosts() if f"sleep {SLEEP}" in found[2]]


@pytest.fixture(scope="module")
def slurm(rig: None) -> Iterator[Slurm]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs slurm-wlm and munge: no {missing[0]}")
    if os.getuid() != 0:
        pytest.skip("needs root: Slurm's daemons are to start jobs of others")
    with Cluster(3) as cluster:
        yield Slurm(cluster)


@pytest.mark.parametrize("transport", ["auto", "slurm"])
def test_a_batch_job(slurm: Slurm, transport: str) -> None:
    line = " ".join([*DISPATCH, "--transport", transport, "--no-python"])
    code, output = slurm.batch(
        f"{line} sh -c 'echo $(hostname) $RANK of $WORLD_SIZE ${{SLURM_PROCID-}}'\n"
        f"{line} sh -c 'exit $((RANK == 3 ? 7 : 0))'",
        "--nodes=3", "--ntasks-per-node=2",
    )  # fmt: skip
    assert code == 7
    assert "n[1-3], 2 slots each (SLURM_TASKS_PER_NODE)" in output
    for rank in range(6):
        assert f"[{rank}] n{rank // 2 + 1} {rank} of 6\n" in output.replace(" \n", "\n")
    assert "rank 3 on n2" in output


@pytest.mark.parametrize("asked", ["--ntasks-per-node=1", "--exclusive"])
def test_one_task_a_node_is_a_slot_per_gpu_or_one(slurm: Slurm, asked: str) -> None:
    code, output = slurm.batch(
        " ".join([*DISPATCH, "--no-python", "hostname"]), "--nodes=2", "--nodelist=n[2-3]", asked
    )
    assert code == 0
    assert "n[2-3], a slot per GPU" in output
    assert {line for line in output.splitlines() if line[:1] == "["} == {"[0] n2", "[1] n3"}


def test_mpi_over_srun(slurm: Slurm) -> None:
    pytest.importorskip("mpi4py")
    program = (
        "from mpi4py import MPI; import sys\n"
        "world = MPI.COMM_WORLD\n"
        "total = world.allreduce(world.rank)\n"
        "sys.stdout.write(f'sum {total} of {world.size}\\n')\n"
    )
    (slurm.folder / "sum.py").write_text(program)
    code, output = slurm.batch(
        f"export MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp; "
        f"{' '.join(DISPATCH)} --transport slurm {slurm.folder}/sum.py",
        "--nodes=2", "--ntasks-per-node=2",
    )  # fmt: skip
    assert code == 0, output
    assert output.count("sum 6 of 4") == 4


def test_srun_must_not_start_it_once_a_task(slurm: Slurm) -> None:
    done = slurm.run("srun", "-N2", "-n2", *DISPATCH, "--no-python", "true", check=False)
    assert done.returncode == 2
    assert "srun started dispatch 2 times: once is enough" in done.stderr


def test_srun_may_start_it_as_one_task(slurm: Slurm) -> None:
    done = slurm.run("salloc", "-N2", "srun", "-N1", "-n1", *DISPATCH, "hosts")
    assert "n[1-2], a slot per GPU" in done.stderr


@pytest.mark.parametrize("end", ["killed", "cancelled"])
def test_nothing_is_left(slurm: Slurm, end: str) -> None:
    line = [*DISPATCH, "--transport", "slurm", "--no-python", "sleep", SLEEP]
    with slurm.cluster.popen(
        ["salloc", "-N3", "--ntasks-per-node=2", "-J", end, *line],
        env=slurm.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        wait_for(lambda: len(slurm.ranks()) == 6, 60, "six ranks run")
        if end == "killed":
            launcher = next(
                found.pid
                for found in slurm.cluster.census(["login"])
                if "dispatcher" in found.command and "salloc" not in found.command
            )
            slurm.cluster.signal("login", launcher, signal.SIGKILL)
        else:
            slurm.run("scancel", "-n", end)  # not what may still be completing of another test's
        wait_for(lambda: not slurm.ranks(), 60, lambda: f"no rank is left of {slurm.ranks()}")
        process.wait(60)
    wait_for(slurm.is_idle, 60, "Slurm's nodes are idle again")
