"""A folder of our own on a host: private, and gone at the end with all that is in it.

Folders like /tmp are full of other users' files, so it is emptied by descriptors.
"""

from __future__ import annotations

import os
from errno import ELOOP, ENOTDIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FOR_LISTING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
#: how a path of shared memory's begins
SHM = "/dev/shm/dispatch-"  # noqa: S108 - mkdir is exclusive


def make(run_id: str, tell: Callable[[str], None]) -> str | None:
    """A fresh folder of mode 0700 for the ranks' error files, or None where none can be made.

    tell: takes the path before the folder exists, so that it is removed even if we die right then.
    """
    for base in (os.environ.get("TMPDIR", ""), "/tmp", "/dev/shm"):  # noqa: S108 - mkdir is exclusive
        if not base.startswith("/") or not is_safe(base):
            continue
        path = os.path.join(base, "dispatch-%s-%s" % (run_id, os.urandom(4).hex()))
        tell(path)
        try:
            os.mkdir(path, 0o700)
        except OSError:
            continue
        return path
    return None


def is_safe(folder: str) -> bool:
    """Whether only root and we may replace our folder in ``folder``.

    It must be sticky, as /tmp is, or ours and writable for us alone, as sshd's StrictModes asks.
    """
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return bool(found.st_mode & 0o1000) or (
        found.st_uid == os.geteuid() and not found.st_mode & 0o022
    )


def shm_link(path: str) -> str:
    """A link in our folder to where Open MPI's ranks keep shared memory."""
    return path + "/shm"


def make_shared(path: str) -> None:
    """Make the folder that ``shm_link`` leads to, under a random name. Raises: OSError."""
    place = SHM + os.path.basename(path)[len("dispatch-") : -8] + os.urandom(4).hex()
    os.symlink(place, shm_link(path))  # first, so that it goes also if we are killed then
    os.mkdir(place, 0o700)


def remove(path: str) -> None:
    """Remove our own folder and the folder of ``shm_link``; anything else stays."""
    try:
        folder = os.open(path, FOR_LISTING)
    except OSError:
        return
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        try:
            place = os.path.basename(os.readlink("shm", dir_fd=folder))
            os.unlink("shm", dir_fd=folder)
            remove(SHM + place[len("dispatch-") :])
        except OSError:
            pass  # its ranks had none
        clear_folder(folder)
        os.rmdir(path)
    except OSError:
        pass
    finally:
        os.close(folder)


def clear_folder(folder: int) -> None:
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
