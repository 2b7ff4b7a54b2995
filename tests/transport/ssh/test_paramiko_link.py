"""One command's channel as a link, over a session that the test plays."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport.base import LinkClosed, RecvBuffer, Window
from dispatcher.transport.ssh import paramiko_transport

paramiko_transport.preload()
from paramiko.ssh_exception import SSHException  # noqa: E402 - imported by preload alone

from dispatcher.transport.ssh.session import ParamikoLink  # noqa: E402


class Channel:
    def __init__(self) -> None:
        self.in_buffer, self.in_stderr_buffer = RecvBuffer(), RecvBuffer()
        self.status_event = threading.Event()
        self.exit_code: int | None = None
        self.exit_signal: str | None = None
        self.on_status: Any = None
        self.closed = False
        self.sent: list[bytes] = []
        self.takes = 1 << 20
        self.fails: Exception | None = None
        self.ended_input = 0

    def take(self, stream: RecvBuffer, limit: int) -> bytes | None:
        return stream.take(limit)

    def send(self, data: bytes) -> int:
        if self.fails is not None:
            raise self.fails
        self.sent.append(data[: self.takes])
        return len(self.sent[-1])

    def shutdown_write(self) -> None:
        self.ended_input += 1
        if self.fails is not None:
            raise self.fails

    def close(self) -> None:
        if self.fails is not None:
            raise self.fails
        self.closed = True

    def ends(self, code: int | None = 0, signal: str | None = None) -> None:
        self.exit_code, self.exit_signal = code, signal
        self.status_event.set()


class Session:
    def __init__(self) -> None:
        self.active = True
        self.ended = 0
        self.stream = SimpleNamespace(address="10.0.0.7")
        self.silent: str | None = None
        self.broken: str | None = None
        self.resized: list[tuple[Channel, Window]] = []

    def end(self) -> None:
        self.ended += 1
        self.active = False

    def silence(self) -> str | None:
        return self.silent

    def broken_by(self) -> str | None:
        return self.broken

    def resize(self, channel: Channel, window: Window) -> None:
        self.resized.append((channel, window))


class Open:
    """A link, what is behind it, and the sessions that came back."""

    def __init__(self, *, kept: bool = True) -> None:
        self.session, self.channel = Session(), Channel()
        self.back: list[object] = []
        release = self.back.append if kept else None
        self.link = ParamikoLink(self.session, self.channel, release)  # type: ignore[arg-type]


@pytest.fixture
def one() -> Open:
    return Open()


def closed_by_us(one: Open) -> None:
    one.link.close()


def closed_by_the_host(one: Open) -> None:
    one.channel.closed = True


def gone(one: Open) -> None:
    one.session.active = False


def takes_nothing(one: Open) -> None:
    one.channel.takes = 0


def breaks(one: Open) -> None:
    one.channel.fails = OSError("socket is closed")


def ends(one: Open) -> None:
    one.channel.fails = EOFError()


def breaks_the_rules(one: Open) -> None:
    one.channel.fails = SSHException()


@pytest.mark.parametrize(
    "how",
    [closed_by_us, closed_by_the_host, gone, takes_nothing, breaks, ends, breaks_the_rules],
)
def test_input_that_cannot_be_sent(one: Open, how: Any) -> None:
    one.channel.ends()
    how(one)
    with pytest.raises(LinkClosed):
        one.link.write(b"x")
    one.link.end_input()  # nothing is left of it to be ended
    assert one.channel.ended_input == 1
    assert one.channel.sent in ([], [b""])


@pytest.mark.parametrize("how", [breaks, ends, breaks_the_rules])
def test_a_close_that_cannot_be_sent(one: Open, how: Any) -> None:
    one.channel.ends()
    how(one)
    one.link.close()
    assert (one.session.ended, one.back) == (1, [])


@pytest.mark.parametrize(
    ("code", "signal", "ending"),
    [
        (3, None, Ending(3)),
        (None, "KILL", Ending(None, "KILL")),
        (3, "KILL", Ending(None, "KILL")),
        (None, None, Ending(None)),  # the connection was lost
    ],
)
def test_how_it_ended(one: Open, code: int | None, signal: str | None, ending: Ending) -> None:
    for seconds in (0.01, -1.0):
        assert (one.link.ending(seconds), one.link.gone()) == (Ending(None), False)
    waiting: list[Ending] = []
    thread = threading.Thread(target=lambda: waiting.append(one.link.ending(20)))
    thread.start()
    one.channel.ends(code, signal)
    thread.join(60)
    assert (waiting, one.link.gone()) == ([ending], True)


def test_a_silent_host(one: Open) -> None:
    assert one.link.failure(0) is None
    one.session.silent = "no answer for 9 s"
    assert one.link.failure(0) == Failure(Kind.UNREACHABLE, "no answer for 9 s")
    one.session.broken = "a flood"
    assert one.link.failure(0) == Failure(Kind.PROTOCOL, "a flood")


@cases(
    ("kept", "has_ended", "active", "comes_back"),
    [
        (True, True, True, True),
        (True, False, True, False),  # the end of the connection is what ends the command
        (True, True, False, False),
        (False, True, True, False),
    ],
)
def test_a_session_comes_back_only_unharmed(
    kept: bool, has_ended: bool, active: bool, comes_back: bool
) -> None:
    one = Open(kept=kept)
    if has_ended:
        one.channel.ends()
    one.session.active = active
    for _ in range(2):
        one.link.close()
        assert one.back == [one.session] * comes_back
        assert (one.session.ended, one.channel.closed) == (not comes_back, comes_back)
