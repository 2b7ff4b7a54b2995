"""Which files this process has open, of those below a folder of the test."""

from __future__ import annotations

import os
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """Their names, sorted; one that has no name any more is ``(deleted)``.

    Others, which tests before have left to be collected, do not count.
    """
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            place = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the one that lists them
        if place.startswith(f"{folder}/"):
            name = place.removeprefix(f"{folder}/")
            found.append("(deleted)" if name.endswith("(deleted)") else name)
    return sorted(found)
