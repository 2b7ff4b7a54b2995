"""An agent's connections with two of four ranks that want PMIx, and who comes to its port."""

from __future__ import annotations

import glob
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.remote.host import own_folder
from dispatcher.remote.host.poll import Poll
from dispatcher.remote.pmi.pmi_connections import PmiConnections
from dispatcher.remote.pmi.pmix_bridge import TAG, PmixBridge
from dispatcher.remote.protocol.frames import Decoder
from dispatcher.remote.protocol.packing import unpack

JOB = {
    "name": b"kvs_7", "size": 4, "mapping": b"(vector,(0,2,2))", "patience": 30.0,
    "universe": 6, "pmix": [b"PMIX_SERVER_URI4"],
}  # fmt: skip
ORDER = {"type": "serve_pmix", "parts": {}, "node": 0, "hosts": [[b"a", [0, 1]], [b"b", [2, 3]]]}
FENCE = {"world": 0, "fence": "WORLD" + TAG, "epoch": 0}


class House:
    """An agent's connections with two of four ranks, and who comes to its port."""

    def __init__(self, place: Path) -> None:
        self.poll = Poll()
        self.connections = PmiConnections(self.poll)
        self.connections.folder = str(place)
        self.connections.add(dict(JOB), [0, 1])
        self.known = [self.connections.open(rank) for rank in (0, 1)]
        assert self.connections.listener is not None
        self.port = self.connections.listener.getsockname()[1]
        self.clients: list[socket.socket] = []

    def knock(self) -> socket.socket:
        self.clients.append(socket.create_connection(("127.0.0.1", self.port), timeout=60))
        return self.clients[-1]

    def turn(self, until: float = 60.0) -> list[Any]:
        """What the next thing that happens at the port, or behind it, calls for."""
        for fd, events in self.poll.epoll.poll(until):
            actions: list[Any] = self.poll.calls[fd](1.0, events)
            return actions
        return []

    def awaiting(self) -> PmixBridge:
        """The agent's side, before a process serves."""
        state, replies = self.connections, self.connections.replies()
        assert state.listener is not None
        replies.bridge = PmixBridge(state, state.worlds[0], state.listener, ORDER, replies.reply)
        return replies.bridge

    def serving(self, there: PmixBridge | None = None) -> tuple[PmixBridge, socket.socket]:
        """The agent's side, as if a process served, and that process's end of their socket."""
        there = there or self.awaiting()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        there.link = ours.detach()
        self.poll.add(there.link, lambda now, _: there.ready(now))
        theirs.settimeout(60)
        return there, theirs

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for fd in (*self.connections.ends.values(), *(end for end, _ in self.known)):
            os.close(fd)
        there = self.connections.replies().bridge
        if there is not None:
            if there.link >= 0:
                os.close(there.link)
            if there.pid is not None:
                os.waitpid(there.pid, 0)
        if self.connections.listener is not None:
            self.connections.listener.close()
        self.poll.epoll.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    place = tmp_path / f"dispatch-test-{os.getpid()}-{os.urandom(4).hex()}"
    place.mkdir()
    house = House(place)
    yield house
    house.close()
    own_folder.remove(str(place))
    assert not place.exists()
    assert not glob.glob(f"/dev/shm/{place.name[:-8]}*")


def heard(end: socket.socket, count: int) -> list[Any]:
    """The next ``count`` messages to the serving process, whose ``end`` of the socket it is."""
    decoder = Decoder()
    messages: list[Any] = []
    while len(messages) < count:
        messages += [unpack(frame.body) for frame in decoder.feed(end.recv(1 << 16))]
    return messages
