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
from dispatcher.remote.copy.arriving import Arriving
from dispatcher.remote.copy.disk import Incoming, digest, has_wildcards, same_time, split_wildcards
from dispatcher.remote.protocol import copy_frames
from dispatcher.remote.protocol.copy_frames import LARGEST_PIECE, Entry
from dispatcher.remote.protocol.mux import Malformed
from dispatcher.remote.protocol.packing import pack, unpack
from dispatcher.transfer import tars
from dispatcher.transfer.dest_dir import MOST_MEMBERS, BadArchive, Place
from dispatcher.transfer.host_copy import CopyHandler, Ended, HostCopy
from dispatcher.transport.base import Link


@dataclass(frozen=True)
class HostPaths:
    """``paths`` on the host, each with its name in the folder ``place`` here."""

    place: str
    paths: tuple[tuple[str, str], ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for _, name in self.paths)

    @property
    def patterns(self) -> tuple[Sequence[str], ...]:
        """The parts of paths with wildcards that names may begin with."""
        return tuple(split_wildcards(path)[1] for path, _ in self.paths if has_wildcards(path))


#: bytes of a list that are kept in memory; and all that it may have, on the disk
_IN_MEMORY, _LONGEST_LIST = 1 << 20, 256 << 20


class Receiving(Arriving):
    """Receives the files of one host's list, into its groups' places; ``limit``: of their bytes."""

    damaged = "it came damaged"

    def __init__(
        self, groups: Sequence[HostPaths], *, limit: int, checksum: bool, resume: bool
    ) -> None:
        super().__init__(resume)
        self._limit = limit
        self._checksum = checksum
        self._ends: list[int] = []  # of each piece
        self._wanted = bytearray()  # 1 for each entry whose bytes will follow
        self._links = False
        self.unread = 0  # names on the host that it could not read
        self.equal = self.sent = self.wanted = 0
        self._groups = groups
        self._places: dict[int, Place] = {}
        self._group = -1  # whose place is open, and no other: there may be one for each rank
        self._at(0)
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
            place, parts = self._place(entry)
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
                self._offer_part(len(self._wanted) - 1, entry)
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

    def _place(self, entry: Entry) -> tuple[Place, list[str]]:
        number, _, name = entry.path.partition("/")
        is_number = number.isascii() and number.isdigit() and len(number) < 9
        if not is_number or int(number) >= len(self._groups):
            raise BadArchive(f"a member that was not asked for: {entry.path[:80]!r}")
        place = self._at(int(number))
        return place, place.parts(name)

    def _at(self, number: int) -> Place:
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
        self._close_files()
        self._leave(done=False)
        self._pieces.close()

    @property
    def left_out(self) -> list[str]:
        return [text for place in self._places.values() for text in place.left_out]

    def needs(self) -> dict[str, Any]:
        """The files to send, and the parts that we have already; the list is whole."""
        return self._answer(bytes(self._wanted), self._coming())

    def _coming(self) -> Iterator[tuple[int, Entry]]:
        """Each file that will come, when all folders before it are made."""
        for index, entry in self._entries():
            if entry.kind == copy_frames.FOLDER:
                place, parts = self._place(entry)
                place.folder(parts, entry.mode, entry.mtime)
            elif self._wanted[index]:
                yield index, entry

    def _same(self, entry: Entry, place: Place, parts: list[str]) -> bool:
        there = place.status(parts)
        if there is None or there.st_mode & 0o170000 != 0o100000 or there.st_size != entry.size:
            return False
        if not (self._checksum or same_time(there.st_mtime_ns, entry.mtime)):
            return False
        if not disk.is_ours(there) and not (self._checksum and os.geteuid() == 0):
            return False  # another user's file may change any time, even if it is the same now
        try:
            if self._checksum and digest(parts[-1], place.enter(parts[:-1])) != entry.more:
                return False
        except OSError:
            return False
        place.keep(there)
        return True

    # -- what arrives -------------------------------------------------------------------

    def _end(self, index: int, entry: Entry, file: Incoming) -> None:
        place, parts = self._place(entry)
        is_part = index in self._parts
        place.finish(file.fd, file.name, parts, entry.mode, entry.mtime, part=is_part)

    def _break(self, entry: Entry, why: bytes) -> None:
        place, parts = self._place(entry)
        text = why[:300].decode("utf-8", "backslashreplace")
        place.refuse(parts, text.rpartition(": ")[2], text)
        self.unread += 1
        self.sent -= 1

    def _refused(self, entry: Entry, why: str) -> Exception:
        return BadArchive(f"{why}: {entry.path[:80]!r}")

    def settle(self) -> None:
        """Make the links, and give folders their times; all files must be there."""
        for _, entry in self._entries() if self._links else ():
            place, parts = self._place(entry)
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
        self, plans: Sequence[tuple[HostPaths, ...]], *, limit: int, checksum: bool, resume: bool
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
