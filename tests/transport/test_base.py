"""What all ways share: bytes on their way to a link's owner, names, steps, signs of life."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport import base
from dispatcher.transport.base import (
    Keepalive,
    Link,
    PromptTimer,
    RecvBuffer,
    Steps,
    Target,
    Transport,
    Window,
    bad_target,
    questions_due,
    shell_safe,
    valid_host,
    valid_user,
)

from .far_link import FarLink


class Nothing(Transport):
    """A way that reaches nobody."""

    name = "nothing"

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        return Failure(Kind.UNREACHABLE, "by nobody")


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 30), min_size=1))
def test_all_comes_out_in_order(pieces: list[bytes], limits: list[int]) -> None:
    buffer = RecvBuffer()
    for piece in pieces:
        buffer.feed(piece)
    whole, at = b"".join(pieces), 0
    assert len(buffer) == len(whole)
    while at < len(whole):
        limit = limits[at % len(limits)]
        data = buffer.take(limit)
        assert data == whole[at : at + limit]
        at += limit
    assert (buffer.take(1), buffer.spent) == (None, False)
    buffer.close()
    assert (buffer.take(1), buffer.spent) == (b"", True)


def test_the_owner_is_told() -> None:
    buffer, told = RecvBuffer(), threading.Event()
    buffer.watch(told.set)
    assert not told.is_set()
    buffer.feed(b"")
    assert not told.is_set()
    buffer.feed(b"x")
    assert told.is_set()
    told.clear()
    buffer.close()
    assert told.is_set()
    late = threading.Event()
    buffer.watch(late.set)
    assert late.is_set()


def test_waiting() -> None:
    buffer = RecvBuffer()
    with pytest.raises(TimeoutError):
        buffer.wait(1, 0.01)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(buffer.wait(10, None)))
    thread.start()
    buffer.feed(b"here")
    thread.join(60)
    assert got == [b"here"]
    buffer.close()
    assert buffer.wait(1, None) == b""


def test_what_is_there_is_told_to_who_comes_later() -> None:
    buffer, told = RecvBuffer(), threading.Event()
    buffer.feed(b"x")
    buffer.watch(told.set)
    assert told.is_set()


def test_what_nobody_reads_is_forgotten() -> None:
    buffer, told = RecvBuffer(), threading.Event()
    buffer.feed(b"before")
    buffer.watch(told.set)
    told.clear()
    assert not buffer.ended()
    buffer.discard()
    assert told.is_set()
    buffer.feed(b"late")  # the thread that reads did not know yet
    assert (len(buffer), buffer.take(9), buffer.spent, buffer.ended()) == (0, b"", True, True)


def test_the_end_is_waited_for() -> None:
    buffer, seen = RecvBuffer(), list[bool]()
    assert (buffer.ended(-1), buffer.ended(0.01)) == (False, False)
    thread = threading.Thread(target=lambda: seen.append(buffer.ended(20)))
    thread.start()
    buffer.feed(b"not the end")
    buffer.close()
    thread.join(60)
    assert seen == [True]
    assert (buffer.spent, buffer.wait(99, 0.0), buffer.spent) == (False, b"not the end", True)


# -- names ------------------------------------------------------------------------------


@cases("name", ["n1", "N-1.a_b", "10.0.0.1", "::1", "fe80::1%eth0", "x" * 255, "a-", "%h"])
def test_a_host(name: str) -> None:
    assert valid_host(name)
    assert bad_target(Target(name)) is None


@cases(
    "name",
    ["", "-n1", "-", "a b", "a\n", "a@b", "a/b", "a;b", "$(id)", "`id`", "a\\", "ä", "x" * 256],
)
def test_no_host(name: str) -> None:
    assert not valid_host(name)
    failure = bad_target(Target(name))
    assert failure == Failure(Kind.CONFIG, f"bad host name: {name[:80]!r}")


@cases(
    "name", ["me", "me@realm.org", "DOM\\me", "a+b=c", "a~b", "%u", "x" * 255, "a-", "a,b/c!*?#^"]
)
def test_a_user(name: str) -> None:
    assert valid_user(name)
    assert bad_target(Target("n1", name)) is None


@cases("name", ["", "-me", "me\\", "a b", "me\n", "a;b", "$(id)", "`id`", "a'b", 'a"b', "x" * 256])
def test_no_user(name: str) -> None:
    assert not valid_user(name)
    failure = bad_target(Target("n1", name))
    assert failure == Failure(Kind.CONFIG, f"bad user name: {name[:80]!r}")


@cases(
    ("port", "good"),
    [(None, True), (1, True), (65535, True), (0, False), (-1, False), (65536, False)],
)
def test_a_port(port: int | None, good: bool) -> None:
    bad = Failure(Kind.CONFIG, f"bad port: {port}")
    assert bad_target(Target("n1", None, port)) == (None if good else bad)


@cases(
    ("text", "safe"),
    [
        ("", True), ("abc", True), ("a_b.c:1%h@x+y=z,/-", True), ("a b", False), ("~", False),
        ("a'", False), ("$x", False), ("a\n", False), ("*", False), ("a;b", False), ("\\", False),
    ],
)  # fmt: skip
def test_one_word_of_a_shell(text: str, safe: bool) -> None:
    assert shell_safe(text) is safe


# -- time -------------------------------------------------------------------------------


def test_steps_and_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: now))
    steps = Steps("lookup")
    now = 102.0
    assert (steps.name, steps.taken()) == ("lookup", (("lookup", 2.0),))
    steps.enter("connection")
    now = 105.0
    steps.enter("banner")
    assert steps.name == "banner"
    now = 105.5
    assert steps.taken() == (("lookup", 2.0), ("connection", 3.0), ("banner", 0.5))


@cases(
    ("said", "interval", "count", "limits"),
    [
        (Keepalive(), None, None, (0.0, base.ALIVE_COUNT)),
        (Keepalive(), 5.0, 2, (5.0, 2)),
        (Keepalive(otherwise=7.0), None, None, (7.0, base.ALIVE_COUNT)),
        (Keepalive(otherwise=7.0), 0.0, 0, (0.0, 0)),  # the user has switched it off
        (Keepalive(9.0, 7.0), 5.0, 4, (9.0, 4)),
        (Keepalive(0.0, 7.0), 5.0, None, (0.0, base.ALIVE_COUNT)),
    ],
)
def test_who_says_when_a_silent_host_is_asked(
    said: Keepalive, interval: float | None, count: int | None, limits: tuple[float, int]
) -> None:
    assert said.limits(interval, count) == limits


@cases(
    ("silent", "interval", "most", "due"),
    [
        (0.0, 15, 3, 0), (14.9, 15, 3, 0), (15, 15, 3, 1), (59.9, 15, 3, 3), (60, 15, 3, None),
        (0.5, 0.5, 0, None), (0.4, 0.5, 0, 0), (1e9, 0, 3, 0), (1e9, -1, 3, 0),
    ],
)  # fmt: skip
def test_questions_to_a_silent_host(
    silent: float, interval: float, most: int, due: int | None
) -> None:
    assert questions_due(silent, interval, most) == due


def test_a_link_promises_little_by_itself() -> None:
    """What not every way can do is answered for those that cannot."""
    link, transport = FarLink(), Nothing()
    assert (link.address, link.steps, link.by) == ("10.0.0.9", (), None)
    assert link.tells_end is False
    assert link.failure(0.0) is None
    link.resize(Window())
    assert transport.call(Target("n1"), "true", 0.0, b"") is None
    transport.prepare("sh")
    transport.close()


# -- a clock that stands still -----------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from([-1, 0, 1])), max_size=30))
def test_the_clock_stands_still_while_somebody_types(steps: list[tuple[float, int]]) -> None:
    real, typing, typed = 100.0, 0, 0.0
    timer = PromptTimer(lambda: real)
    for seconds, change in steps:
        before = timer.now()
        real += seconds
        typed += seconds if typing else 0.0  # secrets that are typed at once count once
        assert timer.now() - before == pytest.approx(0.0 if typing else seconds)
        assert timer.seconds() == pytest.approx(typed)
        assert timer.real(timer.now() + 5.0) == pytest.approx(real + 5.0)
        if typing + change >= 0 and change:
            timer.changed(change > 0)
            typing += change
