"""Files of a run: made new, private to the user, written whole."""

from __future__ import annotations

import os
from pathlib import Path


def create(path: Path) -> int:
    """A descriptor of the new file ``path``, mode 0600. Nothing that lies there is touched.

    Raises: OSError, also when something of that name exists, be it a link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; one write(2) where the descriptor takes it whole."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
