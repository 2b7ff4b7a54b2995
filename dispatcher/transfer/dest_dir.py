"""A folder of ours that a host fills that may be hostile, and tars, packed here and unpacked here.

Every name is split and each part judged; its first part must be one we asked for; folders are
entered one by one by descriptor and never through a link; a file is written in a folder of ours
(the *stage*) and renamed from there. Links are made only when they point inside the folder, and
never followed.

Tars are for hosts without Python; those with one send frames (``get_files``). One to send is
complete before any host is touched. Of one that has come, tarfile only finds the members: names,
links and files go by the rules above, devices and the like are left out, and what leads back or
nowhere ends it.
"""

from __future__ import annotations

import os
import posixpath
import tarfile
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from dispatcher.model.errors import CannotCopy
from dispatcher.remote.copy.disk import STAGE_HERE, locked, sweep

MOST_MEMBERS = 1_000_000
MOST_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SECOND = 10**9  # nanoseconds, as all times here are
_LATEST = 2**33 * SECOND  # a time beyond this one is not believed; before 1970 neither


class BadArchive(Exception):
    """What the host sends is broken or tries what it may not; the message says what."""


class Place:
    """The folder ``path``, made if it is not there; it may be no link itself.

    names: first parts that names may have. Raises: OSError when it cannot be opened.
    """

    def __init__(self, path: str, names: Collection[str]) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)
        self._root = os.open(path, _FOLDER)
        sweep(path)
        self._stage = ""
        self._staged = -1  # the stage's descriptor; locked, so that nobody sweeps it
        self._names = names
        self._last: tuple[list[str], int] = ([], os.dup(self._root))
        self._modes: list[tuple[list[str], int, int]] = []  # of folders, set at the end
        #: names left out with why, a few of them
        self.left_out: list[str] = []

    def close(self) -> None:
        """Remove the stage with what is left in it; the files that have their names stay."""
        if self._staged >= 0:
            for name in os.listdir(self._staged):
                os.unlink(name, dir_fd=self._staged)
            os.rmdir(self._stage, dir_fd=self._root)
            os.close(self._staged)
        os.close(self._last[1])
        os.close(self._root)

    def parts(self, name: str) -> list[str]:
        """``name`` in parts. Raises: BadArchive for one that may lead anywhere else."""
        parts = [part for part in name.split("/") if part != "."]
        if not parts or parts[0] not in self._names:
            raise BadArchive(f"a member that was not asked for: {name[:80]!r}")
        for part in parts:
            if part in ("", "..") or "\0" in part or len(encoded(part)) > 255:
                raise BadArchive(f"a bad name: {name[:80]!r}")
        if len(parts) > MOST_DEPTH:
            raise BadArchive(f"more than {MOST_DEPTH} folders deep")
        return parts

    def enter(self, parts: list[str], *, make: bool = False) -> int:
        """A descriptor of the folder ``parts``, ours until the next call; links are not entered.

        Raises: BadArchive where there is none, or it is no folder.
        """
        if self._last[0] == parts:
            return self._last[1]
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
            raise BadArchive(f"{'/'.join(parts)[:80]!r}: {_why(error)}") from None
        os.close(self._last[1])
        self._last = (parts, fd)
        return fd

    def status(self, parts: list[str]) -> os.stat_result | None:
        """What stands there now, a link itself; None for nothing."""
        try:
            return os.stat(parts[-1], dir_fd=self.enter(parts[:-1]), follow_symlinks=False)
        except (OSError, BadArchive):
            return None

    def read(self, parts: list[str]) -> int:
        """A descriptor to read the file there, the caller's to close. Raises: OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(parts[-1], flags, dir_fd=self.enter(parts[:-1]))

    # -- what is made -------------------------------------------------------------------

    def folder(self, parts: list[str], mode: int, mtime: int) -> None:
        """A folder; its mode and time are set by ``settle``."""
        self.enter(parts, make=True)
        self._modes.append((parts, mode & 0o777 | 0o700, mtime))

    def create(self) -> tuple[int, str]:
        """A new file in the stage: descriptor and name."""
        if self._staged < 0:
            self._stage = STAGE_HERE + os.urandom(6).hex()
            os.mkdir(self._stage, 0o700, dir_fd=self._root)
            self._staged = os.open(self._stage, _FOLDER, dir_fd=self._root)
            locked(self._staged)
        name = os.urandom(6).hex()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._staged), name

    def finish(
        self, fd: int, name: str, parts: list[str], mode: int, mtime: int, *, part: bool = False
    ) -> None:
        """Give the file ``fd``, in the stage ``name``, its place. part: it is a ``part`` instead.

        Raises: BadArchive, OSError.
        """
        folder = self.enter(parts[:-1], make=True)
        os.fchmod(fd, mode & 0o777)
        set_time(fd, mtime)
        try:
            source = self._root if part else self._staged
            os.rename(name, parts[-1], src_dir_fd=source, dst_dir_fd=folder)
        except IsADirectoryError:
            path = "/".join(parts)
            raise BadArchive(f"a file in the place of a folder: {path[:80]!r}") from None

    def link(self, parts: list[str], target: str) -> None:
        """A link, if it leads inside; otherwise it is left out."""
        inside = posixpath.normpath("/".join([*parts[:-1], target]))
        if target.startswith("/") or inside == ".." or inside.startswith("../") or "\0" in target:
            self.leave_out("/".join(parts), "a link that leads outside")
            return
        folder = self.enter(parts[:-1], make=True)
        try:
            try:
                os.unlink(parts[-1], dir_fd=folder)
            except FileNotFoundError:
                pass
            os.symlink(target, parts[-1], dir_fd=folder)
        except OSError as error:
            raise BadArchive(f"{parts[-1][:80]!r}: {_why(error)}") from None

    def leave_out(self, name: str, why: str) -> None:
        """Remember that ``name`` is not taken, and why; only the first five of them."""
        if len(self.left_out) < 5:
            self.left_out.append(f"{name[:80]!r}: {why}")

    def settle(self) -> None:
        """Set the modes and times of the folders; nothing is made after it."""
        for parts, mode, mtime in reversed(self._modes):
            fd = self.enter(parts)
            os.fchmod(fd, mode)
            set_time(fd, mtime)

    # -- what goes on another time --------------------------------------------------------

    def part(self, name: str) -> int:
        """A descriptor of the file ``name`` in the place itself, for reading and writing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._root)

    def drop_part(self, name: str) -> None:
        """Remove the part ``name``, if it is there."""
        try:
            os.unlink(name, dir_fd=self._root)
        except FileNotFoundError:
            pass


def encoded(part: str) -> bytes:
    """``part`` as the file system will have it. Raises: BadArchive."""
    try:
        return os.fsencode(part)
    except UnicodeEncodeError:
        raise BadArchive(f"a bad name: {part[:80]!r}") from None


def set_time(fd: int, mtime: int) -> None:
    """Set the times of ``fd``, as far as ``mtime`` makes sense."""
    mtime = min(max(0, mtime), _LATEST)
    os.utime(fd, ns=(mtime, mtime))


def _why(error: OSError) -> str:
    return (error.strerror or "").lower()


def names_of(paths: Sequence[str]) -> list[str]:
    """What the files and trees at ``paths`` are called there: their last parts.

    Raises: UsageError for one that has none, or two that are the same.
    """
    names: list[str] = []
    for path in paths:
        name = os.path.basename(os.path.abspath(path))
        if not name:
            raise CannotCopy(f"{path}: cannot be sent as a whole")
        if name in names:
            raise CannotCopy(f"{path}: there are two of that name: {name}")
        names.append(name)
    return names


def pack(paths: Sequence[str]) -> BinaryIO:
    """A tar of the files and trees at ``paths``, each under its last part, in an unlinked file.

    Links stay links; modes and times (whole seconds) are kept, owners are not.
    Raises: UsageError when one cannot be read, is no file, folder or link, or
    when two have the same name.
    """
    names = names_of(paths)
    file = tempfile.TemporaryFile(prefix="dispatch-put-")  # noqa: SIM115 - it is our result
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path, name in zip(paths, names, strict=True):
                _add(archive, path, name)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    try:
        member = archive.gettarinfo(path, name)
        if member is None or not (member.isreg() or member.isdir() or member.issym()):
            if member is None or not member.islnk():
                raise CannotCopy(f"{path}: not a file, a folder or a link")
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
        raise CannotCopy(f"{path}: {(error.strerror or str(error)).lower()}") from None


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
                self.done.bytes += len(data)
                if self.done.bytes > self._limit:
                    raise BadArchive(f"more than {self._limit} bytes")
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            self._place.finish(fd, name, parts, member.mode, _time(member))
        finally:
            os.close(fd)
        self.done.files += 1


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
