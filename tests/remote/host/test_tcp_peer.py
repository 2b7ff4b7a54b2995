"""Whose the other end of a connection is: only of those who have it still."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from cases import cases

from dispatcher.remote.host.tcp_peer import accept, user_of


class House:
    """A listener here, and who comes to it."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        host = "127.0.0.1" if family == socket.AF_INET else "::1"
        self.listener = socket.create_server((host, 0), family=family)
        self.place = self.listener.getsockname()
        self.open: list[socket.socket] = []

    def client(self, port: int = 0) -> socket.socket:
        """One that has come, from ``port``, and said something."""
        client = socket.socket(self.listener.family)
        client.bind((self.place[0], port))
        client.connect(self.place)
        client.sendall(b"words")
        self.open.append(client)
        return client

    def taken(self) -> socket.socket:
        self.open.append(self.listener.accept()[0])
        return self.open[-1]

    def close(self) -> None:
        for one in (*self.open, self.listener):
            one.close()


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


def reset(client: socket.socket) -> int:
    """Leave at once, so that its port is free for another; the port."""
    port: int = client.getsockname()[1]
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    return port


@cases("family", [socket.AF_INET, socket.AF_INET6])
def test_who_stands_there_is_known(family: int) -> None:
    try:
        house = House(family)
    except OSError:
        pytest.skip("no IPv6 here")
    client = house.client()
    there = house.taken()
    assert user_of(there.fileno()) == user_of(client.fileno()) == os.geteuid()
    assert there.recv(9) == b"words"
    house.close()


@cases("leave", [socket.socket.close, reset, lambda one: one.shutdown(socket.SHUT_WR)])
def test_who_has_left_is_nobody(house: House, leave: Any) -> None:
    """Its words are there still, and a socket that nobody has looks like one of root's."""
    leave(house.client())
    there = house.taken()
    assert user_of(there.fileno()) == -1


def test_who_comes_next_from_the_same_port_is_not_taken_for_who_has_left(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of who has left wait to be read, while the table shows another at its address."""
    client = house.client()
    left = house.taken()
    really = open

    def opened(path: str, *words: Any, **more: Any) -> Any:
        if path == "/proc/net/tcp":
            house.client(reset(client))
        return really(path, *words, **more)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("builtins.open", opened)
        assert user_of(left.fileno()) == -1
    assert user_of(house.taken().fileno()) == os.geteuid()


def test_a_port_whose_connection_waits_to_be_accepted_is_nobodys(house: House) -> None:
    client = house.client()
    assert user_of(client.fileno()) == -1  # the table says user 0
    house.taken()
    assert user_of(client.fileno()) == os.geteuid()


def test_what_is_no_connection_is_nobodys() -> None:
    with socket.socket() as alone:
        assert user_of(alone.fileno()) == -1


def test_a_stranger_is_not_accepted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.listener.setblocking(False)
    assert accept(house.listener) is None
    ours = house.client()
    fd = accept(house.listener)
    assert fd is not None
    assert os.read(fd, 9) == b"words"
    os.close(fd)
    assert ours.recv(9) == b""
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    theirs = house.client()
    assert accept(house.listener) is None
    with pytest.raises(ConnectionResetError):  # closed, and what it said was not read
        theirs.recv(9)
