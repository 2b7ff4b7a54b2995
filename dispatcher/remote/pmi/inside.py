"""Who is inside MPI on this host, between MPI_Init and MPI_Finalize, and which MPI that is.

The answer to ``mpi_look``, which the launcher sends when a rank has left MPI half-way, or
ranks seem to use more than one MPI. No part of what every run sends.
"""

from __future__ import annotations

import os
import select
from _signal import SIGKILL  # type: ignore[import-not-found]
from time import monotonic

from dispatcher.remote.host import proctree, workdir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dispatcher.remote.pmi.pmi_connections import Wireup

#: segments that are kept from MPI_Init to MPI_Finalize, by libraries that have them
MARK = workdir.FOLDER + workdir.PREFIXES[0]
#: seconds in which a library must tell its version, and bytes of that
PATIENCE, LIMIT = 3.0, 200


def look(wireup: Wireup, message: dict[str, Any]) -> dict[str, Any]:
    """What ``mpi_inside`` says; ``message``: the order, see ``messages``."""
    libraries: list[list[Any]] = [list(known) for known in message["versions"]]
    inside, over = [], []
    for rank, (way, path, pid) in sorted(wireup.mpis.items()):
        if wireup.standing(rank) != "inside":
            continue
        known = [way, path]
        if known not in libraries:
            libraries.append(known)
        inside.append([rank, libraries.index(known)])
        if message["over"] and _is_over(path, pid):
            over.append(rank)
    told = {path: version(path) for _, path in libraries} if message["versions"] else {}
    for known in libraries:
        known.append(told.get(known[1], ""))
    return {"inside": inside, "over": over, "libraries": libraries}


def _is_over(path: str, pid: int) -> bool:
    """Whether MPI_Finalize is behind process ``pid``, though PMI was not told."""
    if not path or not workdir.keeps(path):
        return False
    held = workdir.mapped([pid, *proctree.descendants(pid)])
    return not any(segment.startswith(MARK) for segment in held)


def version(path: str) -> str:
    """What the MPI library at ``path`` calls itself, "" if it does not say.

    It may be asked before MPI_Init; in a process of its own, since it is loaded for that.
    """
    if not path:
        return ""
    out, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            import ctypes

            words, size = ctypes.create_string_buffer(8192), ctypes.c_int(0)
            ctypes.CDLL(path).MPI_Get_library_version(words, ctypes.byref(size))
            os.write(end, words.value[:LIMIT])
        finally:
            os._exit(0)
    os.close(end)
    said, until = b"", monotonic() + PATIENCE
    try:
        while select.select([out], [], [], max(0.0, until - monotonic()))[0]:
            data = os.read(out, LIMIT)
            if not data:
                break
            said += data
    finally:
        os.close(out)
        os.kill(pid, SIGKILL)  # it may hang; the loop reaps it
    return said[:LIMIT].decode("utf-8", "replace").split("\n")[0]
