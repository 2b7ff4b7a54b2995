"""A tar from a host into a folder, where it can do no harm.

Theory. The archive is data of a host that may be hostile, and every check is our
own: a member's name is split and each part judged; its first part must be a
name we asked for; folders are entered one by one by descriptor and never through
a link; a file is written under a temporary name and renamed. Links are
made only when they point inside the folder, and never followed. Devices and the
like are left out. Numbers and sizes are bounded before anything is written.
"""

from __future__ import annotations

import os
import posixpath
import tarfile
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import IO, BinaryIO

MOST_MEMBERS = 1_000_000
MOST_DEPTH = 64
BLOCK = 512
_CHUNK = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class BadArchive(Exception):
    """The archive is broken or tries what it may not; the message says what."""


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
    os.makedirs(folder, mode=0o700, exist_ok=True)
    root = os.open(folder, _FOLDER)
    done = Unpacked()
    try:
        _Taker(root, names, limit, done).take_all(archive)
    finally:
        os.close(root)
    return done


class _Taker:
    def __init__(self, root: int, names: Collection[str], limit: int, done: Unpacked) -> None:
        self._root = root
        self._names = names
        self._limit = limit
        self._done = done
        self._members = 0
        self._modes: list[tuple[list[str], int, float]] = []  # of folders, set at the end

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
        for parts, mode, mtime in reversed(self._modes):
            fd = self._enter(parts)
            try:
                os.fchmod(fd, mode)
                os.utime(fd, (mtime, mtime))
            finally:
                os.close(fd)

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise BadArchive(f"more than {MOST_MEMBERS} members")
        parts = self._parts(member.name)
        mode, mtime = member.mode & 0o777, min(max(0.0, float(member.mtime)), 2.0**33)
        if member.isdir():
            os.close(self._enter(parts, make=True))
            self._modes.append((parts, mode | 0o700, mtime))
        elif member.issym():
            self._link(parts, member.linkname)
        elif member.isfile() or member.islnk():
            self._file(tar, member, parts, mode, mtime)
        else:
            self._leave_out(member.name, "not a file, folder or link")

    def _parts(self, name: str) -> list[str]:
        parts = [part for part in name.split("/") if part != "."]
        if not parts or parts[0] not in self._names:
            raise BadArchive(f"a member that was not asked for: {name[:80]!r}")
        for part in parts:
            if part in ("", "..") or "\0" in part or len(os.fsencode(part)) > 255:
                raise BadArchive(f"a bad name: {name[:80]!r}")
        if len(parts) > MOST_DEPTH:
            raise BadArchive(f"more than {MOST_DEPTH} folders deep")
        return parts

    def _enter(self, parts: list[str], *, make: bool = False) -> int:
        """A descriptor of the folder ``parts`` below the root; no link on the way counts."""
        fd = os.dup(self._root)
        try:
            for part in parts:
                if make:
                    try:
                        os.mkdir(part, 0o700, dir_fd=fd)
                    except FileExistsError:
                        pass
                inner = os.open(part, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
        except OSError as error:
            os.close(fd)
            raise BadArchive(
                f"{'/'.join(parts)[:80]!r}: {(error.strerror or '').lower()}"
            ) from None
        return fd

    def _file(
        self,
        tar: tarfile.TarFile,
        member: tarfile.TarInfo,
        parts: list[str],
        mode: int,
        mtime: float,
    ) -> None:
        try:
            content = tar.extractfile(member)
        except KeyError:
            content = None
        if content is None:
            raise BadArchive(f"a link to nothing: {member.name[:80]!r}")
        folder = self._enter(parts[:-1], make=True)
        beside = f".dispatch-get-{os.getpid()}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(beside, flags, 0o600, dir_fd=folder)
            try:
                self._copy(content, fd)
                os.fchmod(fd, mode)
                os.utime(fd, (mtime, mtime))
                os.rename(beside, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(beside, dir_fd=folder)
                raise
            finally:
                os.close(fd)
        except IsADirectoryError:
            raise BadArchive(f"a file in the place of a folder: {member.name[:80]!r}") from None
        finally:
            os.close(folder)
        self._done.files += 1

    def _copy(self, content: IO[bytes], fd: int) -> None:
        while data := content.read(_CHUNK):
            self._done.bytes += len(data)
            if self._done.bytes > self._limit:
                raise BadArchive(f"more than {self._limit} bytes")
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]

    def _link(self, parts: list[str], target: str) -> None:
        inside = posixpath.normpath("/".join([*parts[:-1], target]))
        if target.startswith("/") or inside == ".." or inside.startswith("../") or "\0" in target:
            self._leave_out("/".join(parts), "a link that leads outside")
            return
        folder = self._enter(parts[:-1], make=True)
        try:
            try:
                os.unlink(parts[-1], dir_fd=folder)
            except FileNotFoundError:
                pass
            os.symlink(target, parts[-1], dir_fd=folder)
        except OSError as error:
            raise BadArchive(f"{parts[-1][:80]!r}: {(error.strerror or '').lower()}") from None
        finally:
            os.close(folder)

    def _leave_out(self, name: str, why: str) -> None:
        if len(self._done.left_out) < 5:
            self._done.left_out.append(f"{name[:80]!r}: {why}")


def _skip_zeros(archive: BinaryIO) -> bool:
    """Go to the next block that holds anything; False at the end."""
    while block := archive.read(BLOCK):
        if block.strip(b"\0"):
            archive.seek(-len(block), os.SEEK_CUR)
            return True
    return False
