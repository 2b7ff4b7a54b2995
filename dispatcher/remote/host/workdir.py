"""The one folder an agent makes on its host: private, gone at the end with all that is in it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def make(run_id: str, tell: Callable[[str], None]) -> str | None:
    """A fresh folder of mode 0700 for the ranks' error files, or None where none can be made.

    tell: takes its path before it is there, so that it goes also if we are killed right then.
    """
    for base in (os.environ.get("TMPDIR", ""), "/tmp", "/dev/shm"):  # noqa: S108 - mkdir is exclusive
        if not base.startswith("/"):
            continue
        path = os.path.join(base, "dispatch-%s-%s" % (run_id, os.urandom(4).hex()))
        tell(path)
        try:
            os.mkdir(path, 0o700)
        except OSError:
            continue
        return path
    return None


def shared(path: str) -> str:
    """Where Open MPI's ranks keep shared memory: named after our folder, gone with it."""
    return "/dev/shm/" + os.path.basename(path)  # noqa: S108 - our own name, mode 0700


def remove(path: str) -> None:
    """Remove our own folder and ``shared``, with what Python and MPI put below; follows no link."""
    for place in (path, shared(path)):
        _remove(place)


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            for name in os.listdir(path):
                _remove(os.path.join(path, name))
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        pass
