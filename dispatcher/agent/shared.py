"""Shared memory that killed MPI ranks would leave in /dev/shm: found before, removed after.

MPI libraries remove their segments when they finalize, which a killed rank does
not. The names say nothing about whose they are, so what our own processes have
mapped is noted while they live, and removed when all are dead. Only names that
MPI libraries choose count: a program's own shared memory may be meant to stay.
"""

from __future__ import annotations

import os

FOLDER = b"/dev/shm/"
#: MPICH, Intel MPI, and UCX below them
PREFIXES = (b"mpich_shm_", b"mpich_shar_tmp", b"Intel_MPI_", b"ucx_shm_posix_")


def mapped(pids: list[int]) -> set[bytes]:
    """Paths of the MPI segments that the processes ``pids`` have mapped now."""
    found = set()
    for pid in pids:
        try:
            with open("/proc/%d/maps" % pid, "rb") as file:
                for line in file:
                    path = line.rstrip(b"\n").partition(FOLDER)[2]
                    if path.startswith(PREFIXES) and b"/" not in path and b" " not in path:
                        found.add(FOLDER + path)
        except OSError:
            pass  # it ended while we looked
    return found


def library(pid: int) -> str:
    """The MPI library that process ``pid`` has loaded; "" if it has none of its own."""
    try:
        with open("/proc/%d/maps" % pid) as file:
            for line in file:
                if "/libmpi" in line and ".so" in line:
                    return line[line.index("/") :].rstrip()
    except (OSError, ValueError):
        pass
    return ""


def remove(paths: set[bytes]) -> None:
    """Remove those of ``paths`` that are still there."""
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass
