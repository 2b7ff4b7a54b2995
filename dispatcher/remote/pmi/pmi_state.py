"""The state that all parts of the PMI service share: which ranks this host has, how MPI is served.

The ranks that were planned are one *world*, each spawn makes another; each has a
its own server (``pmi_server``), until its last rank here has ended.
"""

from __future__ import annotations

import os
from _socket import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dispatcher.remote.host.poll import Poll
    from dispatcher.remote.pmi.pmi_server import Server


class World:
    """Ranks started together, as the ``pmi`` (dict) of their order describes them.

    numbers: the job's numbers of its ranks on this host.
    """

    def __init__(self, job: dict[str, Any], numbers: list[int]) -> None:
        self.job = job
        self.index: int = job.get("world", 0)
        self.first: int = job.get("first", 0)  # the number of its rank 0
        self.left = set(numbers)  # not yet ended
        self.ranks = numbers
        self.never: list[int] = []  # those that ended well without MPI_Init, by the job's numbers
        self.server: Server | None = None


class PmiState:
    """The worlds, the descriptors, and the state of each rank."""

    def __init__(self, poll: Poll) -> None:
        self.poll = poll
        self.worlds: dict[int, World] = {}
        self.world_of: dict[int, World] = {}  # rank -> its world, while it lives
        self.ends: dict[int, int] = {}  # rank -> our end
        self.listener: socket | None = None  # where ranks come whose MPI speaks PMIx
        self.place = b""  # the value of the variables that lead to it
        self.caller: int | None = None  # the first connection to it, until that is served
        self.spoken = False  # whether any rank has
        self.folder: str | None = None  # of error files
        self.mpis: dict[int, tuple[str, str, int]] = {}  # rank -> what serves it, its MPI, its pid
        self.connected: set[int] = set()  # ranks that called MPI_Init, and
        self.finalized: set[int] = set()  # MPI_Finalize, as PMIx says

    def close(self, rank: int) -> None:
        """Let go of ``rank``'s connection, if there is one."""
        fd = self.ends.pop(rank, None)
        if fd is not None:
            self.poll.remove(fd)
            os.close(fd)

    def standing(self, rank: int) -> str:
        """Whether ``rank`` ``never`` called MPI_Init, is ``inside`` MPI, or "": is through."""
        world = self.world_of[rank]
        peer = world.server and world.server.peers[rank]
        if (peer and peer.inside) or (rank in self.connected and rank not in self.finalized):
            return "inside"
        came = (peer and peer.n_inits) or rank in self.connected
        return "" if came else "never"
