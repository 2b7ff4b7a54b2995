"""``put --fanout-tree``: hosts pass files on, and whom they cannot serve is served from here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import promises
import pytest
from rig import Cluster

from dispatcher.remote.protocol.copy_frames import host_branches

DISPATCH = [sys.executable, "-m", "dispatcher"]
THERE = "/tmp/by-tree"
WHERE = ("-t", "60", "-w", "n[1-4]")

rig = pytest.mark.usefixtures("_swept")


@pytest.mark.parametrize(
    ("hosts", "branches", "runs"),
    [
        (0, 3, []),
        (2, 3, ["0", "1"]),
        (7, 3, ["01", "23", "456"]),
        (4, 1, ["0123"]),
    ],
)
def test_branches_are_of_nearly_equal_length(hosts: int, branches: int, runs: list[str]) -> None:
    assert host_branches(list(range(hosts)), branches) == [[int(n) for n in run] for run in runs]


@pytest.fixture
def _swept(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.run([*DISPATCH, "exec", *WHERE, "--", "rm", "-rf", THERE])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "sub").mkdir(parents=True)
    (top / "big").write_bytes(os.urandom(5 << 20))
    for i in range(20):
        (top / "sub" / str(i)).write_text(str(i))
    (top / "link").symlink_to("big")
    return top


def put(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run([*DISPATCH, "put", "-v", *WHERE, *words, f"{THERE}/"])


def sums(cluster: Cluster) -> set[str]:
    """One text a different state of the hosts."""
    text = f"cd {THERE} && find . -type f -exec sha256sum {{}} + | sort; readlink */link"
    done = cluster.run([*DISPATCH, "exec", "-N", "--json", *WHERE, "--shell", text])
    assert done.returncode == 0
    return {promises.told(line)["stdout"] for line in done.stdout.splitlines()}


def contacted(done: subprocess.CompletedProcess[str]) -> set[str]:
    return {line.split()[3][:-1] for line in done.stderr.splitlines() if "connected to" in line}


@rig
@pytest.mark.parametrize(("branches", "heads"), [("=1", {"n1"}), ("=2", {"n1", "n3"})])
def test_bytes_leave_here_once_a_branch(
    cluster: Cluster, tree: Path, branches: str, heads: set[str]
) -> None:
    done = put(cluster, f"--fanout-tree{branches}", str(tree))
    assert done.returncode == 0, done.stderr
    assert contacted(done) == heads
    assert "n[1-4]: 21 files sent, 0 equal" in done.stderr
    assert len(sums(cluster)) == 1
    done = put(cluster, f"--fanout-tree{branches}", str(tree))
    assert "n[1-4]: 0 files sent, 21 equal; 0 B in" in done.stderr


@rig
def test_whom_its_parent_cannot_reach_is_served_from_here(cluster: Cluster, tree: Path) -> None:
    known = os.path.expanduser("~/.ssh/known_hosts")
    cluster.run(["mount", "--bind", "/dev/null", known], "n1", root=True, check=True)
    try:
        done = put(cluster, "--fanout-tree=2", str(tree))
    finally:
        cluster.run(["umount", known], "n1", root=True, check=True)
    assert done.returncode == 0, done.stderr
    assert contacted(done) == {"n1", "n2", "n3"}
    assert "note: n2: served from here: Host key verification failed" in done.stderr
    assert "n[1-4]: 21 files sent, 0 equal" in done.stderr
    assert len(sums(cluster)) == 1


@rig
def test_a_parent_cannot_pass_on_what_the_root_does_not_have(cluster: Cluster, tree: Path) -> None:
    put(cluster, str(tree))
    file = f"{THERE}/tree/sub/7"
    cluster.run(["sh", "-c", f"touch -r {file} /tmp/t; echo -n X > {file}; touch -r /tmp/t {file}"],
                "n1", check=True)  # fmt: skip
    for host in ("n2", "n3", "n4"):
        cluster.run(["rm", file], host, check=True)
    done = put(cluster, "--fanout-tree=1", str(tree))
    assert done.returncode == 0, done.stderr
    assert "came damaged" in done.stderr
    for host in ("n2", "n3", "n4"):
        assert cluster.run(["cat", file], host).stdout == "7"


@rig
def test_a_full_disk_in_the_middle(cluster: Cluster, tree: Path) -> None:
    mount = f"mkdir -p {THERE} && mount -t tmpfs -o size=2m none {THERE}"
    cluster.run(["sh", "-c", mount], "n2", root=True, check=True)
    try:
        done = put(cluster, "--fanout-tree=1", str(tree))
        left = cluster.run(["ls", "-A", THERE], "n2").stdout
    finally:
        cluster.run(["umount", THERE], "n2", root=True, check=True)
    assert done.returncode == 1
    assert "error: 1 of 4 hosts failed" in done.stderr
    assert "no space left on device" in done.stderr
    assert "n[1,3-4]: 21 files" in done.stderr
    assert left == ""


def test_what_a_tree_cannot_do(tmp_path: Path) -> None:
    (tmp_path / "a-n1").touch()
    (tmp_path / "a-n2").touch()
    for words in (
        ["-w", "n1,n2", f"{tmp_path}/a-{{host}}"],
        ["-w", "n1,localhost", f"{tmp_path}/a-n1"],
        ["-w", "n1,n2", "--fanout-tree=0", f"{tmp_path}/a-n1"],
        ["-w", "n1,n2", "--serial", "1", f"{tmp_path}/a-n1"],
    ):
        done = subprocess.run(
            [*DISPATCH, "put", "--fanout-tree", *words, "/tmp/"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "--fanout-tree" in done.stderr
