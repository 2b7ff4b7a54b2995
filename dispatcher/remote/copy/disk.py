"""The disk's side of a copy, for both ends; and the sending end: bytes of files in frames.

A *stage* is a folder beside the destination that a copy works in. A *part* is a large file under
a name made from path, size and time. A copy locks both while it fills them, and removes dead ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from dispatcher.remote.host.own_folder import clear
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
    numbers,
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


def check_place(final: str, mode: int) -> None:
    """Check that a file or link may replace ``final``, which has ``mode``. Raises: NotTaken."""
    kept = _KEPT.get(mode & 0o170000)
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


def check_way(path: str, *, alone: bool) -> None:
    """Check that no other user leads ``path`` elsewhere by a link. Raises: NotTaken, OSError.

    alone: nor may another exchange the folder: it is ours or root's, no folder on the way was made
    by others where all may make one, and none is open to all without the sticky bit.
    """
    parts, at = path.split("/")[::-1], "/" if path.startswith("/") else ""
    links, for_all = 0, False
    while parts:
        if (part := parts.pop()) in ("", "."):
            continue
        place = os.path.join(at, part)
        try:
            about = os.lstat(place)
        except FileNotFoundError:
            return
        if about.st_mode & 0o170000 == 0o120000:
            check_owner(place, about, "such a link is not followed; name the folder it leads to")
            target, links = os.readlink(place), links + 1
            if links > 40:  # as many as Linux follows
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            parts += target.split("/")[::-1]
            at = "/" if target.startswith("/") else at
            continue
        at = place
        if alone and (for_all or not any(parts)):
            check_owner(place, about, FOLDER_OF_ANOTHER)
        for_all = bool(about.st_mode & 0o002)
        if alone and about.st_mode & 0o1002 == 0o002:
            why = "all users may exchange what is in it: chmod +t, or take another folder"
            raise NotTaken(f"{place}: {why}")


def merge(staged: str, final: str, owner: tuple[int, int] = OURS) -> None:
    """Give ``staged`` the name ``final``; into a folder that is there, file by file.

    owner: uid and gid of files that are copied to another file system. Raises: NotTaken, OSError.
    """
    if not os.path.isdir(staged) or os.path.islink(staged):
        try:
            check_place(final, os.lstat(final).st_mode)
        except FileNotFoundError:
            pass
        return rename(staged, final, owner)
    made = False
    if os.path.islink(final):  # replace the link, not its target
        os.unlink(final)
    if not os.path.isdir(final):
        try:
            return os.rename(staged, final)
        except OSError as error:
            made = error.errno == errno.EXDEV
            if made:
                os.mkdir(final, 0o700)
            elif not os.path.isdir(final):  # another copy has just made it
                raise
    about = os.stat(final)
    shut = about.st_uid == os.geteuid() != 0 and about.st_mode & 0o300 != 0o300
    fd = os.open(final, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if made or shut else -1
    try:
        if shut:  # its mode was sent so; the folder is ours, so only the mode keeps us out
            about = os.fstat(fd)
            os.fchmod(fd, about.st_mode & 0o7777 | 0o300)
        for name in os.listdir(staged):
            merge(os.path.join(staged, name), os.path.join(final, name), owner)
        if made:
            _settle(fd, os.stat(staged), owner)
    finally:
        if shut:
            os.fchmod(fd, about.st_mode & 0o7777)
        if fd >= 0:
            os.close(fd)
    return None


def rename(path: str, final: str, owner: tuple[int, int] = OURS) -> None:
    """Move by renaming; across a mount point by a private copy beside ``final``, then renamed."""
    try:
        os.rename(path, final)
    except OSError as error:
        if error.errno != errno.EXDEV:
            error.filename = final  # and not the stage's name for it
            raise
        beside = os.path.join(os.path.dirname(final), STAGE + os.urandom(6).hex())
        try:
            if os.path.islink(path):
                os.symlink(os.readlink(path), beside)
                if owner != OURS:
                    os.lchown(beside, *owner)
            else:
                _copy(path, beside, owner)
            os.rename(beside, final)
        except BaseException as failed:
            if os.path.lexists(beside):
                os.unlink(beside)
            if isinstance(failed, OSError):
                failed.filename = final
            raise


def _copy(path: str, beside: str, owner: tuple[int, int]) -> None:
    source = os.open(path, FOR_READING)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        copy = Incoming(os.open(beside, flags, 0o600), beside)
        try:
            while data := os.read(source, CHUNK):
                copy.take(*_told(source, data))
            _settle(copy.fd, os.fstat(source), owner)
        finally:
            os.close(copy.fd)
    finally:
        os.close(source)


def _settle(fd: int, about: os.stat_result, owner: tuple[int, int]) -> None:
    if owner == OURS and about.st_uid != os.geteuid():  # as the file that it replaces
        owner = about.st_uid, about.st_gid
    if owner != OURS:
        os.fchown(fd, *owner)
    os.fchmod(fd, about.st_mode & 0o7777)
    os.utime(fd, ns=(about.st_mtime_ns, about.st_mtime_ns))


def locked(fd: int) -> bool:
    """Lock ``fd`` for us alone; whether it is. A file system without locks counts as not."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def same_file(file: int | str, path: str, folder: int | None = None) -> bool:
    """Whether ``path``, in ``folder``, is still ``file`` (an open file, or another name of it)."""
    try:
        there = os.stat(path, dir_fd=folder, follow_symlinks=False)
        return os.path.samestat(os.stat(file), there)
    except OSError:
        return False


def open_part(path: str, folder: int | None = None, *, make: bool) -> int | None:
    """The part ``path``, in ``folder``, open and locked; None if it cannot be ours alone.

    It is None if the part is missing and must not be made, if another copy uses it, and if another
    user has put a file, a link or a second name of a file in its place.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if make else 0)
    try:
        fd = os.open(path, flags, 0o600, dir_fd=folder)
    except OSError:
        return None
    if locked(fd):  # before its names are counted: one that is whole has a second and no lock
        about = os.fstat(fd)
        ours = about.st_mode & 0o170000 == 0o100000 and about.st_uid == os.geteuid()
        if ours and about.st_nlink == 1 and same_file(fd, path, folder):
            return fd
    os.close(fd)
    return None


def sweep(folder: str) -> None:
    """Remove our stages of dead copies, and our parts that no copy has used for long."""
    for name in os.listdir(folder):
        if not name.startswith((STAGE, PART, STAGE_HERE)):
            continue
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, FOR_READING)
            try:
                about = os.fstat(fd)
                kind = KINDS.get(about.st_mode & 0o170000) if about.st_uid == os.geteuid() else None
                limit = STALE if name.startswith(PART) else DEAD
                if kind is None or time.time() - about.st_mtime <= limit or not locked(fd):
                    continue
                if kind == FILE and about.st_nlink > 1:
                    continue  # it is in the stage of a copy, too
                if kind == FOLDER:
                    clear(fd)
                    os.rmdir(path)
                else:
                    os.unlink(path)
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
        if named and KINDS.get(status.st_mode & 0o170000) == LINK:
            followed = os.stat(path)
            to = KINDS.get(followed.st_mode & 0o170000)
            if to != FOLDER:
                path, status = os.path.realpath(path) if to == FILE else path, followed
        kind = KINDS.get(status.st_mode & 0o170000, OTHER)
        size = status.st_size if kind == FILE else 0
        target = os.readlink(path) if kind == LINK else ""
        if skip(name, kind == FOLDER):
            return
        yield Entry(name, kind, status.st_mode & 0o7777, size, status.st_mtime_ns, target), path
        if kind == FOLDER:
            for inner in sorted(os.listdir(path)):
                yield from scan(os.path.join(path, inner), f"{name}/{inner}", skip, partial=partial)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        if named or not partial:
            raise NotGiven(f"{path}: {why}") from None
        yield Entry(name, UNREAD, 0, 0, 0, why), path


def digest(path: str, size: int = -1) -> str:
    """The SHA-256 of the file, or of its first ``size`` bytes; "" if it is not that long."""
    known = sha256()
    fd = os.open(path, FOR_READING)
    try:
        left = size
        while left:
            data = os.read(fd, CHUNK if left < 0 else min(CHUNK, left))
            if not data:
                return known.hexdigest() if left < 0 else ""
            known.update(data)
            left -= len(data)
    finally:
        os.close(fd)
    return known.hexdigest()  # type: ignore[no-any-return]


class Incoming:
    """A file that comes: open as ``fd`` at ``path``, ``size`` bytes so far, and their ``hash``."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self.size = 0
        self.hash = sha256()

    def resume(self, most: int) -> None:
        """Resume after the bytes of an earlier copy, unless they are more than ``most``."""
        while data := os.read(self.fd, CHUNK):
            self.hash.update(data)
            self.size += len(data)
        if self.size > most:
            self.restart()

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


class Present:
    """A file at the destination with the size of the wanted file, but another time.

    It is offered as a part that has all bytes. about: of the file before it was read. Raises:
    OSError.
    """

    def __init__(self, path: str, about: os.stat_result) -> None:
        self.path = path
        self.about = about
        self.size = about.st_size
        self.seen = digest(path, self.size)

    def is_still(self, sent: bytes) -> bool:
        """Whether it equals the ``sent`` file and has not changed since. Raises: OSError."""
        now, about = os.lstat(self.path), self.about
        same = (now.st_ino, now.st_mtime_ns) == (about.st_ino, about.st_mtime_ns)
        return same and bytes.fromhex(self.seen) == sent


def opened_again(path: str, about: os.stat_result) -> int:
    """The file or folder that ``about`` was of, and no link. Raises: NotTaken, OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    now = os.fstat(fd)
    if (now.st_dev, now.st_ino) != (about.st_dev, about.st_ino):
        os.close(fd)
        raise NotTaken(f"{path}: another one has its name now")
    return fd


def needs(
    wanted: bytes, parts: dict[int, Incoming], present: dict[int, Present] | None = None
) -> dict[str, Any]:
    """The answer to a list: 1 for each ``wanted`` file, and the bytes that are there already."""
    found = [(index, part.size, part.hash.hexdigest()) for index, part in parts.items()]
    found += [(index, there.size, there.seen) for index, there in (present or {}).items()]
    starts = numbers(number for index, size, _ in found for number in (index, size))
    return {"need": wanted, "start": starts, "seen": " ".join(seen for *_, seen in found)}


def give(
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


def split(path: str) -> tuple[str, list[str]]:
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
