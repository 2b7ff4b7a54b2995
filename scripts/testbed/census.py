"""Who runs where: the processes of every host, except those that make it a host.

A process belongs to the host whose pid namespace it is in, so none can hide.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator

from .layout import Member, Record


@dataclasses.dataclass(frozen=True)
class Process:
    """A process: ``pid`` as its host counts, ``outer`` as this machine does."""

    host: str
    pid: int
    outer: int
    state: str
    command: str


def census(
    record: Record, hosts: Collection[str] | None = None, run_id: str | None = None
) -> list[Process]:
    """All processes of ``hosts`` (default: all hosts and login), in host order.

    run_id: only those with this ``DISPATCH_RUN_ID`` in the environment they were started with.
    Left out: the init and the sshd processes of each host; whatever ran ``ps`` is outside.
    """
    wanted = [member for member in record.members if hosts is None or member.name in hosts]
    found = [
        process
        for process in _inside(wanted)
        if run_id is None or _carries(process.outer, "DISPATCH_RUN_ID", run_id)
    ]
    order = {member.name: place for place, member in enumerate(wanted)}
    return sorted(found, key=lambda process: (order[process.host], process.pid))


def _inside(wanted: list[Member]) -> Iterator[Process]:
    spaces = {}
    for member in wanted:
        space = _link(f"/proc/{member.pid}/ns/pid")
        if space is not None:
            spaces[space] = member
    for pid in pids():
        host = spaces.get(_link(f"/proc/{pid}/ns/pid") or "")
        if host is None or pid == host.pid:
            continue
        status = status_of(pid)
        if status is None or status["Name"].startswith("sshd"):
            continue
        inner = int(status["NSpid"].split()[-1])
        yield Process(host.name, inner, pid, status["State"][0], _command(pid, status["Name"]))


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def status_of(pid: int) -> dict[str, str] | None:
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return None


def _command(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().rstrip(b"\0").split(b"\0")
    except OSError:
        words = [b""]
    return b" ".join(words).decode(errors="replace") or f"[{name}]"


def _carries(pid: int, name: str, value: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{name}={value}".encode() in file.read().split(b"\0")
    except OSError:
        return False
