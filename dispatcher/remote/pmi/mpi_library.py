"""Which MPI the ranks run on, and where a libpmix for it is: read from what they have mapped.

A rank that asks for PMIx has loaded its MPI already, so /proc/PID/maps says exactly which
one, whatever PATH, wheels, modules and environments made it choose. Its libpmix is
the one to serve it with. Only an MPI that has PMIx built in shows none; then it
is looked for beside the MPI, in the Python environments of the ranks, and in the system.
"""

from __future__ import annotations

import os

NAMES = ("libpmix.so.2", "libpmix.so")
#: where distributions, wheels and builds put it, seen from a prefix
PLACES = ("lib", "lib64", "lib/openmpi", "lib/pmix", "lib64/openmpi", "lib/pmix2/lib")
#: what may say where a rank's environment is
PREFIXES = (b"OPAL_PREFIX=", b"PMIX_PREFIX=", b"VIRTUAL_ENV=", b"CONDA_PREFIX=", b"MPI_HOME=")


class Found:
    """What the processes ``pids`` have loaded: ``files``, by name; ``mpi``; ``pmix``."""

    def __init__(self, pids: list[int]) -> None:
        self.files: dict[str, str] = {}
        self.prefixes: list[str] = []
        for pid in pids:
            for path in mapped(pid):
                self.files.setdefault(os.path.basename(path), path)
            self.prefixes += _prefixes(pid)
        self.mpi = self._first("libmpi.so.40") or self._first("libmpi")
        self.pmix = self._first("libpmix.so")

    def candidates(self) -> list[str]:
        """Paths and names to load a libpmix from, the best first."""
        found = [self.pmix] if self.pmix else []
        prefixes = list(self.prefixes)
        if self.mpi:
            folder = os.path.dirname(self.mpi)
            found += [os.path.join(folder, name) for name in NAMES]
            prefixes.insert(0, os.path.dirname(folder))
        for prefix in prefixes:
            found += [os.path.join(prefix, place, NAMES[0]) for place in PLACES]
        found = [path for path in found if os.path.exists(path)]
        return list(dict.fromkeys([*found, *NAMES]))  # a bare name: where the system looks

    def named(self, soname: str) -> str | None:
        """The file that a rank has loaded for ``soname`` (libhwloc.so.15)."""
        return self._first(soname)

    def _first(self, start: str) -> str:
        names = sorted(name for name in self.files if name.startswith(start))
        return self.files[names[0]] if names else ""


def mapped(pid: int) -> list[str]:
    """The shared libraries that process ``pid`` has loaded."""
    found: dict[str, None] = {}
    try:
        with open("/proc/%d/maps" % pid, "rb") as file:
            for line in file:
                path = os.fsdecode(line.rstrip(b"\n")).partition("/")
                if ".so" in path[2]:
                    found["/" + path[2]] = None
    except OSError:
        pass  # it ended, or is not ours
    return list(found)


def _prefixes(pid: int) -> list[str]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            words = file.read().split(b"\0")
        found = [os.fsdecode(w.partition(b"=")[2]) for w in words if w.startswith(PREFIXES)]
        return [*found, os.path.dirname(os.path.dirname(os.readlink("/proc/%d/exe" % pid)))]
    except OSError:
        return []
