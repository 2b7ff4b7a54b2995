"""Jobs in the background: from the shell that started them, and from another one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promises
import pytest
from rig import Cluster, kill_left, wait_for

from dispatcher.jobs.registry import Process

from ..background import WAITS, detach, dispatch, go, jobs, up
from ..conftest import Desk, script


def test_it_goes_on_alone_and_gives_its_verdict_later(desk: Desk, state: Path) -> None:
    words = ("--name", "lr-1", "-H", "localhost:2", script(desk.folder, WAITS), "3")
    row = detach(desk, *words)
    assert (row["state"], row["ranks"], row["hosts"]) == ("running", 2, "localhost")
    assert row["name"] == "lr-1"
    fields = Path(f"/proc/{row['pid']}/stat").read_text().rpartition(")")[2].split()
    assert int(fields[4]) == 0  # no controlling terminal
    assert int(fields[3]) not in (row["pid"], os.getsid(0))  # in a session, not its leader
    folder = state / "dispatch" / "jobs" / row["id"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "control").stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(row["logs"]).stat().st_mode) == 0o700
    go(desk)
    attached = dispatch("attach", "lr-1")
    assert attached.returncode == 3
    assert f"job lr-1 ({row['id']}) ended" in attached.stderr
    assert "exit code 3" in attached.stderr
    again = dispatch("attach", row["id"], "--from-start")
    assert again.returncode == 3
    assert sorted(again.stdout.splitlines())[-2:] == ["[1] done 1", "[1] up 1"]
    assert dispatch("logs", "--rank", "1").stdout == "up 1\ndone 1\n"
    assert jobs()[-1]["state"] == "ended"
    assert jobs()[-1]["exit_code"] == 3
    wait_for(lambda: not (folder / "control").exists(), 60, "its socket is gone")
    assert {"dispatch.jsonl", "plan.json", "report.json"} <= set(os.listdir(row["logs"]))
    for file in ("plan.json", "report.json"):
        assert promises.told(Path(row["logs"], file).read_text())["name"] == "lr-1"
    assert "<h1>lr-1 2" in dispatch("report", "lr-1", "-o", "-").stdout
    assert jobs()[-1]["verdict"][0].startswith("error: rank 1 on localhost")


def test_a_start_that_fails_is_told_in_the_foreground(desk: Desk, state: Path) -> None:
    done = desk.run("--detach", "-H", "localhost", "--no-python", "/nosuch/program")
    assert done.returncode == 127
    assert "/nosuch/program" in done.stderr
    named = desk.run("--detach", "--name", "latest", "-H", "nowhere.invalid", "x")
    assert named.returncode == 2
    assert "--name: 'latest' already means another job" in named.stderr
    usage = desk.run("--detach", "--stdin", "0", "-H", "localhost", "x.py")
    assert usage.returncode == 2


def test_the_end_of_its_terminal_does_not_end_it(desk: Desk, state: Path) -> None:
    name = script(desk.folder, WAITS)
    master, slave = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    shell = subprocess.Popen(
        ["sh", "-c", '"$@"; echo started; sleep 60', "sh",
         *map(str, desk.argv("--detach", "-H", "localhost:2", name, "0"))],
        cwd=desk.folder, stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal,
    )  # fmt: skip
    os.close(slave)
    said = b""
    while b"started" not in said:
        said += os.read(master, 4096)
    os.killpg(shell.pid, signal.SIGHUP)
    os.close(master)  # the terminal is gone: the kernel hangs up its session
    shell.wait(timeout=30)
    assert jobs()[-1]["state"] == "running"
    go(desk)
    assert dispatch("attach").returncode == 0


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """As ``contextlib.chdir``, which came with Python 3.11."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def test_two_attach_and_one_leaves(desk: Desk, state: Path) -> None:
    detach(desk, "-H", "localhost:2", script(desk.folder, WAITS), "0")
    command = [sys.executable, "-m", "dispatcher", "attach", "--from-start"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    stays, leaves = (subprocess.Popen(command, **pipes) for _ in range(2))
    try:
        for output in (stays.stdout, leaves.stdout):
            assert output is not None
            assert sorted(output.readline() for _ in range(2)) == ["[0] up 0\n", "[1] up 1\n"]
        leaves.send_signal(signal.SIGINT)
        _, said = leaves.communicate(timeout=60)
        assert leaves.returncode == 130
        assert "detached" in said
        assert jobs()[-1]["state"] == "running"
        go(desk)
        shown, _ = stays.communicate(timeout=60)
        assert stays.returncode == 0
        assert sorted(shown.splitlines()) == ["[0] done 0", "[1] done 1"]
    finally:
        for one in (stays, leaves):
            one.kill()
            one.communicate()


def test_logs_go_on_until_the_end(desk: Desk, state: Path) -> None:
    detach(desk, "-H", "localhost:2", script(desk.folder, WAITS), "0")
    command = [sys.executable, "-m", "dispatcher", "logs", "latest", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert sorted(one.stdout.readline() for _ in range(2)) == ["[0] up 0\n", "[1] up 1\n"]
        go(desk)
        assert sorted(one.stdout.read().splitlines()) == ["[0] done 0", "[1] done 1"]
        assert one.wait(timeout=60) == 0
    assert dispatch("logs", "--rank", "7").returncode == 2


def test_a_caller_that_reads_nothing_does_not_slow_the_job(desk: Desk, state: Path) -> None:
    """It is told the rest as soon as it reads, since the files have it."""
    done = 'print("done", rank, flush=True)\n'
    assert done in WAITS
    much = 'print(("x" * 79 + "\\n") * 200_000)\n'
    text = WAITS.replace(done, much + done)
    row = detach(desk, "-H", "localhost:1", script(desk.folder, text), "0")
    out = Path(row["logs"], "rank-00000.out")
    wait_for(lambda: out.exists() and out.stat().st_size, 60, lambda: "the rank is up")
    command = [sys.executable, "-m", "dispatcher", "attach", "--from-start"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stuck:
        go(desk)
        wait_for(lambda: jobs()[-1]["state"] == "ended", 60, lambda: "the job has ended")
        shown = stuck.communicate(timeout=60)[0]
    assert stuck.returncode == 0
    assert shown.replace("[0] ", "") == out.read_text()


@pytest.mark.parametrize(
    "garbage", [b"\n", b"[]\n", b'{"order": "rm"}\n', b"x" * 140_000, b"\xff\n"]
)
def test_garbage_on_the_socket_is_hung_up_on(desk: Desk, state: Path, garbage: bytes) -> None:
    row = detach(desk, "-H", "localhost:1", script(desk.folder, WAITS), "0")
    with socket.socket(socket.AF_UNIX) as link:
        with inside(state / "dispatch" / "jobs" / row["id"]):
            link.connect("control")
        link.settimeout(60)
        with contextlib.suppress(ConnectionError):
            link.sendall(garbage)
            assert link.recv(10) == b""
    assert dispatch("stop").returncode == 0


@pytest.mark.parametrize("now", [False, True])
def test_stop_from_another_shell(desk: Desk, state: Path, now: bool) -> None:
    stubborn = "import signal\n"
    stubborn += "[signal.signal(s, signal.SIG_IGN) for s in (2, 15)]\n" if now else ""
    words = ("--grace", "60", script(desk.folder, stubborn + WAITS), "0")
    up(row := detach(desk, "-H", "localhost:2", *words))
    began = time.monotonic()
    done = dispatch("stop", row["id"][:-2], *(["--now"] if now else []))
    assert done.returncode == 0, done.stderr
    assert "note: stopped by dispatch stop [" in done.stderr
    assert time.monotonic() - began < 50  # less than the grace
    assert jobs()[-1]["exit_code"] == 130


def test_stop_may_be_left(desk: Desk, state: Path) -> None:
    """Ctrl-C ends the wait, not the stopping; the exit code says that no end was seen."""
    deaf = "import signal\n[signal.signal(s, signal.SIG_IGN) for s in (2, 15)]\n"
    row = detach(desk, "-H", "localhost:1", "--grace", "60", script(desk.folder, deaf + WAITS), "0")
    up(row, 1)
    stop = subprocess.Popen(
        [sys.executable, "-m", "dispatcher", "stop"], stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: jobs()[-1]["state"] == "stopping", 60, lambda: f"it stops: {jobs()}")
    stop.send_signal(signal.SIGINT)
    said = stop.communicate(timeout=60)[1]
    assert stop.returncode == 130
    assert f"note: job {row['id']} is being ended; dispatch attach shows it" in said
    assert jobs()[-1]["state"] == "stopping"
    assert dispatch("kill", row["id"]).returncode == 0


def test_what_it_is_doing(desk: Desk, state: Path) -> None:
    ignores = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    fails_then_waits = """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank == "0":
        open("ignores", "w").close()
    while rank == "1":
        if os.path.exists("ignores"):
            sys.exit(7)
"""
    text = ignores + WAITS.replace("end =", fails_then_waits + "end =", 1)
    words = ("--max-restarts", "1", "--grace", "60", script(desk.folder, text), "0")
    row = detach(desk, "-H", "localhost:2", *words)
    wait_for(lambda: jobs()[-1]["state"] == "stopping", 60, lambda: f"it stops: {jobs()}")
    os.kill(row["pid"], signal.SIGSTOP)
    wait_for(lambda: jobs()[-1]["state"] == "paused", 60, lambda: f"it is paused: {jobs()}")
    os.kill(row["pid"], signal.SIGCONT)
    kill_left(pid for pid, _ in desk.left())  # the one that ignores TERM
    wait_for(lambda: jobs()[-1]["state"] == "running", 60, lambda: f"it runs again: {jobs()}")
    go(desk)
    wait_for(lambda: jobs()[-1]["state"] == "ended", 60, lambda: f"it has ended: {jobs()}")
    assert jobs()[-1]["exit_code"] == 0


def test_a_launcher_that_was_killed(desk: Desk, state: Path) -> None:
    row = detach(desk, "-H", "localhost:2", script(desk.folder, WAITS), "0")
    tag = {"DISPATCH_RUN_ID": row["id"]}
    left = [subprocess.Popen(["sleep", "1000"], env={**os.environ, **tag}, start_new_session=True)]
    is_root = os.geteuid() == 0
    if is_root:
        left.append(subprocess.Popen(["sleep", "1000"], env=tag, user=65534, cwd="/"))
    other = {"DISPATCH_RUN_ID": row["id"][:-1] + "0", "X": f"DISPATCH_RUN_ID={row['id']}"}
    left.append(subprocess.Popen(["sleep", "1000"], env={**os.environ, **other}))
    try:
        assert "still running" in dispatch("sweep", "-w", "localhost").stdout
        os.kill(row["pid"], signal.SIGKILL)
        wait_for(lambda: jobs()[-1]["state"] == "dead", 60, lambda: "the job is dead")
        jobs()  # it may have died after who saw it dead had looked for a socket to remove
        assert not (state / "dispatch" / "jobs" / row["id"] / "control").exists()
        attached = dispatch("attach")
        assert attached.returncode == 125
        assert "was killed" in attached.stderr
        listed = dispatch("sweep", "-w", "localhost").stdout
        assert f"{row['id']}: left over" in listed
        assert left[0].poll() is None
        assert "sleep" in dispatch("sweep", "-w", "localhost", "--kill").stdout
        assert left[0].wait(timeout=60) == -signal.SIGKILL
        assert all(one.poll() is None for one in left[1:])  # a stranger's, and another run's
        assert "nothing found" in dispatch("kill", row["id"]).stdout
    finally:
        for one in left:
            one.kill()
            one.wait()


def tagged(run_id: str) -> set[int]:
    """Processes that carry the id of the run."""
    tag, found = f"DISPATCH_RUN_ID={run_id}".encode(), set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if tag in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


def test_an_agent_that_hangs_is_found_with_its_ranks(desk: Desk, state: Path) -> None:
    row = detach(desk, "-H", "localhost:1", "--no-python", "sleep", "300")
    # of an agent's three processes one is the rank; a helper of a moment would be counted below
    wait_for(lambda: len(desk.left()) == 1 and len(tagged(row["id"])) == 3, 60)
    rank = {pid for pid, _ in desk.left()}
    for pid in tagged(row["id"]) - rank:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)  # now nobody cleans up after the launcher
    agents = tagged(row["id"]) - rank
    assert agents
    os.kill(row["pid"], signal.SIGKILL)
    wait_for(lambda: jobs()[-1]["state"] == "dead", 60, lambda: "the job is dead")
    assert {pid for pid, _ in desk.left()} == rank
    listed = dispatch("sweep", row["id"], "-w", "localhost").stdout
    assert f"found {len(agents) + 1} processes" in listed
    assert "sleep 1" in listed
    swept = dispatch("sweep", "-w", "localhost", "--kill").stdout
    assert re.search(r"^localhost: killed ", swept, re.M)  # perhaps without the rank: it asked to
    wait_for(lambda: not any(map(Process.of, agents)), 60, "the agents are gone")
    desk.wait_until_clean()


def test_kill_ends_a_job_that_runs(desk: Desk, state: Path) -> None:
    row = detach(desk, "-H", "localhost:2", script(desk.folder, WAITS), "0")
    assert dispatch("kill", "--all").returncode == 0
    assert jobs()[-1]["state"] == "ended"
    wait_for(lambda: Process.of(row["pid"]) is None, 60, lambda: "the launcher has ended")


def test_kill_of_a_job_in_a_terminal_is_no_lost_host(desk: Desk, state: Path) -> None:
    words = ("-H", "localhost:2", "--max-restarts", "3", script(desk.folder, WAITS), "0")
    process = desk.start(*words)
    desk.lines(process, 2)
    assert dispatch("kill", "latest").returncode == 0
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "dispatch stop" in err
    assert "host lost" not in err
    assert "attempt 2" not in err


def test_kill_all_ends_what_dead_launchers_left(desk: Desk, state: Path) -> None:
    dead = detach(desk, "-H", "localhost:1", script(desk.folder, WAITS), "0")
    os.kill(dead["pid"], signal.SIGKILL)
    wait_for(lambda: jobs()[-1]["state"] == "dead", 60, lambda: "the job is dead")
    wait_for(lambda: not tagged(dead["id"]), 20, "its agent is gone, too")
    env = {**os.environ, "DISPATCH_RUN_ID": dead["id"]}
    with subprocess.Popen(["sleep", "1000"], env=env, start_new_session=True) as left:
        try:
            lives = detach(desk, "-H", "localhost:1", script(desk.folder, WAITS), "0")
            killed = dispatch("kill", "--all")
            assert killed.returncode == 0, killed.stderr
            assert "localhost: killed 1 process: sleep 1" in killed.stdout
            assert left.wait(timeout=60) == -signal.SIGKILL
        finally:
            left.kill()
    assert [job["state"] for job in jobs()] == ["ended", "ended"]
    wait_for(lambda: Process.of(lives["pid"]) is None, 60, lambda: "the launcher has ended")


def test_a_state_folder_that_becomes_full(cluster: Cluster) -> None:
    """The verdict has its place on the disk from the start on; no empty report is left."""
    cluster.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", "/mnt"], root=True, check=True)
    try:
        dispatch = ["env", "XDG_STATE_HOME=/mnt", sys.executable, "-m", "dispatcher"]
        go = f"{cluster.shared}/go"
        fill = ["--no-python", "sh", "-c", f"head -c 50000 /dev/zero; cat {go}"]
        cluster.run(["mkfifo", go], check=True)
        begun = cluster.run([*dispatch, "--detach", "-H", "n1:1", *fill])
        assert begun.returncode == 0, begun.stderr
        cluster.run(["sh", "-c", f": >{go}"], "n1", check=True)
        ended = cluster.run([*dispatch, "attach", "latest", "--from-start"])
        row = promises.told(cluster.run([*dispatch, "jobs", "--json"]).stdout)[-1]
        left = cluster.run(["ls", row["logs"]]).stdout.split()
        said = cluster.run(["cat", f"{row['logs']}/launcher.log"]).stdout.splitlines()
    finally:
        cluster.run(["umount", "/mnt"], root=True, check=True)
    assert ended.returncode == 0, ended.stderr
    assert (row["state"], row["exit_code"]) == ("ended", 0)
    assert "report.json" not in left
    assert any("no space left on device" in line for line in said)
    assert all(line.startswith("note: ") for line in said)


def test_on_hosts(cluster: Cluster) -> None:
    run = [sys.executable, "-m", "dispatcher"]
    mine = {"XDG_STATE_HOME": f"{cluster.shared}/state"}
    command = ["env", *(f"{k}={v}" for k, v in mine.items()), *run]
    done = cluster.run([*command, "--detach", "-H", "n[1-2]:1", "--no-python", "sleep", "300"])
    assert done.returncode == 0, done.stderr
    row = promises.told(cluster.run([*command, "jobs", "--json"]).stdout)[-1]
    assert (row["hosts"], row["state"]) == ("n[1-2]", "running")

    def here() -> dict[str, int]:
        found = cluster.census(cluster.hosts, run_id=row["id"])
        return Counter(one.host for one in found if one.state not in "ZX")

    # without a helper of a moment both have the same, which is one line
    wait_for(lambda: here() == {"n1": 3, "n2": 3}, 60, here)
    killed = cluster.run([*command, "sweep", row["id"], "-w", "n[1-2]", "--kill"])
    assert "still running" in killed.stdout
    assert "n[1-2]: found" in killed.stdout
    assert "sleep 1" in killed.stdout
    stopped = cluster.run([*command, "stop"])
    assert stopped.returncode == 0, stopped.stderr
    assert "exit code 130" in stopped.stderr
