"""Shared memory that killed MPI ranks would leave in /dev/shm: found before, removed after.

Names of segments do not say whose they are. So the agent notes what its own processes have mapped
while they live. Only names that MPI libraries choose count.
"""

from __future__ import annotations

import os

FOLDER = b"/dev/shm/"
#: MPICH, Intel MPI, and UCX below them
PREFIXES = (b"mpich_shm_", b"mpich_shar_tmp", b"Intel_MPI_", b"ucx_shm_posix_")


def mapped(pids: list[int]) -> set[bytes]:
    """Paths of the MPI segments that the processes ``pids`` have mapped now."""
    paths = {path.partition(FOLDER)[2] for pid in pids for path in files(pid)}
    return {
        FOLDER + path
        for path in paths
        if path.startswith(PREFIXES) and b"/" not in path and b" " not in path
    }


def files(pid: int) -> list[bytes]:
    """Paths of the files that process ``pid`` has mapped; none when it ended, or is not ours."""
    try:
        with open("/proc/%d/maps" % pid, "rb") as file:
            paths = [line.rstrip(b"\n").partition(b"/") for line in file]
    except OSError:
        return []
    return list(dict.fromkeys(slash + path for _, slash, path in paths))


def loaded_mpi(pid: int) -> str:
    """The MPI library that process ``pid`` has loaded; "" if none, or if its file is gone."""
    for path in files(pid):
        if b"/libmpi" in path and b".so" in path:
            return os.fsdecode(path) if os.path.exists(path) else ""
    return ""


def keeps(path: str) -> bool:
    """Whether the MPI at ``path`` has a segment from MPI_Init to MPI_Finalize, as MPICH 5 has."""
    try:
        with open(path, "rb") as file:
            return PREFIXES[0] in file.read()
    except OSError:
        return True  # unknown, so do not report it


def remove(paths: set[bytes]) -> None:
    """Remove ``paths``, as far as they still exist."""
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass
