"""The ranks' PMI connections: a socket each, read and answered by ``pmi.Server``.

Each rank inherits one end of a socket pair and finds its number in ``PMI_FD``.
The server is loaded when a rank speaks for the first time, so a job without MPI
pays for a socket pair and nothing else.

Replies are written here; what else the server wants done (reports to send,
ranks to end) is handed to the loop.
"""

from __future__ import annotations

import os
import select
from _socket import socketpair

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .pmi import Action, Server

READ_SIZE = 64 << 10


class Wireup:
    """Connections of ``ranks``, as the ``start`` order's ``pmi`` (dict) describes their job."""

    def __init__(self, job: dict[str, Any], ranks: list[int], poll: select.epoll) -> None:
        self.job = job
        self.ranks = ranks
        self.poll = poll
        self.fds: dict[int, int] = {}  # our end -> rank
        self.ends: dict[int, int] = {}  # rank -> our end
        self.gone: list[int] = []  # ranks that ended well before anyone spoke
        self.segments: set[bytes] = set()  # shared memory that the ranks' MPI may leave behind
        self.server: Server | None = None

    def place_hook(self, folder: str | None, env: dict[bytes, bytes]) -> None:
        """Have the ranks' Python load the job's hook, a file in ``folder``, by way of ``env``."""
        if folder is None or not self.job.get("hook"):
            return
        try:
            with open(os.path.join(folder, "sitecustomize.py"), "wb") as file:
                file.write(self.job["hook"])
        except OSError:
            return  # a full disk: the ranks run without
        places = [os.fsencode(folder), *filter(None, [env.get(b"PYTHONPATH")])]
        env[b"PYTHONPATH"] = b":".join(places)

    def open(self, rank: int) -> tuple[int, dict[bytes, bytes]]:
        """The end that ``rank`` inherits, and its variables; the caller closes that end."""
        ours, theirs = (end.detach() for end in socketpair())
        os.set_blocking(ours, False)
        self.fds[ours] = rank
        self.ends[rank] = ours
        self.poll.register(ours, select.EPOLLIN)
        return theirs, {
            b"PMI_RANK": b"%d" % rank,
            b"PMI_SIZE": b"%d" % self.job["size"],
            b"PMI_FD": b"%d" % theirs,
        }

    def close(self, rank: int) -> None:
        """Let go of ``rank``'s connection, if there is one."""
        fd = self.ends.pop(rank, None)
        if fd is not None:
            del self.fds[fd]
            self.poll.unregister(fd)
            os.close(fd)

    def serving(self) -> Server:
        """The server, loaded now if nobody needed it before."""
        if self.server is None:
            from .pmi import Server

            job = self.job
            self.server = Server(
                job["name"], job["size"], self.ranks, job["mapping"], job["patience"]
            )
            for rank in self.gone:
                self.server.ended(rank)
        return self.server

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
        return self.reply(self.serving().feed(rank, data, now))

    def ended(self, rank: int, status: int, now: float) -> list[Action]:
        """``rank`` was reaped: take its last words; if it ended well, nobody waits for it."""
        actions = self.read(rank, now) if rank in self.ends else []
        self.close(rank)
        if status != 0:
            return actions
        if self.server is None:
            self.gone.append(rank)
            return actions
        return actions + self.reply(self.server.ended(rank))

    def note_segments(self) -> None:
        """Remember which shared memory MPI made; the ranks are about to be signalled."""
        if self.server is not None:
            from . import family, shared

            self.segments |= shared.mapped(family.descendants(os.getpid()))

    def remove_segments(self) -> None:
        """All ranks are dead: remove what they left in shared memory."""
        if self.segments:
            from . import shared

            shared.remove(self.segments)

    def order(self, message: dict[str, Any]) -> list[Action]:
        """Carry out ``pmi_release``, ``pmi_answer`` or ``pmi_who``."""
        server = self.serving()
        kind = message["type"]
        if kind == "pmi_answer":
            return self.reply(server.answer(message["rank"], message["line"]))
        fence, epoch = message["fence"].encode(), message["epoch"]
        if kind == "pmi_who":
            return server.who(fence, epoch, message["seconds"])
        return self.reply(server.release(fence, epoch, message["keys"]))

    def tick(self, now: float) -> list[Action]:
        return [] if self.server is None else self.server.tick(now)

    def next_deadline(self) -> float | None:
        return None if self.server is None else self.server.next_deadline()

    def reply(self, actions: list[Action]) -> list[Action]:
        """Write the replies among ``actions``; the others are returned.

        A rank awaits each answer before it asks again, so one that leaves its
        socket full has broken the protocol.
        """
        others: list[Action] = []
        for action in actions:
            if action[0] != "reply":
                others.append(action)
                continue
            _, rank, line = action
            try:
                if rank in self.ends and os.write(self.ends[rank], line) != len(line):
                    others.append(("break", rank, "it does not read its answers"))
            except BlockingIOError:
                others.append(("break", rank, "it does not read its answers"))
            except OSError:
                self.close(rank)  # it is dying; its exit says how
        return others
