"""Runs over real sshd: four hosts with a network, a process table and a /tmp of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import Cluster, wait_for

DISPATCH = [sys.executable, "-m", "dispatcher"]
UP = "echo up; exec sleep 1000"
#: seconds that a loaded machine may take beyond a bound
SLACK = 12.0
EXAMPLES = str(Path(__file__).parents[3] / "examples")


@pytest.fixture(params=["paramiko", "ssh"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def started(cluster: Cluster) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``started(*words)`` starts dispatch on ``login``; whatever is left of it is ended after."""
    runs: list[subprocess.Popen[str]] = []

    def start(*words: str, **options: Any) -> subprocess.Popen[str]:
        run = cluster.popen(
            [*DISPATCH, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.kill()
        run.wait(timeout=30)
        for stream in (run.stdout, run.stderr):
            if stream is not None:
                stream.close()


def dispatch(cluster: Cluster, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return cluster.run([*DISPATCH, *words], **options)


def first_lines(run: subprocess.Popen[str], count: int) -> list[str]:
    assert run.stdout is not None
    return sorted(run.stdout.readline() for _ in range(count))


def clean(cluster: Cluster, limit: float) -> None:
    """Waits ``limit`` seconds, and a loaded machine's time, until no process but the rig's own is
    left on any host.
    """
    wait_for(
        lambda: not cluster.on_hosts(),
        limit + SLACK,
        lambda: f"hosts are clean; left: {cluster.on_hosts()}",
    )


def test_every_rank_runs_where_planned(cluster: Cluster, transport: str) -> None:
    done = dispatch(
        cluster, "--transport", transport, "-H", cluster.hostfile(2), "--no-python", "sh", "-c",
        "echo $RANK $(hostname) $LOCAL_RANK $NODE_RANK $WORLD_SIZE $MASTER_ADDR",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    head = cluster.address("n1")
    expected = [f"[{r}] {r} n{r // 2 + 1} {r % 2} {r // 2} 8 {head}" for r in range(8)]
    assert sorted(done.stdout.splitlines()) == expected


def test_rank_table_of_the_example(cluster: Cluster) -> None:
    done = dispatch(cluster, "-H", "n[1-4]:2", os.path.join(EXAMPLES, "ranks.py"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8


def test_a_fixed_port_on_many_hosts(cluster: Cluster) -> None:
    done = dispatch(
        cluster, "--master-port", "29500", "-H", "n[1-3]", "--no-python", "sh", "-c",
        "echo $MASTER_PORT",
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == [f"[{r}] 29500" for r in range(3)], done.stderr


def test_cyclic_placement(cluster: Cluster) -> None:
    done = dispatch(
        cluster, "--map-by", "node", "-H", "n[1-4]:2", "--no-python", "sh", "-c",
        "echo $(hostname) $LOCAL_RANK",
    )  # fmt: skip
    expected = [f"[{r}] n{r % 4 + 1} {r // 4}" for r in range(8)]
    assert sorted(done.stdout.splitlines()) == expected, done.stderr


def test_a_rankfile_places_ranks_and_binds_them(cluster: Cluster, tmp_path: Path) -> None:
    own = sorted(os.sched_getaffinity(0))
    first, last = f"{own[0]}", f"{own[-1]}"
    lines = ["rank 1=+n0 slot=*", f"rank 0=n3 slot=p{first}", f"rank 2=n3 slot=p{last}"]
    (tmp_path / "places").write_text("\n".join(lines) + "\n")
    show = "echo $(hostname) $(grep -o 'allowed_list.*' /proc/self/status | head -1)"
    words = ("--rankfile", str(tmp_path / "places"), "--no-python", "sh", "-c", show)
    done = dispatch(cluster, "-H", "n[1-3]:2", *words)
    assert done.returncode == 0, done.stderr
    found = sorted(line.split()[:4:3] for line in done.stdout.splitlines())
    assert (found[0], found[2]) == (["[0]", first], ["[2]", last])
    hosts = sorted(line.split()[:2] for line in done.stdout.splitlines())
    assert hosts == [["[0]", "n3"], ["[1]", "n1"], ["[2]", "n3"]]
    (tmp_path / "places").write_text("rank 0=n1\nrank 1=n2 slot=0:999\n")
    done = dispatch(cluster, "-H", "n[1-3]:2", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "places:2: slot=0:999: n2: no core 999 on socket 0: ranks may use " in done.stderr


def test_first_failure_ends_all_hosts_in_two_seconds(cluster: Cluster, transport: str) -> None:
    failed = Path(cluster.shared, f"failed-{transport}")
    ending = f"touch {failed}; echo last words >&2; exit 42"
    text = f"if [ $RANK = 5 ]; then {ending}; fi; exec sleep 1000"
    # who waits for the grace to be over is seen by the bound
    words = ("--transport", transport, "--grace", "60", "-H", "n[1-4]:2", "--no-python")
    done = dispatch(cluster, *words, "sh", "-c", text)
    assert time.time() - failed.stat().st_mtime < 2 + SLACK
    assert done.returncode == 42
    assert "error: rank 5 on n3, pid " in done.stderr
    assert ": exit code 42: last words [rank-failed]\n" in done.stderr
    assert "dispatch then ended ranks 0-4,6-7 (SIGTERM)" in done.stderr
    clean(cluster, 1.0)


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
def test_the_launchers_end_leaves_nothing_on_any_host(
    cluster: Cluster,
    started: Callable[..., subprocess.Popen[str]],
    transport: str,
    signum: int,
    code: int,
) -> None:
    text = "setsid sh -c 'sleep 1000 & exit 0'; " + UP
    run = started("--transport", transport, "-H", "n[1-2]:2", "--no-python", "sh", "-c", text)
    first_lines(run, 4)
    run.send_signal(signum)
    assert run.wait(timeout=60) == code
    clean(cluster, 3.0)


def test_a_cut_host_is_noticed_and_cleans_up_by_itself(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(3)
    run = cluster.popen(
        [
            *DISPATCH, "--heartbeat", "2", "--lease", "8", "-H", "n[1-3]:2",
            "--no-python", "sh", "-c", UP,
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with run:
        first_lines(run, 6)
        cluster.cut("n2")
        began = time.monotonic()
        assert run.wait(timeout=60) == 125
        assert time.monotonic() - began < 6 + 2 + SLACK
        assert run.stderr is not None
        said = run.stderr.read()
    # whichever is seen first by a launcher that did not run for a while
    lost = r"(host lost: no heartbeat for 8 s|unreachable: no answer for 6 s)"
    assert re.search(rf"error: n2 \(ranks 2-3\): {lost}", said), said
    # the cut host kills its own ranks
    wait_for(lambda: not cluster.on_hosts(), 20, lambda: f"idle; there is {cluster.on_hosts()}")


def test_a_host_without_power_is_noticed(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(2)
    run = cluster.popen(
        [*DISPATCH, "--heartbeat", "2", "-H", "n[1-2]:1", "--no-python", "sh", "-c", UP],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with run:
        first_lines(run, 2)
        cluster.power_off("n2")
        assert run.wait(timeout=60) == 125
        assert run.stderr is not None
        said = run.stderr.read()
        assert re.search(r"n2 \(rank 1\): (host lost|unreachable): ", said), said
    wait_for(lambda: not cluster.processes("n1"), 20, "n1 is idle")


def test_all_bad_hosts_in_one_table_and_nothing_started(
    new_cluster: Callable[..., Cluster], transport: str
) -> None:
    cluster = new_cluster(3)
    cluster.power_off("n3")
    mark = os.path.join(cluster.shared, "started")
    began = time.monotonic()
    done = dispatch(
        cluster, "--transport", transport, "--connect-timeout", "15",
        "-H", "n1,n2,n3,nowhere", "--no-python", "touch", mark,
    )  # fmt: skip
    assert time.monotonic() - began < 15 + 30
    assert done.returncode == 125
    assert "2 hosts of 4 cannot be used; nothing was started" in done.stderr
    rows = {line.split()[0]: line for line in done.stderr.splitlines() if line.startswith("  n")}
    assert "name not found" in rows["nowhere"]
    assert "timeout" in rows["n3"] or "unreachable" in rows["n3"]
    assert not os.path.exists(mark)


def test_a_wrong_interface_is_named_before_ranks_wait_on_it(cluster: Cluster) -> None:
    done = dispatch(cluster, "--iface", "ib7", "-H", "n[1-2]", "--no-python", "hostname")
    assert done.returncode == 125
    assert "no interface ib7 with an address; there is: " in done.stderr
    assert "hint: name one that every host has with --iface" in done.stderr
    given = ("-H", "n[1-2]", "--no-python", "printenv", "MASTER_ADDR")
    right = dispatch(cluster, "--iface", "eth0", *given)
    assert right.returncode == 0
    assert sorted(right.stdout.split("\n")) == sorted(dispatch(cluster, *given).stdout.split("\n"))


def test_a_host_without_python_is_named(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(2)
    hide = "for f in /usr/bin/python3*; do mount --bind /dev/null $f; done"
    cluster.run(["sh", "-c", hide], "n2", root=True, check=True)
    done = dispatch(cluster, "-H", "n1,n2", "--python", "python3", "-m", "this")
    assert done.returncode == 125
    assert "n2" in done.stderr
    assert "no usable python" in done.stderr or "agent did not start" in done.stderr
    assert "hint:" in done.stderr


def test_login_shells(new_cluster: Callable[..., Cluster]) -> None:
    shells = {"n2": "/usr/bin/fish", "n3": "/bin/tcsh", "n4": "/bin/dash"}
    here = {host: shell for host, shell in shells.items() if os.path.exists(shell)}
    cluster = new_cluster(4)
    for host, shell in here.items():
        cluster.set_login_shell(host, shell)
    done = dispatch(cluster, "-H", "n[1-4]", "--no-python", "sh", "-c", "echo $RANK")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {rank}" for rank in range(4)]
    for shell in sorted({*shells.values()} - {*here.values()}):
        pytest.skip(f"{shell} is not installed")


def test_noise_before_the_agent_is_skipped_and_quoted_on_failure(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster(1)
    # sshd's ForceCommand stands for login files that print a lot before our command runs
    noisy = "i=0; while [ $i -lt 3000 ]; do echo motd motd motd motd; i=$((i+1)); done; "
    _force(cluster, noisy + 'exec sh -c "$SSH_ORIGINAL_COMMAND"')
    done = dispatch(cluster, "-v", "-H", "n1", "--no-python", "echo", "x")
    assert (done.returncode, done.stdout) == (0, "[0] x\n"), done.stderr
    assert "60000 bytes of noise" in done.stderr
    _force(cluster, "echo this account is closed; exit 3")
    done = dispatch(cluster, "-H", "n1", "--no-python", "echo", "x")
    assert done.returncode == 125
    assert "this account is closed" in done.stderr
    _force(cluster, "echo thinking; sleep 1000")
    done = dispatch(cluster, "--boot-timeout", "10", "-H", "n1", "--no-python", "echo", "x")
    assert done.returncode == 125
    assert "no answer from the agent within 10 s; remote said: thinking" in done.stderr


def _force(cluster: Cluster, text: str) -> None:
    """Have n1's sshd run ``text`` in place of every command, by a key option."""
    quoted = text.replace('"', '\\"')
    keys = os.path.expanduser("~/.ssh/authorized_keys")
    cluster.run(
        ["sh", "-c", f"sed -i 's/^.*\\(ssh-ed25519 \\)/\\1/' {keys}; cat > /tmp/o; "
         f"{{ tr -d '\\n' < /tmp/o; printf ' '; cat {keys}; }} > /tmp/k; cat /tmp/k > {keys}"],
        "n1", input=f'command="{quoted}"', check=True,
    )  # fmt: skip


def test_two_runs_on_the_same_hosts(
    cluster: Cluster, started: Callable[..., subprocess.Popen[str]]
) -> None:
    both = Path(cluster.shared, "both")
    text = f"echo $MASTER_PORT; until [ -e {both} ]; do sleep 0.05; done"
    runs = [started("-H", "n[1-4]:2", "--no-python", "sh", "-c", text) for _ in range(2)]
    ports = [{line.split()[1] for line in first_lines(run, 8)} for run in runs]
    both.touch()
    assert [run.wait(timeout=60) for run in runs] == [0, 0]
    assert len(ports[0]) == len(ports[1]) == 1
    assert ports[0] != ports[1]


def test_nothing_of_ours_listens_on_the_network_while_ranks_run(
    cluster: Cluster, started: Callable[..., subprocess.Popen[str]]
) -> None:
    run = started("-H", "n[1-4]:1", "--no-python", "sh", "-c", UP)
    first_lines(run, 4)
    for host in (*cluster.hosts, "login"):
        sockets = cluster.run(["ss", "-Hltnp"], host, check=True).stdout.splitlines()
        # PMIx is offered on a port of the loopback
        far = [line for line in sockets if not line.split()[3].startswith("127.0.0.1:")]
        assert not [line for line in far if "sshd" not in line], sockets
    run.terminate()
    run.wait(timeout=60)


def test_output_of_all_hosts_is_complete(cluster: Cluster, transport: str, tmp_path: Path) -> None:
    logs = os.path.join(cluster.shared, f"logs-{transport}")
    program = "seq -f $RANK-%.0f 100000"
    done = dispatch(
        cluster, "--transport", transport, "--log-dir", logs, "--trace", f"{logs}.json",
        "-H", "n[1-4]:2", "--no-python", "sh", "-c", program,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    by_rank: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        label, text = line.split(" ")
        by_rank.setdefault(label, []).append(text)
    for rank in range(8):
        expected = [f"{rank}-{n}" for n in range(1, 100001)]
        assert by_rank[f"[{rank}]"] == expected
        kept = Path(logs, "latest", f"rank-{rank:05d}.out").read_text().splitlines()
        assert kept == expected
    report = json.loads(Path(logs, "latest", "report.json").read_text())
    assert report["ok"]
    names = [element["name"] for element in json.loads(Path(f"{logs}.json").read_text())]
    for name in ("connect", "boot", "check"):
        assert names.count(name) == 4
    assert names.count("run") == 8
    assert names.count("authentication") == (4 if transport == "paramiko" else 0)


@pytest.mark.torch
def test_the_example_trains_on_two_hosts(cluster: Cluster) -> None:
    pytest.importorskip("torch")
    out = os.path.join(cluster.shared, "train")
    words = (
        "-H", "n[1-2]", "-x", "OMP_NUM_THREADS=1",  # each host believes that all cores are its own
        os.path.join(EXAMPLES, "train_topics.py"), "--out", out,
    )  # fmt: skip
    done = dispatch(cluster, *words, "--steps", "12", timeout=220)
    assert done.returncode == 0, done.stderr
    losses = [
        float(line.split("loss ")[1].split()[0])
        for line in done.stdout.splitlines()
        if "loss " in line
    ]
    assert losses[-1] < losses[0] - 0.3
    assert {line.split()[0] for line in done.stdout.splitlines()} == {f"[{r}]" for r in range(2)}
