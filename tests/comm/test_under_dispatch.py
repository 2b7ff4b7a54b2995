"""Under dispatch itself: no mpirun anywhere, and the verdict names what the ranks named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rig import Cluster

RANK = str(Path(__file__).with_name("over_hosts.py"))
NCCL = (
    "import dispatcher.comm as comm; comm.mpi._TOGETHER = 20;"
    " comm.init(device='cpu').nccl_communicator()"
)
EXIT = """
import sys
import dispatcher.comm as comm
with comm.init(device='cpu') as job:
    if job.rank == 2:
        sys.exit(3)
    job.mpi.Barrier()
"""

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_ranks")]


def dispatch(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "dispatcher", "-H", "n1:2,n2:2", *words]
    return cluster.run(line, cwd=cluster.shared, timeout=180)


def test_ranks_of_two_hosts_meet(cluster: Cluster) -> None:
    ended = dispatch(cluster, RANK)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        "[0] 0 n1 0 2 eth0 tp n1 dp n1,n2",
        "[1] 1 n1 1 2 eth0 tp n1 dp n1,n2",
        "[2] 2 n2 0 2 eth0 tp n2 dp n1,n2",
        "[3] 3 n2 1 2 eth0 tp n2 dp n1,n2",
    ]


def test_a_missing_rank_ends_the_run(cluster: Cluster) -> None:
    ended = dispatch(cluster, RANK, "3")
    assert ended.returncode == 1
    assert "rank 2 on n2: roll call: rank 3 on n2 did not come within 8 s" in ended.stderr


@pytest.mark.usefixtures("nccl")
def test_a_wrong_interface_ends_all_with_nccls_reason(cluster: Cluster) -> None:
    words = ("-x", "NCCL_SOCKET_IFNAME==nosuch0", "--no-python", sys.executable, "-c", NCCL)
    ended = dispatch(cluster, *words)
    assert ended.returncode == 1
    why = "rank 0 on n1: nccl: ncclGetUniqueId"
    for rank in range(4):
        said = [line for line in ended.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        assert any(why in line and "no socket interface" in line for line in said), ended.stderr


def test_the_exit_code_is_the_ranks_own(cluster: Cluster) -> None:
    ended = dispatch(cluster, "--no-python", sys.executable, "-c", EXIT)
    assert ended.returncode == 3
    assert "rank 2 on n2: called MPI_Abort(3)" in ended.stderr
