"""Some hosts of a cluster, seen as a cluster, while others of it and some processes go on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from testbed.census import Process, pids, status_of
from testbed.cluster import Cluster
from testbed.layout import Member


class Arena(Cluster):
    """The hosts that rounds use, and login without what lives there all the time.

    width: hosts in use. Two more have connections that are kept (``far``, ``near``), and the rest
    take the place of those that lose power.
    """

    def __init__(self, whole: Cluster, width: int, slots: int) -> None:
        super().__init__(0, name=whole.name)
        self._width, self._slots = width, slots
        self.whole, self._record = whole, whole._record
        self.members = whole._record.members
        self.folder = os.path.join(whole._record.directory, "shared", "soak")
        for name in ("tmp", "state", "run"):
            os.makedirs(os.path.join(self.folder, name), mode=0o700)
        *self.reserve, self.far, self.near = whole.hosts
        self.kept = self.hostfile(hosts=[self.far, self.near])
        #: what lives all the time -> its pid, as this machine counts
        self.living: dict[str, int] = {}
        self.without(())

    def without(self, off: Collection[str]) -> None:
        """Have others in the place of the hosts that lost power."""
        self.reserve = [host for host in self.reserve if host not in off]
        self.hosts = self.reserve[: self._width]
        self.place = self.hostfile(self._slots)
        mine = tuple(m for m in self.members if m.name in ("login", *self.hosts))
        self._record = replace(self.whole._record, members=mine)

    def popen(self, argv: Sequence[str], host: str = "login", **how: Any) -> subprocess.Popen[Any]:
        own = {"TMPDIR": "tmp", "XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run"}
        how["env"] = {name: os.path.join(self.folder, at) for name, at in own.items()}
        return super().popen(argv, host, **how)

    def census(self, hosts: Sequence[str] | None = None, **how: Any) -> list[Process]:
        living = {*self.living.values()}
        return [p for p in super().census(hosts, **how) if p.outer not in living]

    def mine(self, number: int) -> str:
        """A folder for the files of round ``number``."""
        place = os.path.join(self.folder, f"of-{number}")
        os.makedirs(place, exist_ok=True)
        return place

    def member(self, host: str) -> Member:
        return next(member for member in self.members if member.name == host)

    def sessions(self, host: str) -> list[int]:
        """The processes of sshd on ``host`` that serve somebody."""
        parents, space = {}, os.stat(f"/proc/{self.member(host).pid}/ns/pid").st_ino
        for pid in pids():
            status = status_of(pid)
            with contextlib.suppress(OSError):
                there = os.stat(f"/proc/{pid}/ns/pid").st_ino == space
                if there and status and status["Name"].startswith("sshd"):
                    parents[pid] = int(status["PPid"])
        return [pid for pid, parent in parents.items() if parent in parents]
