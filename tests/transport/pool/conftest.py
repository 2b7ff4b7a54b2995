"""The daemon of connections, and another way to hosts; both are played."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.model.failure import Failure
from dispatcher.remote.protocol.mux import Decoder
from dispatcher.transport.base import Link, Target, Transport, Window
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_socket import (
    LARGEST,
)
from dispatcher.transport.pool.pool_transport import PoolTransport

from ..far_link import FarLink


class Played:
    """The daemon's end of the socket."""

    def __init__(self, link: socket.socket) -> None:
        link.settimeout(60)
        self.link = link
        self._frames = Decoder(LARGEST)
        self._heard: deque[tuple[int, int, bytes]] = deque()

    def hear(self) -> tuple[int, int, bytes]:
        """The next frame of the launcher's."""
        while not self._heard:
            data = self.link.recv(1 << 16)
            assert data, "the launcher hung up"
            self._heard.extend(self._frames.feed(data))
        return self._heard.popleft()

    def say(self, *frames: bytes) -> None:
        self.link.sendall(b"".join(frames))


class Direct(Transport):
    """Gives what it was told to, to whoever asks."""

    name = "direct"

    def __init__(self, gives: Link | Failure) -> None:
        self.gives = gives
        self.asked: list[tuple[Target, str, float, Window | None]] = []
        self.prepared: list[str] = []
        self.closed = 0

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        self.asked.append((target, command, deadline, window))
        return self.gives

    def prepare(self, command: str) -> None:
        self.prepared.append(command)

    def close(self) -> None:
        self.closed += 1


class World:
    """One daemon at most to be called, and one other way; how often each was looked for."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.ours: socket.socket | None = ours
        self.daemon = Played(theirs)
        self.direct = Direct(FarLink())
        self.dialled = self.made = 0

    def dial(self) -> socket.socket | None:
        self.dialled += 1
        return self.ours

    def make_direct(self) -> Transport:
        self.made += 1
        return self.direct

    def transport(self, **options: Any) -> PoolTransport:
        return PoolTransport(self.make_direct, **options)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    monkeypatch.setattr(daemon_socket, "reach", lambda say: made.dial())
    ours = made.ours
    yield made
    made.daemon.link.close()
    if ours is not None:
        ours.close()


@pytest.fixture
def without(world: World) -> World:
    """Nobody keeps connections."""
    assert world.ours is not None
    world.ours.close()
    world.ours = None
    return world
