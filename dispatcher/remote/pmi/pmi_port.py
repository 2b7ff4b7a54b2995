"""A port on 127.0.0.1 where ranks find the PMI server when they cannot inherit ``PMI_FD``.

``PMI_PORT`` and ``PMI_ID`` say where to come and as whom; the first line must be ``cmd=initack
pmiid=ID``. Any user of the host can reach the port, so only a peer whose socket is our own user's
is heard, and each ID is let in once. Source: MPICH's ``simple_pmi.c``.
"""

from __future__ import annotations

import os
from _socket import AF_INET, SOCK_STREAM, socket

from dispatcher.remote.host import tcp_peer
from dispatcher.remote.host.poll import read_ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from dispatcher.remote.pmi.pmi_server import Action
    from dispatcher.remote.pmi.pmi_state import PmiState

#: bytes of a first line; the most connections without an ID; the most notices sent
LINE_LIMIT, MOST_UNAUTHENTICATED, MOST_NOTICES = 256, 64, 8


class PmiPort:
    """Lets the ranks of ``state`` connect. Raises: OSError if no port can be had.

    admit: called with the rank, its descriptor, the bytes after its name, and the time.
    """

    def __init__(self, state: PmiState, admit: Callable[..., list[Action]]) -> None:
        self.state = state
        self.poll = state.poll
        self.admit = admit
        self.awaited: set[int] = set()
        self.unauthenticated: dict[int, bytes] = {}  # descriptor -> what it said so far
        self.n_notices = 0
        self.listener = socket(AF_INET, SOCK_STREAM)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(1024)
        self.listener.setblocking(False)
        self.place = self.listener.getsockname()
        self.poll.add(self.listener.fileno(), lambda *_: self._greet())

    def expect(self, rank: int) -> dict[bytes, bytes]:
        """Variables that lead ``rank`` to this port."""
        self.awaited.add(rank)
        return {b"PMI_PORT": b"127.0.0.1:%d" % self.place[1], b"PMI_ID": b"%d" % rank}

    def ready(self, fd: int, now: float) -> list[Action]:
        """Read connection ``fd``, which has not named its rank yet."""
        data = read_ready(fd, LINE_LIMIT)
        if data is None:
            return []
        received = self.unauthenticated[fd] + data
        line, newline, rest = received.partition(b"\n")
        if data and not newline and len(received) < LINE_LIMIT:
            self.unauthenticated[fd] = received
            return []
        word, _, name = line.partition(b"=initack pmiid=")
        if not newline or word != b"cmd" or not name.isdigit() or len(name) > 9:
            return self._refuse(fd, "it did not say which rank it is")
        rank = int(name)
        if rank not in self.awaited or rank not in self.state.world_of:
            return self._refuse(fd, "no rank is expected as PMI_ID %d (any more)" % rank)
        del self.unauthenticated[fd]
        self.poll.remove(fd)
        self.awaited.remove(rank)
        if not self.awaited:
            self.close()
        return self.admit(rank, fd, rest, now)

    def close(self) -> None:
        """Listen no more."""
        for fd in list(self.unauthenticated):
            self._send_away(fd)
        if self.listener.fileno() >= 0:
            self.poll.remove(self.listener.fileno())
            self.listener.close()

    def _greet(self) -> list[Action]:
        try:
            fd, _ = self.listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return []
        os.set_blocking(fd, False)
        self.poll.add(fd, lambda now, _: self.ready(fd, now))
        self.unauthenticated[fd] = b""
        user = tcp_peer.user_of(fd)
        if user != os.geteuid():
            return self._refuse(
                fd, "it is of %s" % ("an unknown user" if user < 0 else "user %d" % user)
            )
        if len(self.unauthenticated) > MOST_UNAUTHENTICATED:
            return self._refuse(next(iter(self.unauthenticated)), "too many connections wait")
        return []

    def _refuse(self, fd: int, why: str) -> list[Action]:
        self._send_away(fd)
        self.n_notices += 1
        if self.n_notices > MOST_NOTICES:
            return []
        last = "; later refusals are not reported" if self.n_notices == MOST_NOTICES else ""
        text = "MPI: a connection to the PMI port was refused: %s%s" % (why, last)
        return [("send", "node.noticed", {"text": text})]

    def _send_away(self, fd: int) -> None:
        del self.unauthenticated[fd]
        self.poll.remove(fd)
        os.close(fd)
