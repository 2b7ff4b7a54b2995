"""A session's own part: what it asks a host for, and how long it waits for an answer."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport import base
from dispatcher.transport.base import Window
from dispatcher.transport.ssh import paramiko_transport

paramiko_transport.preload()
from paramiko.message import Message  # noqa: E402 - paramiko is imported by preload alone
from paramiko.packet import Packetizer  # noqa: E402
from paramiko.ssh_exception import (  # noqa: E402
    BadAuthenticationType,
    PartialAuthentication,
    SSHException,
)

from dispatcher.transport.ssh import paramiko_internals  # noqa: E402
from dispatcher.transport.ssh.paramiko_internals import (  # noqa: E402
    ASIDES_RATE,
    MOST_ASIDES,
    WINDOW,
    Connection,
    Login,
    Misbehaved,
)
from dispatcher.transport.ssh.session import (  # noqa: E402
    KEX,
    HostKeyRefused,
    Session,
    offered_algorithms,
)

from .quiet import OPEN, REQUEST, Quiet, opens, soon  # noqa: E402


@pytest.fixture
def session() -> Quiet:
    return Quiet()


# -- what is offered --------------------------------------------------------------------


def test_offers_are_narrowed_by_the_options_of_ssh() -> None:
    usual = offered_algorithms({})
    assert all(usual.values())
    for option, name in (
        ("ciphers", "ciphers"), ("macs", "macs"), ("kexalgorithms", "kex"),
        ("hostkeyalgorithms", "host_keys"), ("pubkeyacceptedalgorithms", "pubkeys"),
    ):  # fmt: skip
        one = usual[name][-1]
        assert offered_algorithms({option: one}) == {**usual, name: (one,)}
        assert offered_algorithms({option: f"-{one}"}) == {**usual, name: usual[name][:-1]}


def test_only_types_of_keys_that_can_be_judged_are_asked_for(session: Quiet) -> None:
    assert session.preferred_keys == offered_algorithms({})["host_keys"][:1]
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
        takes_key, unfit = False, ""

        def __init__(self, transport: Session) -> None:
            assert transport is session

        def forget(self) -> None: ...

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

    monkeypatch.setattr("dispatcher.transport.ssh.paramiko_internals.Login", Login)
    session.active = what != "gone before"
    deadline = time.monotonic() + (0.01 if what == "late" else 20)
    if with_key:
        assert session.try_key("me", "key", deadline) == expected
    else:
        assert session.try_none("me", deadline) == expected
    words = ("me", "key") if with_key else ("me",)
    assert asked == ([] if what == "gone before" else [words])
    assert session.steps.name == "authentication"


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("over", [False, True])
def test_a_key_signs_once_a_login(session: Quiet, over: bool, asks: bool) -> None:
    class Key:
        asks_first = asks

        def get_name(self) -> str:
            return "ssh-ed25519"

        def asbytes(self) -> bytes:
            return KEY

        def sign_ssh_data(self, data: bytes, algorithm: str) -> bytes:
            signed.append(data)
            return b"signed"

    signed: list[bytes] = []
    accepts = Message()
    accepts.add_string("ssh-userauth")
    session.session_id = b"x"
    session._send_message = lambda message: None
    session.clear_to_send.set()
    login = Login(session)
    login.auth_publickey("me", Key(), threading.Event())
    if over:  # the host answered before it was asked
        login.forget()
        assert login.private_key is None
    else:
        login._parse_service_accept(Message(accepts.asbytes()))
    for _ in range(2):
        with pytest.raises(Misbehaved, match="it asks for the same login again"):
            login._parse_service_accept(Message(accepts.asbytes()))
    assert len(signed) == (0 if over or asks else 1)
    if asks and not over:
        login._parse_userauth_info_request(Message())
        with pytest.raises(Misbehaved, match="asks a question that does not belong"):
            login._parse_userauth_info_request(Message())
        login.sign()
        assert len(signed) == 1


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
    if what.startswith("refuses"):
        assert len(session._channels) == 0  # a jump host may refuse many


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
        (b"line\n" * 60, "", "no ssh banner in its output: line"),
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


def test_a_packet_that_is_too_large_is_not_waited_for(session: Quiet) -> None:
    before = session.packetizer.last_received
    with pytest.raises(Misbehaved, match="a packet of 262145 bytes"):
        session.packetizer.read_all((1 << 18) + 1)
    session.stream.give_back(b"x" * (1 << 18))
    assert len(session.packetizer.read_all(1 << 18)) == 1 << 18
    assert session.packetizer.last_received > before


@pytest.mark.parametrize(
    ("kind", "each", "pays", "most"),
    [
        (2, 1.0, None, 2 * MOST_ASIDES), (20, 200.0, None, 2 * MOST_ASIDES // 200),
        (94, 1.0, 0, 2 * MOST_ASIDES), (93, 1.0, None, 2 * MOST_ASIDES), (94, 1.0, 1, None),
        (20, 200.0, 1 << 20, None), (80, 3.0, None, 2 * MOST_ASIDES // 3),
        (98, 3.0, None, 2 * MOST_ASIDES // 3),
    ],
)  # fmt: skip
def test_packets_without_data_are_counted(
    session: Quiet, monkeypatch: pytest.MonkeyPatch, kind: int, each: float, pays: int | None,
    most: int | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(Packetizer, "read_message", lambda self: (kind, Message(b"")))
    clock = SimpleNamespace(monotonic=lambda: 1e6)
    monkeypatch.setattr(base, "time", clock)
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)

    def come(count: int) -> None:
        for _ in range(count):
            session.packetizer.read_message()
            if pays is not None:
                session.packetizer.brought(pays)

    come(30_000 if most is None else most)
    if most is not None:
        with pytest.raises(Misbehaved, match="a flood: more than 4,000 packets without data"):
            come(2 + round(1 / each))
        clock.monotonic = lambda: 1e6 + MOST_ASIDES / ASIDES_RATE
        come(1)
        assert session.packetizer._asides._count < MOST_ASIDES


@pytest.mark.parametrize("kind", [20, 31, 49])
def test_a_packet_of_a_key_exchange_has_a_bound_of_its_own(
    session: Quiet, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    come = [(kind, Message(bytes(8 << 10))), (50, Message(bytes(8193)))]
    come.append((kind, Message(bytes(8193))))
    monkeypatch.setattr(Packetizer, "read_message", lambda self: come.pop(0))
    session.packetizer.read_message()
    session.packetizer.read_message()  # a banner may be long
    with pytest.raises(Misbehaved, match="it exchanges keys by a packet of 8,193 bytes"):
        session.packetizer.read_message()


@pytest.mark.parametrize(("kind", "cost"), [(2, 1.0), (20, 700.0), (31, 501.0), (94, 1.0)])
def test_new_keys_count_by_the_time_they_take(
    session: Quiet, monkeypatch: pytest.MonkeyPatch, kind: int, cost: float
) -> None:
    kinds, times = [kind, 2], [5.0, 5.0 + 0.05]  # of this thread, when it got one and read on
    monkeypatch.setattr(Packetizer, "read_message", lambda self: (kinds.pop(0), Message(b"")))
    clock = SimpleNamespace(monotonic=time.monotonic, thread_time=lambda: times.pop(0))
    monkeypatch.setattr(paramiko_internals, "time", clock)
    session.packetizer.read_message()
    session.packetizer.read_message()
    assert session.packetizer._asides._count == pytest.approx(cost + 1.0)


def diffie_hellman() -> list[str]:
    return [name for name in KEX if name.startswith("diffie-hellman")]


def exchange(name: str, group: int) -> Any:
    """What is begun with a host, which chose ``group`` if it may."""
    host = SimpleNamespace(server_mode=False, _log=lambda *words: None)
    host._send_message = host._expect_packet = lambda message: None
    begun = Connection._kex_info[name](host)
    begun.start_kex()
    if "exchange" in name:
        message = Message()
        message.add_mpint(group)
        message.add_mpint(2)
        message.rewind()
        begun.parse_next(31, message)
    return begun


@pytest.mark.parametrize("name", diffie_hellman())
def test_a_secret_is_as_long_as_it_has_to_be(name: str) -> None:
    secrets = [exchange(name, 1 << 4095 | 1).x.bit_length() for _ in range(9)]
    assert 500 < max(secrets) <= 512


@pytest.mark.parametrize("bits", [1024, 2047, 2048, 4096, 4097, 8192])
def test_a_group_that_the_host_chooses(bits: int) -> None:
    if 2048 <= bits <= 4096:
        assert exchange(KEX[-1], 1 << bits - 1 | 1).p.bit_length() == bits
    else:
        with pytest.raises(Misbehaved, match=f"it chooses a group of {bits:,} bits"):
            exchange(KEX[-1], 1 << bits - 1 | 1)


def test_extensions_are_counted(session: Quiet) -> None:
    message = Message()
    message.add_int(1)
    message.add_string("server-sig-algs")
    message.add_string(b"\xff")
    message.rewind()
    session._parse_ext_info(message)
    assert session.server_extensions == {"server-sig-algs": b"\xff"}
    many = Message()
    many.add_int(64)
    many.add_bytes(b"".join(b"\0\0\0\2%02d\0\0\0\0" % number for number in range(64)))
    many.rewind()
    session._parse_ext_info(many)
    assert len(session.server_extensions) == 64
    endless = Message()
    endless.add_int((1 << 32) - 1)
    endless.rewind()
    with pytest.raises(Misbehaved, match="it names 4,294,967,295 extensions"):
        session._parse_ext_info(endless)
