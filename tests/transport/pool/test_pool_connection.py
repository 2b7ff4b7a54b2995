"""The connection to the daemon, and its links: each gets its own, and the end is that of all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rig import wait_for

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.mux import frame
from dispatcher.transport.base import LinkClosed, Window
from dispatcher.transport.pool.daemon_socket import (
    ACCEPTED,
    LARGEST,
    LET_END,
    LIST,
    NOT_POOLED,
    RESIZE,
    fields,
    message,
)
from dispatcher.transport.pool.pool_transport import PoolConnection
from dispatcher.transport.ssh_auth.passwords import Passwords

from .conftest import Played, World


@pytest.fixture
def line(world: World) -> Iterator[PoolConnection]:
    assert world.ours is not None
    made = PoolConnection(world.ours, Passwords())
    yield made
    made.close()


def test_each_link_gets_what_is_its_own(world: World, line: PoolConnection) -> None:
    first, second, closed = (line.order(host=name) for name in ("n1", "n2", "n3"))
    assert [fields(world.daemon.hear()[2])["host"] for _ in range(3)] == ["n1", "n2", "n3"]
    closed.close()
    world.daemon.say(
        message(ACCEPTED, 2, address="b"), message(ACCEPTED, 1, address="a"),
        frame(3, 200, b"to nobody"), frame(2, mux.OUTPUT, b"two"), frame(1, mux.OUTPUT, b"one"),
    )  # fmt: skip
    assert [link.answer(60) for link in (first, second)] == [
        (ACCEPTED, b'{"address": "a"}'), (ACCEPTED, b'{"address": "b"}'),
    ]  # fmt: skip
    assert wait_for(lambda: first.read(9), 30, "output") == b"one"
    assert second.read(9) == b"two"
    second.let_end()
    first.resize(Window(columns=70, rows=20))
    assert world.daemon.hear() == (3, mux.CLOSE, b"")
    assert world.daemon.hear() == (2, LET_END, b"")
    number, kind, body = world.daemon.hear()
    assert (number, kind, fields(body)) == (1, RESIZE, {"columns": 70, "rows": 20})


@pytest.mark.parametrize(
    ("said", "ending", "lost"),
    [
        ({"code": 3, "signal": None, "silence": None}, Ending(3), None),
        ({"code": None, "signal": "KILL", "silence": None}, Ending(None, "KILL"), None),
        ({"code": None, "signal": None, "silence": "no answer for 9 s"}, Ending(None),
         Failure(Kind.UNREACHABLE, "no answer for 9 s")),
        ({}, Ending(None), None),
    ],
)  # fmt: skip
def test_how_a_command_ended(
    world: World,
    line: PoolConnection,
    said: dict[str, Any],
    ending: Ending,
    lost: Failure | None,
) -> None:
    link = line.order()
    assert not link.gone()
    world.daemon.say(message(ACCEPTED, 1), message(mux.ENDED, 1, **said))
    assert link.ending(60) == ending
    assert (link.failure(0), link.gone()) == (lost, True)


def breaks_off(daemon: Played) -> None:
    daemon.link.close()


def speaks_of_too_much(daemon: Played) -> None:
    daemon.say(mux.HEADER.pack(1, mux.OUTPUT, LARGEST + 1))


def answers_twice(daemon: Played) -> None:
    daemon.say(message(ACCEPTED, 1), message(NOT_POOLED, 1))


def says_what_is_no_answer(daemon: Played) -> None:
    daemon.say(message(LIST, 1))


@pytest.mark.parametrize(
    "act", [breaks_off, speaks_of_too_much, answers_twice, says_what_is_no_answer]
)
def test_the_end_of_the_connection_is_the_end_of_all(
    world: World, line: PoolConnection, act: Callable[[Played], None]
) -> None:
    links = [line.order() for _ in range(2)]
    act(world.daemon)
    for link in links:
        assert link.ending(60) == Ending(None)
        assert (link.gone(), link.read(9), link.failure(0)) == (True, b"", None)
        with pytest.raises(LinkClosed):
            link.write(b"x")
    assert links[1].answer(60) == (NOT_POOLED, b"")
    with pytest.raises(LinkClosed):
        line.order()
    line.close()  # has ended already


def test_who_speaks_when_nothing_can_be_sent_any_more_is_told(
    world: World, line: PoolConnection
) -> None:
    """Also before the end was read."""
    assert world.ours is not None
    link = line.order()
    world.ours.shutdown(socket.SHUT_WR)
    with pytest.raises(LinkClosed):
        link.write(b"x")
    with pytest.raises(LinkClosed):
        line.order()


def test_closing_it_ends_its_links_and_frees_the_socket(world: World) -> None:
    assert world.ours is not None
    line = PoolConnection(world.ours, Passwords())
    link = line.order()
    world.daemon.hear()
    line.close()
    assert (link.gone(), link.read(9)) == (True, b"")
    assert world.daemon.link.recv(1) == b""
    wait_for(lambda: world.ours is not None and world.ours.fileno() == -1, 30, "it is free")


class Watched(socket.socket):
    """Notes the buffers that it is read into; a read that makes one of its own fails."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(fileno=link.detach())
        self.buffers: list[object] = []

    def recv(self, *_: object) -> bytes:
        raise AssertionError("a buffer for this read alone")

    def recv_into(self, buffer: memoryview, *how: int) -> int:  # type: ignore[override]
        self.buffers.append(buffer)
        return super().recv_into(buffer, *how)


def test_all_reads_share_a_buffer(world: World) -> None:
    """Of one for each, cut to a line, the pieces scatter the heap: a long job grows without end."""
    assert world.ours is not None
    watched = Watched(world.ours)
    line = PoolConnection(watched, Passwords())
    try:
        link = line.order(host="n1")
        said = []
        for number in range(3):
            world.daemon.say(frame(1, mux.OUTPUT, b"line %d" % number))
            said.append(wait_for(lambda: link.read(99), 30, "the line"))
        assert said == [b"line 0", b"line 1", b"line 2"]
        assert len({id(buffer) for buffer in watched.buffers}) == 1 < len(watched.buffers)
    finally:
        line.close()


def test_its_thread_has_a_name_and_keeps_nobody_alive(line: PoolConnection) -> None:
    named = [one for one in threading.enumerate() if one.name == "transport:pool:read"]
    assert named
    assert all(thread.daemon for thread in named)


def test_an_answer_is_waited_for_no_longer_than_told(line: PoolConnection) -> None:
    assert line.order().answer(0.01) is None


def test_a_socket_with_a_limit_waits_for_ever_all_the_same(world: World) -> None:
    assert world.ours is not None
    world.ours.settimeout(0.01)
    line = PoolConnection(world.ours, Passwords())
    assert world.ours.gettimeout() is None
    line.close()
