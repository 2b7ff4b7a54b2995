"""Jobs on the rig that are about to go wrong, and what may be asked of them afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import promises
import pytest
from rig import Cluster, kill_left, wait_for

#: how dispatch is started; a control puts one here that lacks a mechanism
DISPATCH = [sys.executable, "-m", "dispatcher"]
PROGRAM = str(Path(__file__).with_name("fault_rank.py"))
#: bytes that a rank floods
FLOOD = 32 << 20
#: what an agent and its guardian look like in a list of processes
AGENT = "f=io.FileIO(0)"


def kill_at_once(*pids: int) -> None:
    """Kill ``pids``, of which none sees another's end."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


class Job:
    """A run of ``fault_rank.py`` with two ranks (``slots``) on each host of ``cluster``.

    rank: who does ``kind``; or the place where all of them meet. env: for dispatch.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: str,
        *options: str,
        rank: int | str = 3,
        slots: int = 2,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.slots = slots
        self.logs = os.path.join(cluster.shared, f"logs-{time.monotonic_ns()}")
        hosts = ",".join(cluster.hosts)
        self.errors = self.logs + ".err"
        with open(self.errors, "w") as errors:
            self.process = cluster.popen(
                [
                    *DISPATCH, "--log-dir", self.logs, *options,
                    "-H", hosts, "--nproc-per-node", str(slots), "--no-python",
                    sys.executable, PROGRAM, kind, str(rank),
                ],
                stdout=subprocess.DEVNULL, stderr=errors, env=env,
            )  # fmt: skip
        self.began = time.monotonic()

    def up(self, *ranks: int) -> Job:
        """Wait until ``ranks`` (default: all) have said that they are up."""
        ranks = ranks or tuple(range(self.slots * len(self.cluster.hosts)))
        wait_for(lambda: all(map(self.is_up, ranks)), 60, self.said)
        self.began = time.monotonic()
        return self

    def terminate(self) -> None:
        """Have the launcher end the job; bounds count from here."""
        self.began = time.monotonic()
        self.process.terminate()

    def is_up(self, rank: int) -> bool:
        try:
            return self.kept(rank).startswith(b"up ")
        except OSError:
            return False

    def said(self) -> str:
        """What it has said on standard error until now, but where its files are."""
        with open(self.errors, errors="replace") as file:
            return "".join(line for line in file if not line.startswith("note: logs in "))

    def agents(self, host: str) -> tuple[int, int]:
        """(agent, guardian) on ``host``, as this machine counts."""
        found = {p.outer for p in self.cluster.census([host]) if AGENT in p.command}
        ((agent, guardian),) = [
            (pid, parent(pid))
            for pid in found
            # a rank looks like its agent until it is executed
            if parent(pid) in found and parent(parent(pid)) not in found
        ]
        return agent, guardian

    def ranks(self, host: str) -> list[int]:
        """The ranks' processes on ``host``, as this machine counts."""
        return [p.outer for p in self.cluster.census([host]) if PROGRAM in p.command]

    def launcher(self) -> int:
        found = [p.outer for p in self.cluster.census(["login"]) if self.logs in p.command]
        return min(found)

    def ends(self, code: int, limit: float) -> str:
        """Wait for the launcher's end with ``code``; what it said on standard error.

        limit: seconds from ``began``, which is when ranks were up, or the fault.
        """
        limit -= time.monotonic() - self.began
        try:
            self.process.wait(timeout=max(0.1, limit))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it runs on; on the hosts {self.cluster.on_hosts()}") from None
        assert self.process.returncode == code, self.said()
        _took("ended", time.monotonic() - self.began)
        return self.said()

    def clean(self, limit: float, *hosts: str) -> None:
        """Wait until nothing is left on ``hosts`` (default: all)."""
        names = hosts or tuple(self.cluster.hosts)
        asked = time.monotonic()
        wait_for(
            lambda: not any(self.cluster.processes(host) for host in names),
            limit,
            lambda: f"nothing is left; there is {self.cluster.on_hosts()}",
        )
        _took("empty, from there", time.monotonic() - asked)

    def report(self) -> dict[str, Any]:
        text = Path(self.logs, "latest", "report.json").read_text()
        report: dict[str, Any] = json.loads(text)
        return report

    def kept(self, rank: int, stream: str = "out") -> bytes:
        return Path(self.logs, "latest", f"rank-{rank:05d}.{stream}").read_bytes()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=30)
        promises.keep_run(Path(self.logs, "latest"))
        kill_left(process.outer for process in self.cluster.census())


def _took(what: str, seconds: float) -> None:
    """Add a line to the file ``FAULTS_TIMES``, if one is named."""
    if file := os.environ.get("FAULTS_TIMES"):
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].removesuffix(" (call)")
        with open(file, "a") as times:
            times.write(f"{test}\t{what}\t{seconds:.2f}\n")


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture
def job_on() -> Iterator[Callable[..., Job]]:
    """``job_on(cluster, kind, *options)`` on hosts that the test has prepared."""
    made: list[Job] = []

    def start(cluster: Cluster, kind: str, *options: str, **fields: Any) -> Job:
        made.append(Job(cluster, kind, *options, **fields))
        return made[-1]

    yield start
    for job in made:
        job.close()


@pytest.fixture
def job(cluster: Cluster, job_on: Callable[..., Job]) -> Callable[..., Job]:
    """``job(kind, *options)`` on the four hosts that all tests share."""
    return partial(job_on, cluster)


@pytest.fixture
def own_job(new_cluster: Callable[..., Cluster], job_on: Callable[..., Job]) -> Callable[..., Job]:
    """``own_job(kind, *options)`` on three hosts of the test's own, to cut and to power off."""
    return partial(job_on, new_cluster(3))


def flood_block() -> bytes:
    """What a flood repeats, as ``fault_rank.py`` has it."""
    return b"".join(b"%d %s\n" % (n, b"x" * (n % 300)) for n in range(1000))
