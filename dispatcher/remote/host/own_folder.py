"""A folder of our own where others have theirs, as in /tmp: emptied by descriptors."""

from __future__ import annotations

import os
from errno import ELOOP, ENOTDIR

FOR_LISTING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


def clear(folder: int) -> None:
    """Remove what is in the open ``folder``, a tree of our own making.

    Through no link: nobody can lead us elsewhere by changing a name meanwhile. What does not go
    keeps nothing else. Raises: OSError, of the last that did not go.
    """
    os.fchmod(folder, 0o700)
    stays = None
    for name in os.listdir(folder):
        try:
            _remove(name, folder)
        except OSError as error:
            stays = error
    if stays is not None:
        raise stays


def _remove(name: str, folder: int) -> None:
    try:
        inner = os.open(name, FOR_LISTING, dir_fd=folder)
    except OSError as error:
        if error.errno not in (ENOTDIR, ELOOP):
            raise
        os.unlink(name, dir_fd=folder)
        return
    try:
        clear(inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)
