"""What both ends do with a disk: stages, parts, locks, and the way to a final name.

A *stage* is a folder beside the destination that a copy works in; a *part* is a large file
under a name made of what it is. Both are locked by whoever fills them, so the next copy can
tell the living from the dead. A file system without locks counts everything as living.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

STAGE, PART = ".dispatch-put-", ".dispatch-part-"
#: the stage of ``get``
STAGE_HERE = ".dispatch-get-"
#: seconds after which a part that nobody goes on with is swept, and a stage that nobody locks
STALE, DEAD = 7 * 86400, 60


class NotTaken(Exception):
    """The files cannot be put where they should be; the message says which and why."""


def same_time(there: int, here: int) -> bool:
    """Whether two times in nanoseconds mean one; ``there`` may have been kept in whole seconds."""
    second = 10**9
    return there == here or (there % second == 0 and there // second == here // second)


def merge(staged: str, final: str) -> None:
    """Give ``staged`` the name ``final``; into a folder that is there, file by file.

    Raises: NotTaken where a folder stands in the place of a file; OSError.
    """
    if os.path.isdir(staged) and not os.path.islink(staged):
        if not os.path.isdir(final):
            try:
                return rename(staged, final)
            except OSError:
                if not os.path.isdir(final):  # another copy has just made it
                    raise
        for name in os.listdir(staged):
            merge(os.path.join(staged, name), os.path.join(final, name))
    elif os.path.isdir(final) and not os.path.islink(final):
        raise NotTaken(f"{final}: is a directory")
    else:
        rename(staged, final)
    return None


def rename(path: str, final: str) -> None:
    """Move by renaming; across a mount point by a copy beside ``final``, then renamed."""
    try:
        os.rename(path, final)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        import shutil

        beside = os.path.join(os.path.dirname(final), STAGE + os.urandom(6).hex())
        try:
            shutil.copy2(path, beside, follow_symlinks=False)
            os.rename(beside, final)
        except BaseException:
            if os.path.lexists(beside):
                os.unlink(beside)
            raise


def locked(fd: int) -> bool:
    """Lock ``fd`` for us alone; whether it is. A file system without locks counts as not."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock(path: str) -> int:
    """A descriptor that holds ``path`` locked where the file system can."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    locked(fd)
    return fd


def same_file(fd: int, path: str) -> bool:
    """Whether ``path`` is still the open file ``fd``."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except OSError:
        return False


def sweep(folder: str) -> None:
    """Remove the stages of copies that are dead, and parts that nobody has wanted for long."""
    for name in os.listdir(folder):
        if not name.startswith((STAGE, PART, STAGE_HERE)):
            continue
        path = os.path.join(folder, name)
        try:
            fd = lock_or_none(path)
            if fd is None:
                continue
            age = time.time() - os.fstat(fd).st_mtime
            if age > (STALE if name.startswith(PART) else DEAD):
                remove(path)
            os.close(fd)
        except OSError:
            continue  # another user's, or just gone


def lock_or_none(path: str) -> int | None:
    """A descriptor that holds ``path`` locked, or None."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    if locked(fd):
        return fd
    os.close(fd)
    return None


def remove(path: str) -> None:
    """Remove a file, or a tree of our own making."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    os.chmod(path, 0o700)
    for name in os.listdir(path):
        remove(os.path.join(path, name))
    os.rmdir(path)
