"""The same over real hosts, started by hydra through ssh: addresses, interfaces, names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rig import Cluster

RANK = str(Path(__file__).with_name("over_hosts.py"))

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("isolated", "torch_ranks")]


def command(mpi: str, hosts: str, *arguments: str) -> list[str]:
    return [mpi, "-hosts", hosts, "-ppn", "2", "-n", "4", sys.executable, RANK, *arguments]


def test_ranks_of_two_hosts_meet(cluster: Cluster, mpi: str) -> None:
    ended = cluster.run(command(mpi, "n1,n2"), timeout=90)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        "0 n1 0 2 eth0 tp n1 dp n1,n2",
        "1 n1 1 2 eth0 tp n1 dp n1,n2",
        "2 n2 0 2 eth0 tp n2 dp n1,n2",
        "3 n2 1 2 eth0 tp n2 dp n1,n2",
    ]


def test_a_missing_rank_is_on_the_host_of_its_neighbour(cluster: Cluster, mpi: str) -> None:
    ended = cluster.run(command(mpi, "n1,n2", "3"), timeout=60)
    assert ended.returncode != 0
    assert "rank 2 on n2: roll call: rank 3 on n2 did not come within 1 s" in ended.stderr


def test_tensor_groups_over_hosts_are_pointed_at(cluster: Cluster, mpi: str) -> None:
    line = [mpi, "-hosts", "n1,n2,n3,n4", "-ppn", "1", "-n", "4", sys.executable, RANK]
    ended = cluster.run(line, timeout=90)
    assert ended.returncode == 0, ended.stderr
    assert "CommWarning: comm: groups: tp=2: ranks 0, 1 are on n1, n2" in ended.stderr
