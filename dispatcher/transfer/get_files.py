"""Our end of ``get``: what hosts have, and the files of it that we lack.

A host with Python is sent the program ``remote.copy`` and paths; it answers with a list, is
told which files are needed, and sends just those. A host without sends a tar, which is
kept in an unlinked file and taken apart when it is whole. One thread a host asks, judges
and writes; the list, its sizes and every name are judged before anything is written.

Files are compared before they get their names. A large one comes into a *part* that stays when
the connection is lost, so the next ``get`` goes on there; everything else comes into the stage
of its place. What goes wrong because of the host is ``BadArchive``; a disk of ours raises
``OSError``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from dispatcher.bootstrap import payload
from dispatcher.remote.copy.disk import PART, Incoming, locked, needs, same_time
from dispatcher.remote.copy.receiver import WORTH
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.mux import Malformed
from dispatcher.transfer.dest_dir import MOST_MEMBERS, BadArchive, Place, unpack
from dispatcher.transfer.host_copy import CopyHandler, Ended, HostCopy
from dispatcher.transport.base import Link

_CHUNK = 256 << 10


@dataclass(frozen=True)
class Group:
    """``paths`` there, each with the name it gets in the folder ``place`` here."""

    place: str
    paths: tuple[tuple[str, str], ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for _, name in self.paths)


class Receiving:
    """The files of one host's list, into the places of its groups.

    Raises: BadArchive for names that lead elsewhere; OSError when the disk refuses.
    """

    def __init__(
        self,
        entries: Sequence[copy_frames.Entry],
        groups: Sequence[Group],
        *,
        checksum: bool,
        resume: bool,
    ) -> None:
        self._entries = entries
        self._checksum = checksum
        self._resume = resume
        self._needed: list[int] = []
        self._parts: dict[int, Incoming] = {}
        self._turn = 0
        self._file: Incoming | None = None  # whose turn it is, once it has begun
        self.equal = self.bytes = self.wanted = self.found = 0
        self._places = [Place(group.place, group.names) for group in groups]
        self._where: list[tuple[Place, list[str]]] = []
        try:
            self._where = [self._find(entry.path) for entry in entries]
        except BaseException:
            self.close()
            raise

    def _find(self, path: str) -> tuple[Place, list[str]]:
        number, _, name = path.partition("/")
        if not (number.isascii() and number.isdigit() and len(number) < 9):
            raise BadArchive(f"a member that was not asked for: {path[:80]!r}")
        if int(number) >= len(self._places):
            raise BadArchive(f"a member that was not asked for: {path[:80]!r}")
        place = self._places[int(number)]
        return place, place.parts(name)

    def close(self) -> None:
        """Close all; parts stay, if they may be gone on with."""
        for part in self._parts.values():
            os.close(part.fd)
        if self._file is not None and self._file not in self._parts.values():
            os.close(self._file.fd)
        for place in self._places:
            place.close()

    @property
    def done(self) -> bool:
        """Whether every needed file has arrived."""
        return self._turn == len(self._needed)

    @property
    def sent(self) -> int:
        return len(self._needed)

    @property
    def left_out(self) -> list[str]:
        return [text for place in self._places for text in place.left_out]

    def needs(self) -> dict[str, Any]:
        """Makes folders; says which files are to be sent, and what there is of them already."""
        for index, (entry, (place, parts)) in enumerate(
            zip(self._entries, self._where, strict=True)
        ):
            if entry.kind == copy_frames.FOLDER:
                place.folder(parts, entry.mode, entry.mtime)
            elif entry.kind == copy_frames.FILE and self._same(entry, place, parts):
                self.equal += 1
            elif entry.kind == copy_frames.FILE:
                self._needed.append(index)
                self.wanted += entry.size
                part = self._open_part(entry, place) if entry.size >= WORTH else None
                if part is not None:
                    self._parts[index] = part
            elif entry.kind != copy_frames.LINK:
                place.leave_out("/".join(parts), "not a file, folder or link")
        return needs(self._needed, self._parts)

    def _same(self, entry: copy_frames.Entry, place: Place, parts: list[str]) -> bool:
        there = place.status(parts)
        if there is None or there.st_mode & 0o170000 != 0o100000 or there.st_size != entry.size:
            return False
        if not self._checksum:
            return same_time(there.st_mtime_ns, entry.mtime)
        try:
            with open(place.read(parts), "rb") as file:
                known = copy_frames.sha256()
                while data := file.read(_CHUNK):
                    known.update(data)
        except OSError:
            return False
        return bool(known.hexdigest() == entry.more)

    def _open_part(self, entry: copy_frames.Entry, place: Place) -> Incoming | None:
        words = f"{entry.path}\0{entry.size}\0{entry.mtime}"
        known = copy_frames.sha256()
        known.update(words.encode("utf-8", "surrogateescape"))
        name = PART + known.hexdigest()[:24]
        if not self._resume:
            place.drop_part(name)
            return None
        fd = place.part(name)
        if not locked(fd):  # another copy is at it
            os.close(fd)
            return None
        part = Incoming(fd, name)
        part.resume(entry.size)
        return part

    # -- what arrives -------------------------------------------------------------------

    def take(self, kind: int, body: bytes) -> None:
        """The next frame of the files."""
        index = self._needed[self._turn]
        entry, (place, _) = self._entries[index], self._where[index]
        file = self._file
        if file is None:
            file = self._file = self._parts.get(index) or Incoming(*place.create())
            self.found += file.size
        if kind == copy_frames.DATA:
            self.bytes += len(body)
            if file.size + len(body) > entry.size:
                raise BadArchive(f"more bytes came than it has: {entry.path[:80]!r}")
            file.append(body)
        elif kind == copy_frames.START:
            if int.from_bytes(body[:8], "big") != file.size:
                self.found -= file.size
                file.restart()
        elif kind == copy_frames.END:
            self._end(index, entry, file, body)
        elif kind == copy_frames.BROKEN:
            raise OSError(0, body[:300].decode("utf-8", "backslashreplace"))
        else:
            raise Malformed(f"a frame of kind {kind!r}")

    def _end(self, index: int, entry: copy_frames.Entry, file: Incoming, sent: bytes) -> None:
        place, parts = self._where[index]
        if file.size != entry.size or file.hash.digest() != sent:
            if index in self._parts:
                place.drop_part(file.path)
            raise BadArchive(f"it came damaged: {entry.path[:80]!r}")
        place.finish(file.fd, file.path, parts, entry.mode, entry.mtime, part=index in self._parts)
        if index not in self._parts:
            os.close(file.fd)
        self._file = None
        self._turn += 1

    def settle(self) -> None:
        """Make the links, and give folders their modes and times; all files must be there."""
        for entry, (place, parts) in zip(self._entries, self._where, strict=True):
            if entry.kind == copy_frames.LINK:
                place.link(parts, entry.more)
        for place in self._places:
            place.settle()


#: bytes of one list
_LARGEST = 256 << 20
#: how much larger a tar may be than what is in it: a block or two a member
_TAR_OVERHEAD = 1 << 30


class Fetching(CopyHandler):
    """Talks with the hosts (``runner.exec.stdio``): ``plans[node]`` comes from ``node``.

    limit: bytes that one host's files may have together.
    """

    def __init__(
        self, plans: Sequence[tuple[Group, ...]], *, limit: int, checksum: bool, resume: bool
    ) -> None:
        super().__init__("get", _LARGEST, [HostCopy() for _ in plans])
        self._plans = plans
        self._limit = limit
        self._checksum = checksum
        self._resume = resume
        self._archives: dict[int, BinaryIO] = {}

    def unpack(self, node: int) -> None:
        """Take apart the tar of a host without Python, whose command ended well."""
        archive, copy = self._archives.pop(node, None), self.copies[node]
        if archive is None:
            return
        (group,) = self._plans[node]
        try:
            with archive:
                archive.seek(0)
                done = unpack(archive, group.place, group.names, self._limit)
        except BadArchive as bad:
            copy.error, copy.hostile = str(bad), True
        except OSError as error:
            copy.error = f"{error.filename or group.place}: {(error.strerror or '').lower()}"
        else:
            copy.sent, copy.left_out = done.files, done.left_out
            copy.bytes = copy.wanted = done.bytes

    # -- one host ---------------------------------------------------------------------------

    def _by_tar(self, node: int, link: Link) -> None:
        if len(self._plans[node]) > 1:
            self.copies[node].error = "{rank} in the folder needs a python3 there"
            link.close()
            return
        (group,) = self._plans[node]
        copy, reader = self.copies[node], self._readers[node]
        parent = os.path.dirname(os.path.abspath(group.place))
        os.makedirs(parent, exist_ok=True)
        file = tempfile.TemporaryFile(dir=parent, prefix=".dispatch-get-")  # noqa: SIM115 - kept
        self._archives[node] = file
        try:
            while True:
                copy.bytes += file.write(reader.chunk())
                if copy.bytes > self._limit + _TAR_OVERHEAD:
                    raise BadArchive(f"more than {self._limit} bytes")
        except Ended:
            pass

    def _by_python(self, node: int, link: Link) -> None:
        groups, copy, reader = self._plans[node], self.copies[node], self._readers[node]
        order = {
            "do": "get",
            "paths": [
                [path, f"{number}/{name}"]
                for number, group in enumerate(groups)
                for path, name in group.paths
            ],
            "checksum": self._checksum,
        }
        link.write(payload.copy_payload() + copy_frames.message(order))
        answer = reader.value()
        if isinstance(answer.get("error"), str):
            copy.error = answer["error"][:500]
            return
        entries = self._judged(answer.get("list"))
        receiving = Receiving(entries, groups, checksum=self._checksum, resume=self._resume)
        try:
            link.write(copy_frames.message(receiving.needs()))
            copy.wanted, copy.found = receiving.wanted, receiving.found
            while not receiving.done:
                receiving.take(*reader.frame())
                copy.bytes = receiving.bytes
            receiving.settle()
        finally:
            receiving.close()
        copy.sent, copy.equal, copy.left_out = receiving.sent, receiving.equal, receiving.left_out

    def _judged(self, listed: object) -> list[copy_frames.Entry]:
        """The entries of what a host lists; bounded before they are made."""
        if not isinstance(listed, dict) or not isinstance(listed.get("kinds"), str):
            raise Malformed("no list")
        if len(listed["kinds"]) > MOST_MEMBERS:
            raise BadArchive(f"more than {MOST_MEMBERS} members")
        entries = copy_frames.rows(listed)
        if any(entry.size < 0 for entry in entries):
            raise BadArchive("a member of negative size")
        if sum(entry.size for entry in entries) > self._limit:
            raise BadArchive(f"more than {self._limit} bytes")
        return entries
