"""Tars, for hosts without Python: packed here for ``put``, and taken apart here for ``get``.

``tarfile`` packs. This module reads what arrives, a header at a time. ``tarfile`` keeps headers in
memory that grows with the host's data, and before 3.11.10 and 3.12.6 an extended header of 64 KiB
costs it seconds (CVE-2024-6232). Formats: POSIX.1-2017 (ustar and its extended headers), GNU tar's
long names and base-256 numbers, as busybox writes them.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from dispatcher.model.errors import CannotCopy, reason
from dispatcher.model.names import size
from dispatcher.remote.protocol.copy_frames import FILE, FOLDER, Entry
from dispatcher.transfer.dest_dir import MOST_MEMBERS, SECOND, BadArchive, Place


def names_of(paths: Sequence[str]) -> list[str]:
    """The names of ``paths`` on the host: their last parts. Raises: UsageError."""
    names: list[str] = []
    for path in paths:
        name = os.path.basename(os.path.abspath(path))
        if not name:
            raise CannotCopy(f"{path}: cannot be sent as a whole")
        if name in names:
            raise CannotCopy(f"{path}: two sources have that name: {name}")
        names.append(name)
    return names


def pack_tar(entries: Iterable[tuple[Entry, str]]) -> BinaryIO:
    """A tar of ``entries``, each with its path here, in an unlinked file; without owners.

    Paths of entries are ``GROUP/NAME/...``. Raises: UsageError when one cannot be read.
    """
    file = tempfile.TemporaryFile(prefix="dispatch-put-")  # noqa: SIM115 - it is our result
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for entry, path in entries:
                _add(archive, entry, path)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _add(archive: tarfile.TarFile, entry: Entry, path: str) -> None:
    member = tarfile.TarInfo(entry.path.partition("/")[2])
    member.mode, member.mtime = entry.mode, entry.mtime // SECOND
    try:
        if entry.kind == FILE:
            with open(path, "rb") as content:
                member.size = entry.size
                archive.addfile(member, content)
            return
        member.type = tarfile.DIRTYPE if entry.kind == FOLDER else tarfile.SYMTYPE
        member.linkname = "" if entry.kind == FOLDER else entry.more
        archive.addfile(member)
    except OSError as error:
        raise CannotCopy(f"{path}: {reason(error)}") from None


BLOCK = 512
_CHUNK = 1 << 20
#: bytes of a long name, or of an extended header
_LONGEST = 64 << 10
_LARGEST = 1 << 60
_FILES, _FOLDER, _SYMLINK, _HARD_LINK = (b"0", b"7", b"\0"), b"5", b"2", b"1"


@dataclass
class Unpacked:
    """The result of taking a tar apart: counts, and names left out with why (a few of them)."""

    files: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)


@dataclass
class Member:
    """One header, with the fields of the headers before it. mtime: nanoseconds."""

    name: str
    kind: bytes
    mode: int
    mtime: int
    size: int
    target: str


def unpack(archive: BinaryIO, folder: str, names: Collection[str], limit: int) -> Unpacked:
    """Take apart the tars that ``archive`` holds one behind the other, into ``folder``.

    names: first parts that members may have; limit: bytes of all files together.
    Raises: BadArchive; CannotCopy for too much; OSError when the disk refuses.
    """
    place, done = Place(folder, names), Unpacked()
    try:
        for count, member in enumerate(members(archive)):
            if count >= MOST_MEMBERS:
                raise CannotCopy(f"more than {MOST_MEMBERS} files and folders")
            _take(archive, member, place, done, limit)
        place.settle()
    finally:
        place.close()
    done.left_out = place.left_out
    return done


def _take(archive: BinaryIO, member: Member, place: Place, done: Unpacked, limit: int) -> None:
    parts = place.parts(member.name)
    if member.kind == _FOLDER:
        place.folder(parts, member.mode, member.mtime)
    elif member.kind == _SYMLINK:
        place.link(parts, member.target)
    elif member.kind == _HARD_LINK:
        try:
            source = open(place.read(place.parts(member.target)), "rb")  # noqa: SIM115
        except OSError:
            raise BadArchive(f"a link to nothing: {member.name[:80]!r}") from None
        with source:
            linked = replace(member, size=os.fstat(source.fileno()).st_size)
            _file(source, linked, parts, place, done, limit)
    elif member.kind in _FILES:
        _file(archive, member, parts, place, done, limit)
    else:
        place.refuse(parts, "not a file, folder or link")


def _file(
    content: BinaryIO, member: Member, parts: list[str], place: Place, done: Unpacked, limit: int
) -> None:
    done.bytes += member.size
    if done.bytes > limit:
        raise CannotCopy(f"more than {size(limit)} (--max-size)")
    fd, name = place.create()
    try:
        left = member.size
        while left:
            data = content.read(min(left, _CHUNK))
            if not data:
                raise BadArchive(f"it ends within a file: {member.name[:80]!r}")
            left -= len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        place.finish(fd, name, parts, member.mode, member.mtime)
    finally:
        os.close(fd)
    done.files += 1


def members(archive: BinaryIO) -> Iterator[Member]:
    """Each member; its content is the next data of ``archive``. Raises: BadArchive."""
    said: dict[str, str] = {}  # by headers before the member's own
    ahead, ended = 0, False
    while block := archive.read(BLOCK):
        ended = not block.strip(b"\0")
        if ended:
            continue
        member = _header(block)
        if member.kind in b"LKxg" and member.kind:
            ahead += 1
            if not 0 <= member.size <= _LONGEST or ahead > 8:
                raise BadArchive("a header without end")
            more = _exactly(archive, member.size)
            archive.seek(-member.size % BLOCK, os.SEEK_CUR)
            if member.kind == b"x":
                said.update(_records(more))
            elif member.kind != b"g":  # that one is about all members, and has nothing that we use
                said["path" if member.kind == b"L" else "linkpath"] = _text(more)
            continue
        _overrule(member, said)
        at, said, ahead = archive.tell(), {}, 0
        yield member
        archive.seek(at + (member.size + BLOCK - 1) // BLOCK * BLOCK)
    if not ended:
        raise BadArchive("it ends before the end of a tar")


def _header(block: bytes) -> Member:
    if len(block) < BLOCK or not _sums_up(block):
        raise BadArchive("not a proper tar")
    name, kind = _text(block[:100]), block[156:157]
    if block[257:263] == b"ustar\0" and block[345:346] != b"\0":
        name = f"{_text(block[345:500])}/{name}"
    if kind in _FILES and name.endswith("/"):
        kind = _FOLDER  # as before POSIX
    size = 0 if kind in (_FOLDER, _SYMLINK, _HARD_LINK) else _number(block[124:136])
    mtime = _number(block[136:148]) * SECOND
    return Member(name, kind, _number(block[100:108]), mtime, size, _text(block[157:257]))


def _overrule(member: Member, said: dict[str, str]) -> None:
    member.name = said.get("path", member.name)
    member.target = said.get("linkpath", member.target)
    if member.kind == _FOLDER:
        member.name = member.name.rstrip("/")
    try:
        if "size" in said and member.kind in _FILES:
            member.size = int(said["size"])
        if "mtime" in said:
            member.mtime = int(min(max(0.0, float(said["mtime"])), 1e11) * SECOND)
    except (ValueError, OverflowError):
        raise BadArchive("not a proper tar: a number") from None
    if not 0 <= member.size < _LARGEST:
        raise BadArchive("a member of negative size" if member.size < 0 else "a size beyond sense")
    if member.kind == b"S" or "sparse" in said:
        raise BadArchive(f"a file with holes that were left out: {member.name[:80]!r}")


def _records(more: bytes) -> dict[str, str]:
    """The records ``LENGTH KEY=VALUE`` of an extended header that count here."""
    found, at, end = {}, 0, len(more.rstrip(b"\0"))
    while at < end:
        blank = more.find(b" ", at, at + 6)
        digits = more[at:blank] if blank > 0 else b""
        after = at + (int(digits) if digits.isdigit() else 0)
        key, equals, value = more[blank + 1 : after - 1].partition(b"=")
        if not at < blank < after <= end or not equals or more[after - 1 : after] != b"\n":
            raise BadArchive("not a proper tar: an extended header")
        if key in (b"path", b"linkpath", b"size", b"mtime"):
            found[key.decode()] = os.fsdecode(value)
        elif key.startswith(b"GNU.sparse."):
            found["sparse"] = ""
        at = after
    return found


def _sums_up(block: bytes) -> bool:
    """Whether the header's sum is right; old tars read bytes as signed."""
    told = _number(block[148:156])
    rest = block[:148] + b" " * 8 + block[156:]
    return told in (sum(rest), sum(rest) - 256 * sum(byte > 127 for byte in rest))


def _number(digits: bytes) -> int:
    """Read octal, or GNU's base 256. Raises: BadArchive."""
    if digits[0] in (0x80, 0xFF):
        return int.from_bytes(digits if digits[0] == 0xFF else digits[1:], "big", signed=True)
    text = digits.partition(b"\0")[0].strip()
    if text.strip(b"01234567"):
        raise BadArchive("not a proper tar: a number")
    return int(text or b"0", 8)


def _text(digits: bytes) -> str:
    return os.fsdecode(digits.partition(b"\0")[0])


def _exactly(archive: BinaryIO, size: int) -> bytes:
    data = archive.read(size)
    if len(data) < size:
        raise BadArchive("it ends within a header")
    return data
