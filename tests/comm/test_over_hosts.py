"""The same over real hosts, started by hydra through ssh: addresses, interfaces, names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rig import Cluster

RANK = str(Path(__file__).with_name("over_hosts.py"))

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_ranks")]


def command(mpi: str, hosts: str, each: int, *arguments: str) -> list[str]:
    count = str(each * len(hosts.split(",")))
    return [mpi, "-hosts", hosts, "-ppn", str(each), "-n", count, sys.executable, RANK, *arguments]


def test_ranks_of_two_hosts_meet_and_hear_of_a_group_over_both(cluster: Cluster, mpi: str) -> None:
    """Two ranks a host meet in test_under_dispatch."""
    ended = cluster.run(command(mpi, "n1,n2", 1), timeout=180)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        "0 n1 0 1 eth0 tp n1,n2 dp n1",
        "1 n2 0 1 eth0 tp n1,n2 dp n2",
    ]
    assert "CommWarning: comm: groups: tp=2: ranks 0, 1 are on n1, n2" in ended.stderr
