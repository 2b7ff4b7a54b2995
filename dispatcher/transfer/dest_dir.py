"""A folder of ours that is filled with names and bytes of a host that may be hostile.

Theory. Every name is split and each part judged; its first part must be one we asked
for; folders are entered one by one by descriptor and never through a link; a file
is written in a folder of ours (the *stage*) and renamed from there. Links are made
only when they point inside the folder, and never followed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection

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
