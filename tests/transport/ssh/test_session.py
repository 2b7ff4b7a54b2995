"""A session's own part: what it asks a host for, how long it waits, when a host is given up.

No host: what is sent is noted, and the test answers as paramiko would.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import ALIVE_COUNT, Steps, Window
from dispatcher.transport.ssh import paramiko_transport
from dispatcher.transport.ssh.byte_stream import ByteStream

paramiko_transport.preload()
from paramiko.message import Message  # noqa: E402 - paramiko is imported by preload alone
from paramiko.ssh_exception import (  # noqa: E402
    BadAuthenticationType,
    PartialAuthentication,
    SSHException,
)

from dispatcher.transport.ssh import session as module  # noqa: E402
from dispatcher.transport.ssh.paramiko_internals import (  # noqa: E402
    SILENCE_CHECK,
    WINDOW,
    Misbehaved,
    SshChannel,
)
from dispatcher.transport.ssh.session import (  # noqa: E402
    FRESH,
    HostKeyRefused,
    HostUnresponsive,
    Session,
    offers,
)

GLOBAL, OPEN, REQUEST = 80, 90, 98


class Check:
    """Trusts a host's key, or does not."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, str]] = []
        self.failure: Failure | None = None

    def wanted_types(self, offered: tuple[str, ...]) -> tuple[str, ...]:
        return offered[:1]

    def verify(self, blob: bytes, kind: str) -> Failure | None:
        self.seen.append((blob, kind))
        return self.failure


class Quiet(Session):
    """Sends nothing: ``heard`` has it, and ``reply`` is what the host does about it."""

    def __init__(self) -> None:
        socket = SimpleNamespace(settimeout=self._limited, send=len, recv=lambda size: b"")
        self.limits: list[float] = []
        stream = ByteStream(socket, lambda: None, lambda: None)
        self.judge = Check()
        check: Any = self.judge
        super().__init__(stream, check, offers({}), Steps("start"))
        self.limits.clear()
        self.heard: list[Message] = []
        self.reply: Callable[[], object] = lambda: None
        self.fails: Exception | None = None
        self.authenticated = True
        self.active = True
        self.clear_to_send.set()
        self.packetizer.last_received = time.monotonic()

    def _limited(self, seconds: float) -> None:
        self.limits.append(seconds)

    def _send_user_message(self, data: Message) -> None:
        if self.fails is not None:
            raise self.fails
        self.heard.append(Message(data.asbytes()))
        self.reply()

    def is_authenticated(self) -> bool:
        return self.authenticated

    def kinds(self) -> list[int]:
        return [message.asbytes()[0] for message in self.heard]

    def channel(self) -> SshChannel:
        """One that is open."""
        made = self.new_channel(threading.Event())
        made._set_remote_channel(77, WINDOW, 32768)
        return made


@pytest.fixture
def session() -> Quiet:
    return Quiet()


def soon() -> float:
    return time.monotonic() + 20


def newest(session: Quiet) -> Any:
    """The channel that was asked for last."""
    return session._channels.get(max(session.channel_events))


def opens(session: Quiet) -> None:
    """The host opens what was asked for."""
    number = max(session.channel_events)
    session._channels.get(number)._set_remote_channel(77, WINDOW, 32768)
    session.channel_events.pop(number).set()


# -- what is offered --------------------------------------------------------------------


def test_offers_are_narrowed_by_the_options_of_ssh() -> None:
    usual = offers({})
    assert all(usual.values())
    for option, name in (
        ("ciphers", "ciphers"), ("macs", "macs"), ("kexalgorithms", "kex"),
        ("hostkeyalgorithms", "host_keys"), ("pubkeyacceptedalgorithms", "pubkeys"),
    ):  # fmt: skip
        one = usual[name][-1]
        assert offers({option: one}) == {**usual, name: (one,)}
        assert offers({option: f"-{one}"}) == {**usual, name: usual[name][:-1]}


def test_only_types_of_keys_that_can_be_judged_are_asked_for(session: Quiet) -> None:
    assert session.preferred_keys == offers({})["host_keys"][:1]
    assert session.steps.name == "ssh banner"
    session.on_version()
    assert session.steps.name == "key exchange"


# -- the host's key -----------------------------------------------------------------------

KEY = b"\0\0\0\x0bssh-ed25519\0\0\0\1x"


def test_a_host_key_is_judged_once_and_does_not_change(session: Quiet) -> None:
    session.on_host_key(KEY)
    session.on_host_key(KEY)  # at a new exchange
    assert session.judge.seen == [(KEY, "ssh-ed25519")]
    with pytest.raises(SSHException, match="changed its host key"):
        session.on_host_key(KEY + b"y")


def test_a_host_key_that_is_not_trusted(session: Quiet) -> None:
    session.judge.failure = refused = Failure(Kind.HOST_KEY_UNKNOWN, "not on file")
    for _ in range(2):
        with pytest.raises(HostKeyRefused) as caught:
            session.on_host_key(KEY)
        assert caught.value.failure == refused
    assert str(caught.value) == "not on file"


# -- logging in ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("in", "in"), ("refused", "refused"), ("partial", "partial"), ("late", "late"),
        ("gone", "gone"), ("gone before", "gone"), ("breaks", "gone"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("with_key", [True, False])
def test_a_login(
    session: Quiet, monkeypatch: pytest.MonkeyPatch, what: str, expected: str, with_key: bool
) -> None:
    asked: list[tuple[object, ...]] = []

    class Login:
        def __init__(self, transport: Session) -> None:
            assert transport is session

        def auth_publickey(self, user: str, key: object, done: threading.Event) -> None:
            self._ask(done, user, key)

        def auth_none(self, user: str, done: threading.Event) -> None:
            self._ask(done, user)

        def _ask(self, done: threading.Event, *words: object) -> None:
            asked.append(words)
            if what == "breaks":
                raise SSHException
            session.authenticated = what == "in"
            if what == "gone":
                session.active = False
            if what == "partial":
                session.saved_exception = PartialAuthentication(["password"])
            if what == "refused":
                session.saved_exception = BadAuthenticationType("no", ["password"])
            if what != "late":
                done.set()

    monkeypatch.setattr(module, "Login", Login)
    session.active = what != "gone before"
    deadline = time.monotonic() + (0.01 if what == "late" else 20)
    if with_key:
        assert session.try_key("me", "key", deadline) == expected
    else:
        assert session.try_none("me", deadline) == expected
    words = ("me", "key") if with_key else ("me",)
    assert asked == ([] if what == "gone before" else [words])
    assert session.steps.name == "authentication"


# -- channels -------------------------------------------------------------------------------


@pytest.mark.parametrize("forward", [None, ("n1", 2222)])
def test_a_channel(session: Quiet, forward: tuple[str, int] | None) -> None:
    session.reply = lambda: opens(session)
    channel, problem = session.open_ssh_channel(soon(), forward)
    assert problem == ""
    assert channel is not None
    (message,) = session.heard
    assert message.get_byte() == bytes((OPEN,))
    assert message.get_text() == ("session" if forward is None else "direct-tcpip")
    assert [message.get_int() for _ in range(3)] == [channel.chanid, WINDOW, 32768]
    if forward is not None:
        words = [message.get_text(), message.get_int(), message.get_text(), message.get_int()]
        assert words == ["n1", 2222, "127.0.0.1", 0]
    assert message.get_remainder() == b""


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("late", "late"), ("gone before", "gone"), ("gone", "gone"), ("breaks", "gone"),
        ("closed", "gone"), ("refuses", "connect failed: no route"),
        ("refuses without a word", "prohibited"), ("refuses strangely", "reason 9"),
    ],
)  # fmt: skip
def test_a_channel_that_is_not_opened(session: Quiet, what: str, problem: str) -> None:
    def reply() -> None:
        if what == "gone":
            session.active = False
        if what.startswith("refuses"):
            message = Message()
            message.add_int(max(session.channel_events))
            codes = {"refuses": 2, "refuses strangely": 9}
            message.add_int(codes.get(what, 1))
            message.add_string("No\x07 Route" if what == "refuses" else "")
            session._parse_channel_open_failure(Message(message.asbytes()))
        elif what == "closed":
            session.channel_events.pop(max(session.channel_events)).set()
        elif what != "late":
            opens(session)

    session.reply = reply
    session.active = what != "gone before"
    session.fails = EOFError() if what == "breaks" else None
    deadline = time.monotonic() + (0.01 if what == "late" else 20)
    assert session.open_ssh_channel(deadline) == (None, problem)


def test_a_refusal_of_what_was_not_asked_for_is_nothing(session: Quiet) -> None:
    message = Message()
    for number in (99, 1):
        message.add_int(number)
    message.add_string("x")
    session._parse_channel_open_failure(Message(message.asbytes()))
    assert session.active


def test_a_terminal(session: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = session.channel()
    session.reply = lambda: channel._request_success(None)
    for term, expected in (("xterm-256color", "xterm-256color"), ("", "dumb"), (None, "dumb")):
        if term is None:
            monkeypatch.delenv("TERM", raising=False)
        else:
            monkeypatch.setenv("TERM", term)
        session.heard.clear()
        assert session.request_pty(channel, Window(columns=101, rows=43), soon()) == ""
        (message,) = session.heard
        assert (message.get_byte(), message.get_int()) == (bytes((REQUEST,)), 77)
        assert (message.get_text(), message.get_boolean()) == ("pty-req", True)
        assert message.get_text() == expected
        assert [message.get_int() for _ in range(4)] == [101, 43, 0, 0]
        assert message.get_binary() == b"\0"
    session.heard.clear()
    session.resize(channel, Window(columns=70, rows=20))
    (message,) = session.heard
    assert (message.get_byte(), message.get_int()) == (bytes((REQUEST,)), 77)
    assert (message.get_text(), message.get_boolean()) == ("window-change", False)
    assert [message.get_int() for _ in range(4)] == [70, 20, 0, 0]
    assert message.get_remainder() == b""


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("runs", ""), ("refuses", "refused"), ("late", "late"), ("gone", "gone"),
        ("gone before", "gone"), ("breaks", "gone"), ("closed before", "gone"),
    ],
)  # fmt: skip
def test_a_command(session: Quiet, what: str, expected: str) -> None:
    channel = session.channel()

    def reply() -> None:
        session.reply = lambda: None
        if what == "runs":
            channel._request_success(None)
        if what in ("refuses", "gone"):
            session.active = what == "refuses"
            channel._request_failed(None)

    session.reply = reply
    session.active = what != "gone before"
    session.fails = OSError() if what == "breaks" else None
    if what == "closed before":
        channel.close()
    deadline = time.monotonic() + (0.01 if what == "late" else 20)
    assert session.execute(channel, "run it", deadline) == expected
    if what == "runs":
        (message,) = session.heard
        assert (message.get_byte(), message.get_int()) == (bytes((REQUEST,)), 77)
        assert (message.get_text(), message.get_boolean()) == ("exec", True)
        assert message.get_text() == "run it"


# -- a command that is started ahead ----------------------------------------------------------


def started(session: Quiet, command: str = "sh") -> Any:
    """The channel where ``command`` waits."""

    def answer_open() -> None:
        session.reply = answer_exec
        opens(session)

    def answer_exec() -> None:
        session.reply = lambda: None
        channel._request_success(None)

    session.reply = lambda: None
    session.stand_by(command)
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
    session.stand_by("another")
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
    taking.join(20)
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
    message = Message()
    for number in (max(session.channel_events), 1):
        message.add_int(number)
    message.add_string("one session only")
    session._parse_channel_open_failure(Message(message.asbytes()))
    assert session.kinds() == [OPEN]
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
            go.wait(20)

    sender = threading.Thread(target=send)
    sender.start()
    assert sending.wait(20)
    session.on_silence(10.0)
    assert session.packetizer.sends()
    go.set()
    sender.join(20)
    for _ in range(2):
        assert not session.packetizer.sends()
    assert session.heard == []
    with pytest.raises(HostUnresponsive):
        session.on_silence(20.0)


@pytest.mark.parametrize("state", ["not logged in", "keys are exchanged", "never"])
def test_silence_that_means_nothing(session: Quiet, state: str) -> None:
    session.set_keepalive(0.0 if state == "never" else 10.0, 0)
    session.authenticated = state != "not logged in"
    if state == "keys are exchanged":
        session.clear_to_send.clear()
    session.on_silence(1e6)
    assert session.heard == []


@pytest.mark.parametrize(("interval", "limits"), [(0.0, []), (3.0, [3.0]), (60.0, [SILENCE_CHECK])])
def test_how_often_silence_is_looked_at(
    session: Quiet, interval: float, limits: list[float]
) -> None:
    session.set_keepalive(interval, ALIVE_COUNT)
    assert session.limits == limits


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


# -- what paramiko tells ----------------------------------------------------------------------


def test_last_words(session: Quiet) -> None:
    message = Message()
    message.add_int(2)
    message.add_string("go\x07ne " + "x" * 300)
    session._parse_disconnect(Message(message.asbytes()))
    assert session.goodbye == ("gone " + "x" * 300)[:200]


@pytest.mark.parametrize(
    ("said", "before", "problem"),
    [
        (b"SSH-2.0-x\r\n", "", None),
        (b"SSH-1.99-x\n", "", None),
        (b"hello\nthere\nSSH-2.0-x\n", "hello there", None),
        (b"SSH-1.5-old\n", "", "it speaks another protocol: 'SSH-1.5-old'"),
        (b"line\n" * 60, "", "no ssh banner in what it sends: line"),
    ],
)
def test_banners(session: Quiet, said: bytes, before: str, problem: str | None) -> None:
    session.stream.give_back(said)
    if problem is None:
        session._check_banner()
        assert session.steps.name == "key exchange"
        assert session.remote_version.startswith("SSH-")
    else:
        with pytest.raises(SSHException) as caught:
            session._check_banner()
        assert str(caught.value) == problem
        assert session.steps.name == "ssh banner"
    assert session.before_banner == before


def test_a_host_that_hangs_up_before_its_banner(session: Quiet) -> None:
    session.stream.give_back(b"Exceeded MaxStartups\n")
    with pytest.raises(EOFError):
        session._check_banner()
    assert session.before_banner == "Exceeded MaxStartups"


def test_a_packet_that_is_too_large_is_not_waited_for(session: Quiet) -> None:
    before = session.packetizer.last_received
    with pytest.raises(Misbehaved, match="a packet of 262145 bytes"):
        session.packetizer.read_all((1 << 18) + 1)
    session.stream.give_back(b"x" * (1 << 18))
    assert len(session.packetizer.read_all(1 << 18)) == 1 << 18
    assert session.packetizer.last_received > before
