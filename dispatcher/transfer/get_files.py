"""The launcher's end of ``get``: reads a host's list, fetches the files that are missing here.

A host with Python gets the program ``remote.copy`` and paths; it answers with a list in pieces,
gets the numbers of the files that are needed, and sends just those. A host without sends a tar,
which is taken apart when it is whole. One thread a host asks, checks and writes. A large file comes
into a *part* that stays when the connection is lost; everything else into the stage of its place.

Data that no honest host sends is ``BadArchive``; data that is too much for us, or that the host
cannot read, is ``CannotCopy``; an error of our disk is ``OSError``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from dispatcher.bootstrap import payload
from dispatcher.model.errors import CannotCopy
from dispatcher.model.names import plural, size
from dispatcher.model.paths import make_folders
from dispatcher.remote.copy import disk
from dispatcher.remote.copy.disk import PART, Incoming, has_wildcards, needs, same_time, split
from dispatcher.remote.copy.receiver import WORTH
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.copy_frames import LARGEST_PIECE, MOST_PARTS, Entry
from dispatcher.remote.protocol.mux import Malformed
from dispatcher.remote.protocol.packing import pack, unpack
from dispatcher.transfer import tars
from dispatcher.transfer.dest_dir import MOST_MEMBERS, BadArchive, Place
from dispatcher.transfer.host_copy import CopyHandler, Ended, HostCopy
from dispatcher.transport.base import Link

_CHUNK = 256 << 10


@dataclass(frozen=True)
class Group:
    """``paths`` on the host, each with its name in the folder ``place`` here."""

    place: str
    paths: tuple[tuple[str, str], ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for _, name in self.paths)

    @property
    def patterns(self) -> tuple[Sequence[str], ...]:
        """The parts of paths with wildcards that names may begin with."""
        return tuple(split(path)[1] for path, _ in self.paths if has_wildcards(path))


#: bytes of a list that are kept in memory; and all that it may have, on the disk
_IN_MEMORY, _LONGEST_LIST = 1 << 20, 256 << 20


class Receiving:
    """Receives the files of one host's list, into its groups' places; ``limit``: of their bytes."""

    def __init__(
        self, groups: Sequence[Group], *, limit: int, checksum: bool, resume: bool
    ) -> None:
        self._limit = limit
        self._checksum = checksum
        self._resume = resume
        self._ends: list[int] = []  # of each piece
        self._wanted = bytearray()  # 1 for each entry whose bytes will follow
        self._left = 0  # of these
        self._links = False
        self._parts: dict[int, Incoming] = {}
        self._turns: Iterator[tuple[int, Entry]] = iter(())
        self._now: tuple[int, Entry] | None = None  # the file whose turn it is
        self._file: Incoming | None = None  # once it has begun
        self._begun = False  # whether the host has said where it begins
        self.unread = 0  # names on the host that it could not read
        self.equal = self.sent = self.bytes = self.wanted = self.found = 0
        self._groups = groups
        self._places: dict[int, Place] = {}
        self._group = -1  # whose place is open, and no other: there may be one for each rank
        self._place(0)
        self._pieces = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by close
            _IN_MEMORY, prefix="dispatch-get-", dir=groups[0].place
        )

    # -- the list -----------------------------------------------------------------------

    def offer(self, answer: dict[str, Any]) -> bool:
        """Take the next piece; whether more follow. Raises: Malformed, BadArchive, CannotCopy."""
        listed, more = answer.get("list"), answer.get("more") is True
        if not isinstance(listed, dict) or not isinstance(listed.get("kinds"), str):
            raise Malformed("no list")
        if more and not listed["kinds"]:
            raise Malformed("a list that never ends")
        if len(self._wanted) + len(listed["kinds"]) > MOST_MEMBERS:
            raise CannotCopy(f"more than {MOST_MEMBERS} files and folders")
        for entry in copy_frames.rows(listed):
            place, parts = self._find(entry.path)
            if self._group < max(self._places):
                raise Malformed("a list that goes back")
            if entry.size < 0:
                raise BadArchive("a member of negative size")
            wants = entry.kind == copy_frames.FILE and not self._same(entry, place, parts)
            self._wanted.append(wants)
            self._links = self._links or entry.kind == copy_frames.LINK
            if wants:
                self.sent += 1
                self.wanted += entry.size
                self._resumed(entry, place)
            elif entry.kind == copy_frames.FILE:
                self.equal += 1
            elif entry.kind == copy_frames.UNREAD:
                self.unread += 1
                place.leave_out("/".join(parts), entry.more[:200])
            elif entry.kind not in (copy_frames.FOLDER, copy_frames.LINK):
                place.refuse(parts, "not a file, folder or link")
        if self.wanted > self._limit:
            raise CannotCopy(f"more than {size(self._limit)} (--max-size)")
        self._ends.append((self._ends or [0])[-1] + self._pieces.write(pack(listed)))
        if self._ends[-1] > _LONGEST_LIST:
            raise CannotCopy(f"a list of more than {size(_LONGEST_LIST)}")
        return more

    def _entries(self) -> Iterator[tuple[int, Entry]]:
        """The entries of all pieces, which were checked when they came."""
        index = at = 0
        for end in self._ends:
            self._pieces.seek(at)
            for entry in copy_frames.rows(unpack(self._pieces.read(end - at))):
                yield index, entry
                index += 1
            at = end

    def _find(self, path: str) -> tuple[Place, list[str]]:
        number, _, name = path.partition("/")
        is_number = number.isascii() and number.isdigit() and len(number) < 9
        if not is_number or int(number) >= len(self._groups):
            raise BadArchive(f"a member that was not asked for: {path[:80]!r}")
        place = self._place(int(number))
        return place, place.parts(name)

    def _place(self, number: int) -> Place:
        if number != self._group:
            self._leave()
            if number in self._places:
                self._places[number].open()
            else:
                group = self._groups[number]
                self._places[number] = Place(group.place, group.names, group.patterns)
            self._group = number
        return self._places[number]

    def _leave(self, *, done: bool = True) -> None:
        """Close the place that is open. done: nothing more is made there."""
        number, self._group = self._group, -1
        if number >= 0:
            try:
                if done:
                    self._places[number].settle()
            finally:
                self._places[number].close()

    def close(self) -> None:
        """Close all; parts stay, if a later copy may continue them."""
        self._turns = iter(())
        for part in self._parts.values():
            os.close(part.fd)
        if self._file is not None and self._file not in self._parts.values():
            os.close(self._file.fd)
        self._leave(done=False)
        self._pieces.close()

    @property
    def done(self) -> bool:
        """Whether every needed file has arrived."""
        return self._left == 0

    @property
    def left_out(self) -> list[str]:
        return [text for place in self._places.values() for text in place.left_out]

    def needs(self) -> dict[str, Any]:
        """The files to send, and the parts that we have already; the list is whole."""
        self._left = self.sent
        self._turns = self._entries()
        self._next()
        return needs(bytes(self._wanted), self._parts)

    def _next(self) -> None:
        """Make the folders up to the next file that will come, and make that the present one."""
        self._now = self._file = None
        self._begun = False
        for index, entry in self._turns:
            if entry.kind == copy_frames.FOLDER:
                place, parts = self._find(entry.path)
                place.folder(parts, entry.mode, entry.mtime)
            elif self._wanted[index]:
                self._now = (index, entry)
                return

    def _same(self, entry: Entry, place: Place, parts: list[str]) -> bool:
        there = place.status(parts)
        if there is None or there.st_mode & 0o170000 != 0o100000 or there.st_size != entry.size:
            return False
        if not (self._checksum or same_time(there.st_mtime_ns, entry.mtime)):
            return False
        if not disk.is_ours(there) and not (self._checksum and os.geteuid() == 0):
            return False  # another user's file may change any time, even if it is the same now
        if self._checksum and not self._same_contents(entry, place, parts):
            return False
        place.keep(there)
        return True

    def _same_contents(self, entry: Entry, place: Place, parts: list[str]) -> bool:
        try:
            with open(place.read(parts), "rb") as file:
                known = copy_frames.sha256()
                while data := file.read(_CHUNK):
                    known.update(data)
        except OSError:
            return False
        return bool(known.hexdigest() == entry.more)

    def _part(self, entry: Entry, place: Place, *, make: bool) -> Incoming | None:
        """The part of ``entry``, locked and read; None where it must not have one."""
        if entry.size < WORTH:
            return None
        words = f"{entry.path}\0{entry.size}\0{entry.mtime}"
        known = copy_frames.sha256()
        known.update(words.encode("utf-8", "surrogateescape"))
        name = PART + known.hexdigest()[:24]
        if not self._resume:
            place.drop_part(name)
            return None
        fd = place.part(name, make=make)
        if fd is None:
            return None
        part = Incoming(fd, name)
        part.resume(entry.size)
        return part

    def _resumed(self, entry: Entry, place: Place) -> None:
        """Keep the part of the last checked entry, if there is one."""
        part = self._part(entry, place, make=False) if len(self._parts) < MOST_PARTS else None
        if part is not None and part.size:
            self._parts[len(self._wanted) - 1] = part
        elif part is not None:
            os.close(part.fd)

    # -- what arrives -------------------------------------------------------------------

    def take(self, kind: int, body: bytes) -> None:
        """The next frame of the files. Raises: Malformed, BadArchive, CannotCopy, OSError."""
        if self._now is None:
            raise Malformed("more files than were asked for")
        index, entry = self._now
        file = self._file
        if file is None:
            file = self._file = self._parts.get(index) or self._begin(index, entry)
            self.found += file.size
        if kind in (copy_frames.DATA, copy_frames.HOLE):
            size = copy_frames.bytes_of(kind, body)
            if not size:
                raise Malformed("a frame of nothing")  # which would go on for ever
            self._begun = True
            self.bytes += size
            if file.size + size > entry.size:
                raise BadArchive(f"more bytes came than it has: {entry.path[:80]!r}")
            try:
                file.take(kind, body)
            except OSError:
                if index in self._parts:  # a part that filled the disk must not keep it full
                    self._find(entry.path)[0].drop_part(file.path)
                raise
        elif kind == copy_frames.START and not self._begun:
            self._begun = True
            if int.from_bytes(body[:8], "big") != file.size:
                self.found -= file.size
                file.restart()
        elif kind == copy_frames.END:
            self._end(index, entry, file, body)
        elif kind == copy_frames.BROKEN:
            place, parts = self._find(entry.path)
            text = body[:300].decode("utf-8", "backslashreplace")
            place.refuse(parts, text.rpartition(": ")[2], text)
            self.unread += 1
            self.sent -= 1
            self._drop(index, place, file)
            self._finish(file)
        else:
            raise Malformed(f"a frame of kind {kind!r}")

    def _begin(self, index: int, entry: Entry) -> Incoming:
        """A file to receive ``entry``, the present one, from its first byte."""
        place, _ = self._find(entry.path)
        part = self._part(entry, place, make=True)
        if part is None:
            return Incoming(*place.create())
        part.restart()  # the host does not know of the bytes in it
        self._parts[index] = part
        return part

    def _end(self, index: int, entry: Entry, file: Incoming, sent: bytes) -> None:
        place, parts = self._find(entry.path)
        if file.size != entry.size or file.hash.digest() != sent:
            self._drop(index, place, file)
            raise BadArchive(f"it came damaged: {entry.path[:80]!r}")
        place.finish(file.fd, file.path, parts, entry.mode, entry.mtime, part=index in self._parts)
        self._parts.pop(index, None)
        self._finish(file)

    def _drop(self, index: int, place: Place, file: Incoming) -> None:
        """Remove it if it is a part; files in the stage go with the stage."""
        if self._parts.pop(index, None) is not None:
            place.drop_part(file.path)

    def _finish(self, file: Incoming) -> None:
        """Close the present file and go on to the next."""
        self._file = None
        os.close(file.fd)
        self._left -= 1
        self._next()

    def settle(self) -> None:
        """Make the links, and give folders their times; all files must be there."""
        for _, entry in self._entries() if self._links else ():
            place, parts = self._find(entry.path)
            if entry.kind == copy_frames.FOLDER:
                place.folder(parts, entry.mode, entry.mtime)
            elif entry.kind == copy_frames.LINK:
                place.link(parts, entry.more)
        self._leave()


#: how much larger a tar may be than its contents: a block or two a member
_TAR_OVERHEAD = 1 << 30


class Fetching(CopyHandler):
    """Fetches from the hosts: ``plans[node]`` comes from ``node``, ``limit`` bytes at most."""

    def __init__(
        self, plans: Sequence[tuple[Group, ...]], *, limit: int, checksum: bool, resume: bool
    ) -> None:
        super().__init__("get", LARGEST_PIECE, [HostCopy() for _ in plans])
        self._plans = plans
        self._limit = limit
        self._checksum = checksum
        self._resume = resume
        self._archives: dict[int, BinaryIO] = {}

    def unpack(self, node: int, *, whole: bool = True) -> None:
        """Take apart the tar of a host without Python. whole: its command ended well."""
        archive, copy = self._archives.pop(node, None), self.copies[node]
        if archive is None:
            return
        (group,) = self._plans[node]
        try:
            with archive:
                archive.seek(0)
                done = tars.unpack(archive, group.place, group.names, self._limit)
        except (BadArchive, CannotCopy) as error:
            if whole:  # else the end of its command says more
                copy.fail(error)
        except OSError as error:
            error.filename = error.filename or group.place
            copy.fail(error)
        else:
            copy.sent, copy.left_out = done.files, done.left_out
            copy.bytes = copy.wanted = done.bytes

    # -- one host ---------------------------------------------------------------------------

    def _by_tar(self, node: int, link: Link) -> None:
        group, *others = self._plans[node]
        if others:
            raise CannotCopy("{rank} in the folder needs a python3 on the host")
        if group.patterns:
            raise CannotCopy("wildcards in a name need a python3 on the host")
        copy, reader = self.copies[node], self._readers[node]
        parent = os.path.dirname(os.path.abspath(group.place))
        make_folders(parent)
        file = tempfile.TemporaryFile(dir=parent, prefix=".dispatch-get-")  # noqa: SIM115 - kept
        self._archives[node] = file
        try:
            while True:
                copy.bytes += file.write(reader.chunk())
                if copy.bytes > self._limit + _TAR_OVERHEAD:
                    raise CannotCopy(f"more than {size(self._limit)} (--max-size)")
        except Ended:
            pass

    def _by_python(self, node: int, link: Link) -> None:
        groups, copy, reader = self._plans[node], self.copies[node], self._readers[node]
        paths = [
            [path, f"{number}/{name}"]
            for number, group in enumerate(groups)
            for path, name in group.paths
        ]
        order = {"do": "get", "paths": paths, "checksum": self._checksum}
        link.write(payload.copy_payload() + copy_frames.message(order))
        answer = reader.value()
        if copy.is_refused(answer):  # before anything is made here
            return
        receiving = Receiving(
            groups, limit=self._limit, checksum=self._checksum, resume=self._resume
        )
        try:
            while receiving.offer(answer):
                answer = reader.value()
                if copy.is_refused(answer):
                    return
            link.write(copy_frames.message(receiving.needs()))
            copy.wanted = receiving.wanted
            while not receiving.done:
                receiving.take(*reader.frame())
                copy.bytes, copy.found = receiving.bytes, receiving.found
            receiving.settle()
        except OSError as error:
            error.filename = error.filename or groups[0].place  # of a write it has none
            raise
        finally:
            receiving.close()
        copy.sent, copy.equal, copy.left_out = receiving.sent, receiving.equal, receiving.left_out
        if receiving.unread:
            copy.error = f"{plural(receiving.unread, 'name')} could not be read; the rest is here"
