"""The ranks' PMI connections: a socket each, read and answered by ``pmi.Server``.

Each rank inherits one end of a socket pair and finds its number in ``PMI_FD``; or it
comes to a port, if the user wants that (``door``). One whose MPI speaks PMIx finds
the port of a listener; what serves it comes when it knocks there (``rendezvous``).
The server is loaded when a rank speaks for the first time, so a job without MPI
pays for a socket pair and nothing else.

The ranks that were planned are one *world*, each spawn makes another; each has a
server of its own, until its last rank here has ended. A server numbers ranks as
its world does, everybody else by their number in the whole job; it is here that
the one becomes the other.

Replies are written here; what else the server wants done (reports to send,
ranks to end) is handed to the loop.
"""

from __future__ import annotations

import os
import select
from _socket import AF_INET, SOCK_STREAM, socket, socketpair

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .door import Door
    from .pmi import Action, Server
    from .rendezvous import Rendezvous

    Hear = Callable[[int, float], list[Action]]

READ_SIZE = 64 << 10


class World:
    """Ranks started together, as the ``pmi`` (dict) of their order describes them.

    numbers: the job's numbers of its ranks on this host.
    """

    def __init__(self, job: dict[str, Any], numbers: list[int]) -> None:
        self.job = job
        self.index: int = job.get("world", 0)
        self.first: int = job.get("first", 0)  # the number of its rank 0
        self.left = set(numbers)  # not yet ended
        self.ranks = [number - self.first for number in numbers]
        self.gone: list[int] = []  # ranks that ended well before anyone spoke
        self.server: Server | None = None

    def serving(self) -> Server:
        """The server, loaded now if nobody needed it before."""
        if self.server is None:
            from .pmi import Server

            job = self.job
            self.server = Server(
                job["name"],
                job["size"],
                self.ranks,
                job["mapping"],
                job["patience"],
                job.get("universe", 0),
                job.get("apps"),
                job.get("preput"),
            )
            for rank in self.gone:
                self.server.ended(rank)
        return self.server

    def outward(self, action: Action) -> Action:
        """``action`` with the job's numbers in place of the world's."""
        if action[0] == "break":
            return ("break", action[1] + self.first, action[2])
        fields = action[2]
        if "fence" in fields:
            fields["world"] = self.index
        if "rank" in fields:
            fields["rank"] += self.first
        for name in ("never", "absent"):
            if name in fields:
                fields[name] = [rank + self.first for rank in fields[name]]
        return action


class Wireup:
    """The connections of all ranks on this host."""

    def __init__(self, poll: select.epoll) -> None:
        self.poll = poll
        self.worlds: dict[int, World] = {}
        self.homes: dict[int, World] = {}  # rank -> its world, while it lives
        self.fds: dict[int, int] = {}  # our end -> rank
        self.ends: dict[int, int] = {}  # rank -> our end
        self.others: dict[int, Hear] = {}  # descriptors that are no rank's -> who hears them
        self.door: Door | None = None
        self.listener: socket | None = None  # where ranks come whose MPI speaks PMIx
        self.rendezvous: Rendezvous | None = None  # what serves those that came
        self.spoken = False  # whether any rank has
        self.folder: str | None = None  # of error files
        self.segments: set[bytes] = set()  # shared memory that the ranks' MPI may leave behind

    def add(self, job: dict[str, Any], numbers: list[int]) -> None:
        """Ranks of a world are about to be started."""
        world = World(job, numbers)
        self.worlds[world.index] = world
        self.homes.update((number, world) for number in numbers)
        if job.get("port"):
            from .door import Door

            self.door = Door(self, self.poll)
        if job.get("pmix"):
            self.listener = socket(AF_INET, SOCK_STREAM)
            self.listener.bind(("127.0.0.1", 0))
            self.listener.listen(1024)
            self.poll.register(self.listener.fileno(), select.EPOLLIN)
            self.others[self.listener.fileno()] = self.knocked

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
        places = [os.fsencode(folder), *filter(None, [env.get(b"PYTHONPATH")])]
        env[b"PYTHONPATH"] = b":".join(places)

    def open(self, rank: int) -> tuple[int, dict[bytes, bytes]]:
        """The end that ``rank`` inherits, and its variables; the caller closes that end.

        -1 for the end where the rank is to come to the port.
        """
        world = self.homes[rank]
        known = {b"PMI_RANK": b"%d" % (rank - world.first), b"PMI_SIZE": b"%d" % world.job["size"]}
        if self.listener is not None and world.job.get("pmix"):
            place = b"%s_srv.0;tcp4://127.0.0.1:%d"
            place %= (world.job["name"], self.listener.getsockname()[1])
            known.update((name, place) for name in world.job["pmix"])
        if self.door is not None and world.job.get("port"):
            known.update(self.door.expect(rank))
            return -1, known
        ours, theirs = (end.detach() for end in socketpair())
        os.set_blocking(ours, False)
        self.fds[ours] = rank
        self.ends[rank] = ours
        self.poll.register(ours, select.EPOLLIN)
        known[b"PMI_FD"] = b"%d" % theirs
        if world.index:
            known[b"PMI_SPAWNED"] = b"1"  # MPI_Comm_get_parent asks for what was preput
        return theirs, known

    def admit(self, rank: int, fd: int, data: bytes, now: float) -> list[Action]:
        """``rank`` has come by connection ``fd``, and said ``data`` behind its name."""
        self.fds[fd] = rank
        self.ends[rank] = fd
        world = self.homes[rank]
        words = b"cmd=initack rc=0\ncmd=set size=%d\ncmd=set rank=%d\ncmd=set debug=0\n"
        answer = words % (world.job["size"], rank - world.first)
        return self.reply(world, [("reply", rank - world.first, answer)]) + self.take(
            rank, data, now
        )

    def knocked(self, fd: int, now: float) -> list[Action]:
        """A rank's MPI wants PMIx: have the launcher send what serves it."""
        self.poll.unregister(fd)
        del self.others[fd]
        self.spoken = True
        return [("send", "pmix_wanted", {})]

    def name(self, rank: int) -> str:
        """What people call ``rank``: ``3``, or ``1.0`` if it was spawned."""
        world = self.homes.get(rank)
        if world is None or not world.index:
            return "%d" % rank
        return "%d.%d" % (world.index, rank - world.first)

    def close(self, rank: int) -> None:
        """Let go of ``rank``'s connection, if there is one."""
        fd = self.ends.pop(rank, None)
        if fd is not None:
            del self.fds[fd]
            self.poll.unregister(fd)
            os.close(fd)

    def leave(self, rank: int) -> None:
        """``rank`` is no more, or never was; with the last one its world is forgotten."""
        self.close(rank)
        world = self.homes.pop(rank, None)
        if world is not None:
            world.left.discard(rank)
            if not world.left:
                del self.worlds[world.index]

    def read(self, rank: int, now: float) -> list[Action]:
        """Take what ``rank`` says; the actions that are not replies."""
        try:
            data = os.read(self.ends[rank], READ_SIZE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close(rank)
            return []
        return self.take(rank, data, now)

    def take(self, rank: int, data: bytes, now: float) -> list[Action]:
        """What ``data``, said by ``rank``, calls for; the actions that are not replies."""
        world = self.homes[rank]
        first: list[Action] = [] if self.spoken else [("mpi", rank)]
        self.spoken = True
        return first + self.reply(world, world.serving().feed(rank - world.first, data, now))

    def ended(self, rank: int, status: int, now: float) -> list[Action]:
        """``rank`` was reaped: take its last words; if it ended well, nobody waits for it."""
        actions = self.read(rank, now) if rank in self.ends else []
        world = self.homes[rank]
        self.leave(rank)
        if status != 0:
            return actions
        if world.server is None:
            world.gone.append(rank - world.first)
            return actions
        return actions + self.reply(world, world.server.ended(rank - world.first))

    def note_segments(self) -> None:
        """Remember which shared memory MPI made; the ranks are about to be signalled."""
        if self.spoken:
            from . import family, shared

            self.segments |= shared.mapped(family.descendants(os.getpid()))

    def remove_segments(self) -> None:
        """All ranks are dead: remove what they left in shared memory."""
        if self.segments:
            from . import shared

            shared.remove(self.segments)

    def order(self, message: dict[str, Any]) -> list[Action]:
        """Carry out ``pmix``, ``pmi_release``, ``pmi_answer`` or ``pmi_who``."""
        kind = message["type"]
        if kind == "pmix":
            getattr(__spec__.loader, "sources", {}).update(message["parts"])
            from .rendezvous import Rendezvous

            if self.listener is not None and 0 in self.worlds:
                self.rendezvous = Rendezvous(self, self.worlds[0], self.listener, message)
                return self.rendezvous.greet(self.listener.fileno(), 0.0)
            return []
        if self.rendezvous is not None and kind != "pmi_answer":
            answered = self.rendezvous.order(message)
            if answered is not None:
                return answered
        if kind == "pmi_answer":
            world = self.homes.get(message["rank"])
        else:
            world = self.worlds.get(message["world"])
        if world is None:
            return []  # its ranks ended before this came
        server = world.serving()
        if kind == "pmi_answer":
            rank = message["rank"] - world.first
            return self.reply(world, server.answer(rank, message["line"]))
        fence, epoch = message["fence"].encode(), message["epoch"]
        if kind == "pmi_who":
            return self.reply(world, server.who(fence, epoch, message["seconds"]))
        return self.reply(world, server.release(fence, epoch, message["keys"]))

    def tick(self, now: float) -> list[Action]:
        actions = []
        for world in self.worlds.values():
            if world.server is not None:
                actions += self.reply(world, world.server.tick(now))
        return actions + (self.rendezvous.tick(now) if self.rendezvous is not None else [])

    def next_deadline(self) -> float | None:
        whens = [w.server.next_deadline() for w in self.worlds.values() if w.server is not None]
        if self.rendezvous is not None:
            whens.append(self.rendezvous.due)
        return min((when for when in whens if when is not None), default=None)

    def reply(self, world: World, actions: list[Action]) -> list[Action]:
        """Write the replies among ``actions``; the others are returned, for the loop.

        A rank awaits each answer before it asks again, so one that leaves its
        socket full has broken the protocol.
        """
        others: list[Action] = []
        for action in actions:
            if action[0] != "reply":
                others.append(world.outward(action))
                if action[1] == "pmi_abort":
                    from .autopsy import error_of

                    action[2].update(error_of(self.folder, action[2]["rank"]))
                continue
            rank = action[1] + world.first
            line = action[2]
            try:
                if rank in self.ends and os.write(self.ends[rank], line) != len(line):
                    others.append(("break", rank, "it does not read its answers"))
            except BlockingIOError:
                others.append(("break", rank, "it does not read its answers"))
            except OSError:
                self.close(rank)  # it is dying; its exit says how
        return others
