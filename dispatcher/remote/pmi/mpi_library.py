"""Which MPI the ranks run on, and who is between MPI_Init and MPI_Finalize.

A rank that asks for PMIx has loaded its MPI already, so /proc/PID/maps says exactly which one, and
its libpmix is the one to serve it with. An MPI that has PMIx built in shows none. Open MPI 4 has it
in libopen-pal, which then serves; else one is looked for beside the MPI, in the Python environments
of the ranks, and in the system.

``find_inside`` is the answer to ``mpi_look``, which the launcher sends when a rank has left MPI
half-way. No part of what every run sends.
"""

from __future__ import annotations

import os

from dispatcher.remote.host import proctree, shm

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from dispatcher.remote.pmi.pmi_state import PmiState


NAMES = ("libpmix.so.2", "libpmix.so")
#: where distributions, wheels and builds put it, seen from a prefix
FOLDERS = ("lib", "lib64", "lib/openmpi", "lib/pmix", "lib64/openmpi", "lib/pmix2/lib")
#: what may say where a rank's environment is
PREFIXES = (b"OPAL_PREFIX=", b"PMIX_PREFIX=", b"VIRTUAL_ENV=", b"CONDA_PREFIX=", b"MPI_HOME=")


class Found:
    """What the processes ``pids`` have loaded: ``files``, by name; ``mpi``; ``pmix``."""

    def __init__(self, pids: list[int]) -> None:
        self.files: dict[str, str] = {}
        self.prefixes: list[str] = []
        for pid in pids:
            for path in map(os.fsdecode, shm.files(pid)):
                if ".so" in path:
                    self.files.setdefault(os.path.basename(path), path)
            self.prefixes += _prefixes(pid)
        self.mpi = self.named("libmpi.so.40") or self.named("libmpi")
        self.pmix = self.named("libpmix.so") or self.named("libopen-pal.so.40")

    def candidates(self) -> list[str]:
        """Paths and names to load a libpmix from, the best first."""
        found = [self.pmix] if self.pmix else []
        prefixes = list(self.prefixes)
        if self.mpi:
            folder = os.path.dirname(self.mpi)
            found += [os.path.join(folder, name) for name in NAMES]
            prefixes.insert(0, os.path.dirname(folder))
        for prefix in prefixes:
            found += [os.path.join(prefix, folder, NAMES[0]) for folder in FOLDERS]
        found = [path for path in found if os.path.exists(path)]
        return list(dict.fromkeys([*found, *NAMES]))  # a bare name: where the system looks

    def named(self, start: str) -> str:
        """The file that a rank has loaded for a name, or its beginning; "" for none."""
        names = sorted(name for name in self.files if name.startswith(start))
        return self.files[names[0]] if names else ""


def _prefixes(pid: int) -> list[str]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            words = file.read().split(b"\0")
        found = [os.fsdecode(w.partition(b"=")[2]) for w in words if w.startswith(PREFIXES)]
        return [*found, os.path.dirname(os.path.dirname(os.readlink("/proc/%d/exe" % pid)))]
    except OSError:
        return []


#: segments that are kept from MPI_Init to MPI_Finalize, by libraries that have them
MARK = shm.FOLDER + shm.PREFIXES[0]


def find_inside(state: PmiState, message: dict[str, Any]) -> dict[str, Any]:
    """What ``mpi_inside`` says; ``message``: the order, see ``protocol.frames``."""
    inside, over = [], []
    for rank, (_, path, pid) in sorted(state.mpis.items()):
        if state.standing(rank) == "inside":
            inside.append(rank)
            if message["over"] and _is_over(path, pid):
                over.append(rank)
    return {"inside": inside, "over": over}


def _is_over(path: str, pid: int) -> bool:
    """Whether MPI_Finalize is behind process ``pid``, though PMI was not told."""
    if not path or not shm.keeps(path):
        return False
    segments = shm.mapped([pid, *proctree.descendants(pid)])
    return not any(segment.startswith(MARK) for segment in segments)
