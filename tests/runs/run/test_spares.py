"""Lost hosts and what follows: spares, smaller worlds, hosts that come back; over real sshd."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rig import Cluster, wait_for

DISPATCH = [sys.executable, "-m", "dispatcher"]

#: a host that was given up is waited for until its ranks are surely dead: 9.5 s with these; who
#: does not run for a while on a busy machine is not given up
FAST = ("--heartbeat", "2", "--lease", "8", "--grace", "2", "--connect-timeout", "20")

#: says where it is, and ends when a restarted one is told to
RANK = (
    "echo $RANK/$WORLD_SIZE $(hostname) $NODE_RANK $TORCHELASTIC_RESTART_COUNT; "
    'while [ $TORCHELASTIC_RESTART_COUNT = 0 ] || [ ! -e "$GO" ]; do sleep 0.1; done'
)


def start(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    go = f"GO={cluster.shared}/go"
    return cluster.popen(
        [*DISPATCH, *FAST, "--label", "none", "-x", go, *words, "--no-python", "sh", "-c", RANK],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def lines(run: subprocess.Popen[str], count: int) -> list[str]:
    assert run.stdout is not None
    return sorted(run.stdout.readline().strip() for _ in range(count))


def test_a_cut_host_is_replaced_or_done_without(new_cluster: Callable[..., Cluster]) -> None:
    """Two runs at once: one has a spare, the other may shrink; then the host comes back."""
    cluster = new_cluster(4)
    logs = Path(cluster.shared) / "logs"
    spared = start(
        cluster, "--max-restarts", "1", "--spares", "1", "--log-dir", str(logs),
        "-H", "n1:1,n2:2,n3:1,n4:2",
    )  # fmt: skip
    shrunk = start(
        cluster, "--max-restarts", "1", "--min-nodes", "2", "-H", "n1:1,n2:2,n3:1"
    )  # fmt: skip
    with spared, shrunk:
        first = ["0/4 n1 0 0", "1/4 n2 1 0", "2/4 n2 1 0", "3/4 n3 2 0"]
        assert lines(spared, 4) == lines(shrunk, 4) == first
        cluster.cut("n2")
        # the same ranks on the spare; ranks numbered anew on the hosts that are left
        assert lines(spared, 4) == ["0/4 n1 0 1", "1/4 n4 1 1", "2/4 n4 1 1", "3/4 n3 2 1"]
        assert not cluster.processes("n2")  # the old ranks died before the new ones began
        assert lines(shrunk, 2) == ["0/2 n1 0 1", "1/2 n3 1 1"]
        cluster.mend("n2")
        (Path(cluster.shared) / "go").touch()
        assert spared.wait(timeout=60) == 0
        assert shrunk.wait(timeout=60) == 0
        assert spared.stderr is not None
        assert shrunk.stderr is not None
        said, told = spared.stderr.read(), shrunk.stderr.read()
    # a launcher that did not run for a while listens longer for a heartbeat, and then hears sooner
    # from the kernel that nothing is acknowledged; and of the 9.5 s it waits for what is left, if
    # anything is, when the other ranks have ended
    lost = r"(host lost: no heartbeat for 8 s|unreachable: no answer for 6 s)"
    assert re.search(rf"note: n2: {lost}; restart 1 of 1( in ([1-9]|10) s)?\n", said), said
    assert re.search(rf"note: n4 takes the place of n2 with ranks 1-2 \({lost}\)", said), said
    assert "note: 2 hosts and 2 ranks go on: n1:1, n3:1" in told
    report = json.loads((logs / "latest/report.json").read_text())
    (attempt,) = report["attempts"]
    assert re.fullmatch(f"n2: {lost}", attempt["what"])
    assert list(report["left_out"]) == ["n2"]
    wait_for(lambda: not cluster.on_hosts(), 30, "the hosts are idle")


def test_without_a_spare_the_verdict_is_clear(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(2)
    run = start(cluster, "--max-restarts", "3", "-H", "n[1-2]:1")
    with run:
        lines(run, 2)
        cluster.power_off("n2")
        assert run.wait(timeout=60) == 125
        assert run.stderr is not None
        said = run.stderr.read()
    assert (
        "note: not started again: no host can take the place of n2 (--spares N keeps some ready)\n"
        in said
    )
    assert re.search(r"error: n2 \(rank 1\): (host lost|unreachable): ", said), said
    wait_for(lambda: not cluster.processes("n1"), 20, "n1 is idle")


def test_a_host_that_is_down_is_replaced_before_the_start(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster(3)
    cluster.power_off("n2")
    hostfile = Path(cluster.shared) / "hosts"
    hostfile.write_text("n3 slots=2 spare\nn1 slots=2\nn2 slots=2\n")
    run = cluster.run(
        [
            *DISPATCH, *FAST, "--label", "none", "-H", str(hostfile), "--no-python",
            "sh", "-c", "echo $RANK $(hostname) $TORCHELASTIC_RESTART_COUNT",
        ]
    )  # fmt: skip
    assert run.returncode == 0
    assert sorted(run.stdout.splitlines()) == ["0 n1 0", "1 n1 0", "2 n3 0", "3 n3 0"]
    assert "note: n3 takes the place of n2 with ranks 2-3 (" in run.stderr


def test_mpi_meets_again_on_other_hosts(new_cluster: Callable[..., Cluster]) -> None:
    """The first host of the two is left: MASTER_ADDR, port and key space all move."""
    cluster = new_cluster(3)
    logs = Path(cluster.shared) / "logs"
    program = Path(cluster.shared) / "ring.py"
    program.write_text(
        "import glob, json, os, socket, time\n"
        "from mpi4py import MPI\n"
        "def ready(line):\n"
        "    event = json.loads(line)\n"
        "    return event['name'] == 'node.ready' and event['context']['node'] == 2\n"
        "world = MPI.COMM_WORLD\n"
        "print(world.allreduce(1), os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "if socket.gethostname() == 'n1':\n"
        f"    (journal,) = glob.glob('{logs}/2*/dispatch.jsonl')\n"
        "    while not any(map(ready, open(journal).read().split('\\n')[:-1])):\n"
        "        time.sleep(0.1)\n"  # a spare that is late has nobody's place
        "    os._exit(7)\n"
        "world.barrier()\n"
    )
    run = cluster.run(
        [
            *DISPATCH, *FAST, "--label", "none", "--max-restarts", "1", "--max-host-failures", "1",
            "-x", "MPIR_CVAR_CH4_NETMOD=ofi", "-x", "FI_PROVIDER=tcp", "--log-dir", str(logs),
            "-H", "n[1-3]:1", "--spares", "1", str(program),
        ]
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines().count("2 1") == 2
    assert "note: n3 takes the place of n1 with rank 0 (1 attempt ended there)" in run.stderr
