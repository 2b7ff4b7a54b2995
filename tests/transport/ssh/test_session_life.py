"""Commands that wait for their user over a session, and hosts that fell silent."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import Any

import pytest
from rig import wait_for

from dispatcher.transport.ssh import paramiko_transport

paramiko_transport.preload()
import paramiko  # noqa: E402 - by preload alone
from paramiko.message import Message  # noqa: E402 - paramiko is imported by preload alone
from paramiko.ssh_exception import SSHException  # noqa: E402

from dispatcher.transport.ssh.paramiko_internals import (  # noqa: E402
    WINDOW,
    Connection,
    Misbehaved,
)
from dispatcher.transport.ssh.session import (  # noqa: E402
    FRESH,
    HostUnresponsive,
)

from .quiet import DATA, GLOBAL, OPEN, REQUEST, Quiet, newest, opens, soon  # noqa: E402

ADJUST, EOF, CLOSE = 93, 96, 97


@pytest.fixture
def session() -> Quiet:
    return Quiet()


# -- a command that is started ahead ----------------------------------------------------------


def started(session: Quiet) -> Any:
    """The channel where a shell has started."""

    def answer_exec() -> None:
        session.reply = lambda: None
        channel._request_success(None)

    session.reply = lambda: None
    session.stand_by("sh")
    channel = newest(session)
    session.reply = answer_exec
    opens(session)
    session.reply = lambda: None
    return channel


def test_a_command_waits_for_its_one_user(session: Quiet) -> None:
    assert not session.has_standby("sh")
    assert session.take_standby("sh", soon()) is None
    channel = started(session)
    assert session.kinds() == [OPEN, REQUEST]
    session.stand_by("sh")
    assert session.kinds() == [OPEN, REQUEST]  # one waits
    assert session.has_standby("sh")
    assert not session.has_standby("another")
    assert session.take_standby("another", soon()) is None
    assert session.take_standby("sh", 0.0) is channel
    assert (session.has_standby("sh"), session.take_standby("sh", soon())) == (False, None)
    started(session)  # and so for the next
    assert session.has_standby("sh")


def test_what_has_not_started_yet_is_waited_for(session: Quiet) -> None:
    session.stand_by("sh")
    channel = newest(session)
    assert not session.has_standby("sh")
    taken: list[object] = []
    taking = threading.Thread(target=lambda: taken.append(session.take_standby("sh", soon())))
    taking.start()
    opens(session)
    channel._request_success(None)
    taking.join(60)
    assert taken == [channel]


@pytest.mark.parametrize("opened", [False, True])
def test_what_does_not_start_in_time_is_given_up(session: Quiet, opened: bool) -> None:
    session.stand_by("sh")
    channel = newest(session)
    if opened:
        opens(session)
    assert session.take_standby("sh", time.monotonic() + 0.01) is None
    assert channel.closed is opened


def test_one_that_was_refused_is_not_tried_again(session: Quiet) -> None:
    session.stand_by("sh")
    held = newest(session)
    message = Message()
    for number in (held.chanid, 1):
        message.add_int(number)
    message.add_string("one session only")
    session._parse_channel_open_failure(Message(message.asbytes()))
    assert session.kinds() == [OPEN]
    assert len(session._channels) == 0  # its number is free, though somebody holds it
    assert session.take_standby("sh", soon()) is None
    assert not session.has_standby("sh")


@pytest.mark.parametrize("how", ["ended", "closed"])
def test_one_that_has_ended_is_none(session: Quiet, how: str) -> None:
    channel = started(session)
    if how == "ended":
        channel.status_event.set()
    else:
        channel._handle_close(Message())
    assert not session.has_standby("sh")
    assert session.take_standby("sh", soon()) is None


def test_during_a_new_exchange_of_keys_nothing_is_started(session: Quiet) -> None:
    session.clear_to_send.clear()
    started(session)
    assert session.kinds() == [OPEN]
    assert session.take_standby("sh", time.monotonic() + 0.01) is None


class Exchanging(Quiet):
    """Sends as it does in earnest; its host has begun an exchange of keys, and takes its time."""

    _send_user_message = Connection._send_user_message

    def __init__(self) -> None:
        super().__init__()
        self.open = self.channel()
        self.open.out_window_size = 1 << 30
        self.clear_to_send.clear()

    def _send_message(self, data: Message) -> None:
        self.heard.append(Message(data.asbytes()))


@pytest.fixture
def new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """What paramiko does of it is little: the keys are there."""
    monkeypatch.setattr(
        paramiko.Transport, "_parse_newkeys", lambda self, m: self.clear_to_send.set()
    )


@pytest.mark.usefixtures("new_keys")
def test_nobody_waits_for_new_keys() -> None:
    session = Exchanging()
    began = time.monotonic()
    session.stand_by("sh")
    assert session.execute(session.open, "true", 0.0) == "late"
    assert session.open.send(b"input") == 5
    session.open._acknowledge(WINDOW)
    session.open.shutdown_write()
    session.open.close()
    assert session.open_ssh_channel(0.0) == (None, "late")
    assert session.heard == []
    assert time.monotonic() - began < session.clear_to_send_timeout
    session._parse_newkeys(None)
    sent = [OPEN, REQUEST, DATA, ADJUST, EOF, CLOSE, OPEN]
    assert session.kinds() == sent  # in the order in which it was said
    other = session.channel()
    other.send(b"x")
    assert session.kinds() == [*sent, DATA]


def test_what_is_held_back_for_new_keys_has_an_end() -> None:
    session = Exchanging()
    session.clear_to_send_timeout = 0.01
    for _ in range(32):
        session.open.send(b"x" * 32000)
    with pytest.raises(SSHException, match="it does not end the exchange of keys"):
        session.open.send(b"x")
    assert len(session._held) == 32
    for _ in range(16_384 - 32):  # answers to what it asks, say
        session._send_user_message(Message(b"x"))
    with pytest.raises(Misbehaved, match="it does not end the exchange of keys"):
        session._send_user_message(Message(b"x"))


@pytest.mark.usefixtures("new_keys")
@pytest.mark.parametrize("how", ["there are keys", "it ends"])
def test_who_has_much_to_send_waits_for_new_keys(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Exchanging()
    sent: list[int] = []

    def write() -> None:
        sent.extend(session.open.send(b"x" * 32000) for _ in range(40))

    writer = threading.Thread(target=write)
    writer.start()
    wait_for(lambda: len(session._held) == 32, 20, "much is held back")
    if how == "it ends":
        monkeypatch.setattr(paramiko.Transport, "run", lambda self: None)
        session.active = False
        session.run()
    else:
        session._parse_newkeys(None)
    writer.join(60)
    assert len(sent) == 40
    assert len(session.heard) == (0 if how == "it ends" else 40)


# -- does it live? --------------------------------------------------------------------------


def heard_ago(session: Quiet, seconds: float) -> None:
    session.packetizer.last_received = time.monotonic() - seconds


def test_one_that_was_heard_just_now_lives(session: Quiet) -> None:
    heard_ago(session, FRESH - 1)
    assert session.answers(0.0)
    assert session.heard == []


@pytest.mark.parametrize("answers", [False, True])
def test_one_that_was_not_is_asked(session: Quiet, answers: bool) -> None:
    started(session)
    session.heard.clear()
    heard_ago(session, FRESH + 1)
    assert not session.has_standby("sh")  # not without a question
    session.reply = (lambda: session._parse_request_failure(None)) if answers else lambda: None
    for _ in range(2):
        assert session.answers(time.monotonic() + (20 if answers else 0.01)) is answers
    assert (session.take_standby("sh", time.monotonic() + 0.01) is not None) is answers
    assert session.kinds()[:3] == [GLOBAL] * 3
    message = session.heard[0]
    message.get_byte()
    assert (message.get_text(), message.get_boolean()) == ("keepalive@openssh.com", True)


def test_one_that_has_gone_does_not_live(session: Quiet) -> None:
    heard_ago(session, FRESH + 1)
    session.fails = EOFError()
    session._answered.set()
    assert not session.answers(soon())


def test_a_silent_host_is_asked_and_given_up(session: Quiet) -> None:
    session.set_keepalive(10.0, 2)
    asked = 0
    for seconds, due in ((9.0, 0), (10.0, 1), (19.0, 1), (20.0, 2), (29.0, 2)):
        session.on_silence(seconds)
        assert len(session.heard) == due, seconds
        asked = due
    with pytest.raises(HostUnresponsive, match="no answer for 31 s"):
        session.on_silence(30.6)
    assert len(session.heard) == asked


def test_whoever_was_heard_is_asked_anew(session: Quiet) -> None:
    session.set_keepalive(10.0, 1)
    session.on_silence(10.0)
    session.packetizer.last_received += 1
    session.on_silence(5.0)
    assert len(session.heard) == 1
    session.on_silence(10.0)
    assert len(session.heard) == 2


def test_nobody_is_given_up_unasked(session: Quiet) -> None:
    """However late we look: the machine may have slept."""
    session.set_keepalive(10.0, 2)
    for count in (1, 2):
        session.on_silence(1000.0)
        assert len(session.heard) == count
    with pytest.raises(HostUnresponsive):
        session.on_silence(1001.0)


def test_what_is_under_way_is_a_question_too(session: Quiet) -> None:
    session.set_keepalive(10.0, 1)
    sending, go = threading.Event(), threading.Event()

    def send() -> None:
        with session.packetizer._Packetizer__write_lock:
            sending.set()
            go.wait(60)

    sender = threading.Thread(target=send)
    sender.start()
    assert sending.wait(60)
    session.on_silence(10.0)
    assert session.packetizer.sends()
    go.set()
    sender.join(60)
    for _ in range(2):
        assert not session.packetizer.sends()
    assert session.heard == []
    with pytest.raises(HostUnresponsive):
        session.on_silence(20.0)


@pytest.mark.parametrize("state", ["not logged in", "never"])
def test_silence_that_means_nothing(session: Quiet, state: str) -> None:
    session.set_keepalive(0.0 if state == "never" else 10.0, 0)
    session.authenticated = state != "not logged in"
    session.on_silence(1e6)
    assert session.heard == []


@pytest.mark.parametrize(
    ("problem", "seen"),
    [
        (None, None),
        (HostUnresponsive("no answer for 9 s"), "no answer for 9 s"),
        *((OSError(code, "x"), os.strerror(code).lower())
          for code in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)),
        (OSError(errno.ECONNRESET, "x"), None),
        (EOFError(), None),
    ],
)  # fmt: skip
def test_what_was_seen_of_a_silent_host(
    session: Quiet, problem: Exception | None, seen: str | None
) -> None:
    session.saved_exception = problem
    assert session.silence() == seen
