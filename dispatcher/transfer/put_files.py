"""The launcher's end of ``put``: reads the files, and sends each host what it lacks.

The list is made before any host is touched; files are read as they are sent. Small files are kept
as one run of frames in an unlinked file: no file is opened once a host. Large ones stay in place.
A host with Python gets the program ``remote.copy`` and the list, asks for the files that it needs
and gets just these; a host without gets a tar. One writer thread a host.

In a tree the hosts are cut into runs; we serve the head of each, which does the same with the rest
of its run, by its own ``ssh``. Hosts that a head cannot reach we serve ourselves afterwards.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, BinaryIO

from dispatcher.bootstrap import payload, shell
from dispatcher.model.errors import CannotCopy, reason
from dispatcher.model.host import Host
from dispatcher.remote.copy.disk import PART, STAGE, STAGE_HERE, NotGiven, digest, file_frames, scan
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import HEADER, Malformed, frame
from dispatcher.transfer.host_copy import CopyHandler, HostCopy
from dispatcher.transfer.ignore_rules import Rules
from dispatcher.transfer.tars import names_of, pack_tar
from dispatcher.transport.base import Link, LinkClosed

#: a file of at most so many bytes is kept as frames
SMALL = 256 << 10
_CHUNK = 256 << 10
#: beginnings of the names that copies use for work, and leave where they are interrupted
LEFT = (STAGE, PART, STAGE_HERE)

#: (destination, local paths)
DestPaths = tuple[str, tuple[str, ...]]


class SharedDigest:
    """The SHA-256 of a file that is read for many hosts at once: each byte is hashed once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = 0
        self._known = copy_frames.sha256()

    def take(self, at: int, data: bytes) -> None:
        """Add ``data``, which a reader has read at ``at`` after all bytes before it."""
        if at + len(data) > self._size:
            with self._lock:
                if at + len(data) > self._size:
                    self._known.update(memoryview(data)[self._size - at :])
                    self._size = at + len(data)

    def digest(self) -> bytes:
        """The SHA-256 of all bytes that were read."""
        with self._lock:
            found: bytes = self._known.digest()
            return found


class DigestReader:
    """One reader's end of a ``SharedDigest``, to be used as a hash of ``hashlib``."""

    def __init__(self, shared: SharedDigest) -> None:
        self._shared = shared
        self._at = 0

    def update(self, data: bytes) -> None:
        """Add ``data``."""
        self._shared.take(self._at, data)
        self._at += len(data)

    def digest(self) -> bytes:
        """The SHA-256 of the whole file; it has been read to its end."""
        return self._shared.digest()


class Sources:
    """The files of ``groups``: a list of them, and their bytes. Raises: UsageError.

    checksum: whether the list holds each file's SHA-256. ignore: rules for files to leave out, as a
    .gitignore in DEST would have them. mode: of files; a folder can be entered by those whom the
    mode lets read. alone: whether no other user may be able to exchange the files.
    """

    alone = False

    def __init__(
        self,
        groups: Sequence[DestPaths],
        *,
        checksum: bool,
        ignore: Rules | None = None,
        mode: int | None = None,
    ) -> None:
        self.groups = groups
        #: paths that are not a file, folder or link, and are not sent; how many names are ignored
        self.odd: list[str] = []
        self.ignored = 0
        self._ignore = ignore or Rules()
        self._mode = mode
        self.entries: list[copy_frames.Entry] = []
        self._paths: list[str] = []
        self._spans: list[tuple[int, int]] = []  # in the run of small files: from, to
        self._run = tempfile.TemporaryFile(prefix="dispatch-put-")  # noqa: SIM115 - ours
        self._tar: BinaryIO | None = None
        self.n_read = 0  # bytes that were read for a host that waits, and not sent
        self._hashing = threading.Lock()
        self._digests: dict[int, str] = {}  # of files that hosts have under another time
        self._shared: dict[int, SharedDigest] = {}  # of files that are read as they are sent
        try:
            self._list(checksum)
        except BaseException:
            self.close()
            raise

    def _list(self, checksum: bool) -> None:
        try:
            for number, (_, paths) in enumerate(self.groups):
                self._add_group(number, paths)
            if not self.entries and self.odd:
                raise CannotCopy(f"{self.odd[0]}: not a file, a folder or a link")
            if not self.entries:
                raise CannotCopy("--ignore leaves nothing to send")
            if checksum:
                self.add_digests()
            self._read_all()
        except NotGiven as error:
            raise CannotCopy(str(error)) from None
        except OSError as error:
            why = reason(error)
            gone = isinstance(error, FileNotFoundError)  # of getcwd, which names nothing
            what = error.filename or ("the current folder" if gone else "temporary file")
            raise CannotCopy(f"{what}: {why}") from None

    def _add_group(self, number: int, paths: Sequence[str]) -> None:
        for path, name in zip(paths, names_of(paths), strict=True):
            for entry, place in scan(path, f"{number}/{name}", self._skip, named=True):
                if entry.kind == copy_frames.OTHER:
                    self.odd.append(place)
                    continue
                if self._mode is not None and entry.kind != copy_frames.LINK:
                    enter = (self._mode & 0o444) >> 2 if entry.kind == copy_frames.FOLDER else 0
                    entry.mode = self._mode | enter
                self.entries.append(entry)
                self._paths.append(place)

    def _skip(self, name: str, folder: bool) -> bool:
        folders, _, last = name.rpartition("/")
        if "/" in folders and last.startswith(LEFT):  # in a tree; by its own name it is sent
            return True
        path = os.fsencode(name.partition("/")[2])
        found = bool(self._ignore) and self._ignore.ignored(path, folder=folder) is True
        self.ignored += found
        return found

    def add_digests(self) -> None:
        """Put every file's SHA-256 into the list. Raises: UsageError."""
        try:
            for entry, path in zip(self.entries, self._paths, strict=True):
                if entry.kind == copy_frames.FILE:
                    entry.more = digest(path)
        except OSError as error:
            raise CannotCopy(f"{error.filename}: {reason(error)}") from None

    def _read_all(self) -> None:
        """Keep the small files; check that the others can be read."""
        at = 0
        for entry, path in zip(self.entries, self._paths, strict=True):
            start = at
            if entry.kind == copy_frames.FILE and entry.size > SMALL:
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            elif entry.kind == copy_frames.FILE:
                for piece in file_frames(path, entry.size):
                    if HEADER.unpack_from(piece)[1] == copy_frames.BROKEN:
                        raise NotGiven(os.fsdecode(piece[HEADER.size :]))
                    self._run.write(piece)
                    at += len(piece)
            self._spans.append((start, at))
        self._run.flush()

    def close(self) -> None:
        """Close and so remove the temporary files."""
        self._run.close()
        if self._tar is not None:
            self._tar.close()

    @cached_property
    def files(self) -> int:
        """The number of files."""
        return sum(entry.kind == copy_frames.FILE for entry in self.entries)

    @cached_property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def order(
        self,
        groups: Sequence[DestPaths],
        *,
        checksum: bool,
        resume: bool,
        owner: str = "",
        more: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The first frame for a host. groups: with its destinations; owner: as ``owner_of``."""
        return copy_frames.message(
            {
                "do": "put",
                "list": copy_frames.entry_columns(self.entries),
                "groups": [[dest, names_of(paths)] for dest, paths in groups],
                "checksum": checksum,
                "resume": resume,
                **({"alone": True} if self.alone else {}),
                **({} if self._mode is None else {"fixed": True}),
                **({"owner": owner} if owner else {}),
                **(more or {}),
            }
        )

    def pieces(self, needed: Sequence[int], starts: dict[int, tuple[int, str]]) -> Iterator[bytes]:
        """Frames of the files ``needed``, rising indexes; starts: from ``starts_of``."""
        run: tuple[int, int] | None = None
        for index in needed:
            start, end = self._spans[index]
            at, seen = starts.get(index, (0, ""))
            same = self.is_there(index, starts)
            if run is not None and (same or start == end or start != run[1]):
                yield from self._of_run(*run)
                run = None
            if same:
                yield copy_frames.whole(at, bytes.fromhex(seen))
            elif start == end:
                shared = self._shared.setdefault(index, SharedDigest())
                size, hasher = self.entries[index].size, partial(DigestReader, shared)
                if at == size:  # it was compared: it is not read once more
                    yield frame(0, copy_frames.START, bytes(8))
                    at = 0
                yield from file_frames(self._paths[index], size, at, seen, hasher=hasher)
            else:
                run = (start if run is None else run[0], end)
        if run is not None:
            yield from self._of_run(*run)

    def is_there(self, index: int, starts: Mapping[int, tuple[int, str]]) -> bool:
        """Whether a host that has ``starts`` has all of the file ``index``, except its time."""
        size, seen = starts.get(index, (-1, ""))
        if size != self.entries[index].size:
            return False
        with self._hashing:  # by one for all hosts
            if index not in self._digests:
                *_, end = self.given(index)  # a broken one is sent, and so reported
                self._digests[index] = end[HEADER.size :].hex()
        return self._digests[index] == seen

    def given(self, index: int) -> Iterator[bytes]:
        """The frames of the file ``index``, to keep or to check."""
        for piece in file_frames(self._paths[index], self.entries[index].size):
            self.n_read += len(piece)
            yield piece

    def _of_run(self, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, _CHUNK):
            yield os.pread(self._run.fileno(), min(_CHUNK, end - at), at)

    def tar(self) -> BinaryIO:
        """All of the first group as a tar, for hosts without Python; made when first needed."""
        if self._tar is None:
            every = zip(self.entries, self._paths, strict=True)
            self._tar = pack_tar((entry, path) for entry, path in every if entry.path[:2] == "0/")
        return self._tar


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
    runs = copy_frames.host_branches(nodes, branches)
    return [Branch(head, tuple(below), branches) for head, *below in runs]


def instructions(
    branch: Branch, hosts: Sequence[Host], groups: Sequence[tuple[DestPaths, ...]]
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
        plans: Sequence[tuple[Sources, tuple[DestPaths, ...]]],
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
        self._orders: dict[tuple[int, tuple[DestPaths, ...]], bytes] = {}
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
