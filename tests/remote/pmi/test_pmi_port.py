"""The PMI port: each awaited rank once, of our own user, and nobody else."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig import wait_for

from dispatcher.remote.host import tcp_peer
from dispatcher.remote.host.poll import Poll
from dispatcher.remote.pmi.pmi_connections import PmiConnections
from dispatcher.remote.pmi.pmi_port import (
    LINE_LIMIT,
    MOST_NOTICES,
    MOST_UNAUTHENTICATED,
    PmiPort,
)

JOB = {"name": b"kvs_1", "size": 2, "mapping": b"(vector,(0,1,2))", "patience": 30.0, "port": True}
WELCOME = b"cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=%d\ncmd=set debug=0\n"


class House:
    """A port for two ranks, and clients that come to it."""

    def __init__(self) -> None:
        self.poll = Poll()
        self.connections = PmiConnections(self.poll)
        self.connections.add(dict(JOB), [0, 1])
        self.known = [self.connections.open(rank) for rank in (0, 1)]
        assert self.connections.port is not None
        self.port: PmiPort = self.connections.port
        self.clients: list[socket.socket] = []

    def knock(self, data: bytes) -> socket.socket:
        client = socket.create_connection(self.port.place, timeout=60)
        self.clients.append(client)
        if data:
            client.sendall(data)
        return client

    def turn(self, seconds: float = 0.05, count: int = 0) -> list[str]:
        """Serve until nothing comes any more; the notices, of which so many are waited for."""
        notices: list[str] = []
        end = monotonic() + 60
        while (found := self.poll.epoll.poll(seconds)) or (
            len(notices) < count and monotonic() < end
        ):
            for fd, events in found:
                call = self.poll.calls.get(fd)
                actions: list[Any] = call(0.0, events) if call else []
                notices += [action[2]["text"] for action in actions if action[1] == "node.noticed"]
        return notices

    def tells(self, client: socket.socket, words: bytes, *, quiet: bool = True) -> bool:
        """Whether the client is told that, whenever what it has said comes here. quiet: without
        a notice.
        """
        said = b""

        def is_told() -> bool:
            nonlocal said
            assert not self.turn(0.01) or not quiet
            if select.select([client], [], [], 0.0)[0]:
                said += client.recv(999)
            return len(said) >= len(words)

        wait_for(is_told, 60, lambda: said)
        return said == words

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for rank in (0, 1):
            self.connections.leave(rank)
        self.port.close()
        self.poll.epoll.close()


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


def test_what_ranks_are_told(house: House) -> None:
    where = b"127.0.0.1:%d" % house.port.place[1]
    assert house.known == [
        (-1, {b"PMI_RANK": b"%d" % r, b"PMI_SIZE": b"2", b"PMI_PORT": where, b"PMI_ID": b"%d" % r})
        for r in (0, 1)
    ]


def test_ranks_come_in_and_then_nobody_listens(house: House) -> None:
    one = house.knock(b"cmd=initack pmiid=1\n")
    zero = house.knock(b"cmd=init")
    silent = house.knock(b"")
    assert house.tells(one, WELCOME % 1)
    zero.sendall(b"ack pmiid=0\ncmd=get_appnum\n")
    assert house.tells(zero, WELCOME % 0 + b"cmd=appnum rc=0 appnum=0\n")
    assert silent.recv(9) == b""
    with pytest.raises(OSError):
        house.knock(b"")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "did not say which rank"),
        (b"cmd=initack pmiid=2\n", "no rank is expected as PMI_ID 2"),
        (b"cmd=initack pmiid=-1\n", "did not say"),
        (b"cmd=initack pmiid=1234567890\n", "did not say"),
        (b"cmd=init pmi_version=1\n", "did not say"),
        (b"x" * LINE_LIMIT, "did not say"),
    ],
)
def test_others_are_sent_away(house: House, said: bytes, why: str) -> None:
    client = house.knock(said)
    (notice,) = house.turn(count=1)
    assert notice.startswith("MPI: a connection to the PMI port was refused: ")
    assert why in notice
    with suppress(ConnectionResetError):
        assert client.recv(99) == b""
    assert house.port.awaited == {0, 1}


def test_an_id_is_let_in_once(house: House) -> None:
    assert house.tells(house.knock(b"cmd=initack pmiid=1\n"), WELCOME % 1)
    house.knock(b"cmd=initack pmiid=1\n")
    assert "no rank is expected as PMI_ID 1 (any more)" in house.turn(count=1)[0]


def test_a_first_line_may_come_in_pieces_up_to_its_limit(house: House) -> None:
    line = b"cmd=initack pmiid=0\n"
    client = house.knock(line[:5])
    assert house.turn() == []
    client.sendall(line[5:])
    assert house.tells(client, WELCOME % 0)
    slow = house.knock(b"x" * (LINE_LIMIT - 1))
    assert house.turn() == []
    slow.sendall(b"x")
    assert len(house.turn(count=1)) == 1


def test_who_leaves_without_a_word_is_forgotten(house: House) -> None:
    client = house.knock(b"")
    assert house.turn() == []
    client.shutdown(socket.SHUT_WR)
    (notice,) = house.turn(count=1)
    assert "did not say which rank" in notice
    assert house.port.unauthenticated == {}
    listening = house.port.listener.fileno()
    assert set(house.poll.calls) == {listening}
    house.port.close()
    house.port.close()
    assert house.poll.calls == {}


def test_nobody_is_let_in_for_a_rank_that_has_ended(house: House) -> None:
    house.connections.leave(1)
    house.knock(b"cmd=initack pmiid=1\n")
    assert "no rank is expected as PMI_ID 1" in house.turn(count=1)[0]


def test_who_says_more_than_its_name_is_heard_at_once(house: House) -> None:
    client = house.knock(b"cmd=initack pmiid=1\ncmd=get_appnum\n")
    assert house.tells(client, WELCOME % 1 + b"cmd=appnum rc=0 appnum=0\n")
    rank_fd = house.connections.ends[1]
    assert not os.get_blocking(rank_fd)


def test_a_socket_of_nobody_known_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_peer, "user_of", lambda fd: -1)
    client = house.knock(b"cmd=initack pmiid=0\n")
    (notice,) = house.turn(count=1)
    assert notice.endswith("it is of an unknown user")
    with suppress(ConnectionResetError):
        assert client.recv(9) == b""


def test_who_has_left_is_not_heard(house: House) -> None:
    """Whose words they were is not known any more: a socket that nobody has looks like root's."""
    house.knock(b"cmd=initack pmiid=0\nmcmd=spawn\n").close()
    (notice,) = house.turn(count=1)
    assert notice.endswith("it is of an unknown user")
    assert house.port.awaited == {0, 1}
    assert house.connections.ends == {}


@given(st.lists(st.binary(max_size=400), max_size=5))
def test_garbage_harms_nobody(noise: list[bytes]) -> None:
    house = House()
    try:
        for data in noise:
            client = house.knock(data)
            client.shutdown(socket.SHUT_WR)
        assert len(house.turn(0.0 if not noise else 0.01)) <= MOST_NOTICES
        client = house.knock(b"cmd=initack pmiid=0\n")
        assert house.tells(client, WELCOME % 0, quiet=False)
    finally:
        house.close()


def test_the_silent_are_bounded(house: House) -> None:
    for _ in range(MOST_UNAUTHENTICATED + 20):
        house.knock(b"")
    notices = house.turn(count=MOST_NOTICES)
    assert len(house.port.unauthenticated) <= MOST_UNAUTHENTICATED
    assert len(notices) == MOST_NOTICES
    assert notices[-1].endswith("; later refusals are not reported")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_is_refused(house: House) -> None:
    program = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    program += "try: s.sendall(b'cmd=initack pmiid=0\\n'); sys.exit(bool(s.recv(99)))\n"
    program += "except OSError: pass\n"
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    with subprocess.Popen(
        [python, "-c", program, str(house.port.place[1])], user=65534, cwd="/"
    ) as other:
        notices: list[str] = []
        for _ in range(300):
            notices += house.turn()
            if notices and other.poll() is not None:
                break
        assert "it is of user 65534" in notices[0]
        assert other.wait(60) == 0
    assert house.port.awaited == {0, 1}
