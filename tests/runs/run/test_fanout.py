"""``--fanout-tree``: a run like any other, over hosts that are reached through hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import promises
from rig import Cluster, wait_for

DISPATCH = [sys.executable, "-m", "dispatcher"]
RING = str(Path(__file__).parents[3] / "examples" / "mpi_ring.py")


def test_seven_hosts_meet_in_mpi(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(7)
    words = [*DISPATCH, "-v", "--fanout-tree=2", "--connect-timeout", "60", "-H", "n[1-7]",
             RING]  # fmt: skip
    done = cluster.run(words)
    assert done.returncode == 0, done.stderr
    assert "the token came back as 21, right" in done.stdout
    assert sum(line.endswith(" by tree") for line in done.stderr.splitlines()) == 7
    wait_for(lambda: not cluster.processes(), 30, lambda: f"idle, not {cluster.processes()}")


def test_who_opens_whom_is_told_before_any_host_is_touched(cluster: Cluster) -> None:
    words = [*DISPATCH, "--fanout-tree=2", "-H", "n[1-4]", "--dry-run", "train.py"]
    shown = cluster.run(words).stdout
    assert "tree        2 levels; from here n[1,3]" in shown
    assert "n3 opens n4" in shown
    shown = cluster.run([*words[:-1], "--json", "train.py"]).stdout
    assert promises.told(shown)["parents"] == {"n2": "n1", "n4": "n3"}


def test_a_host_its_parent_cannot_reach_is_connected_from_here(cluster: Cluster) -> None:
    key = os.path.expanduser("~/.ssh/id_ed25519")
    cluster.run(["mount", "--bind", "/dev/null", key], "n1", root=True, check=True)
    try:
        done = cluster.run([*DISPATCH, "exec", "--fanout-tree=2", "-w", "n[1-4]", "--", "hostname"])
    finally:
        cluster.run(["umount", key], "n1", root=True, check=True)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()[1::2]) == ["n1", "n2", "n3", "n4"]
    assert "note: n2: connected from here, not through n1: ssh says: " in done.stderr
    assert "hint: ssh n1 ssh n2 true" in done.stderr


def test_an_inner_host_believes_the_keys_that_are_known_here(
    cluster: Cluster, tmp_path: Path
) -> None:
    own = Path("~/.ssh/known_hosts").expanduser()
    lines = cluster.run(["cat", str(own)]).stdout.splitlines()
    keys = {host: line.split()[1:3] for line in lines for host in line.split()[0].split(",")}
    known = tmp_path / "known"
    keys["n2"] = keys["n3"]
    known.write_text("".join(f"{host} {' '.join(key)}\n" for host, key in keys.items()))
    config = tmp_path / "config"
    config.write_text(f"UserKnownHostsFile {known}\nGlobalKnownHostsFile none\n")
    done = cluster.run([
        *DISPATCH, "exec", "-F", str(config), "--fanout-tree=2", "-w", "n[1-4]", "--", "hostname",
    ])  # fmt: skip
    assert done.returncode == 125
    assert sorted(done.stdout.split()[1::2]) == ["n1", "n3", "n4"]
    assert "note: n2: connected from here, not through n1: ssh says: " in done.stderr
    assert "n2  host key changed" in done.stderr


def test_a_lost_inner_host_is_to_blame(cluster: Cluster) -> None:
    with cluster.popen(
        [*DISPATCH, "--fanout-tree=2", "-H", "n[1-4]:1", "--no-python", "sh", "-c",
         "echo up; exec sleep 1000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        for _ in range(4):
            assert run.stdout.readline().endswith("up\n")
        ssh = cluster.run(["pgrep", "-x", "ssh"], "n3", check=True).stdout.split()
        assert len(ssh) == 1
        relay = cluster.run(["ps", "-o", "ppid=", "-p", ssh[0]], "n3", check=True).stdout.strip()
        cluster.run(["kill", f"-{signal.SIGKILL.value}", relay], "n3", check=True)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 125
    lines = errors.splitlines()
    # whoever of the two is missed first, the inner host is named
    through = "host lost: n3, through which it was reached, is gone: its relay was killed"
    ways = f"error: n4 (rank 3): {through}", "error: n3 (rank 2): host lost: its relay was killed"
    assert lines[0].startswith(ways)


def test_where_there_can_be_no_tree(cluster: Cluster) -> None:
    for words in (
        ["--fanout-tree=1"],
        ["--fanout-tree", "--rsh", "ssh"],
        ["exec", "--fanout-tree", "--pty"],
        ["exec", "--fanout-tree", "--keep"],
    ):
        done = cluster.run([*DISPATCH, *words, "-H", "n[1-4]", "train.py"])
        assert done.returncode == 2
        assert "--fanout-tree" in done.stderr
