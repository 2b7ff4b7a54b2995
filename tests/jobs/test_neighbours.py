"""Your other jobs on the hosts of a job, and the order of those that wait."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from cases import cases

from dispatcher.jobs.host_history import jobs_text, neighbours
from dispatcher.jobs.registry import Job, Process


def job(
    name: str, hosts: str = "n1", gpus: Any = None, *, doing: str = "running", ended: bool = False
) -> Job:
    launcher = Process.of(os.getpid())
    assert launcher is not None
    names = hosts.split()
    return Job(
        Path("x"), name, socket.gethostname(), launcher, ("a",),
        tuple((one, None, None) for one in names), 1, float(name[1:]), None, False, {},
        {"exit_code": 0} if ended else None, doing, name=name,
        gpus=tuple(None if gpus is None else frozenset(gpus.split()) for _ in names),
    )  # fmt: skip


@cases(
    ("others", "doing", "found"),
    [
        ([], "running", ""),
        ([job("j1")], "running", "n1: your job j1 (j1)"),
        ([job("j1", "n1 n2 n3")], "running", "n[1-2]: your job j1 (j1)"),
        ([job("j1"), job("j3", "n2")], "running", "n1: your job j1 (j1); n2: your job j3 (j3)"),
        ([job("j1", "n3")], "running", ""),
        ([job("j1", ended=True)], "running", ""),
        ([job("j1", doing="connecting")], "waiting", "n1: your job j1 (j1)"),
        ([job("j1", gpus="2 3")], "running", ""),
        ([job("j1", gpus="1 2")], "running", "n1: your job j1 (j1)"),
        # who waits is in nobody's way but that of who waits since later
        ([job("j1", doing="waiting")], "running", ""),
        ([job("j1", doing="waiting")], "waiting", "n1: your job j1 (j1), which waits, too"),
        ([job("j3", doing="waiting")], "waiting", ""),
    ],
)  # fmt: skip
def test_who_is_in_the_way(others: list[Job], doing: str, found: str) -> None:
    me = job("j2", "n1 n2", "0 1", doing=doing)
    assert jobs_text(neighbours([*others, me], "j2")) == found
    assert neighbours(others, "j2") == {}
