"""A folder of our own where others have theirs, as in /tmp: emptied by descriptors."""

from __future__ import annotations

import os
from errno import ELOOP, ENOTDIR

FOR_LISTING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


def clear(folder: int) -> None:
    """Remove what is in the open ``folder``, a tree of our own making.

    Through no link: nobody can lead us elsewhere by changing a name meanwhile. What does not go
    keeps nothing else; agent and guardian may do it at once. Raises: OSError, of the last that did
    not go.
    """
    os.fchmod(folder, 0o700)
    stays = None
    within = [(folder, os.listdir(folder), "")]  # open folders, each in the one before it
    while within:
        here, names, name = within[-1]
        try:
            if names:
                _enter_or_unlink(names.pop(), within)
            else:
                within.pop()
                if within:
                    os.close(here)
                    os.rmdir(name, dir_fd=within[-1][0])
        except FileNotFoundError:
            pass  # somebody else of ours was there first
        except OSError as error:
            stays = error
    if stays is not None:
        raise stays


def _enter_or_unlink(name: str, within: list[tuple[int, list[str], str]]) -> None:
    here = within[-1][0]
    try:
        inner = _open(name, here)
    except OSError as error:
        if error.errno not in (ENOTDIR, ELOOP):
            raise
        os.unlink(name, dir_fd=here)
        return
    try:
        os.fchmod(inner, 0o700)
        within.append((inner, os.listdir(inner), name))
    except OSError:
        os.close(inner)
        raise


def _open(name: str, here: int) -> int:
    """Open a folder for listing, also one that a program of ours has shut to us."""
    try:
        return os.open(name, FOR_LISTING, dir_fd=here)
    except PermissionError:
        itself = os.open(name, os.O_PATH | FOR_LISTING, dir_fd=here)
    try:
        path = f"/proc/self/fd/{itself}"  # by its name a link could be meant meanwhile
        os.chmod(path, 0o700)
        return os.open(path, FOR_LISTING & ~os.O_NOFOLLOW)
    finally:
        os.close(itself)
