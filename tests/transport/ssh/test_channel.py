"""What a channel sends, in which order when several threads use it, and its link."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases
from paramiko.message import Message
from paramiko.ssh_exception import SSHException

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport.base import LinkClosed, RecvBuffer, Window
from dispatcher.transport.ssh import paramiko_transport
from dispatcher.transport.ssh.paramiko_internals import (
    WINDOW,
    Misbehaved,
    SshChannel,
    request,
)
from dispatcher.transport.ssh.session import ParamikoLink

paramiko_transport.preload()


DATA, EOF, CLOSE, REQUEST = 94, 96, 97, 98
ADJUST, REFUSED = 93, 100


class Slow:
    """A connection whose first message takes until ``go``."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.messages: list[Any] = []
        self.began, self.go = threading.Event(), threading.Event()
        self.unlinked: list[int] = []
        self.packetizer = self
        self.bytes_brought: list[int] = []

        self.asides_paid: list[float] = []

    def brought(self, nbytes: int) -> None:
        self.bytes_brought.append(nbytes)

    def paid(self, cost: float) -> None:
        self.asides_paid.append(cost)

    def get_log_channel(self) -> str:
        return "paramiko.test"

    def _sanitize_packet_size(self, size: int) -> int:
        return size

    def _send_user_message(self, message: Any) -> None:
        if not self.began.is_set():
            self.began.set()
            assert self.go.wait(60)
        self.sent.append(message.asbytes()[0])
        self.messages.append(Message(message.asbytes()))

    def wait_for_room(self) -> None: ...

    def _unlink_channel(self, number: int) -> None:
        self.unlinked.append(number)


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.go.set()  # a channel that is not closed says so when it is forgotten


@pytest.fixture
def channel(slow: Slow) -> SshChannel:
    channel = SshChannel(0, WINDOW)
    channel._set_transport(slow)
    channel._set_window(WINDOW, 32768)
    channel._set_remote_channel(0, WINDOW, 32768)
    return channel


def during(slow: Slow, first: Callable[[], object], then: Callable[[], object]) -> None:
    """``then`` happens while ``first`` is still being sent by another thread."""
    thread = threading.Thread(target=first)
    thread.start()
    assert slow.began.wait(60)
    then()
    slow.go.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("ours", [True, False])
def test_a_close_comes_after_what_is_being_written(
    slow: Slow, channel: SshChannel, ours: bool
) -> None:
    close = channel.close if ours else lambda: channel._handle_close(Message())
    during(slow, lambda: channel.send(b"x"), close)
    assert slow.sent == [DATA, EOF, CLOSE]
    assert slow.unlinked == ([] if ours else [0])


def test_nothing_follows_a_close(slow: Slow, channel: SshChannel) -> None:

    def more() -> None:
        with pytest.raises(OSError, match="closed"):
            channel.send(b"x")
        channel.shutdown_write()
        channel.close()
        assert not channel.send_message(request(channel, "window-change", wants_reply=False))

    during(slow, channel.close, more)
    assert slow.sent == [EOF, CLOSE]


def test_no_data_after_the_end_of_input(slow: Slow, channel: SshChannel) -> None:
    during(slow, channel.shutdown_write, lambda: channel.send(b"x"))
    assert slow.sent == [EOF]


def test_what_others_add_is_sent_by_who_sends(slow: Slow, channel: SshChannel) -> None:
    ask = request(channel, "exec", wants_reply=True)
    during(
        slow, lambda: channel.send(b"x"), lambda: [channel.send_message(ask), channel.send(b"y")]
    )
    assert slow.sent == [DATA, REQUEST, DATA]


def test_all_of_many_writers_is_sent(channel: SshChannel, slow: Slow) -> None:
    slow.began.set()
    threads = [
        threading.Thread(target=lambda: [channel.send(b"x") for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    channel.close()
    assert slow.sent == [DATA] * 800 + [EOF, CLOSE]


# -- what a host says ---------------------------------------------------------------------


@pytest.fixture
def prompt(slow: Slow) -> Slow:
    """A connection that takes all at once."""
    slow.began.set()
    return slow


def said(*words: str | int | bytes | bool) -> Any:
    """A message of these, to be read."""
    message = Message()
    for word in words:
        if isinstance(word, bool):
            message.add_boolean(word)
        elif isinstance(word, int):
            message.add_int(word)
        else:
            message.add_string(word)
    return Message(message.asbytes())


@pytest.mark.parametrize(
    ("words", "code", "signal"),
    [
        (("exit-status", False, 0), 0, None),
        (("exit-status", False, 255), 255, None),
        (("exit-status", False, 256), 255, None),
        (("exit-signal", False, "KILL", False, "", ""), None, "KILL"),
        (("exit-signal", False, "sig\x1b[1m@x.org " + "y" * 30), None, "sig1m@x.orgyyyyyy"),
    ],
)
def test_how_a_command_ended(
    channel: SshChannel, prompt: Slow, words: tuple[Any, ...], code: int | None, signal: str | None
) -> None:
    told: list[object] = []
    channel.on_status = lambda: told.append(None)
    channel.on_request(said(*words))
    assert (channel.exit_code, channel.exit_signal) == (code, signal)
    assert (len(told), channel.status_event.is_set()) == (1, True)
    assert prompt.sent == []


@pytest.mark.parametrize("wants_reply", [False, True])
def test_what_else_a_host_wants_is_refused(
    channel: SshChannel, prompt: Slow, wants_reply: bool
) -> None:
    channel.on_request(said("keepalive@openssh.com", wants_reply))
    assert not channel.status_event.is_set()
    assert prompt.sent == [REFUSED] * wants_reply


def test_what_a_host_took_of_ours_is_told_for_nothing(channel: SshChannel, prompt: Slow) -> None:
    """And so is all that a channel which has ended has brought."""
    window = channel.out_window_size
    channel.send(bytes(3000))
    for more in (2048, 1 << 31, 1 << 31):
        channel.on_window(said(more))
    assert prompt.asides_paid == [1.0, 952 / 1024, 0.0]
    assert channel.out_window_size == window - 3000 + 2048 + (1 << 32)
    channel._handle_close(Message())
    assert prompt.asides_paid[3:] == [8.0]


def test_outputs_are_kept_apart_and_others_dropped(channel: SshChannel) -> None:
    channel.on_data(said(b"out"))
    for kind in (1, 2):
        channel.on_extended_data(said(kind, b"err%d" % kind))
    assert channel.take(channel.in_buffer, 99) == b"out"
    assert channel.take(channel.in_stderr_buffer, 99) == b"err1"
    assert channel.take(channel.in_stderr_buffer, 99) is None


@pytest.mark.parametrize("kind", [None, 1, 2])
def test_no_more_than_was_granted_may_come(
    channel: SshChannel, prompt: Slow, kind: int | None
) -> None:
    """Not even of what is dropped."""

    def come(size: int) -> None:
        if kind is None:
            channel.on_data(said(bytes(size)))
        else:
            channel.on_extended_data(said(kind, bytes(size)))

    channel.in_window_threshold = WINDOW // 4
    come(WINDOW)
    with pytest.raises(Misbehaved):
        come(1)


def test_what_is_taken_may_come_again(channel: SshChannel, prompt: Slow) -> None:
    channel.in_window_threshold = WINDOW // 4
    channel.on_data(said(bytes(WINDOW)))
    assert len(channel.take(channel.in_buffer, WINDOW // 4) or b"") == WINDOW // 4
    assert prompt.sent == []
    assert channel.recv(1) == b"\0"
    assert prompt.sent == [ADJUST]
    message = prompt.messages[0]
    message.get_byte()
    assert (message.get_int(), message.get_int()) == (0, WINDOW // 4 + 1)
    channel.on_data(said(bytes(WINDOW // 4 + 1)))
    with pytest.raises(Misbehaved):
        channel.on_data(said(b"x"))


def test_a_stream_through_a_channel_waits_no_longer_than_told(channel: SshChannel) -> None:
    channel.settimeout(0.01)
    with pytest.raises(TimeoutError):
        channel.recv(1)
    channel.in_buffer.close()
    assert channel.recv(1) == b""


paramiko_transport.preload()


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
