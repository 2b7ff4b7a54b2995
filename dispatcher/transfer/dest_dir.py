"""A folder of ours for the files of a host that may be hostile.

Every part of a name is checked, and we asked for its first one. Folders are entered by descriptor,
never through a link; a file is written in a folder of ours (the *stage*) and renamed from there.
A link is made only when it points inside the folder. Memory does not grow with a host's list.
Where a folder treats two names as one (``A`` and ``a``) the second of two files is left out.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from dispatcher.model.errors import CannotCopy
from dispatcher.model.paths import make_folders
from dispatcher.remote.copy.arriving import OpenFolder
from dispatcher.remote.copy.disk import STAGE_HERE, asked_for, sweep_stages

MOST_MEMBERS = 1_000_000
MOST_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SECOND = 10**9  # nanoseconds, as all times here are
_LATEST = 2**33 * SECOND  # a time beyond this one is not believed; before 1970 neither
#: names to remember where a folder treats two as one: 7 MiB of them
_MOST_KNOWN = 100_000
#: names of left-out files that are listed
MOST_TOLD = 5


class BadArchive(Exception):
    """The host sent broken data or data that it may not send; the message says which."""


class Place(OpenFolder):
    """The folder ``path``, made if it does not exist; not a link. Raises: OSError.

    names: first parts that names may have; patterns: parts with wildcards that others may begin
    with.
    """

    def __init__(
        self, path: str, names: Collection[str], patterns: Sequence[Sequence[str]] = ()
    ) -> None:
        make_folders(path, 0o700)
        super().__init__(path, os.open(path, _FOLDER), STAGE_HERE)
        sweep_stages(self.root)
        self._names = names
        self._patterns = patterns
        self._within: list[tuple[list[str], int]] = []  # folders we are in, and their times
        self._most = 0o700  # bits of modes that the umask leaves
        self._known: set[int] | None = set() if self._folds() else None  # inodes of this copy
        self._left_out: list[str] = []
        self._omitted = 0

    def open(self) -> None:
        """Open it again after ``close``, with all that it knew. Raises: OSError."""
        self._open(os.open(self.path, _FOLDER))

    def _folds(self) -> bool:
        """Whether two names may be one file here; tried, since no system call reports it."""
        probe = STAGE_HERE + os.urandom(6).hex() + "-\u00e9"
        try:
            os.mkdir(probe, 0o777, dir_fd=self.root)
        except (OSError, UnicodeError):
            return False
        try:
            self._most = os.stat(probe, dir_fd=self.root).st_mode & 0o777
            for other in probe.upper(), probe[:-1] + "e\u0301":
                try:
                    os.stat(other, dir_fd=self.root, follow_symlinks=False)
                except OSError:
                    continue
                return True
            return False
        finally:
            os.rmdir(probe, dir_fd=self.root)

    def parts(self, name: str) -> list[str]:
        """``name`` in parts. Raises: BadArchive for one that leads elsewhere, CannotCopy."""
        parts = [part for part in name.split("/") if part != "."]
        known = bool(parts) and parts[0] in self._names
        if not known and not (parts and self._patterns):
            raise BadArchive(f"a member that was not asked for: {name[:80]!r}")
        for part in parts:
            if part in ("", "..") or "\0" in part or len(encoded(part)) > 255:
                raise BadArchive(f"a bad name: {name[:80]!r}")
        if not known and not any(asked_for(parts, wild) for wild in self._patterns):
            raise BadArchive(f"a member that was not asked for: {name[:80]!r}")
        if len(parts) > MOST_DEPTH:
            raise CannotCopy(f"{name[:80]!r}: more than {MOST_DEPTH} folders deep")
        return parts

    @contextmanager
    def _named(self, parts: list[str]) -> Iterator[None]:
        """Name ``parts`` in an error by the path that the user knows."""
        try:
            yield
        except OSError as error:
            raise self.named(error, parts) from None

    # -- what is made -------------------------------------------------------------------

    def folder(self, parts: list[str], mode: int, mtime: int) -> None:
        """Make a folder; it gets its time when all its entries are in it."""
        self._past(parts)
        self._above(parts)
        folder = self.enter(parts, make=True)
        with self._named(parts):
            os.fchmod(folder, mode & self._most | 0o700)
        if self._within and self._within[-1][0] == parts:
            self._within.pop()  # listed twice
        self._within.append((parts, mtime))

    def _above(self, parts: list[str]) -> int:
        """The folder that ``parts`` is in, which was listed before. Raises: BadArchive, OSError."""
        make = any(len(wild) == len(parts) and asked_for(parts, wild) for wild in self._patterns)
        try:
            return self.enter(parts[:-1], make=make)
        except FileNotFoundError:
            raise BadArchive(f"in no folder that was listed: {'/'.join(parts)[:80]!r}") from None

    def _past(self, parts: list[str]) -> None:
        """Set the times of the folders that ``parts`` is not in; lists go depth first."""
        while self._within and parts[: len(self._within[-1][0])] != self._within[-1][0]:
            inner, mtime = self._within.pop()
            folder = self.enter(inner)
            with self._named(inner):
                set_time(folder, mtime)

    def settle(self) -> None:
        """Set the times of the other folders; nothing is made after it."""
        self._past([])

    def keep(self, status: os.stat_result) -> None:
        """Note that the file of ``status`` belongs to this copy: no other may take its place."""
        if self._known is not None and len(self._known) < _MOST_KNOWN:
            self._known.add(status.st_ino)

    def _taken(self, parts: list[str]) -> bool:
        """Whether another file of this copy has the name; then ``parts`` is left out."""
        there = self.status(parts) if self._known else None
        if there is None or self._known is None or there.st_ino not in self._known:
            return False
        self.leave_out("/".join(parts), "the folder here treats its name as another file's")
        return True

    def finish(
        self, fd: int, name: str, parts: list[str], mode: int, mtime: int, *, part: bool = False
    ) -> None:
        """Give the file ``fd``, in the stage ``name``, its place; part: it is a ``part`` instead.

        Raises: BadArchive, OSError.
        """
        self._past(parts)
        folder = self._above(parts)
        source = self.root if part else self.in_stage()
        with self._named(parts):
            if self._taken(parts):
                return os.unlink(name, dir_fd=source)
            os.fchmod(fd, mode & self._most)
            set_time(fd, mtime)
            os.rename(name, parts[-1], src_dir_fd=source, dst_dir_fd=folder)
            return self.keep(os.fstat(fd))

    def link(self, parts: list[str], target: str) -> None:
        """Make a link, if it leads inside. Raises: BadArchive, OSError, CannotCopy."""
        self._past(parts)
        if not self._inside(parts[:-1], target):
            self.refuse(parts, "a link that leads outside")
            return
        folder = self._above(parts)
        if self._taken(parts):
            return
        with self._named(parts):
            try:
                os.unlink(parts[-1], dir_fd=folder)
            except FileNotFoundError:
                pass
            os.symlink(target, parts[-1], dir_fd=folder)
            self.keep(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))

    def _inside(self, folder: list[str], target: str) -> bool:
        """Whether a link of ``folder`` to ``target`` leads inside, now and later.

        The folders above it are not links; a part that ``..`` goes back from has to be a folder,
        too: nothing makes a link of that any more.
        """
        if target.startswith("/") or "\0" in target:
            return False
        encoded(target)
        at, named = list(folder), 0
        for part in target.split("/"):
            if part == "..":
                if not at or (named and not self._is_folder(at)):
                    return False
                at.pop()
                named = max(0, named - 1)
            elif part not in ("", "."):
                at.append(part)
                named += 1
        return True

    def _is_folder(self, parts: list[str]) -> bool:
        try:
            self.enter(parts)
        except OSError:
            return False
        return True

    def refuse(self, parts: list[str], why: str, told: str = "") -> None:
        """Leave ``parts`` out. Raises: CannotCopy(``told``) where the user named it."""
        name = "/".join(parts)
        if name in self._names:
            raise CannotCopy(told or f"{name[:80]!r}: {why}")
        self.leave_out(name, why)

    def leave_out(self, name: str, why: str) -> None:
        """Remember that ``name`` is not taken, and why."""
        self._omitted += 1
        if len(self._left_out) < MOST_TOLD:
            self._left_out.append(f"{name[:80]!r}: {why}")

    @property
    def left_out(self) -> list[str]:
        """Names left out, each with the reason: the first of them, and how many more there are."""
        return self._left_out + and_more(self._omitted)


def and_more(count: int) -> list[str]:
    """The text after the first ``MOST_TOLD`` of ``count`` names; [] if these are all."""
    return [f"and {count - MOST_TOLD} more"] if count > MOST_TOLD else []


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
