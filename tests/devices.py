"""A device of a test's own: those of the machine are everybody's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


def make_device(path: Path) -> None:
    """Make the character device 0:0 at ``path``, which Linux lets anybody make and nobody open."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    except PermissionError:
        pytest.skip("no device can be made here")
