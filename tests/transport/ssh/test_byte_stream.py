"""Bytes under an SSH session: none is lost, and nobody waits for them longer than told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.transport.ssh.byte_stream import ByteStream, over_socket


class _Stream:
    """A socket that gives what it has in pieces of its own."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes
        self.settimeout = self.send = lambda *_: None

    def recv(self, size: int) -> bytes:
        size = min(size, self._sizes[len(self._data) % len(self._sizes)])
        data, self._data = self._data[:size], self._data[size:]
        return data


@given(
    st.binary(max_size=300),
    st.lists(st.integers(1, 40), min_size=1),
    st.lists(st.integers(1, 40), min_size=1),
    st.integers(0, 5),
)
def test_a_wire_gives_what_was_sent(
    data: bytes, sizes: list[int], reads: list[int], back: int
) -> None:
    stream = ByteStream(_Stream(data, sizes), lambda: None, lambda: None)
    got = b""
    while part := stream.recv(reads[len(got) % len(reads)]):
        keep = max(1, len(part) - back)
        stream.give_back(part[keep:])
        got += part[:keep]
    assert got == data
    assert stream.recv(1) == b""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        ours = socket.create_connection(door.getsockname())
        theirs, _ = door.accept()
    with ours, theirs:
        yield ours, theirs


def test_a_wire_over_a_socket_waits_no_longer_than_told(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stream = over_socket(pair[0])
    stream.settimeout(0.02)
    with pytest.raises(BlockingIOError):
        stream.recv(1)
    pair[1].sendall(b"x" * 1000)
    assert stream.recv(10) == b"x" * 10
    with pytest.raises(BlockingIOError):
        all(stream.send(b"y" * 100_000) for _ in range(1000))


def test_shutting_a_wire_wakes_its_reader(pair: tuple[socket.socket, socket.socket]) -> None:
    stream, got = over_socket(pair[0]), []
    stream.settimeout(60.0)
    reader = threading.Thread(target=lambda: got.append(stream.recv(1)))
    reader.start()
    stream.shut()
    reader.join(10)
    assert got == [b""]


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the kernel cannot be told")
def test_until_a_command_has_started_nothing_waits_for_an_acknowledgement(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    prompt = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
    stream = over_socket(pair[0])
    pair[0].setsockopt(*prompt, 0)
    pair[1].sendall(b"x")
    assert stream.recv(1) == b"x"
    assert pair[0].getsockopt(*prompt) == 1
