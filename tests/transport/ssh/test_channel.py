"""What a channel sends, and in which order, when several threads use it at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.transport.ssh import paramiko_transport

paramiko_transport.preload()
from paramiko.message import Message  # noqa: E402 - paramiko is imported by preload alone

from dispatcher.transport.ssh.paramiko_internals import WINDOW, SshChannel, request  # noqa: E402

DATA, EOF, CLOSE, REQUEST = 94, 96, 97, 98


class Slow:
    """A connection whose first message takes until ``go``."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.began, self.go = threading.Event(), threading.Event()
        self.unlinked: list[int] = []

    def get_log_channel(self) -> str:
        return "paramiko.test"

    def _sanitize_packet_size(self, size: int) -> int:
        return size

    def _send_user_message(self, message: Any) -> None:
        if not self.began.is_set():
            self.began.set()
            assert self.go.wait(10)
        self.sent.append(message.asbytes()[0])

    def _unlink_channel(self, number: int) -> None:
        self.unlinked.append(number)


@pytest.fixture
def slow() -> Slow:
    return Slow()


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
    assert slow.began.wait(10)
    then()
    slow.go.set()
    thread.join(10)
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
        thread.join(20)
    channel.close()
    assert slow.sent == [DATA] * 800 + [EOF, CLOSE]
