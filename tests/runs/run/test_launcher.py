"""``--launcher``: ranks started by somebody else's mpirun, over hosts with real sshd."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rig import Cluster, wait_for

from ..conftest import Desk

DISPATCH = [sys.executable, "-m", "dispatcher"]
OPENMPI = shutil.which("mpirun.openmpi")

#: starts one rank a host by its agent, as Open MPI starts its daemons, and has its way with words
STAND_IN = """#!/bin/sh
if [ "$1" = --version ]; then echo 'mpirun (Open MPI) 4.1.4'; exit; fi
names= hosts=
while [ "$1" != sh ]; do
  case $1 in
  plm_rsh_agent) agent=$2; shift ;;
  -H) hosts=$(echo "$2" | tr , ' '); shift ;;
  -x) names="$names $2"; shift ;;
  esac
  shift
done
told=
for name in $names; do eval "told=\\"\\$told $name='\\$$name'\\""; done
rank=0 words="'$1' '$2' '$3' '$4' '$5' '$6' '$7'"
for host in $hosts; do
  place="OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2"
  $agent -x "${host%:*}" "env $told $place $words" || code=$?
  rank=$((rank + 1))
done
exit ${code:-0}
"""


@pytest.fixture
def mpirun(cluster: Cluster, isolated: None) -> str:
    path = Path(cluster.shared, "mpirun")
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return str(path)


def test_hosts_variables_and_code(cluster: Cluster, mpirun: str) -> None:
    state = Path(cluster.shared, "state")
    done = cluster.run(
        [
            *DISPATCH, "--launcher", mpirun, "-x", f"XDG_STATE_HOME={state}", "-x", "A=a;b $c",
            "-H", "n1,n2", "--nproc-per-node", "1", "--no-python",
            "sh", "-c", "echo $(hostname) $RANK $WORLD_SIZE $A $NODE_RANK; exit $((RANK * 7))",
        ],
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == ["n1 0 2 a;b $c", "n2 1 2 a;b $c"], done.stderr
    assert done.returncode == 7
    assert f"2 ranks on n[1-2] are left to {mpirun} (Open MPI 4.1.4)" in done.stderr
    assert not [name for name in os.listdir(state / "dispatch") if name.startswith("rsh-")]


def test_what_mpirun_leaves_behind_is_ended(cluster: Cluster, mpirun: str) -> None:
    """Its daemon there is gone, and nobody looks after what a rank had started."""
    stray = 'setsid sh -c "sleep 1000 >/dev/null 2>&1 & exit 0"; exit 3'
    done = cluster.run(
        [*DISPATCH, "--launcher", mpirun, "-H", "n1:1,n2:1", "--no-python", "sh", "-c", stray]
    )
    assert done.returncode == 3
    killed = [line for line in done.stderr.splitlines() if line.endswith(", left behind")]
    assert killed, done.stderr
    assert all(re.match(r"note: n(\[1-2\]|[12]): killed", line) for line in killed)
    wait_for(lambda: not cluster.on_hosts(), 20, lambda: f"idle; there is {cluster.on_hosts()}")


@pytest.mark.skipif(OPENMPI is None, reason="no Open MPI here")
def test_open_mpi_itself(cluster: Cluster, isolated: None) -> None:
    done = cluster.run(
        [
            *DISPATCH, "--launcher", str(OPENMPI), "-H", "n[1-2]:2", "-x", "A=b", "--no-python",
            "sh", "-c", "echo $(hostname) $RANK $LOCAL_RANK $A",
        ],
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = sorted(re.sub(r"\[1,(\d)\]<stdout>:", "", line) for line in done.stdout.split("\n"))
    assert said == ["", "n1 0 0 b", "n1 1 1 b", "n2 2 0 b", "n2 3 1 b"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--launcher", "/no/such"], "--launcher /no/such: not found on this machine"),
        (["--launcher", "true"], "neither Open MPI's, MPICH's nor Intel MPI's mpirun"),
        (["--launcher", "true", "--rank0"], "--rank0: dispatch does not know whose line"),
        (["--launcher", "true", "--label", "host"], "--label host: mpirun labels by rank"),
    ],
)
def test_bad_input(desk: Desk, words: list[str], why: str) -> None:
    done = desk.run(*words, "-H", "localhost:2", "--no-python", "true")
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr


def test_a_dry_run_shows_its_words(desk: Desk) -> None:
    stand_in = desk.folder / "mpirun"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    where = ("-H", "localhost:2", "--dry-run", "--no-python", "hello")
    done = desk.run("--launcher", "./mpirun", *where)
    assert f"{stand_in} --mca plm_rsh_agent" in done.stdout
    assert subprocess.list2cmdline(["-H", "localhost:2"]) in done.stdout
