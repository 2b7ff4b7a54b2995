"""Commands over kept connections, with a daemon that the test plays: no host, no process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rig import wait_for

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.mux import frame
from dispatcher.transport.base import Call, Keepalive, Link, LinkClosed, Target, Window
from dispatcher.transport.pool import daemon_socket, pool_transport
from dispatcher.transport.pool.daemon_socket import (
    ACCEPTED,
    FAILED,
    LARGEST,
    LET_END,
    LIST,
    NOT_POOLED,
    OPENING,
    RESIZE,
    fields,
    json_frame,
)
from dispatcher.transport.pool.pool_transport import (
    PoolCall,
    PoolConnection,
    PoolLink,
    PoolTransport,
)
from dispatcher.transport.ssh_auth.passwords import Passwords

from ..far_link import FarLink
from .conftest import Played, World

NODE = Target("n1", "me", 2222)


@contextmanager
def opening(
    transport: PoolTransport, window: Window | None = None, seconds: float = 60
) -> Iterator[Future[Link | Failure]]:
    """What comes of ``open``, which waits meanwhile."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(transport.open, NODE, "true", time.monotonic() + seconds, window)


def test_an_order_says_all_that_the_daemon_needs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/mine")
    monkeypatch.delenv("LANG", raising=False)
    monkeypatch.setenv("LC_TIME", "C")
    transport = world.transport(
        keep=60.0,
        config="some/config",
        host_keys="accept-new",
        alive=Keepalive(3.0, 4.0),
        reach=7.0,
    )
    runs = []
    for number, window in ((1, None), (2, Window(100, 40))):
        with opening(transport, window) as opened:
            channel, kind, body = world.daemon.hear()
            assert (channel, kind) == (number, mux.OPEN)
            said = fields(body)
            assert 30 < said.pop("seconds") <= 60
            runs.append(said.pop("run"))
            assert said == {
                "host": "n1", "user": "me", "port": 2222, "command": "true", "opening": "",
                "window": None if window is None else [100, 40], "keep": 60.0,
                "config": str(tmp_path / "some/config"), "host_keys": "accept-new",
                "alive": [3.0, 4.0], "agent": "/run/mine", "sends": {"LC_TIME": "C"},
                "reach": 7.0,
                "asks": [False, False],
            }  # fmt: skip
            world.daemon.say(json_frame(ACCEPTED, number, address="10.0.0.7"))
        link = opened.result()
        assert isinstance(link, Link)
        assert (link.address, link.by) == ("10.0.0.7", "kept")
    assert runs[0] == runs[1]  # one reading of the configuration for all of them
    assert (world.dialled, world.made) == (1, 0)
    transport.close()


def test_each_launcher_has_its_own_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = set()
    for _ in range(2):
        world = World()
        monkeypatch.setattr(daemon_socket, "reach", lambda say, of=world: of.dial())
        transport = world.transport()
        with opening(transport):
            order = fields(world.daemon.hear()[2])
            world.daemon.say(json_frame(NOT_POOLED, 1))
        runs.add(order["run"])
        assert (order["keep"], order["config"], order["host_keys"]) == (None, None, None)
        transport.close()
        world.daemon.link.close()
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (json_frame(FAILED, 1, kind="timeout", why="late", hint="wait", retryable=True),
         Failure(Kind.TIMEOUT, "late", "wait", retryable=True)),
        (json_frame(FAILED, 1, kind="authentication failed", why="no", hint=None, retryable=False),
         Failure(Kind.AUTH, "no")),
        # the daemon does not serve, or makes no sense: as without it
        (json_frame(NOT_POOLED, 1), None),
        (json_frame(FAILED, 1, kind="nonsense", why="late", hint=None, retryable=True), None),
        (json_frame(FAILED, 1, kind="timeout"), None),
        (frame(1, FAILED, b"[]"), None),
        (frame(1, mux.OPEN, b"{}"), None),
        (frame(1, ACCEPTED, b"no object"), None),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", None),
        (b"", None),
    ],
)  # fmt: skip
def test_what_else_may_come_of_an_order(
    world: World, answer: bytes, expected: Failure | None
) -> None:
    transport, window, until = world.transport(), Window(90, 30), time.monotonic() + 60
    with ThreadPoolExecutor(1) as threads:
        opened = threads.submit(transport.open, NODE, "true", until, window)
        world.daemon.hear()
        if answer:
            world.daemon.say(answer)
        else:
            world.daemon.link.shutdown(socket.SHUT_RDWR)
    if expected is not None:
        assert (opened.result(), world.made) == (expected, 0)
    else:
        link = opened.result()
        assert isinstance(link, FarLink)
        assert (link, link.by) == (world.direct.gives, "direct")
        assert world.direct.asked == [(NODE, "true", until, window)]
    transport.close()


def test_a_daemon_that_does_not_answer_is_late(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_transport, "SLACK", 0.05)
    looks = iter([100.0])  # when it asks there is time, however late its thread is
    clock = SimpleNamespace(monotonic=lambda: next(looks, 101.0))
    monkeypatch.setattr(pool_transport, "time", clock)
    transport = world.transport()
    opened = transport.open(NODE, "true", 100.05)
    assert opened == Failure(Kind.TIMEOUT, pool_transport.LATE)
    assert [world.daemon.hear()[1] for _ in range(2)] == [mux.OPEN, mux.CLOSE]
    assert world.made == 0
    transport.close()


def test_an_answer_may_come_a_little_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon keeps to the same time, and its answer is under way for some of it."""
    monkeypatch.setattr(pool_transport, "SLACK", 60.0)
    monkeypatch.setattr(pool_transport, "time", SimpleNamespace(monotonic=lambda: 100.0))
    transport = world.transport()
    with ThreadPoolExecutor(1) as threads:
        opened = threads.submit(transport.open, NODE, "true", 100.05)
        world.daemon.hear()
        until = time.monotonic() + 0.1
        wait_for(lambda: time.monotonic() > until, 20, "it is late")
        world.daemon.say(json_frame(ACCEPTED, 1))
        assert isinstance(opened.result(60), PoolLink)
    transport.close()


def test_without_a_daemon_one_other_way_serves_all(without: World) -> None:
    transport = without.transport()
    transport.prepare("sh")  # nothing is there to be made ready
    for _ in range(3):
        assert transport.open(NODE, "true", time.monotonic() + 60) is without.direct.gives
    assert (without.dialled, without.made, len(without.direct.asked)) == (1, 1, 3)
    without.direct.gives = refused = Failure(Kind.REFUSED, "no")
    assert transport.open(NODE, "true", time.monotonic() + 60) == refused
    transport.prepare("sh")
    assert without.direct.prepared == ["sh"]
    transport.close()
    assert without.direct.closed == 1


def test_no_time_left(without: World) -> None:
    opened = without.transport().open(NODE, "true", time.monotonic())
    assert isinstance(opened, Failure)
    assert opened.kind is Kind.TIMEOUT
    assert (without.dialled, without.made) == (0, 0)


def test_a_daemon_that_has_gone_is_done_without(world: World) -> None:
    transport = world.transport()
    with opening(transport):
        world.daemon.hear()
        world.daemon.link.close()
    assert len(world.direct.asked) == 1
    assert transport.call(NODE, "true", time.monotonic() + 60, b"") is None
    transport.open(NODE, "true", time.monotonic() + 60)
    assert (len(world.direct.asked), world.dialled) == (2, 1)
    transport.close()
    assert world.direct.closed == 1


class TestCall:
    """An order that nobody waits for."""

    @pytest.fixture
    def transport(self, world: World) -> Iterator[PoolTransport]:
        made = world.transport()
        yield made
        made.close()

    @pytest.fixture
    def until(self) -> float:
        return time.monotonic() + 60

    @pytest.fixture
    def call(self, transport: PoolTransport, until: float) -> PoolCall:
        made = transport.call(NODE, "true", until, b"\xffgo\n")
        assert isinstance(made, PoolCall)
        return made

    def test_it_is_accepted(self, world: World, call: Call, until: float) -> None:
        number, kind, body = world.daemon.hear()
        assert (number, kind) == (1, mux.OPEN)
        assert fields(body)["opening"].encode("latin-1") == b"\xffgo\n"
        assert fields(body)["window"] is None
        assert call.until == until + pool_transport.SLACK
        rang: list[object] = []
        call.watch(lambda: rang.append(None))
        assert rang  # something may have come before
        assert call.answer() is None
        rang.clear()
        world.daemon.say(json_frame(ACCEPTED, 1, address=None))
        wait_for(lambda: rang, 30, "the answer rings")
        link = call.answer()
        assert isinstance(link, PoolLink)
        assert link.address is None

    def test_it_is_refused(self, world: World, call: Call) -> None:
        world.daemon.say(json_frame(FAILED, 1, kind="timeout", why="x", hint=None, retryable=False))
        assert wait_for(call.answer, 30, "an answer") == Failure(Kind.TIMEOUT, "x")
        assert [world.daemon.hear()[1] for _ in range(2)] == [mux.OPEN, mux.CLOSE]

    @pytest.mark.parametrize("hangs_up", [False, True])
    def test_somebody_else_is_to_be_asked(
        self, world: World, transport: PoolTransport, call: Call, hangs_up: bool
    ) -> None:
        if hangs_up:
            world.daemon.link.close()
        else:
            world.daemon.say(json_frame(NOT_POOLED, 1))
        assert wait_for(call.answer, 30, "an answer") is world.direct
        transport.close()
        assert (world.made, world.direct.closed) == (1, 1)  # it is the transport's own

    def test_it_is_late(self, call: PoolCall) -> None:
        assert call.answer() is None
        call._until = time.monotonic()
        assert call.answer() == Failure(Kind.TIMEOUT, pool_transport.LATE)

    def test_nobody_wants_it(self, world: World, call: Call) -> None:
        world.daemon.hear()
        call.close()
        assert world.daemon.hear() == (1, mux.CLOSE, b"")

    @pytest.mark.parametrize(("size", "goes"), [(OPENING, True), (OPENING + 1, False)])
    def test_what_goes_with_it_is_bounded(
        self, world: World, transport: PoolTransport, until: float, size: int, goes: bool
    ) -> None:
        assert (transport.call(NODE, "true", until, b"x" * size) is not None) == goes
        assert world.dialled == goes


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
        json_frame(ACCEPTED, 2, address="b"), json_frame(ACCEPTED, 1, address="a"),
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
    world.daemon.say(json_frame(ACCEPTED, 1), json_frame(mux.ENDED, 1, **said))
    assert link.ending(60) == ending
    assert (link.failure(0), link.gone()) == (lost, True)


def breaks_off(daemon: Played) -> None:
    daemon.link.close()


def speaks_of_too_much(daemon: Played) -> None:
    daemon.say(mux.HEADER.pack(1, mux.OUTPUT, LARGEST + 1))


def answers_twice(daemon: Played) -> None:
    daemon.say(json_frame(ACCEPTED, 1), json_frame(NOT_POOLED, 1))


def says_what_is_no_answer(daemon: Played) -> None:
    daemon.say(json_frame(LIST, 1))


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


def test_closing_it_ends_its_links_and_frees_the_socket(world: World) -> None:
    assert world.ours is not None
    line = PoolConnection(world.ours, Passwords())
    link = line.order()
    world.daemon.hear()
    line.close()
    assert (link.gone(), link.read(9)) == (True, b"")
    assert world.daemon.link.recv(1) == b""
    wait_for(lambda: world.ours is not None and world.ours.fileno() == -1, 30, "it is free")


def test_an_answer_is_waited_for_no_longer_than_told(line: PoolConnection) -> None:
    assert line.order().answer(0.01) is None
