"""What this process has open; two looks are compared as sets, not as numbers.

Threads of earlier tests may end between two looks and close what was theirs, and garbage may be
collected: a number would then hide what is left behind, or miss what went.
"""

from __future__ import annotations

import contextlib
import os


def open_files() -> frozenset[tuple[str, str]]:
    """(number, what it leads to) of every open descriptor."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return frozenset(found)
