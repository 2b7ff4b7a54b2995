"""The one folder an agent makes on its host: private, gone at the end with all that is in it."""

from __future__ import annotations

import os

from dispatcher.remote.host.own_folder import FOR_LISTING, clear

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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


def shared(path: str) -> str:
    """A link in our folder to where Open MPI's ranks keep shared memory."""
    return path + "/shm"


def make_shared(path: str) -> None:
    """Make the folder that ``shared`` leads to, under a random name. Raises: OSError."""
    place = SHM + os.path.basename(path)[len("dispatch-") : -8] + os.urandom(4).hex()
    os.symlink(place, shared(path))  # first, so that it goes also if we are killed then
    os.mkdir(place, 0o700)


def remove(path: str) -> None:
    """Remove our own folder and the ``shared`` folder; anything else stays."""
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
        clear(folder)
        os.rmdir(path)
    except OSError:
        pass
    finally:
        os.close(folder)
