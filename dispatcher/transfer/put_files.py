"""The launcher's end of ``put``: sends each host its files, or has another host pass them on.

In a tree the hosts are cut into runs; we serve the head of each, which does the same with the rest
of its run, by its own ``ssh``. Hosts that a head cannot reach we serve ourselves afterwards.

A host with Python gets the program ``remote.copy`` and the list of files, asks for those that it
needs and gets just these; a host without gets a tar. One writer thread a host.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.bootstrap import payload, shell
from dispatcher.model.errors import CannotCopy
from dispatcher.model.host import Host
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import Malformed
from dispatcher.transfer.host_copy import CopyHandler, HostCopy
from dispatcher.transfer.put_sources import Group, Sources
from dispatcher.transfer.tars import names_of
from dispatcher.transport.base import Link, LinkClosed

#: branches by default
BRANCHES = 8
#: a tree pays from so many hosts on, when all of them together take so many bytes
MANY_HOSTS, MANY_BYTES = 64, 8 << 30

_SSH = (
    "ssh", "-Tax", "-oBatchMode=yes", "-oConnectTimeout=10", "-oClearAllForwardings=yes",
)  # fmt: skip


@dataclass(frozen=True)
class Branch:
    """A run of hosts, as indexes: the head, and those below it."""

    head: int
    below: tuple[int, ...]
    branches: int


def pays(hosts: int, size: int) -> bool:
    """Whether to use a tree by default. size: bytes for one host."""
    return hosts >= MANY_HOSTS and hosts * size >= MANY_BYTES


def branches_of(nodes: Sequence[int], branches: int) -> list[Branch]:
    """``nodes`` in at most ``branches`` branches."""
    runs = copy_frames.split(nodes, branches)
    return [Branch(head, tuple(below), branches) for head, *below in runs]


def instructions(
    branch: Branch, hosts: Sequence[Host], groups: Sequence[tuple[Group, ...]]
) -> dict[str, Any]:
    """The instructions for a head, beside its own order. hosts, groups: of all nodes."""
    return {
        "below": [
            [node, _argv(hosts[node]), [[dest, names_of(paths)] for dest, paths in groups[node]]]
            for node in branch.below
        ],
        "branches": branch.branches,
        "opening": shell.opening(payload.copy_command("exit 1"), stdin=True),
        "marker": SYNC,
    }


def _argv(host: Host) -> list[str]:
    user = ["-l", host.user] if host.user is not None else []
    port = ["-p", str(host.port)] if host.port is not None else []
    return [*_SSH, *user, *port, "--", host.name, shell.COMMAND]


#: bytes of one answer of a host, and for each entry: its bytes on the host, and its SHA-256
_LARGEST, _EACH = 64 << 10, 128
_PACKED = 64 << 10


class Sending(CopyHandler):
    """Sends to the hosts: ``plans[node]``, sources and that host's groups, goes to ``node``.

    below: node -> its ``instructions`` for other hosts, and the copies of those hosts, by the names
    it has for them. owner: as for ``Sources.order``.
    """

    def __init__(
        self,
        plans: Sequence[tuple[Sources, tuple[Group, ...]]],
        *,
        checksum: bool,
        resume: bool,
        copies: Sequence[HostCopy],
        below: Mapping[int, tuple[dict[str, Any], dict[int, HostCopy]]] | None = None,
        owner: str = "",
    ) -> None:
        most = max((len(sources.entries) for sources, _ in plans), default=0)
        super().__init__("put", _LARGEST + _EACH * most, copies)
        self._plans = plans
        self._below = below or {}
        self._checksum = checksum
        self._resume = resume
        self._owner = owner
        self._orders: dict[tuple[int, tuple[Group, ...]], bytes] = {}
        self._lock = threading.Lock()

    # -- one host ---------------------------------------------------------------------------

    def moved(self) -> dict[int, int]:
        """As ``CopyHandler``; a host counts as moving while we read a file for another."""
        return {
            node: count + self._plans[node][0].n_read for node, count in super().moved().items()
        }

    def _by_tar(self, node: int, link: Link) -> None:
        sources, groups = self._plans[node]
        if len(groups) > 1:
            raise CannotCopy("{rank} in a destination needs a python3 on the host")
        if self._owner:
            raise CannotCopy("--owner needs a python3 on the host")
        with self._lock:
            tar = sources.tar().fileno()
        at = 0
        while data := os.pread(tar, _PACKED, at):
            link.write(data)
            at += len(data)
            self.copies[node].bytes = min(at, self.copies[node].wanted)

    def _by_python(self, node: int, link: Link) -> None:
        sources, _ = self._plans[node]
        copy, reader = self.copies[node], self._readers[node]
        link.write(payload.copy_payload(bool(self._below.get(node))) + self._order(node))
        answer = reader.value()
        if _take_report(copy, answer, sources):
            return
        needed, starts = needs_of(answer, sources.entries)
        copy.wanted = sum(sources.entries[index].size for index in needed)
        try:
            for piece in sources.pieces(needed, starts):
                link.write(piece)
                copy.bytes = min(copy.wanted, copy.bytes + len(piece))
        except LinkClosed:
            pass  # it may have said why
        while "of" in (answer := reader.value()):
            self._take_message(node, answer)
        _take_report(copy, answer, sources)

    def _take_message(self, node: int, answer: dict[str, Any]) -> None:
        """Take an inner host's report on the hosts below it, and on no others."""
        (sources, _), (_, below) = self._plans[node], self._below.get(node, ({}, {}))
        nodes = answer.pop("of", None)
        if not isinstance(nodes, list):
            raise Malformed("a report on no host")
        for other in nodes:
            copy = below.get(other) if isinstance(other, int) else None
            if copy is None:
                raise Malformed("a report on a host that is not below it")
            copy.python = True
            if "failed" not in answer:
                _take_report(copy, answer, sources)
            else:
                copy.relay_error = str(answer["failed"])[:300]

    def _order(self, node: int) -> bytes:
        sources, groups = self._plans[node]
        more, _ = self._below.get(node, (None, None))

        def made() -> bytes:
            return sources.order(
                groups,
                checksum=self._checksum,
                resume=self._resume,
                owner=self._owner,
                more=more,
            )

        if more:
            return made()
        key = (id(sources), groups)
        with self._lock:
            if key not in self._orders:
                self._orders[key] = made()
            return self._orders[key]


#: files that were needed, and not; bytes that came, and were there (``Receiver.report``)
_REPORT = ("sent", "equal", "bytes", "found")


def _take_report(copy: HostCopy, answer: dict[str, Any], sources: Sources) -> bool:
    """Keep the report in ``answer``; whether it is the host's last. Raises: Malformed."""
    if copy.is_refused(answer):
        return True
    if "sent" not in answer:
        return False
    done = sent, equal, size, found = [answer.get(key, 0) for key in _REPORT]
    if not all(type(number) is int and number >= 0 for number in done):
        raise Malformed("a broken report")
    if sent + equal > sources.files or max(size, found) > sources.size:
        raise Malformed("a report of more than it was offered")
    copy.sent, copy.equal, copy.bytes, copy.wanted, copy.found = sent, equal, size, size, found
    return True


def needs_of(
    answer: dict[str, Any], entries: Sequence[copy_frames.Entry]
) -> tuple[list[int], dict[int, tuple[int, str]]]:
    """The entries that a host wants, and its part of each already there. Raises: Malformed."""
    needed = copy_frames.needed_of(answer)
    if len(answer["need"]) != len(entries):
        raise Malformed("an answer to another list")
    if any(entries[index].kind != copy_frames.FILE for index in needed):
        raise Malformed("it wants a file that was not offered")
    starts = copy_frames.starts_of(answer)
    wanted = set(needed if starts else ())
    for index, (size, _) in starts.items():
        if index not in wanted or not 0 <= size <= entries[index].size:
            raise Malformed("it has more of a file than there is")
    return needed, starts
