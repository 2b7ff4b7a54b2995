"""The disk's side of a copy, for both ends; and the sending end: bytes of files in frames.

A *stage* is a folder beside the destination that a copy works in. A *part* is a large file under
a name made from path, size and time. A copy locks both while it fills them, and removes dead ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from dispatcher.remote.host.own_folder import FOR_LISTING, clear_folder
from dispatcher.remote.protocol.copy_frames import (
    BROKEN,
    CHUNK,
    DATA,
    END,
    FILE,
    FOLDER,
    HOLE,
    LINK,
    OTHER,
    START,
    UNREAD,
    Entry,
    bytes_of,
    sha256,
)  # fmt: skip
from dispatcher.remote.protocol.mux import frame

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any


_ZEROS = bytes(CHUNK)

STAGE, PART = ".dispatch-put-", ".dispatch-part-"
#: the stage of ``get``
STAGE_HERE = ".dispatch-get-"
#: most folders within each other that are copied; people's trees have some dozens. Python calls
#: itself once for each, and stops at a thousand; the code that removes them has each open
DEEPEST = 500
#: seconds after which an unused part, and a stage without a lock, are swept
STALE, DEAD = 7 * 86400, 60
#: a name may be of a fifo by now, whose writer never comes: do not wait for it
FOR_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

#: what inode(7) calls S_IFREG, S_IFDIR and S_IFLNK
KINDS = {0o100000: FILE, 0o040000: FOLDER, 0o120000: LINK}
#: types of files that no file or link may replace: S_IFDIR, S_IFCHR and S_IFBLK
_KEPT = {0o040000: "a directory", 0o020000: "a device", 0o060000: "a device"}
#: leave uid and gid as the copying user has them
OURS = (-1, -1)


class NotTaken(Exception):
    """The files cannot be put where they should be; the message says which and why."""


def same_time(there: int, here: int) -> bool:
    """Whether two times in nanoseconds mean one; ``there`` may have been kept in whole seconds."""
    second = 10**9
    return there == here or (there % second == 0 and there // second == here // second)


def kind_of(about: os.stat_result | None) -> str:
    """FILE, FOLDER, LINK or OTHER; "" for none."""
    return KINDS.get(about.st_mode & 0o170000, OTHER) if about else ""


def check_place(final: str, about: os.stat_result | None) -> None:
    """Check that a file or link may replace ``final``, if it is there. Raises: NotTaken."""
    kept = _KEPT.get(about.st_mode & 0o170000) if about else None
    if kept is not None:
        raise NotTaken(f"{final}: is {kept}")


def is_ours(about: os.stat_result) -> bool:
    """Whether the file belongs to us, or to root, who may do everything anyway."""
    return about.st_uid in (0, os.geteuid())


def check_owner(place: str, about: os.stat_result, why: str) -> None:
    """Check that ``place`` is ours or root's. Raises: NotTaken, which names the owner."""
    if is_ours(about):
        return
    import pwd

    try:
        user = pwd.getpwuid(about.st_uid).pw_name
    except KeyError:
        user = str(about.st_uid)
    raise NotTaken(f"{place}: belongs to {user}: {why}")


FOLDER_OF_ANOTHER = "its owner could exchange the code that you run; take a folder that you own"


#: opens a link itself, and a folder that may be passed through but not read
_WHATEVER = getattr(os, "O_PATH", 0) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_way(path: str, *, alone: bool) -> int:
    """Open the folder ``path``, and make what is missing of it; follow only our links and root's.

    alone: nor may another exchange the folder: it is ours or root's, no folder on the way was made
    by others where all may make one, and none is open to all without the sticky bit. Raises:
    NotTaken, OSError.
    """
    parts, at = path.split("/")[::-1], "/" if path.startswith("/") else ""
    links, for_all, place, own = 0, False, path, len(parts)
    here = os.open(at or ".", _WHATEVER)
    try:
        while parts:
            if (part := parts.pop()) in ("", "."):
                continue
            place = os.path.join(at, part)
            target = _our_link(part, here, place, make=len(parts) < own)
            if target is None:
                at, inner = place, open_folder(part, here)
            else:
                own = min(own, len(parts))  # what a link leads to is not made
                parts, links = parts + target.split("/")[::-1], links + 1
                if links > 40:  # as many as Linux follows
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))  # noqa: TRY301
                if not target.startswith("/"):
                    continue
                at, inner = "/", os.open("/", _WHATEVER)
            os.close(here)
            here = inner
            if target is not None:
                continue
            about = os.fstat(here)
            if alone and (for_all or not any(parts)):
                check_owner(place, about, FOLDER_OF_ANOTHER)
            for_all = bool(about.st_mode & 0o002)
            if alone and about.st_mode & 0o1002 == 0o002:
                why = "all users may exchange what is in it: chmod +t, or take another folder"
                raise NotTaken(f"{place}: {why}")
        return os.open(".", FOR_LISTING, dir_fd=here)
    except OSError as error:
        told = "not a folder" if error.errno == errno.ENOTDIR else error.strerror
        raise OSError(error.errno, told, place) from None
    finally:
        os.close(here)


def _our_link(name: str, folder: int, place: str, *, make: bool) -> str | None:
    """The target of the link ``name``; None for a folder. make: it, if nothing is there."""
    try:
        fd = os.open(name, _WHATEVER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
        make_folder(name, folder, 0o775)  # users who may write to one could exchange the next
        return None
    try:
        about = os.fstat(fd)
        if kind_of(about) != LINK:
            return None
        check_owner(place, about, "such a link is not followed; name the folder it leads to")
        return os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)


def make_folder(name: str, folder: int, mode: int) -> bool:
    """Make ``name`` in ``folder``; whether it was not there. Raises: OSError."""
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def open_folder(name: str, folder: int) -> int:
    """Open ``name`` in ``folder``, even if it may only be passed through. Raises: OSError."""
    try:
        return os.open(name, FOR_LISTING, dir_fd=folder)
    except PermissionError:
        return os.open(name, _WHATEVER | os.O_DIRECTORY, dir_fd=folder)


def move(name: str, stage: int, final: str, folder: int, owner: tuple[int, int] = OURS) -> None:
    """Rename ``name`` in ``stage`` to ``final`` in ``folder``; across a mount point, copy it first.

    The copy is beside ``final``, and is private until it has its owner. owner: its uid and gid.
    """
    try:
        return os.rename(name, final, src_dir_fd=stage, dst_dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    beside = STAGE + os.urandom(6).hex()
    try:
        if kind_of(os.stat(name, dir_fd=stage, follow_symlinks=False)) != LINK:
            _copy(name, stage, beside, folder, owner)
        else:
            os.symlink(os.readlink(name, dir_fd=stage), beside, dir_fd=folder)
            if owner != OURS:
                os.chown(beside, *owner, dir_fd=folder, follow_symlinks=False)
        os.rename(beside, final, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        try:
            os.unlink(beside, dir_fd=folder)
        except FileNotFoundError:
            pass
        raise


def _copy(name: str, stage: int, beside: str, folder: int, owner: tuple[int, int]) -> None:
    source = os.open(name, FOR_READING, dir_fd=stage)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        copy = Incoming(os.open(beside, flags, 0o600, dir_fd=folder), beside)
        try:
            while data := os.read(source, CHUNK):
                copy.take(*_told(source, data))
            about = os.fstat(source)
            if owner == OURS and about.st_uid != os.geteuid():  # as the file that it replaces
                owner = about.st_uid, about.st_gid
            if owner != OURS:
                os.fchown(copy.fd, *owner)
            os.fchmod(copy.fd, about.st_mode & 0o7777)
            os.utime(copy.fd, ns=(about.st_mtime_ns, about.st_mtime_ns))
        finally:
            os.close(copy.fd)
    finally:
        os.close(source)


def locked(fd: int) -> bool:
    """Lock ``fd`` for us alone; whether it is. A file system without locks counts as not."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def same_file(about: os.stat_result, name: str, folder: int) -> bool:
    """Whether ``name`` in ``folder`` is the file that ``about`` is of."""
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(about, there)


def open_part(name: str, folder: int, *, make: bool) -> int | None:
    """The part ``name``, in ``folder``, open and locked; None if it cannot be ours alone.

    It is None if the part is missing and must not be made, if another copy uses it, and if another
    user has put a file, a link or a second name of a file in its place.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if make else 0)
    try:
        fd = os.open(name, flags, 0o600, dir_fd=folder)
    except OSError:
        return None
    if locked(fd):  # before its names are counted: one that is whole has a second and no lock
        about = os.fstat(fd)
        ours = about.st_mode & 0o170000 == 0o100000 and about.st_uid == os.geteuid()
        if ours and about.st_nlink == 1 and same_file(about, name, folder):
            return fd
    os.close(fd)
    return None


def sweep_stages(folder: int) -> None:
    """Remove our stages of dead copies, and our parts that no copy has used for long."""
    for name in os.listdir(folder):
        if not name.startswith((STAGE, PART, STAGE_HERE)):
            continue
        try:
            fd = os.open(name, FOR_READING, dir_fd=folder)
            try:
                about = os.fstat(fd)
                kind = kind_of(about) if about.st_uid == os.geteuid() else OTHER
                limit = STALE if name.startswith(PART) else DEAD
                if kind == OTHER or time.time() - about.st_mtime <= limit or not locked(fd):
                    continue
                if kind == FILE and about.st_nlink > 1:
                    continue  # it is in the stage of a copy, too
                if kind == FOLDER:
                    clear_folder(fd)
                    os.rmdir(name, dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(fd)
        except OSError:
            pass  # another user's, or just gone


class NotGiven(Exception):
    """A path that cannot be copied; the message is ``path: why``."""


def at_home(path: str) -> str:
    """``path`` where it begins with ``~`` or ``~user``, else as it is. Raises: NotGiven."""
    if not path.startswith("~"):
        return path
    if not os.environ.get("HOME"):
        os.environ.pop("HOME", None)  # empty, it would make ~/x a folder of the root's
    found = os.path.expanduser(path)
    if not found.startswith("/"):
        raise NotGiven(f"{path}: no such home folder")
    return found


def scan(
    path: str,
    name: str,
    skip: Callable[[str, bool], bool] = lambda name, folder: False,
    *,
    named: bool = False,
    partial: bool = False,
) -> Iterator[tuple[Entry, str]]:
    """Entries of the file or tree at ``path``, called ``name``, and where each is; folders first.

    named: the user named it, so a link is followed; a link to a folder only with a slash after it.
    skip: called with each name, and whether it is a folder; True leaves it out. partial: make an
    entry of an unreadable file, unless it is named. Raises: NotGiven.
    """
    if name.count("/") > DEEPEST:
        raise NotGiven(f"{path[:80]}...: more than {DEEPEST} folders deep")
    try:
        status = os.lstat(path)
        if named and kind_of(status) == LINK:
            followed = os.stat(path)
            to = kind_of(followed)
            if to != FOLDER:
                path, status = os.path.realpath(path) if to == FILE else path, followed
        kind = kind_of(status)
        size = status.st_size if kind == FILE else 0
        target = os.readlink(path) if kind == LINK else ""
        if skip(name, kind == FOLDER):
            return
        yield (
            Entry(name, kind, status.st_mode & 0o7777, size, status.st_mtime_ns, target),
            path,
        )
        if kind == FOLDER:
            for inner in sorted(os.listdir(path)):
                yield from scan(os.path.join(path, inner), f"{name}/{inner}", skip, partial=partial)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        if named or not partial:
            raise NotGiven(f"{path}: {why}") from None
        yield Entry(name, UNREAD, 0, 0, 0, why), path


def digest(path: str, folder: int | None = None) -> str:
    """The SHA-256 of the file ``path``, in ``folder``. Raises: OSError."""
    file = Incoming(os.open(path, FOR_READING, dir_fd=folder), path)
    try:
        file.resume()
    finally:
        os.close(file.fd)
    return file.hash.hexdigest()  # type: ignore[no-any-return]


class Incoming:
    """A file that comes: open as ``fd``, ``name``, ``size`` bytes so far, and their ``hash``."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name
        self.size = 0
        self.hash = sha256()

    def resume(self) -> None:
        """Read the bytes that are here from another time. Raises: OSError."""
        while data := os.read(self.fd, CHUNK):
            self.hash.update(data)
            self.size += len(data)

    def restart(self) -> None:
        """Forget what is there. Raises: OSError."""
        os.ftruncate(self.fd, 0)
        self.hash, self.size = sha256(), os.lseek(self.fd, 0, os.SEEK_SET)

    def take(self, kind: int, body: bytes) -> None:
        """Go on by a frame: DATA, or a HOLE, which takes no room. Raises: OSError."""
        size = bytes_of(kind, body)
        self.size += size
        if kind == HOLE:
            self.hash.update(_ZEROS[:size])
            os.ftruncate(self.fd, self.size)
            os.lseek(self.fd, self.size, os.SEEK_SET)
            return
        self.hash.update(body)
        view = memoryview(body)
        while view:
            view = view[os.write(self.fd, view) :]


def file_frames(
    path: str,
    size: int,
    start: int = 0,
    seen: str = "",
    more: Callable[[int], bool] | None = None,
    hasher: Callable[[], Any] = sha256,
) -> Iterator[bytes]:
    """The file at ``path`` in frames, ``size`` bytes of it; a change during the copy breaks it off.

    start, seen: how many bytes the other end has, and their SHA-256; if that is not ours, begin at
    byte 0. more: for a file that is still being received: waits for more bytes than these; False if
    there never will be. hasher: makes the object that gets all bytes, from the first on.
    """
    try:
        fd = os.open(path, FOR_READING)
        try:
            yield from _given(fd, path, size, start, seen, more, hasher)
        finally:
            os.close(fd)
    except OSError as error:
        why = f"{path}: {(error.strerror or str(error)).lower()}"
        yield frame(0, BROKEN, os.fsencode(why))


def _told(fd: int, data: bytes) -> tuple[int, bytes]:
    """Kind and body of the frame for ``data`` of the file ``fd``: a HOLE only if it has any."""
    if data == (_ZEROS if len(data) == CHUNK else _ZEROS[: len(data)]):
        about = os.fstat(fd)
        if about.st_blocks * 512 < about.st_size:
            return HOLE, len(data).to_bytes(8, "big")
    return DATA, data


def _given(
    fd: int,
    path: str,
    size: int,
    start: int,
    seen: str,
    more: Callable[[int], bool] | None,
    hasher: Callable[[], Any],
) -> Iterator[bytes]:
    waits, before = more or (lambda at: True), os.fstat(fd)
    known, at = sha256() if start else hasher(), 0
    while at < start and waits(at) and (data := os.read(fd, min(CHUNK, start - at))):
        known.update(data)
        at += len(data)
    if start and (at < start or known.hexdigest() != seen):
        known, at = sha256(), os.lseek(fd, 0, os.SEEK_SET)
    if start:
        yield frame(0, START, at.to_bytes(8, "big"))
    while at < size and waits(at) and (data := os.read(fd, min(CHUNK, size - at))):
        known.update(data)
        at += len(data)
        yield frame(0, *_told(fd, data))
    now = os.fstat(fd)
    same = now.st_mtime_ns == before.st_mtime_ns or now.st_size > before.st_size
    is_short = at < size and same and now.st_size == size  # /sys reports a page for each
    if not more and (is_short or (not size and os.read(fd, 1) and not os.fstat(fd).st_size)):
        why = b": its size is unknown, as in /proc and /sys; dispatch exec and cat can read it"
        yield frame(0, BROKEN, os.fsencode(path) + why)
    elif at < size or not (same or more):
        yield frame(0, BROKEN, os.fsencode(path) + b": changed while it was copied")
    else:
        yield frame(0, END, known.digest())


# -- wildcards: as in shells, * and ? stand for anything in a name but a dot at its beginning ------


def has_wildcards(path: str) -> bool:
    """Whether ``path`` has a character that may stand for others."""
    return any(char in path for char in "*?[")


def split_wildcards(path: str) -> tuple[str, list[str]]:
    """The folder before the first part with wildcards, and all parts from that on."""
    parts = path.split("/")
    first = next(at for at, part in enumerate(parts) if has_wildcards(part))
    folder = "/".join(parts[:first])
    rest = [part for part in parts[first:] if part not in ("", ".")]
    return (folder or "/") if first else "", rest


def matches(name: str, part: str) -> bool:
    """Whether ``part`` of a path with wildcards stands for ``name``."""
    from fnmatch import fnmatchcase

    if not has_wildcards(part):
        return name == part
    return name.startswith(".") <= part.startswith(".") and fnmatchcase(name, part)


def asked_for(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether ``names``, of a file or of one in a folder that matches, begin as ``parts`` say."""
    return len(names) >= len(parts) and all(map(matches, names, parts))


def expand(folder: str, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Expand the wildcards of ``parts`` in ``folder``, sorted: the place and path of each match.

    Folders that cannot be listed count as empty, as in a shell.
    """
    inner, rest = parts[0], parts[1:]
    if has_wildcards(inner):
        try:
            found = sorted(name for name in os.listdir(folder or ".") if matches(name, inner))
        except OSError:
            return
    else:
        found = [inner] if os.path.lexists(os.path.join(folder, inner)) else []
    for name in found:
        place = os.path.join(folder, name)
        if not rest:
            yield place, name
            continue
        for deeper, path in expand(place, rest):
            yield deeper, f"{name}/{path}"
