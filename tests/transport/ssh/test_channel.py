"""What a channel sends, in which order when several threads use it, and what it makes of a host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatcher.transport.ssh import paramiko_transport

paramiko_transport.preload()
from paramiko.message import Message  # noqa: E402 - paramiko is imported by preload alone

from dispatcher.transport.ssh.paramiko_internals import (  # noqa: E402
    WINDOW,
    Misbehaved,
    SshChannel,
    request,
)

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
