"""Sessions that are kept for the next command, and those to jump hosts; none of them is real."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import ALIVE_COUNT, ALIVE_INTERVAL, PromptTimer
from dispatcher.transport.ssh import shared_sessions
from dispatcher.transport.ssh.byte_stream import ByteStream
from dispatcher.transport.ssh.shared_sessions import JumpHost, Route, SessionPool
from dispatcher.transport.ssh_config.host_config import HostConfig


class Played:
    """A session, as far as it is kept."""

    def __init__(self, waiting: object = None) -> None:
        self.active = True
        self.ended = 0
        self.alive: tuple[float, int] | None = None
        self.waiting = waiting
        self.asked: list[tuple[float, tuple[str, int]]] = []
        self.opens: tuple[Any, str] = (None, "")

    def end(self) -> None:
        self.active = False
        self.ended += 1

    def set_keepalive(self, interval: float, most: int) -> None:
        self.alive = interval, most

    def has_standby(self, command: str) -> bool:
        return self.waiting == command

    def stand_by(self, command: str) -> None:
        self.waiting = command

    def open_ssh_channel(self, deadline: float, forward: tuple[str, int]) -> tuple[Any, str]:
        self.asked.append((deadline, forward))
        return self.opens


def to(*names: str) -> Route:
    return tuple(HostConfig(name, f"{name}.example", "me") for name in names)


def session(*args: Any) -> Any:
    return Played(*args)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(shared_sessions, "time", made)
    return made


@pytest.fixture
def pool() -> SessionPool:
    return SessionPool()


class TestPool:
    def test_what_is_given_is_taken_once_and_by_its_route(self, pool: SessionPool) -> None:
        first, second, other = session(), session(), session()
        pool.give(to("n1"), first)
        pool.give(to("n1"), second)
        pool.give(to("jump", "n1"), other)
        assert pool.names() == ["n1", "n1", "n1"]
        assert pool.take(to("n2")) is None
        assert [pool.take(to("n1")) for _ in range(3)] == [second, first, None]
        assert [pool.take(to("jump", "n1")) for _ in range(2)] == [other, None]
        assert first.ended == second.ended == other.ended == 0

    def test_the_ssh_agent_of_another_login_is_no_other_way(self, pool: SessionPool) -> None:
        one = session()
        earlier, later = (
            tuple(dataclasses.replace(hop, identity_agent=agent) for hop in to("jump", "n1"))
            for agent in ("/run/1", "/run/2")
        )
        pool.give(earlier, one)
        assert pool.take(later) is one

    def test_it_is_looked_after_as_long_as_nobody_has_it(self, pool: SessionPool) -> None:
        one = session()
        pool.give(to("n1"), one)
        assert one.alive == (ALIVE_INTERVAL, ALIVE_COUNT)

    def test_dead_ones_are_passed_by(self, pool: SessionPool) -> None:
        dead, alive = session(), session()
        for one in (alive, dead):
            pool.give(to("n1"), one)
        dead.active = False
        assert pool.names() == ["n1"]
        taken = pool.take(to("n1"))
        assert (taken is alive, dead.ended, alive.ended) == (True, 1, 0)
        late = session()
        late.active = False
        pool.give(to("n1"), late)
        assert (late.ended, pool.take(to("n1"))) == (1, None)

    def test_one_where_the_command_waits(self, pool: SessionPool) -> None:
        assert pool.take(to("n1"), "sh") is None
        waits, other = session("sh"), session("else")
        pool.give(to("n1"), waits)
        assert pool.take(to("n1"), "else") is None
        assert pool.take(to("n1"), "sh") is waits
        pool.give(to("n2"), other)
        assert pool.take(to("n2")) is other  # whatever waits there

    def test_a_command_is_started_over_each(self, pool: SessionPool) -> None:
        idle = [session() for _ in range(3)]
        for one, name in zip(idle, ("n1", "n1", "n2"), strict=True):
            pool.give(to(name), one)
        pool.stand_by("sh")
        assert [one.waiting for one in idle] == ["sh"] * 3

    def test_those_that_nobody_used_for_so_long_are_ended(
        self, pool: SessionPool, clock: Clock
    ) -> None:
        old, young, other = session(), session(), session()
        pool.give(to("n1"), old)
        clock.now += 10
        pool.give(to("n1"), young)
        pool.give(to("n2"), other)
        pool.drop(11)
        assert (old.ended, young.ended) == (0, 0)
        pool.drop(10)
        assert (old.ended, young.ended, other.ended) == (1, 0, 0)
        assert pool.names() == ["n1", "n2"]
        young.active = False
        pool.drop(10)  # whoever died meanwhile, too
        assert (young.ended, pool.names()) == (1, ["n2"])
        pool.drop()
        assert (other.ended, pool.names()) == (1, [])
        assert [old.ended, young.ended] == [1, 1]

    @pytest.mark.parametrize(
        ("names", "left"), [(None, []), (set(), ["n1", "n2"]), ({"n1", "n9"}, ["n2"])]
    )
    def test_those_to_some_hosts(
        self, pool: SessionPool, names: set[str] | None, left: list[str]
    ) -> None:
        for route in (to("n1"), to("n1", "n2")):
            pool.give(route, session())
        pool.drop(names=names)
        assert pool.names() == left

    def test_after_the_close_nothing_is_kept(self, pool: SessionPool) -> None:
        before, after = session(), session()
        pool.give(to("n1"), before)
        pool.close()
        pool.give(to("n1"), after)
        assert (before.ended, after.ended, pool.names()) == (1, 1, [])


class Line:
    """An open channel, as a stream wants one."""

    def __init__(self) -> None:
        self.closed = 0

    def settimeout(self, seconds: float) -> None: ...

    def send(self, data: bytes) -> int:
        return len(data)

    def recv(self, size: int) -> bytes:
        return b"from there"

    def close(self) -> None:
        self.closed += 1


class Connects:
    """Logs in at the jump host; gives what it was told to, in turn."""

    def __init__(self, *gives: Any) -> None:
        self.gives = list(gives)
        self.deadlines: list[float] = []

    def __call__(self, deadline: float) -> Any:
        self.deadlines.append(deadline)
        return self.gives.pop(0)


BEHIND = HostConfig("n1", "n1.example", "me", 2222)


def soon() -> float:
    return time.monotonic() + 20


class TestJumpHost:
    def test_one_connection_serves_all_behind_it(self) -> None:
        one, line = session(), Line()
        one.opens = line, ""
        connects, until = Connects(one), soon()
        jump = JumpHost("gate", connects, PromptTimer())
        for _ in range(2):
            stream = jump.reach(BEHIND, until)
            assert isinstance(stream, ByteStream)
            assert stream.recv(99) == b"from there"
            stream.close()
        assert connects.deadlines == [until]
        assert one.asked == [(until, ("n1.example", 2222))] * 2
        assert line.closed == 4  # each stream shuts it and frees it
        jump.close()
        jump.close()
        assert one.ended == 1

    def test_a_connection_that_died_is_made_anew(self) -> None:
        first, second = session(), session()
        first.opens = second.opens = Line(), ""
        jump = JumpHost("gate", Connects(first, second), PromptTimer())
        jump.reach(BEHIND, soon())
        first.active = False
        assert isinstance(jump.reach(BEHIND, soon()), ByteStream)
        assert len(second.asked) == 1

    @cases(
        ("problem", "kind", "why", "retryable"),
        [
            ("late", Kind.TIMEOUT, "no answer in time", False),
            ("gone", Kind.DROPPED, "the jump host is gone", True),
            ("connect failed: connection refused", Kind.REFUSED, None, False),
            ("connect failed: connection timed out", Kind.TIMEOUT, None, False),
            ("connect failed: name or service not known", Kind.DNS, None, False),
            ("connect failed: failure in name resolution", Kind.DNS, None, False),
            ("prohibited: open failed", Kind.UNREACHABLE, None, False),
        ],
    )
    def test_what_it_says_of_a_host(
        self, problem: str, kind: Kind, why: str | None, retryable: bool
    ) -> None:
        one = session()
        one.opens = None, problem
        failure = JumpHost("gate", Connects(one), PromptTimer()).reach(BEHIND, soon())
        said = f"jump host gate: n1.example port 2222: {why or problem}"
        assert failure == Failure(kind, said, retryable=retryable)

    @pytest.mark.parametrize(
        ("kind", "for_ever"), [(Kind.AUTH, True), (Kind.CONFIG, True), (Kind.REFUSED, False)]
    )
    def test_who_was_refused_is_not_asked_again_at_once(
        self, clock: Clock, kind: Kind, for_ever: bool
    ) -> None:
        refused = Failure(kind, "no", "try", retryable=True)
        connects = Connects(refused, session())
        jump, until = JumpHost("gate", connects, PromptTimer(lambda: clock.now)), clock.now + 100
        said = Failure(kind, "jump host gate: no", "try", retryable=True)
        for _ in range(2):
            assert jump.reach(BEHIND, until) == said
            clock.now += 1.9
        assert len(connects.deadlines) == 1
        clock.now += 1
        again = jump.reach(BEHIND, until)
        assert (again == said) is for_ever
        assert len(connects.deadlines) == (1 if for_ever else 2)
        jump.close()

    def test_it_is_waited_for_no_longer_than_told(self) -> None:
        """While another logs in there."""
        held, go = threading.Event(), threading.Event()

        def connect(deadline: float) -> Any:
            held.set()
            go.wait(60)
            return Failure(Kind.REFUSED, "no")

        jump = JumpHost("gate", connect, PromptTimer())
        first = threading.Thread(target=jump.reach, args=(BEHIND, soon()))
        first.start()
        assert held.wait(60)
        late = Failure(Kind.TIMEOUT, "jump host gate: no answer in time")
        for seconds in (0.01, -1.0):
            assert jump.reach(BEHIND, time.monotonic() + seconds) == late
        go.set()
        first.join(60)

    def test_only_so_many_channels_are_opened_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_sessions, "_CHANNELS_AT_ONCE", 2)
        opening, go = threading.Semaphore(0), threading.Event()

        def open_ssh_channel(*_: object) -> tuple[Any, str]:
            opening.release()
            go.wait(60)
            return Line(), ""

        one = SimpleNamespace(active=True, open_ssh_channel=open_ssh_channel, end=lambda: None)
        jump = JumpHost("gate", Connects(one), PromptTimer())
        threads = in_threads(2, lambda: jump.reach(BEHIND, soon()))
        for _ in threads:
            assert opening.acquire(timeout=60)
        late = jump.reach(BEHIND, time.monotonic() + 0.01)
        assert late == Failure(Kind.TIMEOUT, "jump host gate: no answer in time")
        go.set()
        for thread in threads:
            thread.join(60)
        assert isinstance(jump.reach(BEHIND, soon()), ByteStream)  # there is room again


def in_threads(count: int, call: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads
