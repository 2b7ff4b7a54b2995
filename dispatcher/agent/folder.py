"""The one folder an agent makes on its host: private, flat, gone at the end."""

from __future__ import annotations

import os


def make(run_id: str) -> str | None:
    """A fresh folder of mode 0700 for the ranks' error files, or None where none can be made."""
    for base in (os.environ.get("TMPDIR", ""), "/tmp", "/dev/shm"):  # noqa: S108 - mkdir is exclusive
        if not base.startswith("/"):
            continue
        path = os.path.join(base, "dispatch-%s-%s" % (run_id, os.urandom(4).hex()))
        try:
            os.mkdir(path, 0o700)
        except OSError:
            continue
        return path
    return None


def remove(path: str) -> None:
    """Remove our own flat folder; what the ranks may have put below it in folders stays."""
    try:
        for name in os.listdir(path):
            try:
                os.unlink(os.path.join(path, name))
            except OSError:
                pass
        os.rmdir(path)
    except OSError:
        pass
