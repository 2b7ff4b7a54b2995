"""What a target may change on the disk: what is below its folder, and nothing else.

Python tells of each change before it is made (``sys.audit``), so one elsewhere is not made.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
from functools import cache
from typing import Any

#: events that change something -> how many of the first arguments are paths; as many of the last
#: are the folders that these are in, -1 for none. A link's target may be any; what is given a mode,
#: an owner or a time by its name may be a link, so those are followed.
CHANGES = {
    "os.mkdir": 1, "os.rmdir": 1, "os.remove": 1, "os.rename": 2, "os.link": 2, "os.chmod": 1,
    "os.chown": 1, "os.utime": 1, "os.truncate": 1, "os.mkfifo": 1, "os.mknod": 1,
}  # fmt: skip
FOLLOWED = ("os.chmod", "os.chown", "os.utime", "os.truncate")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_STAYS = os.O_NOFOLLOW | os.O_EXCL

#: the thread that runs a target now
_watched: int | None = None


class Escaped(AssertionError):
    """A target would change what is not below its folder."""


@cache
def folder() -> str:
    """A folder in memory, where there is one, that goes when we do."""
    made = tempfile.mkdtemp(
        prefix="dispatch-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    )
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def watch(on: bool) -> None:
    """From here on, or no longer: whoever changes something outside of ``folder`` in this thread
    gets ``Escaped``."""
    global _watched
    _hook()
    _watched = threading.get_ident() if on else None


@cache
def _hook() -> None:
    folder()
    sys.addaudithook(_see)


def _see(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is None or threading.get_ident() != _watched:
        return
    if event == "open":
        path, _, flags = arguments
        if flags & _WRITING:
            _check(event, path, follow=not flags & _STAYS)
    elif event == "os.symlink":
        _check(event, arguments[1], arguments[2], follow=False)
    elif event in CHANGES:
        count = CHANGES[event]
        folders = arguments[-count:] if event != "os.truncate" else (-1,)
        for path, at in zip(arguments[:count], folders, strict=True):
            _check(event, path, at, follow=event in FOLLOWED)


def _check(event: str, path: Any, at: int = -1, *, follow: bool) -> None:
    """A single name, ``at`` no known folder, is in one that was opened, so it was below ours."""
    if isinstance(path, int):
        return
    path = os.fsdecode(path)
    if at >= 0:
        path = os.path.join(os.readlink(f"/proc/self/fd/{at}"), path)
    above, name = os.path.split(path)
    if (not above and name != "..") or path == os.devnull or "/__pycache__/" in path:
        return
    real = os.path.realpath(path if follow else above)
    if not f"{real}/".startswith(f"{folder()}/"):
        raise Escaped(f"{event} of {path!r}, which is not below {folder()}")
