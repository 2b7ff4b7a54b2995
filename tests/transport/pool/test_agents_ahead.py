"""Agents that wait for the next run over kept connections: what that finds, and how they end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import Cluster, kill_left, wait_for

import dispatcher

from .test_pool import BOOTS, DISPATCH, Home

HERE = Path(dispatcher.__file__).parent

#: what a rank has of its host, its run's own words left out
SHOW = """
pwd; umask; (cd /proc/$$/fd; echo *)
ulimit -a | grep -v pending; grep ^Sig /proc/self/status | grep -v Q
env | grep -v -e RUN_ID -e MASTER_PORT -e ERROR_FILE -e PMIX -e XDG_ -e SSH_C -e RAS_ADDR | sort
"""


@pytest.fixture
def home(cluster: Cluster, isolated: None, tmp_path: Path) -> Iterator[Home]:
    made = Home(cluster, tmp_path)
    yield made
    kill_left(made.daemons())
    wait_for(lambda: not made.daemons(), 30, "the daemon is gone")
    wait_for(lambda: not cluster.on_hosts(), 30, cluster.on_hosts)


def agents(
    home: Home, count: int = 2, *, gone: Iterable[tuple[str, int]] = ()
) -> list[tuple[str, int]]:
    """(host, pid) of the agents that wait, when there are so many and nothing else but shells.

    gone: those that have to have ended.
    """

    def booted() -> list[tuple[str, int]]:
        found = [
            one for one in home.cluster.census(home.cluster.hosts) if one.command.endswith(BOOTS)
        ]
        polling = [(one.host, one.pid) for one in found if _polls(one.outer)]
        there = len(polling) == count and not {*gone} & {*polling}
        return polling if there and home.idle() else []

    return wait_for(booted, 30, home.cluster.on_hosts)


def _polls(pid: int) -> bool:
    """Whether the process is in a poll: an agent that boots reads, loads, and then waits so."""
    try:
        return "poll" in Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return False


def run(home: Home, *words: str, by: int, at: str = "n1,n2", code: int = 0) -> str:
    """What a run's ranks say; ``by`` of its hosts had an agent that waited."""
    done = home.run("-v", "-H", at, "--no-python", *(words or ("hostname",)))
    assert done.returncode == code, done.stderr
    assert done.stderr.count(" by kept agent") == by, done.stderr
    return done.stdout


def test_each_run_takes_its_own(home: Home) -> None:
    home.run("sweep", "--kill", "-w", "n[1-2]")  # folders of runs that other tests have killed
    home.run("connect", "-w", "n[1-2]")
    seen = agents(home)
    for _ in range(2):
        run(home, by=2)
        seen += agents(home)
    run(home, "sh", "-c", "exit 3", by=2, code=3)
    seen += agents(home)
    assert len(set(seen)) == len(seen) == 8
    assert "nothing" in home.run("sweep", "-w", "n[1-2]").stdout  # they are of no run
    for host in ("n1", "n2"):
        names = home.cluster.run(["ls", "/tmp", "/dev/shm"], host).stdout.split()
        # the cluster's own is there where its folder is below /tmp
        assert [name for name in names if name.startswith("dispatch-")] in (
            [],
            [f"dispatch-rig-{os.getuid()}"],
        )
    home.run("connect", "--close")
    wait_for(lambda: not home.cluster.on_hosts(), 30, home.cluster.on_hosts)


def test_the_first_run_of_kept_connections_leaves_agents(home: Home) -> None:
    run(home, "--keep", "hostname", by=0)
    agents(home)
    assert sorted(run(home, by=2).split()) == ["[0]", "[1]", "n1", "n2"]


def test_nothing_of_one_run_reaches_the_next(home: Home) -> None:
    without = run(home, "sh", "-c", SHOW, by=0, at="n1")
    home.run("connect", "-w", "n1")
    agents(home, 1)
    folder = home.cluster.shared
    words = ("-x", "LEFT=over", "-x", "PATH=/bin:/usr/bin:/left", "--chdir", folder)
    spoil = "umask 077; ulimit -n 99; trap '' TERM; exec 9>left; sleep 1000 & exit 0"
    run(home, *words, "sh", "-c", spoil, by=1, at="n1")
    agents(home, 1)
    assert run(home, "sh", "-c", SHOW, by=1, at="n1") == without
    assert "LEFT" not in without
    assert len(without.splitlines()) > 40


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_an_agent_that_is_no_more_is_done_without(home: Home, how: str) -> None:
    home.run("connect", "-w", "n[1-2]")
    (first, *_) = agents(home)
    number = signal.SIGKILL if how == "killed" else signal.SIGSTOP
    home.cluster.signal(*first, number)
    if how == "killed":
        wait_for(lambda: len(home.waiting(BOOTS)) == 1, 30, "it is dead")
        run(home, by=1)
        agents(home)  # both wait again
    else:
        run(home, by=2)  # one of them in vain
        home.cluster.signal(*first, signal.SIGKILL)
        agents(home, 1)  # of the other: that connection is closed


def test_the_end_of_the_keeper_is_theirs(home: Home) -> None:
    home.run("connect", "-w", "n[1-2]")
    agents(home)
    kill_left(home.daemons())
    wait_for(lambda: not home.cluster.on_hosts(), 30, home.cluster.on_hosts)


def test_idle_ones_are_closed_with_their_connections(home: Home) -> None:
    home.run("connect", "--keep=1", "-w", "n1")
    wait_for(lambda: not home.cluster.on_hosts() and not home.daemons(), 30, "all is gone")


def test_a_host_that_is_cut(home: Home) -> None:
    """A run ends as without; the agent there ends by its own clock, for nobody can tell it."""
    home.run("connect", "--keep=10", "-w", "n1")
    agents(home, 1)  # in that time
    home.cluster.command("cut", "n1")
    try:
        done = home.run("--connect-timeout", "2", "-H", "n1", "--no-python", "hostname")
        assert done.returncode == 125
        assert "n1" in done.stderr
        wait_for(lambda: not home.waiting(BOOTS), 40, home.cluster.on_hosts)
    finally:
        home.cluster.command("mend", "n1")
    sessions = [pid for host, pid, _ in home.waiting() if host == "n1"]
    home.cluster.run(["kill", "-9", *map(str, sessions)], host="n1")  # sshd has not noticed


def test_other_code_is_booted_anew_and_waits_from_then_on(home: Home, tmp_path: Path) -> None:
    home.run("connect", "-w", "n1")
    (old,) = agents(home, 1)
    shutil.copytree(HERE, tmp_path / "edited" / "dispatcher")
    node = tmp_path / "edited" / "dispatcher" / "remote" / "agent" / "node.py"
    node.write_text(node.read_text() + "\nEDITED = 1\n")
    for by in (0, 1):
        words = ("-v", "-H", "n1", "--chdir", "/", "--no-python", "hostname")
        done = home.run(*words, cwd=tmp_path / "edited")  # where python -m looks first
        assert (done.returncode, done.stderr.count(" by kept agent")) == (0, by), done.stderr
        assert agents(home, 1, gone=[old])  # it is ended beside the run, not before its end


def test_another_python_is_booted_anew_and_waits_from_then_on(home: Home) -> None:
    home.run("connect", "-w", "n1")
    agents(home, 1)
    python = os.path.realpath("/usr/bin/python3")
    for by in (0, 1):
        run(home, "--agent-python", python, "hostname", by=by, at="n1")
        agents(home, 1)
    assert "n1" in run(home, by=0, at="n1")


def test_two_runs_at_once(home: Home) -> None:
    home.run("connect", "-w", "n1")
    agents(home, 1)
    go = Path(home.cluster.shared, "go")
    text = f"echo up; until [ -e {go} ]; do sleep 0.05; done"
    env = ["env", f"XDG_RUNTIME_DIR={home.folder}"]
    command = [*env, *DISPATCH, "-v", "-H", "n1", "--no-python", "sh", "-c", text]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        home.cluster.popen(command, **options) as one,
        home.cluster.popen(command, **options) as other,
    ):
        for process in (one, other):
            assert process.stdout is not None
            assert "up" in process.stdout.readline()
        go.touch()
        said = [process.communicate(timeout=60)[1] for process in (one, other)]
        assert (one.returncode, other.returncode) == (0, 0)
    go.unlink()
    assert sum(text.count(" by kept agent") for text in said) == 1
    assert sum(text.count(" by paramiko") for text in said) == 1
    agents(home, 1)


def test_who_is_killed_takes_its_agent_along(home: Home) -> None:
    home.run("connect", "-w", "n1")
    agents(home, 1)
    env = ["env", f"XDG_RUNTIME_DIR={home.folder}"]
    text = "trap '' TERM; setsid sleep 1000 & echo up; wait; sleep 1000"
    with home.cluster.popen(
        [*env, *DISPATCH, "-H", "n1", "--no-python", "sh", "-c", text],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as one:  # fmt: skip
        assert one.stdout is not None
        assert "up" in one.stdout.readline()
        one.kill()
        one.communicate()
    wait_for(lambda: not home.cluster.on_hosts(), 30, home.cluster.on_hosts)
