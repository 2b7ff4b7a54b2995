"""A new connection up to its login: which keys are shown to a host, how often, and by when.

Called by ``ParamikoTransport.open`` in ``paramiko_transport``; the session is played.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from cases import cases
from paramiko.ssh_exception import (
    IncompatiblePeer,
    SSHException,
)

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import PromptTimer, Steps, Target
from dispatcher.transport.ssh import byte_stream, paramiko_transport
from dispatcher.transport.ssh import session as session_module
from dispatcher.transport.ssh.logging_in import SSH_HINT, why_broken
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport, preload
from dispatcher.transport.ssh.session import HostKeyRefused
from dispatcher.transport.ssh_auth.host_keys import HostKeyCheck
from dispatcher.transport.ssh_auth.identities import Candidate
from dispatcher.transport.ssh_auth.passwords import Passwords
from dispatcher.transport.ssh_config.host_config import HostConfig

paramiko_transport.preload()

NODE = Target("n1", "me")
#: of a login that is not made: what comes after it is another test's
AFTER = Failure(Kind.BOOT, "logged in")


class Session:
    """Lets in who has ``opens``; the newest is ``last``."""

    last: Session
    made: list[Session]
    says: dict[str, str] = {}  # noqa: RUF012 - of each key: what comes of it
    offers: tuple[str, ...] = ("publickey",)
    handshakes = True
    unsigned = "ssh-agent refuses to sign"
    limit = 6  # MaxAuthTries

    def __init__(
        self, stream: Any, check: HostKeyCheck, offered: dict[str, Any], steps: Steps
    ) -> None:
        Session.last = self
        Session.made.append(self)
        self.stream, self.check, self.algorithms, self.steps = stream, check, offered, steps
        self.active = True
        self.ended = 0
        self.offered: tuple[str, ...] = ()
        self.tried: list[tuple[str, str | None, float]] = []
        self.until = 0.0
        self.forwards: list[tuple[str, int]] = []
        self.before_banner = self.goodbye = ""

    def handshake(self, deadline: float) -> bool:
        self.until = deadline
        return self.handshakes

    def try_key(self, user: str, key: str, deadline: float) -> str:
        self.tried.append((user, key, deadline))
        self.offered = self.offers
        n_refused = sum(self.says.get(str(one), "refused") == "refused" for _, one, _ in self.tried)
        if n_refused == self.limit:
            self.goodbye = "Too many authentication failures"
            return "gone"
        return self.says.get(key, "refused")

    def try_password(self, user: str, password: bytes, deadline: float) -> str:
        return "in" if password == b"sesame" else "refused"

    def try_none(self, user: str, deadline: float) -> str:
        self.tried.append((user, None, deadline))
        self.offered = self.offers
        return self.says.get("none", "refused")

    def open_ssh_channel(self, deadline: float, forward: tuple[str, int]) -> tuple[Any, str]:
        self.forwards.append(forward)
        line = SimpleNamespace(
            settimeout=lambda seconds: None, send=len, recv=bytes, close=lambda: None
        )
        return line, ""

    def get_exception(self) -> None:
        return None

    def end(self) -> None:
        self.active = False
        self.ended += 1


class Keys:
    """Those that there are, in their order."""

    there: list[Candidate] = []  # noqa: RUF012 - set by each test

    def __init__(self, ask: object = None) -> None:
        self.notices: list[str] = []
        self.good: list[Candidate] = []

    def candidates(self, config: HostConfig) -> list[Candidate]:
        return self.there

    def load_first(self, config: HostConfig) -> None:
        self.first()

    first = staticmethod(lambda: None)

    def worked(self, candidate: Candidate) -> None:
        self.good.append(candidate)

    def missing(self, config: HostConfig) -> str:
        return "nothing"

    def close(self) -> None: ...


class Way(ParamikoTransport):
    """Goes no further than the login."""

    def _start(self, *_: Any) -> Failure:
        return AFTER


Make = Callable[..., ParamikoTransport]


@pytest.fixture
def to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A transport whose host is there, and lets in who has the key ``good``."""

    def make(*keys: str | None, text: str = "", **says: str) -> ParamikoTransport:
        path = tmp_path / "config"
        path.write_text(f"IdentityAgent none\nUserKnownHostsFile none\n{text}")
        there = [Candidate(str(key), lambda key=key: key) for key in keys]  # type: ignore[misc]
        monkeypatch.setattr(Keys, "there", there)
        monkeypatch.setattr(Session, "says", {"good": "in", **says})
        return Way(config=str(path))

    monkeypatch.setattr(paramiko_transport, "Identities", Keys)
    monkeypatch.setattr(session_module, "Session", Session)
    monkeypatch.setattr(Session, "made", [], raising=False)
    monkeypatch.setattr(paramiko_transport, "dial", lambda *_, **__: "a socket")
    monkeypatch.setattr(byte_stream, "over_socket", Over)
    return make


class Over(NamedTuple):
    socket: str
    address: str = "192.0.2.7"


def soon() -> float:
    return time.monotonic() + 20


def tried() -> list[str | None]:
    return [key for _, key, _ in Session.last.tried]


def test_a_login(to: Make) -> None:
    transport, until = to("bad", None, "good", "never"), soon()
    assert transport.open(NODE, "run it", until) == AFTER
    session = Session.last
    assert [(user, key) for user, key, _ in session.tried] == [("me", "bad"), ("me", "good")]
    assert [deadline >= until for _, _, deadline in session.tried] == [True, True]
    keys: Any = transport._identities
    assert [one.label for one in keys.good] == ["good"]
    assert (session.stream, session.until) == (Over("a socket"), until)
    assert session.algorithms == session_module.offered_algorithms({})


@pytest.mark.parametrize(
    ("policy", "text", "expected"),
    [
        (None, "", "strict"),
        (None, "StrictHostKeyChecking accept-new", "accept-new"),
        ("strict", "StrictHostKeyChecking accept-new", "strict"),
        ("accept-new", "", "accept-new"),
    ],
)
def test_whose_policy_holds(to: Make, policy: str | None, text: str, expected: str) -> None:
    transport = to("good", text=text)
    transport._host_keys = policy
    transport.open(NODE, "run it", soon())
    assert Session.last.check._policy == expected


def test_whose_address_is_checked(to: Make) -> None:
    """That which a host was reached at; of one behind another nobody knows it."""
    transport = to("good", text="CheckHostIP yes\nHost n?\n  ProxyJump gate\n")
    assert transport.open(Target("n1", "me"), "run it", soon()) == AFTER
    assert [one.check._address for one in Session.made] == ["192.0.2.7", ""]
    transport.close()


def soft(n: int) -> list[str]:
    return [f"soft{i}" for i in range(n)]


@cases(
    ("keys", "says", "n_tried", "why"),
    [
        # as many as the host takes: its 6th refusal is its last word, a right key there is taken
        ([*["bad"] * 5, "good"], {}, 6, ""),
        ([*["bad"] * 6, "k7", "k8"], {}, 6,
         "me: refused: bad, bad, bad, bad, bad, bad; the host hung up: Too many authentication "
         "failures; not tried: k7, k8"),
        ([*["bad"] * 6], {}, 6,
         "me: refused: bad, bad, bad, bad, bad, bad; the host hung up: Too many authentication "
         "failures"),
        ([*["bad"] * 6, *(f"k{i}" for i in range(20))], {}, 6,
         "me: refused: bad, bad, bad, bad, bad, bad; the host hung up: Too many authentication "
         "failures; not tried: k0, k1, k2, k3, k4, k5, k6, k7 and 12 more"),
        # a key that does not sign costs itself alone, and no try
        (["mute", *["bad"] * 5, "good"], {"mute": "unsigned"}, 7, ""),
        ([*soft(30), "good"], dict.fromkeys(soft(30), "unsigned"), 31, ""),
        (["mute"], {"mute": "unsigned"}, 1, "me: mute: ssh-agent refuses to sign"),
        (["bad", "mute"], {"mute": "unsigned"}, 2,
         "me: refused: bad; mute: ssh-agent refuses to sign"),
    ],
)  # fmt: skip
def test_every_key_is_tried_up_to_the_host_s_own_limit(
    to: Make, keys: list[str], says: dict[str, str], n_tried: int, why: str
) -> None:
    failure = to(*keys, **says).open(NODE, "run it", soon())
    assert isinstance(failure, Failure)
    assert (failure.why, len(tried())) == (why or AFTER.why, n_tried)
    assert (failure.hint or "").startswith("IdentitiesOnly yes") == ("not tried" in why)
    assert Session.last.ended == 1


@pytest.mark.parametrize("word", ["sesame", "wrong"])
def test_who_can_type_does_so_after_the_last_key(
    to: Make, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """Over a connection of its own: the host has hung up on the keys, be they ever so many."""
    monkeypatch.setattr(Session, "offers", ("publickey", "password"))
    transport = to(*["bad"] * 9)
    transport._passwords = Passwords(lambda prompt: word, "one")
    failure = transport.open(NODE, "run it", soon())
    assert isinstance(failure, Failure)
    assert failure.why == (
        AFTER.why if word == "sesame"
        else "me: the password was refused; the host takes publickey, password"
    )  # fmt: skip
    assert [len(one.tried) for one in Session.made] == [6, 0]
    assert [one.ended for one in Session.made] == [1, 1]


def test_a_host_that_takes_no_keys_is_shown_one(to: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "offers", ("password",))
    failure = to("bad", "good").open(NODE, "run it", soon())
    assert isinstance(failure, Failure)
    assert failure.why == "me: this host takes no keys, only password"
    assert tried() == ["bad"]


@pytest.mark.parametrize(("says", "lets_in"), [("in", True), ("refused", False)])
def test_without_a_key_the_host_says_what_it_takes(to: Make, says: str, lets_in: bool) -> None:
    opened = to(None, none=says).open(NODE, "run it", soon())
    assert tried() == [None]
    assert (opened == AFTER) is lets_in
    assert Session.last.ended == 1  # here the command was not started either


@pytest.mark.parametrize(
    ("outcome", "kind", "why"),
    [
        ("late", Kind.TIMEOUT, "known hosts and keys: no answer in time"),
        ("gone", Kind.DROPPED, "known hosts and keys: closed by the host"),
    ],
)
def test_what_ends_all_tries(
    to: Make, monkeypatch: pytest.MonkeyPatch, outcome: str, kind: Kind, why: str
) -> None:
    words = SimpleNamespace(words=lambda: "", address=None)
    monkeypatch.setattr(byte_stream, "over_socket", lambda sock: words)
    failure = to("first", "good", first=outcome).open(NODE, "run it", soon())
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.why[: len(why)]) == (kind, why)
    assert (tried(), Session.last.ended) == (["first"], 1)


def test_a_key_that_is_right_and_not_enough(to: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert to("first", "good", first="partial").open(NODE, "run it", soon()) == AFTER
    assert tried() == ["first", "good"]
    failure = to("first", first="partial").open(NODE, "run it", soon())
    assert isinstance(failure, Failure)
    assert failure.why == "me: a key is not enough for this host: it wants publickey as well"
    assert failure.hint == "AuthenticationMethods publickey  # in its sshd_config"


def test_no_login_without_a_handshake(to: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "handshakes", False)
    failure = to("good").open(NODE, "run it", time.monotonic() - 1)
    assert failure == Failure(Kind.TIMEOUT, "known hosts and keys: no answer in time", SLOW)
    assert (tried(), Session.last.ended) == ([], 1)


def test_what_the_user_types_is_not_the_host_s_time(
    to: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, until = to("good"), soon()
    now = time.monotonic()
    timer = transport._passwords.timer = PromptTimer(lambda: now)

    def types(seconds: float) -> str:
        nonlocal now
        timer.changed(True)
        now += seconds
        timer.changed(False)
        return "good"

    types(3.0)  # before: for another host
    monkeypatch.setattr(Keys, "first", staticmethod(lambda: types(5.0)))
    Keys.there[0] = Candidate("typed", lambda: types(7.0))
    assert transport.open(NODE, "run it", until) == AFTER
    assert Session.last.until == pytest.approx(until + 5.0)
    ((_, key, deadline),) = Session.last.tried
    assert key == "good"
    assert deadline == pytest.approx(until + 12.0)


@pytest.mark.parametrize("step", ["handshake", "try_key"])
def test_a_host_is_late_though_the_user_types_for_another(
    to: Make, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    transport = to("good")

    def late(self: Session, *words: Any) -> Any:
        transport._passwords.timer.changed(True)
        time.sleep(max(0.0, words[-1] - time.monotonic()) + 0.02)
        return "late" if step == "try_key" else False

    monkeypatch.setattr(Session, step, late)
    failure = transport.open(NODE, "run it", time.monotonic() + 0.2)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.TIMEOUT


@pytest.mark.parametrize("jump", [False, True])
def test_a_login_has_more_time_than_what_comes_before(to: Make, jump: bool) -> None:
    """As with ssh, whose ConnectTimeout ends when keys are exchanged."""
    transport = to("good", text="Host n?\n  ProxyJump gate\n" if jump else "")
    transport._seconds = 5.0
    assert transport.open(NODE, "run it", until := soon()) == AFTER
    assert len(Session.made) == 1 + jump
    for session in Session.made:
        assert session.until == pytest.approx(until - 15, abs=1)
        assert [deadline for _, _, deadline in session.tried] == [until]
    transport.close()


def test_hosts_behind_a_jump_host_share_its_connection(to: Make) -> None:
    transport = to("good", text="Port 23\nHost n?\n  ProxyJump gate\n")
    for name in ("n1", "n2"):
        assert transport.open(Target(name, "me"), "run it", soon()) == AFTER
    gate, *behind = Session.made
    assert gate.stream == Over("a socket")
    assert gate.forwards == [("n1", 23), ("n2", 23)]
    assert [type(one.stream) for one in behind] == [byte_stream.ByteStream] * 2
    assert [one.ended for one in Session.made] == [0, 1, 1]
    assert [name for name, _ in behind[0].steps.taken()][-1] == "jump host"
    transport.close()
    assert gate.ended == 1
    assert transport.open(Target("n1", "me"), "run it", soon()) == AFTER
    assert len(Session.made) == 5  # another to each of the two


def test_a_proxy_command_leads_to_the_host(to: Make) -> None:
    transport = to("good", text="ProxyCommand cat\n")
    assert transport.open(NODE, "run it", soon()) == AFTER
    stream = Session.last.stream
    assert isinstance(stream, byte_stream.ProxyStream)
    assert Session.last.steps.name == "proxy command"
    stream.close()
    transport.close()


preload()


def broken(
    problem: Exception | None = None,
    *,
    active: bool = False,
    late: bool = False,
    banner: str = "",
    goodbye: str = "",
    words: str = "",
    types: tuple[str, ...] = ("ssh-rsa", "rsa-sha2-512"),
) -> Failure:
    session: Any = SimpleNamespace(
        steps=Steps("key exchange"), get_exception=lambda: problem, active=active,
        preferred_keys=("ssh-ed25519", "x" * 300), before_banner=banner, goodbye=goodbye,
        stream=SimpleNamespace(words=lambda: words), host_key_types=types,
    )  # fmt: skip
    return why_broken(session, time.monotonic() + (-1 if late else 20))


SLOW = "--connect-timeout 200  # if it is slow to let you in"
REFUSED = Failure(Kind.HOST_KEY_CHANGED, "another", "look")
TYPES = ("ssh-ed25519, " + "x" * 300)[:200]


@cases(
    ("problem", "state", "failure"),
    [
        (HostKeyRefused(REFUSED), {"late": True, "active": True}, REFUSED),
        (None, {"late": True, "active": True},
         Failure(Kind.TIMEOUT, "key exchange: no answer in time", SLOW)),
        (SSHException("x"), {"late": True},  # it was over before that
         Failure(Kind.PROTOCOL, "key exchange: x")),
        (SSHException("y" * 300), {}, Failure(Kind.PROTOCOL, "key exchange: " + "y" * 200)),
        (IncompatiblePeer("no acceptable host key"), {},
         Failure(Kind.HOST_KEY_UNKNOWN,
                 f"it has no host key of a type that is on file and allowed ({TYPES}), only "
                 "ssh-rsa, rsa-sha2-512")),
        (IncompatiblePeer("no acceptable host key"), {"types": ("ssh-rsa", "ssh-dss")},
         Failure(Kind.PROTOCOL, "its host key signs by ssh-rsa, ssh-dss alone, which is SHA-1",
                 "--transport ssh  # with HostKeyAlgorithms +ssh-rsa in ssh_config")),
        (IncompatiblePeer("No acceptable Ciphers"), {},
         Failure(Kind.PROTOCOL, "no acceptable ciphers", SSH_HINT)),
        (OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)), {},
         Failure(Kind.DROPPED, "key exchange: connection reset by peer", retryable=True)),
        (EOFError(), {}, Failure(Kind.DROPPED, "key exchange: closed by the host", retryable=True)),
        (None, {"active": True},
         Failure(Kind.DROPPED, "key exchange: closed by the host", retryable=True)),
    ],
)  # fmt: skip
def test_what_broke_a_connection(
    problem: Exception | None, state: dict[str, Any], failure: Failure
) -> None:
    assert broken(problem, **state) == failure


@cases(
    ("said", "failure"),
    [
        ({"banner": "busy", "goodbye": "bye", "words": "proxy: x"},
         Failure(Kind.DROPPED, "key exchange: closed by the host: busy; bye; proxy: x",
                 retryable=True)),
        ({"words": "z" * 400},
         Failure(Kind.DROPPED, "key exchange: closed by the host: " + "z" * 300, retryable=True)),
        # trying again prolongs it
        ({"banner": "Not allowed at this time"},
         Failure(Kind.DROPPED, "key exchange: closed by the host: Not allowed at this time")),
        ({"goodbye": "Too many authentication failures"},
         Failure(Kind.AUTH, "the host hung up: Too many authentication failures")),
    ],
)  # fmt: skip
def test_the_last_words_of_a_host(said: dict[str, Any], failure: Failure) -> None:
    assert broken(EOFError(), **said) == failure
