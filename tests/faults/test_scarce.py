"""Hosts that lack something a program takes for granted: room, descriptors, the right time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rig import Cluster, wait_for

from .conftest import Job
from .test_matrix import QUICK, SILENCE, SLACK, START

Start = Callable[..., Job]
New = Callable[..., Cluster]


@pytest.mark.parametrize("how", ["size=4k,nr_inodes=1", "ro"], ids=["full", "read-only"])
def test_no_room_on_a_host(job_on: Start, new_cluster: New, how: str) -> None:  # row 23
    """The agent runs from memory; only the ranks' error files would have been kept there."""
    cluster = new_cluster(2)
    for folder in ("/var/tmp", "/dev/shm", "/tmp"):
        if sys.executable.startswith(folder):
            continue  # the ranks' Python is there, and the program
        mount = ["mount", "-t", "tmpfs", "-o", how, "none", folder]
        cluster.run(mount, "n2", root=True, check=True)
    said = job_on(cluster, "raise").up(3).ends(1, 2 + SLACK)
    assert re.search(r"^error: rank 3 on n2, pid \d+: exit code 1", said, re.M), said
    assert "ValueError: rank 3 has no luck" in said
    wait_for(lambda: not cluster.on_hosts(), 2 + SLACK, "the hosts are idle")


def test_too_few_descriptors(job_on: Start, new_cluster: New) -> None:  # row 24
    """Nothing is left, though the agent has none to spare; the number it asks for is enough."""
    cluster = limited(new_cluster(2), 24)
    run = job_on(cluster, "sleep", slots=8)
    said = run.ends(126, START + SLACK)
    # which of both meets the limit first is a matter of one descriptor
    where = r"^error: rank \d+ on n2: (fork rank \d+|exec \S+): too many open files"
    assert re.search(where, said, re.M), said
    (need,) = re.findall(r"^  hint: .* allow its sshd (\d+) or more", said, re.M)
    assert int(need) <= 64
    run.clean(2 + SLACK)
    run = job_on(limited(cluster, int(need)), "stray", slots=8).up()
    run.terminate()
    run.ends(143, 2 + SLACK)
    run.clean(2 + SLACK)


def limited(cluster: Cluster, most: int) -> Cluster:
    """``cluster``, where whatever sshd starts on n2 may have ``most`` files open, 64 at most."""
    sshd = cluster.run(["pgrep", "-o", "-x", "sshd"], "n2", check=True).stdout.strip()
    cluster.run(["prlimit", "--pid", sshd, f"--nofile={most}:64"], "n2", check=True)
    return cluster


class WallClocks:
    """Wall clocks of hosts that a test sets; ``login`` is the launcher's."""

    def __init__(self, cluster: Cluster) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler for a clock that is wrong")
        self._place = Path(cluster.shared)
        self._library = self._place / "wall_clock.so"
        source = Path(__file__).with_name("wall_clock.c")
        words = [compiler, "-shared", "-fPIC", "-O", "-o", str(self._library), str(source), "-ldl"]
        subprocess.run(words, check=True)
        for host in ("login", *cluster.hosts):
            self._file(host).write_bytes(bytes(8))
        self.python = self._place / "python"
        self.python.write_text(
            f"#!/bin/sh\nexport LD_PRELOAD={self._library}\n"
            f'export WALL_CLOCK_OFFSET={self._place}/clock-$(uname -n)\nexec python3 "$@"\n'
        )
        self.python.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        """What gives a process the clock of ``login``."""
        return {
            "LD_PRELOAD": str(self._library),
            "WALL_CLOCK_OFFSET": str(self._file("login")),
        }

    def set(self, host: str, seconds: int) -> None:
        """Let the host's clock be ``seconds`` ahead, from now on."""
        with open(self._file(host), "r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def _file(self, host: str) -> Path:
        return self._place / f"clock-{host}"


def test_clocks_that_differ_and_jump(job_on: Start, new_cluster: New) -> None:  # row 25
    cluster = new_cluster(3)
    clocks = WallClocks(cluster)
    clocks.set("n2", 3600)
    told = cluster.run([str(clocks.python), "-c", "import time; print(time.time())"], "n2")
    assert float(told.stdout) > time.time() + 1800
    run = job_on(
        cluster, "sleep", *QUICK, "--agent-python", str(clocks.python), env=clocks.env
    ).up()
    for host, seconds in (("n1", -30), ("n2", 3570), ("n3", 3600), ("login", 3600)):
        clocks.set(host, seconds)
    time.sleep(SILENCE + 1)  # a host that is not heard is lost; a lease is over with the jump
    assert run.process.poll() is None, run.said()
    clocks.set("login", -30)
    time.sleep(SILENCE + 0.5)
    assert run.process.poll() is None, run.said()
    os.kill(run.ranks("n3")[0], 9)
    run.began = time.monotonic()
    said = run.ends(137, 2 + SLACK)
    assert re.search(r"^error: rank [45] on n3", said, re.M), said
    run.clean(1 + SLACK)
