"""What a host has left: memory, space, limits, the script, the time; read, not judged.

Each is one file or one system call. What cannot be read is left out, and whoever
judges must notice that it is missing.
"""

from __future__ import annotations

import os
from time import time
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: bytes of a file that is summed, and of one that is read
SUM_LIMIT = 64 << 20
READ_LIMIT = 4096


def vitals(cwd: bytes, script: bytes | None = None) -> dict[str, Any]:
    """The vital signs of this host as plain values.

    memory, limits: the text of /proc/meminfo's beginning and /proc/self/limits.
    space: folder -> [bytes, free bytes, files, free files] as an unprivileged user
    has them. script: [size, crc32]. time: seconds since 1970, taken last.
    """
    found: dict[str, Any] = {}
    for name, path in (("memory", "/proc/meminfo"), ("limits", "/proc/self/limits")):
        try:
            with open(path, "rb") as file:
                found[name] = file.read(READ_LIMIT)
        except OSError:
            pass
    found["space"] = {}
    temporary = os.environb.get(b"TMPDIR") or b"/tmp"
    for name, folder in (("shm", b"/dev/shm"), ("tmp", temporary), ("cwd", cwd)):
        try:
            found["space"][name] = space(folder)
        except OSError:
            pass
    if script is not None:
        try:
            found["script"] = summed(os.path.join(cwd, script))
        except OSError:
            pass
    found["time"] = time()
    return found


def space(folder: bytes) -> list[int]:
    """Bytes, free bytes, files, free files of the file system that ``folder`` is on."""
    there = os.statvfs(folder)
    size = there.f_frsize
    return [there.f_blocks * size, there.f_bavail * size, there.f_files, there.f_favail]


def summed(path: bytes) -> list[int]:
    """Size and CRC-32 of a file, of its first ``SUM_LIMIT`` bytes."""
    size = sum = 0
    with open(path, "rb") as file:
        while size < SUM_LIMIT:
            data = file.read(1 << 20)
            if not data:
                break
            size += len(data)
            sum = crc32(data, sum)
        return [os.fstat(file.fileno()).st_size, sum]
