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


def library(pid: int) -> tuple[str, int]:
    """The MPI library that process ``pid`` has loaded, and its size; "" if it has none."""
    try:
        with open("/proc/%d/maps" % pid) as file:
            for line in file:
                if "/libmpi" in line and ".so" in line:
                    path = line[line.index("/") :].rstrip()
                    return path, os.stat(path).st_size
    except (OSError, ValueError):
        pass
    return "", 0


def keeps(path: str) -> bool:
    """Whether the MPI library at ``path`` has a segment from MPI_Init to MPI_Finalize.

    MPICH 5 does. It takes its leave of PMI in an exit handler, long after MPI_Finalize.
    """
    try:
        with open(path, "rb") as file:
            return PREFIXES[0] in file.read()
    except OSError:
        return True  # then the less is said of it the better


def remove(paths: set[bytes]) -> None:
    """Remove those of ``paths`` that are still there."""
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass
