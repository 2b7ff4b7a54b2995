"""dispatch kill and sweep on real hosts, by run id: as root and as another user, nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import promises
import pytest
from rig import Cluster, wait_for

from ..conftest import PROGRAM

#: gives a host a user who can log in as root can; the host's own file systems keep it
NEW_USER = """
cp /etc/passwd /var/tmp/passwd
echo 'guest:x:4711:4711::/var/tmp/guest:/bin/sh' >>/var/tmp/passwd
mount --bind /var/tmp/passwd /etc/passwd
mkdir -p /var/tmp/guest/.ssh && cp ~/.ssh/authorized_keys /var/tmp/guest/.ssh/
chown -R 4711:4711 /var/tmp/guest && chmod 700 /var/tmp/guest /var/tmp/guest/.ssh
"""


class Login:
    """Somebody on ``login``, whose records are in the cluster's shared folder."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._started: list[subprocess.Popen[Any]] = []

    def dispatch(self, *words: str) -> subprocess.CompletedProcess[str]:
        state = {"XDG_STATE_HOME": f"{self.cluster.shared}/state"}
        return self.cluster.run([*PROGRAM, *words], env=state)

    def detach(self, *words: str) -> str:
        """The id of a new job: one rank on each host, which sleeps."""
        done = self.dispatch("--detach", "-H", "n[1-2]:1", "--chdir", "/", *words,
                             "--no-python", "sleep", "300")  # fmt: skip
        assert done.returncode == 0, done.stderr
        return str(self.jobs()[-1]["id"])

    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = promises.told(self.dispatch("jobs", "--json").stdout)
        return found

    def living(self, run_id: str) -> dict[str, int]:
        """host -> processes that carry the id, of anybody."""
        found: dict[str, int] = {}
        for process in self.cluster.census(self.cluster.hosts, run_id=run_id):
            if process.state not in "ZX":
                found[process.host] = found.get(process.host, 0) + 1
        return found

    def settled(self, *run_ids: str) -> None:
        """Wait until each host has the three processes of each run, and no helper of a moment."""
        wait_for(lambda: all(self.living(run) == {"n1": 3, "n2": 3} for run in run_ids), 60,
                 lambda: f"all is as ever: {[self.living(run) for run in run_ids]}")  # fmt: skip

    def plant(self, host: str, uid: int, run_id: str) -> subprocess.Popen[Any]:
        """A process of user ``uid`` that says it is of run ``run_id``."""
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        argv = [*become, "env", f"DISPATCH_RUN_ID={run_id}", "sleep", "301"]  # no rank's
        process = self.cluster.popen(argv, host)
        self._started.append(process)

        def is_there() -> bool:
            tagged = self.cluster.processes(host, run_id=run_id)
            return any(command == "sleep 301" for _, command in tagged)

        wait_for(is_there, 60, lambda: f"{host} has one more: {self.living(run_id)}")
        return process

    def lose_launcher(self, run_id: str) -> None:
        """kill -9 of the launcher, while nobody on the hosts can clean up."""
        for process in self.cluster.census(self.cluster.hosts, run_id=run_id):
            if not process.command.startswith("sleep"):
                with suppress(ProcessLookupError):
                    os.kill(process.outer, signal.SIGSTOP)
        (job,) = [job for job in self.jobs() if job["id"] == run_id]
        self.cluster.signal("login", job["pid"], signal.SIGKILL)
        wait_for(lambda: self.state(run_id) == "dead", 60, lambda: f"it is dead: {self.jobs()}")

    def state(self, run_id: str) -> str:
        return next(str(job["state"]) for job in self.jobs() if job["id"] == run_id)

    def folders(self, run_id: str) -> set[str]:
        """The hosts where an agent's folder of the run is."""
        look = ["sh", "-c", f"ls -d /tmp/dispatch-{run_id}-*"]
        return {host for host in self.cluster.hosts if self.cluster.run(look, host).stdout}

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def login(new_cluster: Callable[..., Cluster]) -> Any:
    if os.getuid() != 0:
        pytest.skip("needs root: hosts with more users than one")
    cluster = new_cluster(2)
    for host in cluster.hosts:
        cluster.run(["sh", "-ec", NEW_USER], host, check=True)
    login = Login(cluster)
    yield login
    login.close()


AS = [("root", []), ("guest", ["--user", "guest"])]


@pytest.mark.parametrize(("who", "user", "dead"), [(*AS[0], False), (*AS[1], True)])
def test_kill_ends_this_run_and_no_other(
    login: Login, who: str, user: list[str], dead: bool
) -> None:
    mine, other = login.detach(*user), login.detach(*user)
    strangers = login.detach(*(AS[1][1] if who == "root" else []))
    login.settled(mine, other, strangers)
    liar = login.plant("n1", 4711 if who == "root" else 0, mine)
    if dead:
        login.lose_launcher(mine)
        assert set(login.living(mine)) == {"n1", "n2"}
    assert login.folders(mine) == {"n1", "n2"}
    done = login.dispatch("kill", mine)
    assert done.returncode == 0, done.stdout + done.stderr
    if dead:
        assert "n[1-2]: killed" in done.stdout or "n1: killed" in done.stdout
    assert login.state(mine) == "ended"
    wait_for(lambda: login.living(mine) == {"n1": 1}, 60, lambda: f"left: {login.living(mine)}")
    assert liar.poll() is None  # another user's, whatever it says
    assert not login.folders(mine)
    login.settled(other, strangers)
    assert all(login.folders(run) == {"n1", "n2"} for run in (other, strangers))
    assert [login.state(run) for run in (other, strangers)] == ["running", "running"]


@pytest.mark.parametrize(("who", "user"), AS)
def test_sweep_ends_what_dead_launchers_left(login: Login, who: str, user: list[str]) -> None:
    lost, lives = login.detach(*user), login.detach(*user)
    strangers = login.detach(*(AS[1][1] if who == "root" else []))
    unknown = "20200101-000000-aaaaaa"  # of a launcher on another machine, perhaps
    foreign = login.plant("n2", 0 if who == "root" else 4711, unknown)
    login.settled(lost, lives, strangers)
    login.lose_launcher(lost)
    login.lose_launcher(strangers)
    reach = ["-w", "n[1-2]", *user]
    listed = login.dispatch("sweep", *reach).stdout
    assert "n[1-2]: found 1 folder in /tmp" in listed
    assert f"{lost}: left over" in listed
    assert f"{lives}: still running" in listed
    assert f"{unknown}: its launcher is not known on this machine" in listed
    assert strangers not in listed
    done = login.dispatch("sweep", "--kill", *reach)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for(lambda: not login.living(lost), 60, lambda: f"left: {login.living(lost)}")
    assert not login.folders(lost)
    assert "n[1-2]: removed 1 folder in /tmp" in done.stdout
    login.settled(lives, strangers)
    assert all(login.folders(run) == {"n1", "n2"} for run in (lives, strangers))
    assert foreign.poll() is None
    by_id = login.dispatch("sweep", unknown, "--kill", *reach)
    assert "killed 1 process" in by_id.stdout
    assert foreign.wait(timeout=60) != 0
