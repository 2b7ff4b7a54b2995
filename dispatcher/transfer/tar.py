"""Files as one tar, and a tar from a host into a folder where it can do no harm.

A tar to send is complete before any host is touched. For hosts without Python; those with one send
frames (``get_files``). tarfile only finds the members: names, links and files go by the rules of
``dest_dir``, devices and the like are left out, and what leads back or nowhere ends it.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from dispatcher.model.errors import UsageError
from dispatcher.transfer.dest_dir import MOST_MEMBERS, SECOND, BadArchive, Place


@dataclass(frozen=True)
class Packed:
    """A tar of ``names`` in ``file``, an unlinked temporary file at its start; ``size`` bytes."""

    file: BinaryIO
    names: tuple[str, ...]
    size: int

    def read(self, at: int, size: int) -> bytes:
        """Up to ``size`` bytes of the tar from byte ``at``; from any thread."""
        return os.pread(self.file.fileno(), size, at)


def pack(paths: Sequence[str]) -> Packed:
    """The files and trees at ``paths``, each under its last part; links stay links.

    Modes and times (whole seconds) are kept, owners are not.
    Raises: UsageError when one cannot be read, is no file, folder or link, or
    when two have the same name.
    """
    names: list[str] = []
    file = tempfile.TemporaryFile(prefix="dispatch-put-")  # noqa: SIM115 - it is our result
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in paths:
            name = os.path.basename(os.path.abspath(path))
            if not name:
                raise UsageError(f"{path}: cannot be sent as a whole")
            if name in names:
                raise UsageError(f"{path}: there are two of that name: {name}")
            names.append(name)
            _add(archive, path, name)
    size = file.tell()
    file.seek(0)
    return Packed(file, tuple(names), size)


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    try:
        member = archive.gettarinfo(path, name)
        if member is None or not (member.isreg() or member.isdir() or member.issym()):
            if member is None or not member.islnk():
                raise UsageError(f"{path}: not a file, a folder or a link")
            member.type, member.size = tarfile.REGTYPE, os.stat(path).st_size
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        if not member.isreg():
            archive.addfile(member)
        else:
            with open(path, "rb") as content:
                archive.addfile(member, content)
        if member.isdir():
            for entry in sorted(os.listdir(path)):
                _add(archive, os.path.join(path, entry), f"{name}/{entry}")
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None


BLOCK = 512
_CHUNK = 1 << 20


@dataclass
class Unpacked:
    """What came out: counts, and names left out with why (a few of them)."""

    files: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)


def unpack(archive: BinaryIO, folder: str, names: Collection[str], limit: int) -> Unpacked:
    """Take apart the tars that ``archive`` holds one behind the other, into ``folder``.

    names: first parts that members may have. limit: bytes that all files
    together may have. ``folder`` is made; files in it are replaced.
    Raises: BadArchive; OSError when the disk refuses.
    """
    place = Place(folder, names)
    try:
        taker = _Taker(place, limit)
        taker.take_all(archive)
    finally:
        place.close()
    taker.done.left_out = place.left_out
    return taker.done


class _Taker:
    def __init__(self, place: Place, limit: int) -> None:
        self._place = place
        self._limit = limit
        self._members = 0
        self.done = Unpacked()

    def take_all(self, archive: BinaryIO) -> None:
        try:
            while _skip_zeros(archive):
                at = start = archive.tell()
                with tarfile.open(fileobj=archive, mode="r:") as tar:
                    for member in tar:
                        # a negative size leads back, and round and round
                        if member.size < 0 or member.offset_data < at:
                            raise BadArchive("a member of negative size")
                        at = member.offset_data
                        self._take(tar, member)
                    if tar.offset <= start:
                        raise BadArchive("it leads nowhere")
                    archive.seek(tar.offset)
        except (tarfile.TarError, EOFError, UnicodeError, ValueError, OverflowError) as error:
            raise BadArchive(f"not a proper tar: {error}") from None
        self._place.settle()

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise BadArchive(f"more than {MOST_MEMBERS} members")
        parts = self._place.parts(member.name)
        if member.isdir():
            self._place.folder(parts, member.mode, _time(member))
        elif member.issym():
            self._place.link(parts, member.linkname)
        elif member.isfile() or member.islnk():
            self._file(tar, member, parts)
        else:
            self._place.leave_out(member.name, "not a file, folder or link")

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parts: list[str]) -> None:
        try:
            content = tar.extractfile(member)
        except KeyError:
            content = None
        if content is None:
            raise BadArchive(f"a link to nothing: {member.name[:80]!r}")
        fd, name = self._place.create()
        try:
            while data := content.read(_CHUNK):
                self._count(len(data))
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            self._place.finish(fd, name, parts, member.mode, _time(member))
        finally:
            os.close(fd)
        self.done.files += 1

    def _count(self, size: int) -> None:
        self.done.bytes += size
        if self.done.bytes > self._limit:
            raise BadArchive(f"more than {self._limit} bytes")


def _time(member: tarfile.TarInfo) -> int:
    """Nanoseconds, of what may be a float beyond all bounds."""
    return int(min(max(0.0, float(member.mtime)), 1e11) * SECOND)


def _skip_zeros(archive: BinaryIO) -> bool:
    """Go to the next block that holds anything; False at the end."""
    while block := archive.read(BLOCK):
        if block.strip(b"\0"):
            archive.seek(-len(block), os.SEEK_CUR)
            return True
    return False
