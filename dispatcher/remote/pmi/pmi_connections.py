"""The ranks' PMI connections: a socket each, open from their start to their end.

Each rank inherits one end of a socket pair (``PMI_FD``), or comes to a port (``pmi_port``). If its
MPI speaks PMIx it finds the port of a listener; its first connection there loads ``pmix_bridge``.
``pmi_replies`` is loaded when a rank speaks for the first time.
"""

from __future__ import annotations

import os
from _socket import AF_INET, SOCK_STREAM, socket, socketpair

from dispatcher.remote.host.poll import read_ready
from dispatcher.remote.pmi.pmi_state import PmiState, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dispatcher.remote.host.poll import Poll
    from dispatcher.remote.pmi.pmi_port import PmiPort
    from dispatcher.remote.pmi.pmi_replies import PmiReplies
    from dispatcher.remote.pmi.pmi_server import Action

READ_SIZE = 64 << 10


class PmiConnections(PmiState):
    """The connections of all ranks on this host."""

    def __init__(self, poll: Poll) -> None:
        super().__init__(poll)
        self.port: PmiPort | None = None
        self._replies: PmiReplies | None = None  # from the first message of a rank on
        self.segments: set[bytes] = set()  # shared memory that the ranks' MPI may leave behind
        self.way = ""  # of the rank that ended last see ``standing``

    def add(self, job: dict[str, Any], numbers: list[int]) -> None:
        """Add a world, whose ranks are about to be started."""
        world = World(job, numbers)
        self.worlds[world.index] = world
        self.world_of.update((number, world) for number in numbers)
        if job.get("port"):
            from dispatcher.remote.pmi.pmi_port import PmiPort

            self.port = PmiPort(self, self.admit)
        if job.get("pmix") and not self.place:
            self.listener = socket(AF_INET, SOCK_STREAM)
            self.listener.bind(("127.0.0.1", 0))
            self.listener.listen(1024)
            self.listener.setblocking(False)
            self.place = b"%s_srv.0;tcp4://127.0.0.1:%d"
            self.place %= (world.job["name"], self.listener.getsockname()[1])
            self.poll.add(self.listener.fileno(), lambda *_: self.knocked())

    def place_hook(self, folder: str | None, env: dict[bytes, bytes], hook: bytes | None) -> None:
        """Have the ranks' Python load ``hook``, a file in ``folder``, by way of ``env``."""
        self.folder = folder
        if folder is None or not hook:
            return
        path = os.path.join(folder, "sitecustomize.py")
        try:
            if not os.path.exists(path):
                with open(path, "wb") as file:
                    file.write(hook)
        except OSError:
            return  # a full disk: the ranks run without
        folders = [os.fsencode(folder), *filter(None, [env.get(b"PYTHONPATH")])]
        env[b"PYTHONPATH"] = b":".join(folders)

    def open(self, rank: int) -> tuple[int, dict[bytes, bytes]]:
        """The end that ``rank`` inherits, -1 if it connects to the port, and its variables.

        The caller closes that end.
        """
        world = self.world_of[rank]
        known = {b"PMI_RANK": b"%d" % (rank - world.first), b"PMI_SIZE": b"%d" % world.job["size"]}
        known.update((name, self.place) for name in world.job.get("pmix") or ())
        if self.port is not None and world.job.get("port"):
            known.update(self.port.expect(rank))
            return -1, known
        ours, theirs = (end.detach() for end in socketpair())
        os.set_blocking(ours, False)
        self.join(rank, ours)
        known[b"PMI_FD"] = b"%d" % theirs
        if world.index:
            known[b"PMI_SPAWNED"] = b"1"  # MPI_Comm_get_parent then reads the preput keys
        return theirs, known

    def join(self, rank: int, fd: int) -> None:
        """Hear ``rank`` on our end ``fd``."""
        self.ends[rank] = fd
        self.poll.add(fd, lambda now, _: self.read(rank, now))

    def admit(self, rank: int, fd: int, data: bytes, now: float) -> list[Action]:
        """Take connection ``fd`` of ``rank``, and the ``data`` that followed its name."""
        self.join(rank, fd)
        return self.replies().welcome(rank, data, now)

    def knocked(self) -> list[Action]:
        """Accept a rank that wants PMIx; ask the launcher for the server."""
        from dispatcher.remote.host import tcp_peer

        assert self.listener is not None
        self.caller = tcp_peer.accept(self.listener)
        if self.caller is None:
            return []
        self.poll.remove(self.listener.fileno())
        self.spoken = True
        return [("send", "pmix.wanted", {})]

    def close_ports(self) -> None:
        """Close the ports, because all ranks are dead and no connection can come."""
        if self.port is not None:
            self.port.close()
        if self.listener is not None:
            self.poll.remove(self.listener.fileno())
            self.listener.close()

    def leave(self, rank: int) -> None:
        """Forget ``rank``, which has ended or did not start; its world goes with its last rank."""
        self.close(rank)
        self.mpis.pop(rank, None)
        world = self.world_of.pop(rank, None)
        if world is not None:
            world.left.discard(rank)
            if not world.left:
                del self.worlds[world.index]

    def read(self, rank: int, now: float) -> list[Action]:
        """Read and handle the data of ``rank``; returns the actions other than replies."""
        data = read_ready(self.ends[rank], READ_SIZE)
        if data is None:
            return []
        if not data:
            self.close(rank)
            return []
        return self.replies().take(rank, data, now)

    def replies(self) -> PmiReplies:
        """The ``PmiReplies`` that answers on the connections, loaded on the first use."""
        if self._replies is None:
            from dispatcher.remote.pmi.pmi_replies import PmiReplies

            self._replies = PmiReplies(self)
        return self._replies

    def ended(self, rank: int, status: int, now: float) -> list[Action]:
        """Take the last message of ``rank``, which was reaped; after success none waits for it."""
        actions = self.read(rank, now) if rank in self.ends else []
        if self._replies is not None:
            actions += self._replies.catch_up(now)
        world = self.world_of[rank]
        self.way = self.standing(rank)
        if self.way == "inside" and rank in self.mpis:
            served, path, _ = self.mpis[rank]
            from dispatcher.remote.host import shm

            if served == "PMI-1" and shm.keeps(path):
                self.way = "open"  # it may have finalized MPI without time to report it
        self.leave(rank)
        if status != 0:
            return actions
        if self.way == "never":
            world.never.append(rank)
        if world.server is None:
            return actions
        return actions + self.replies().ended(world, rank)

    def note_segments(self) -> None:
        """Remember which shared memory MPI made; the ranks are about to be signalled."""
        if self.spoken:
            from dispatcher.remote.host import proctree, shm

            self.segments |= shm.mapped(proctree.descendants(os.getpid()))

    def remove_segments(self) -> None:
        """Remove the shared memory that the ranks left, which are all dead."""
        if self.segments:
            from dispatcher.remote.host import shm

            shm.remove(self.segments)

    def tick(self, now: float) -> list[Action]:
        """The actions that are due at ``now``."""
        return [] if self._replies is None else self._replies.tick(now)

    def next_deadline(self) -> float:
        """When ``tick`` has something to do, or infinity."""
        return float("inf") if self._replies is None else self._replies.next_deadline()

    def serving(self) -> int:
        """The process that serves PMIx, which belongs to no rank; 0 if there is no such process."""
        bridge = self._replies and self._replies.bridge
        return (bridge and bridge.pid) or 0
