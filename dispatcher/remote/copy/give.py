"""The end that has the files: what there is, and its bytes in frames."""

from __future__ import annotations

import os

from dispatcher.remote.protocol.copy_frames import (
    BROKEN,
    CHUNK,
    DATA,
    END,
    FILE,
    FOLDER,
    LINK,
    OTHER,
    START,
    Entry,
    frame,
    sha256,
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class NotGiven(Exception):
    """A path that cannot be copied; the message is ``path: why``."""


def at_home(path: str) -> str:
    """``path`` where it begins with ``~`` or ``~user``, else as it is.

    Raises: NotGiven for a home folder that is not known.
    """
    if not path.startswith("~"):
        return path
    if not os.environ.get("HOME"):
        os.environ.pop("HOME", None)  # empty, it would make ~/x a folder of the root's
    found = os.path.expanduser(path)
    if not found.startswith("/"):
        raise NotGiven(f"{path}: no such home folder")
    return found


def scan(path: str, name: str) -> Iterator[tuple[Entry, str]]:
    """Entries of the file or tree at ``path``, called ``name``, and where each is; folders first.

    Raises: NotGiven for one that cannot be read.
    """
    try:
        status = os.lstat(path)
        mode, kind, more = status.st_mode & 0o7777, status.st_mode & 0o170000, ""
        if kind == 0o100000:
            yield Entry(name, FILE, mode, status.st_size, status.st_mtime_ns), path
        elif kind == 0o040000:
            yield Entry(name, FOLDER, mode, 0, status.st_mtime_ns), path
            for inner in sorted(os.listdir(path)):
                yield from scan(path + "/" + inner, name + "/" + inner)
        elif kind == 0o120000:
            more = os.readlink(path)
            yield Entry(name, LINK, mode, 0, status.st_mtime_ns, more), path
        else:
            yield Entry(name, OTHER, mode, 0, status.st_mtime_ns), path
    except OSError as error:
        raise NotGiven(f"{path}: {(error.strerror or str(error)).lower()}") from None


def digest(path: str, size: int = -1) -> str:
    """The SHA-256 of the file, or of its first ``size`` bytes; "" if it is not that long."""
    known = sha256()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        left = size
        while left:
            data = os.read(fd, CHUNK if left < 0 else min(CHUNK, left))
            if not data:
                return known.hexdigest() if left < 0 else ""
            known.update(data)
            left -= len(data) if left > 0 else 0
    finally:
        os.close(fd)
    return known.hexdigest()  # type: ignore[no-any-return]


def give(
    path: str,
    size: int,
    start: int = 0,
    seen: str = "",
    more: Callable[[int], bool] = lambda at: True,
) -> Iterator[bytes]:
    """The file at ``path`` in frames; it must have ``size`` bytes, as when it was listed.

    start, seen: how many bytes the other end has, and their SHA-256. Where it is not
    ours the file is given from its beginning. more: of a file that still grows, waits
    until there are more bytes than these; False if there never will be.
    """
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        known, at = sha256(), 0
        while at < start and more(at) and (data := os.read(fd, min(CHUNK, start - at))):
            known.update(data)
            at += len(data)
        if start and (at < start or known.hexdigest() != seen):
            known, at = sha256(), os.lseek(fd, 0, os.SEEK_SET)
        if start:
            yield frame(START, at.to_bytes(8, "big"))
        while at < size and more(at) and (data := os.read(fd, min(CHUNK, size - at))):
            known.update(data)
            at += len(data)
            yield frame(DATA, data)
        if at < size or os.read(fd, 1):
            yield frame(BROKEN, os.fsencode(path) + b": changed while it was copied")
        else:
            yield frame(END, known.digest())
    except OSError as error:
        why = f"{path}: {(error.strerror or str(error)).lower()}"
        yield frame(BROKEN, os.fsencode(why))
    finally:
        if fd >= 0:
            os.close(fd)
