"""The files that ``--sync`` sends: the working folder without those that ignore files name.

Rules are those of ``.gitignore`` and ``.dispatchignore`` of each folder, of the folders above as
far as the repository goes, and of ``.git/info/exclude``; git's index is not asked. Files are read
only when a host wants one. Each name in the folder is its own name to the other end, so that
it stages within the folder: beside it the user may not write.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from dispatcher.model.errors import CannotCopy, reason
from dispatcher.model.names import size
from dispatcher.remote.copy.disk import DEEPEST, KINDS
from dispatcher.remote.protocol.copy_frames import FILE, FOLDER, OTHER, Entry
from dispatcher.transfer.ignore_rules import Rules
from dispatcher.transfer.put_files import LEFT, SMALL, DestPaths, Sources

#: the ignore files of a folder, the last one decides
IGNORE_FILES = (".gitignore", ".dispatchignore")
MOST_RULES = 1 << 20  # bytes of an ignore file

#: a folder's depth below the outermost one that has rules -> its rules
Chain = tuple[tuple[int, Rules], ...]


class WorkingFolder(Sources):
    """The files of ``folder`` as they will be at ``dest``; absolute. Raises: UsageError."""

    alone = True  # it is run

    def __init__(self, folder: str, dest: str) -> None:
        self.source, self.dest = folder, dest
        self._reading = threading.Lock()
        super().__init__([(os.path.join(dest, ""), ())], checksum=False)

    def _list(self, checksum: bool) -> None:
        for entry, path in listed(self.source):
            self.entries.append(entry)
            self._paths.append(path)
        if not self.entries:
            raise CannotCopy(
                f"--sync: {self.source}: nothing to send",
                hint="cd into the folder of your code; files that .gitignore names are not sent",
            )
        names = (entry.path[2:] for entry in self.entries if entry.path.count("/") == 1)
        self.groups: Sequence[DestPaths] = [(self.groups[0][0], tuple(names))]
        self._spans = [(0, 0)] * len(self.entries)
        self._end = 0

    def pieces(self, needed: Sequence[int], starts: dict[int, tuple[int, str]]) -> Iterator[bytes]:
        """As ``Sources``; small files of ``needed`` are read now, if no host wanted them yet."""
        there = {index for index in needed if self.is_there(index, starts)}  # no host waits for it
        with self._reading:
            for index in needed:
                if index in there:
                    continue
                entry, span = self.entries[index], self._spans[index]
                if entry.size <= SMALL and span[0] == span[1]:
                    self._spans[index] = (self._end, self._end + self._keep(index))
                    self._end = self._spans[index][1]
            self._run.flush()
        return super().pieces(needed, starts)

    def _keep(self, index: int) -> int:
        size = 0
        for piece in self.given(index):
            self._run.write(piece)
            size += len(piece)
        return size

    def tar(self) -> BinaryIO:
        """Raises: CannotCopy, since a host without Python cannot run ranks."""
        raise CannotCopy("--sync needs a python3 on the host")


def listed(folder: str) -> Iterator[tuple[Entry, str]]:
    """Entries of ``folder``, as from ``disk.scan``, each with its path. Raises: CannotCopy.

    Paths of entries begin with the number of their group, 0. Sockets and the like are left out.
    """
    above = _above(folder)
    inside = os.path.relpath(folder, above)
    prefix = "" if inside == "." else inside + "/"
    chain: Chain = ()
    if prefix:
        chain = _chain((), above, 0, _exclude(above))
        for place in _places(prefix):
            chain = _chain(chain, os.path.join(above, place), len(place) + 1)
    yield from _walk(folder, "0", prefix, chain, () if prefix else _exclude(above))


def _walk(
    folder: str, name: str, inside: str, chain: Chain, first: tuple[bytes, ...]
) -> Iterator[tuple[Entry, str]]:
    """inside: the path of ``folder`` below the outermost, with a slash after it, or empty.

    first: texts of rules before the folder's own ones.
    """
    if name.count("/") > DEEPEST:
        raise CannotCopy(f"--sync: {folder[:80]}...: more than {DEEPEST} folders deep")
    try:
        with os.scandir(folder) as found:
            items = sorted(found, key=lambda item: item.name)
    except OSError as error:
        raise _unreadable(folder, error) from None
    if first or any(item.name in IGNORE_FILES for item in items):
        chain = _chain(chain, folder, len(inside), first)
    for item in items:
        if item.name == ".git" or item.name.startswith(LEFT):
            continue
        path, below = f"{folder}/{item.name}", inside + item.name
        is_folder = item.is_dir(follow_symlinks=False)
        if chain and _ignored(chain, below, folder=is_folder):
            continue
        try:
            status = item.stat(follow_symlinks=False)
            kind = KINDS.get(stat.S_IFMT(status.st_mode), OTHER)
            target = os.readlink(path) if item.is_symlink() else ""
        except OSError as error:
            raise _unreadable(path, error) from None
        if kind == OTHER:
            continue
        size = status.st_size if kind == FILE else 0
        own, mode = f"{name}/{item.name}", status.st_mode & 0o7777
        yield Entry(own, kind, mode, size, status.st_mtime_ns, target), path
        if kind == FOLDER:
            yield from _walk(path, own, below + "/", chain, ())


def _ignored(chain: Chain, path: str, *, folder: bool) -> bool:
    name = os.fsencode(path)
    for depth, rules in chain:  # the innermost first
        # depth counts characters of the folder's path, which may have more bytes
        own = name if depth == 0 else os.fsencode(path[depth:])
        found = rules.ignored(own, folder=folder)
        if found is not None:
            return found
    return False


def _chain(chain: Chain, folder: str, depth: int, first: tuple[bytes, ...] = ()) -> Chain:
    """``chain`` with the rules of ``folder`` before it. depth: characters of its path."""
    texts = [text for name in IGNORE_FILES if (text := _text(f"{folder}/{name}"))]
    rules = Rules(*first, *texts)
    return ((depth, rules), *chain) if rules else chain


def _places(inside: str) -> list[str]:
    """The folders between the outermost and ``inside``, without both: ``a/b/c/``: a, a/b."""
    parts = inside.strip("/").split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _above(folder: str) -> str:
    """The root of the repository that ``folder`` is in; ``folder`` itself outside any."""
    place = folder
    while not os.path.lexists(os.path.join(place, ".git")):
        outer = os.path.dirname(place)
        if outer == place:
            return folder
        place = outer
    return place


def _exclude(folder: str) -> tuple[bytes, ...]:
    """The text of ``info/exclude`` for the repository at ``folder``, if there is any.

    ``.git`` is its folder, or a file that names it, as in a submodule and in a worktree.
    """
    git = os.path.join(folder, ".git")
    git = os.path.join(folder, _named(git, b"gitdir: ") or git)
    common = os.path.join(git, _named(os.path.join(git, "commondir")))
    text = _text(os.path.join(common, "info", "exclude"))
    return (text,) if text else ()


def _named(path: str, key: bytes = b"") -> str:
    """The path that git has written into the file ``path`` after ``key``, or empty."""
    text = _text(path)
    return os.fsdecode(text[len(key) :].rstrip(b"\r\n")) if text.startswith(key) else ""


def _text(path: str) -> bytes:
    """The bytes of ``path``; none if it does not exist or is a link, as for git."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):  # of a NUL, where a file names another
        return b""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return b""
    with open(fd, "rb") as file:
        text = file.read(MOST_RULES + 1)
    if len(text) > MOST_RULES:
        raise CannotCopy(f"{path}: more than {size(MOST_RULES)} of rules")
    return text


def _unreadable(path: str, error: OSError) -> CannotCopy:
    why = reason(error)
    return CannotCopy(f"--sync: {path}: {why}", hint="to leave it out, name it in .dispatchignore")
