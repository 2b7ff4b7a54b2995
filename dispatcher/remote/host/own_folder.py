"""Safe use of our own folder among other users' folders, as in /tmp: emptied by descriptors."""

from __future__ import annotations

import os
from errno import ELOOP, ENOTDIR

FOR_LISTING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


def clear(folder: int) -> None:
    """Remove the contents of the open ``folder``, a tree that we made.

    It follows no link, so another user cannot lead us elsewhere by a rename. If something cannot be
    removed, the rest goes nevertheless. Agent and guardian may call it at the same time. Raises:
    OSError of the last failure.
    """
    os.fchmod(folder, 0o700)
    stays = None
    within = [(folder, os.listdir(folder), "")]  # open folders, each inside the one before it
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
            pass  # the agent or the guardian was faster
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
    """Open a folder for listing, even if one of our programs took our permission away."""
    try:
        return os.open(name, FOR_LISTING, dir_fd=here)
    except PermissionError:
        itself = os.open(name, os.O_PATH | FOR_LISTING, dir_fd=here)
    try:
        path = f"/proc/self/fd/{itself}"  # its name could be a link by now
        os.chmod(path, 0o700)
        return os.open(path, FOR_LISTING & ~os.O_NOFOLLOW)
    finally:
        os.close(itself)
