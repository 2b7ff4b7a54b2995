"""Our end of ``put``: what is sent, who passes it on, and at what pace.

What is sent (``Sources``) is listed before any host is touched, and read as it is sent. Small
files are kept as one run of frames in an unlinked file, so sending many of them is sending one:
no file is opened once a host. Large ones are read where they are.

In a tree the hosts are cut into as many runs as there are branches; the first of each run is
its head, which we serve, and which does the same with the rest of its run. So bytes leave
this machine once a branch. Heads reach the others by their own ``ssh``, with their own
configuration; what they cannot reach we serve ourselves afterwards.

A host with Python is sent the program ``remote.copy`` and the list of files, says what it
needs and gets just that; its report says what it did. A host without is sent a tar. One
writer thread a host; what hosts say is parsed on their own threads, bounded and checked.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from dispatcher.bootstrap import payload, shell
from dispatcher.model.errors import CannotCopy
from dispatcher.model.host import Host
from dispatcher.remote.copy.disk import NotGiven, digest, give, scan
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import HEADER, Malformed
from dispatcher.transfer.host_copy import CopyHandler, HostCopy
from dispatcher.transfer.tars import names_of, pack
from dispatcher.transport.base import Link, LinkClosed

#: a file of at most so many bytes is kept as frames
SMALL = 256 << 10
_CHUNK = 256 << 10

#: (destination, local paths)
Group = tuple[str, tuple[str, ...]]


class Sources:
    """The files of ``groups``: a list of them, and their bytes from any place in it.

    checksum: whether the list holds each file's SHA-256.
    Raises: UsageError when one cannot be read, is no file, folder or link, or when two of
    a group have the same name.
    """

    def __init__(self, groups: Sequence[Group], *, checksum: bool) -> None:
        self.groups = groups
        self.entries: list[copy_frames.Entry] = []
        self._paths: list[str] = []
        self._spans: list[tuple[int, int]] = []  # in the run of small files: from, to
        self._run = tempfile.TemporaryFile(prefix="dispatch-put-")  # noqa: SIM115 - ours
        self._tar: BinaryIO | None = None
        try:
            self._list(checksum)
        except BaseException:
            self.close()
            raise

    def _list(self, checksum: bool) -> None:
        try:
            for number, (_, paths) in enumerate(self.groups):
                self._add_group(number, paths)
            if checksum:
                self.add_digests()
            self._read_all()
        except NotGiven as error:
            raise CannotCopy(str(error)) from None
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise CannotCopy(f"{error.filename or 'temporary file'}: {why}") from None

    def _add_group(self, number: int, paths: Sequence[str]) -> None:
        for path, name in zip(paths, names_of(paths), strict=True):
            for entry, place in scan(path, f"{number}/{name}"):
                if entry.kind == copy_frames.OTHER:
                    raise NotGiven(f"{place}: not a file, a folder or a link")
                self.entries.append(entry)
                self._paths.append(place)

    def add_digests(self) -> None:
        """Put every file's SHA-256 into the list. Raises: UsageError."""
        try:
            for entry, path in zip(self.entries, self._paths, strict=True):
                if entry.kind == copy_frames.FILE:
                    entry.more = digest(path)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise CannotCopy(f"{error.filename}: {why}") from None

    def _read_all(self) -> None:
        """Keep the small files; see that the others can be read."""
        at = 0
        for entry, path in zip(self.entries, self._paths, strict=True):
            start = at
            if entry.kind == copy_frames.FILE and entry.size > SMALL:
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            elif entry.kind == copy_frames.FILE:
                for piece in give(path, entry.size):
                    if HEADER.unpack_from(piece)[1] == copy_frames.BROKEN:
                        raise NotGiven(os.fsdecode(piece[HEADER.size :]))
                    self._run.write(piece)
                    at += len(piece)
            self._spans.append((start, at))
        self._run.flush()

    def close(self) -> None:
        """Give back the temporary files."""
        self._run.close()
        if self._tar is not None:
            self._tar.close()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def order(
        self,
        groups: Sequence[Group],
        *,
        checksum: bool,
        resume: bool,
        more: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The first frame for a host. groups: as ours, with the destinations of that host."""
        return copy_frames.message(
            {
                "do": "put",
                "list": copy_frames.columns(self.entries),
                "groups": [[dest, names_of(paths)] for dest, paths in groups],
                "checksum": checksum,
                "resume": resume,
                **(more or {}),
            }
        )

    def pieces(self, needed: Sequence[int], starts: dict[int, tuple[int, str]]) -> Iterator[bytes]:
        """Frames of the files ``needed``, rising indexes of entries.

        starts: index -> bytes that are there already, and their SHA-256.
        """
        run: tuple[int, int] | None = None
        for index in needed:
            start, end = self._spans[index]
            if run is not None and (start == end or start != run[1]):
                yield from self._of_run(*run)
                run = None
            if start == end:
                at, seen = starts.get(index, (0, ""))
                yield from give(self._paths[index], self.entries[index].size, at, seen)
            else:
                run = (start if run is None else run[0], end)
        if run is not None:
            yield from self._of_run(*run)

    def _of_run(self, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, _CHUNK):
            yield os.pread(self._run.fileno(), min(_CHUNK, end - at), at)

    def tar(self) -> BinaryIO:
        """All of the first group as a tar, for hosts without Python; made when first wanted."""
        if self._tar is None:
            self._tar = pack(self.groups[0][1])
        return self._tar


#: branches when the user does not say
BRANCHES = 8
#: a tree pays from so many hosts on, when all of them together take so many bytes
MANY_HOSTS, MANY_BYTES = 64, 8 << 30

_SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ClearAllForwardings=yes",
)  # fmt: skip


@dataclass(frozen=True)
class Branch:
    """A run of hosts, as indexes: the head, and those below it."""

    head: int
    below: tuple[int, ...]
    branches: int


def pays(hosts: int, size: int) -> bool:
    """Whether to use a tree that nobody asked for. size: bytes for one host."""
    return hosts >= MANY_HOSTS and hosts * size >= MANY_BYTES


def branches_of(nodes: Sequence[int], branches: int) -> list[Branch]:
    """``nodes`` in at most ``branches`` branches."""
    runs = copy_frames.split(nodes, branches)
    return [Branch(head, tuple(below), branches) for head, *below in runs]


def instructions(
    branch: Branch, hosts: Sequence[Host], groups: Sequence[tuple[Group, ...]]
) -> dict[str, Any]:
    """What the head is told besides its own order. hosts, groups: of all nodes."""
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


#: bytes of one answer of a host, besides a byte for each entry
_LARGEST = 64 << 10
_PACKED = 64 << 10


class Sending(CopyHandler):
    """Talks with the hosts (``runner.exec.stdio``): ``plans[node]`` goes to ``node``.

    plans: sources, and the groups with that host's destinations. copies: written as it goes.
    below: node -> what it is told to pass on (``tree.instructions``), and what is known
    of those hosts, by the names it has for them.
    """

    def __init__(
        self,
        plans: Sequence[tuple[Sources, tuple[Group, ...]]],
        *,
        checksum: bool,
        resume: bool,
        copies: Sequence[HostCopy],
        below: Mapping[int, tuple[dict[str, Any], dict[int, HostCopy]]] | None = None,
    ) -> None:
        most = max((len(sources.entries) for sources, _ in plans), default=0)
        super().__init__("put", _LARGEST + most, copies)
        self._plans = plans
        self._below = below or {}
        self._checksum = checksum
        self._resume = resume
        self._orders: dict[tuple[int, tuple[Group, ...]], bytes] = {}
        self._lock = threading.Lock()

    # -- one host ---------------------------------------------------------------------------

    def _by_tar(self, node: int, link: Link) -> None:
        sources, groups = self._plans[node]
        if len(groups) > 1:
            raise CannotCopy("{rank} in a destination needs a python3 there")
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
        if _take_report(copy, answer):
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
        _take_report(copy, answer)

    def _take_message(self, node: int, answer: dict[str, Any]) -> None:
        """What an inner host says of those below it: it can say nothing of any other."""
        _, below = self._below.get(node, ({}, {}))
        nodes = answer.pop("of", None)
        if not isinstance(nodes, list):
            raise Malformed("a word of nobody")
        for other in nodes:
            copy = below.get(other) if isinstance(other, int) else None
            if copy is None:
                raise Malformed("a word of a host that is not below it")
            copy.python = True
            if "failed" not in answer:
                _take_report(copy, answer)
            else:
                copy.relay_error = str(answer["failed"])[:300]

    def _order(self, node: int) -> bytes:
        sources, groups = self._plans[node]
        more, _ = self._below.get(node, (None, None))
        if more:
            return sources.order(groups, checksum=self._checksum, resume=self._resume, more=more)
        key = (id(sources), groups)
        with self._lock:
            if key not in self._orders:
                self._orders[key] = sources.order(
                    groups, checksum=self._checksum, resume=self._resume
                )
            return self._orders[key]


def _take_report(copy: HostCopy, answer: dict[str, Any]) -> bool:
    """Whether ``answer`` is the host's last word; what it says is kept."""
    error, sent, equal = answer.get("error"), answer.get("sent"), answer.get("equal")
    if isinstance(error, str):
        copy.error = error[:500]
    elif isinstance(sent, int) and isinstance(equal, int):
        copy.sent, copy.equal = sent, equal
        copy.bytes = copy.wanted = _number(answer.get("bytes"))
        copy.found = _number(answer.get("found"))
    else:
        return False
    return True


def _number(value: object) -> int:
    """``value`` if it is a number of bytes, else 0."""
    return value if isinstance(value, int) and 0 <= value < 1 << 60 else 0


def needs_of(
    answer: dict[str, Any], entries: Sequence[copy_frames.Entry]
) -> tuple[list[int], dict[int, tuple[int, str]]]:
    """Which entries a host wants, and what it has of them already. Raises: Malformed."""
    needed = copy_frames.needed_of(answer)
    if len(answer["need"]) != len(entries):
        raise Malformed("an answer to another list")
    if any(entries[index].kind != copy_frames.FILE for index in needed):
        raise Malformed("it wants what was not offered")
    starts = copy_frames.starts_of(answer)
    wanted = set(needed if starts else ())
    for index, (size, _) in starts.items():
        if index not in wanted or not 0 <= size <= entries[index].size:
            raise Malformed("it has more of a file than there is")
    return needed, starts
