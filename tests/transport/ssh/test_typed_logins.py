"""Passwords, and what else hosts ask: servers of paramiko's own, each with ways of its own.

All over a real connection, up to the login; no command is run.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paramiko
import pytest
from cases import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paramiko import AUTH_FAILED, AUTH_PARTIALLY_SUCCESSFUL, AUTH_SUCCESSFUL
from paramiko.server import InteractiveQuery

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Target
from dispatcher.transport.ssh import paramiko_transport
from dispatcher.transport.ssh.logging_in import MOST_ROUNDS, MOST_TYPED
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport
from dispatcher.transport.ssh_auth import passwords
from dispatcher.transport.ssh_auth.passwords import MOST_UNSETTLED, Passwords, Who

from ..hostile import listener

paramiko_transport.preload()

AFTER = Failure(Kind.BOOT, "logged in")
RIGHT = "sesame"
OFFERED = {"k": "publickey", "i": "keyboard-interactive", "p": "password"}
Round = list[tuple[str, bool]]


class Way(ParamikoTransport):
    """Goes no further than the login; ``kept`` are passwords that a connection still has then."""

    kept: list[object]

    def _start(self, route: Any, session: Any, *more: Any) -> Failure:
        self.kept.append(session.auth_handler.password)
        return AFTER


class Server(paramiko.ServerInterface):  # type: ignore[misc]
    """Lets in who did all ``steps``: letters of ways, a word for each step that may be next.

    rounds: what it asks, and the right answers to the rounds. hangs_up: at a wrong password.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.left = list(host.steps)
        self.round = 0

    def get_allowed_auths(self, username: str) -> str:
        return ",".join(OFFERED[way] for way in (self.left or ["k"])[0])

    def _step(self, way: str, right: bool) -> Any:
        if not right or not self.left or way not in self.left[0]:
            return AUTH_FAILED
        self.left.pop(0)
        return AUTH_PARTIALLY_SUCCESSFUL if self.left else AUTH_SUCCESSFUL

    def check_auth_publickey(self, username: str, key: Any) -> Any:
        return self._step("k", self.host.takes_key)

    def check_auth_password(self, username: str, password: str) -> Any:
        self.host.sent.append(password)
        if self.host.hangs_up:
            raise ConnectionError
        return self._step("p", password == RIGHT)

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        self.round = 0
        return self._next_round() if "i" in (self.left or [""])[0] else AUTH_FAILED

    def check_auth_interactive_response(self, responses: list[str]) -> Any:
        self.host.sent.append(",".join(responses))
        right = self.host.answers[self.round % len(self.host.answers)]
        if right is not None and responses != right.split(","):
            return AUTH_FAILED
        self.round += 1
        if self.round < len(self.host.rounds):
            return self._next_round()
        return self._step("i", right=True)

    def _next_round(self) -> Any:
        return InteractiveQuery("title", "instruction", *self.host.rounds[self.round])


class Host:
    """One server that is there for a test: what it was sent is in ``sent``."""

    def __init__(
        self,
        *steps: str,
        rounds: tuple[Round, ...] = ([("Password: ", False)],),
        answers: tuple[str | None, ...] = (RIGHT,),
        takes_key: bool = False,
        hangs_up: bool = False,
    ) -> None:
        self.steps, self.rounds, self.answers = steps, rounds, answers
        self.takes_key, self.hangs_up = takes_key, hangs_up
        self.sent: list[str] = []

    def serve(self, connection: Any) -> None:
        transport = paramiko.Transport(connection)
        transport.add_server_key(HOST_KEY)
        transport.start_server(threading.Event(), Server(self))


HOST_KEY = paramiko.ECDSAKey.generate()


class User:
    """Who is at the terminal: gives the answers in turn, then none."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, prompt: str) -> str | None:
        self.asked.append(PORT.sub(" port P", prompt))
        return self.answers.pop(0) if self.answers else None


#: the servers are at no port that one could know before
PORT = re.compile(r" port \d+")
Login = Callable[..., list[Failure]]


@pytest.fixture
def log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Login]:
    """Logs in to hosts n1, n2, ... one after the other; what came of it on each."""
    monkeypatch.setattr(Way, "kept", [], raising=False)
    key = tmp_path / "key"
    paramiko.ECDSAKey.generate().write_private_key_file(str(key))
    with ExitStack() as stack:

        def call(
            user: User | None,
            *hosts: Host,
            who: Who = "all",
            extra: str = "",
            only: str = "n",
            one_name: bool = False,
        ) -> list[Failure]:
            lines = [extra, "User me", "StrictHostKeyChecking accept-new", "IdentityAgent none",
                     f"IdentityFile {key}", f"UserKnownHostsFile {tmp_path / 'known'}",
                     "GlobalKnownHostsFile none", "HostName 127.0.0.41"]  # fmt: skip
            targets: list[Target] = []
            for number, host in enumerate(hosts, 1):
                port = stack.enter_context(listener(host.serve))
                targets.append(Target("n", None, port) if one_name else Target(f"n{number}"))
                lines.insert(0, f"Host n{number}\n  Port {port}\nHost *")
            (tmp_path / "config").write_text("\n".join(lines))
            passwords = Passwords(user, who)
            assert passwords.begin()
            transport = Way(config=str(tmp_path / "config"), passwords=passwords)
            stack.callback(transport.close)
            return [
                transport.open(target, "run", time.monotonic() + 40)  # type: ignore[misc]
                for target in targets
                if target.host.startswith(only)
            ]

        yield call


CODE = ([("Verification code: ", True)],)
BOTH = ([("Password: ", False), ("Verification code: ", False)],)


@cases(
    ("steps", "more", "answers", "sent", "n_asked"),
    [
        (["kp"], {}, [RIGHT], [RIGHT], 1),
        (["p"], {}, [RIGHT], [RIGHT], 1),
        (["ki"], {}, [RIGHT], [RIGHT], 1),
        (["ip"], {}, [RIGHT], [RIGHT], 1),  # once is enough
        (["k", "i"], {"takes_key": True}, [RIGHT], [RIGHT], 1),
        (["k", "p", "i"], {"takes_key": True, "rounds": CODE, "answers": ("42",)},
         [RIGHT, "42"], [RIGHT, "42"], 2),
        (["i"], {"rounds": BOTH, "answers": (RIGHT + ",42",)}, [RIGHT, "42"], [RIGHT + ",42"], 2),
        (["i"], {"rounds": (*CODE, [("Password: ", False)]), "answers": ("42", RIGHT)},
         [RIGHT, "42"], ["42", RIGHT], 2),
        (["i"], {"rounds": ([],), "answers": (None,)}, [RIGHT], [""], 1),  # said, not asked
        (["p"], {}, ["wrong", RIGHT], ["wrong", RIGHT], 2),
        (["i"], {}, ["wrong", RIGHT], ["wrong", RIGHT], 2),
        (["i"], {"rounds": CODE, "answers": ("42",)}, [RIGHT, "41", "42"], ["41", "42"], 3),
        (["i"], {"rounds": BOTH, "answers": (RIGHT + ",42",)},
         [RIGHT, "41", RIGHT, "42"], [RIGHT + ",41", RIGHT + ",42"], 4),
        (["i"], {"rounds": ([("New password: ", False)],), "answers": ("x",)},
         [RIGHT, "x"], ["x"], 2),
    ],
)  # fmt: skip
def test_a_login(
    log_in: Login, steps: list[str], more: dict[str, Any], answers: list[str], sent: list[str],
    n_asked: int,
) -> None:  # fmt: skip
    host, user = Host(*steps, **more), User(*answers)
    assert log_in(user, host) == [AFTER]
    assert host.sent == sent
    assert len(user.asked) == n_asked
    assert user.asked[0] == "password of all hosts: "
    assert not any(Way.kept)
    assert Way.kept


@cases(
    ("steps", "more", "answers", "sent", "why"),
    [
        (["kp"], {}, ["a", "b"], ["a", "b"],
         "me: the password was refused; the host takes publickey, password"),
        (["ip"], {}, ["a", "b"], ["a", "b"],
         "me: the password was refused; the host takes keyboard-interactive, password"),
        (["p"], {"extra": "NumberOfPasswordPrompts 1"}, ["a", "b"], ["a"],
         "me: the password was refused; the host takes password"),
        (["i"], {"rounds": CODE, "answers": ("42",)}, [RIGHT, "1", "2", "3"], ["1", "2"],
         "me: an answer to its questions was refused; the host takes keyboard-interactive"),
        (["i"], {"rounds": CODE}, [RIGHT], [],
         "me: it asks a question, and got no answer; the host takes keyboard-interactive"),
        (["i"], {"rounds": CODE * (MOST_TYPED + 1), "answers": (None,)}, ["x"] * 99,
         ["x"] * MOST_TYPED, f"me: it asks more than {MOST_TYPED} questions; the host takes"),
        (["i"], {"rounds": ([],) * (MOST_ROUNDS + 1), "answers": (None,)}, [RIGHT],
         [""] * MOST_ROUNDS, f"it asks more than {MOST_ROUNDS} times to log in"),
        (["i"], {"rounds": (CODE[0] * 10_000,)}, [RIGHT], [],
         "authentication: it asks 10,000 questions at once"),
        (["i"], {"rounds": ([("x" * 100_000, False)],)}, [RIGHT], [],
         "authentication: it asks a question of 100,000 bytes"),
        (["k", "p"], {"takes_key": True, "who": "nobody"}, [], [],
         "me: a key is not enough for this host: it wants password as well"),
        (["ip"], {"who": "nobody"}, [], [],
         "me: this host takes no keys, only keyboard-interactive, password"),
        (["ip"], {"extra": "BatchMode yes"}, [RIGHT], [],
         "me: this host takes no keys, only keyboard-interactive, password"),
    ],
)  # fmt: skip
def test_no_login(
    log_in: Login, steps: list[str], more: dict[str, Any], answers: list[str], sent: list[str],
    why: str,
) -> None:  # fmt: skip
    how = {name: more[name] for name in ("who", "extra") if name in more}
    host = Host(*steps, **{name: more[name] for name in more if name not in how})
    user = User(*answers)
    [failure] = log_in(user, host, **how)
    assert failure.why.startswith(why), failure
    assert (failure.kind, host.sent) == (
        Kind.PROTOCOL if why.startswith(("it asks", "authen")) else Kind.AUTH, sent,
    )  # fmt: skip
    if "who" in how:
        assert (failure.hint or "").startswith("--ask-pass  # ")
    assert not [prompt for prompt in user.asked if len(prompt) > 200]


@cases(
    ("preferred", "sent"),
    [
        ("password,keyboard-interactive", [RIGHT]),
        ("keyboard-interactive,password", ["42", RIGHT]),
        ("password,publickey", [RIGHT]),
    ],
)
def test_the_order_is_ssh_config_s(log_in: Login, preferred: str, sent: list[str]) -> None:
    host = Host("kip", rounds=CODE, answers=("no",), takes_key=preferred.endswith("key"))
    extra = f"PreferredAuthentications {preferred}"
    assert log_in(User(RIGHT, "42"), host, extra=extra) == [AFTER]
    assert host.sent == sent


def test_a_wrong_password_goes_to_one_host_only(log_in: Login) -> None:
    hosts = [Host("p") for _ in range(4)]
    first, *others = log_in(User("wrong", "wrong too"), *hosts)
    assert [host.sent for host in hosts] == [["wrong", "wrong too"], [], [], []]
    assert first.why == "me: the password was refused; the host takes password"
    assert {PORT.sub("", failure.why) for failure in others} == {
        "me: the password was wrong on n1, so no other host was sent it; the host takes password"
    }


def test_the_second_one_is_for_all(log_in: Login) -> None:
    hosts = [Host("p"), Host("i"), Host("kp")]
    user = User("wrong", RIGHT)
    assert log_in(user, *hosts) == [AFTER] * 3
    assert [host.sent for host in hosts] == [["wrong", RIGHT], [RIGHT], [RIGHT]]
    assert user.asked == [
        "password of all hosts: ", "wrong, try again: password of all hosts: "
    ]  # fmt: skip


def test_another_password_there_has_no_second_try(log_in: Login) -> None:
    other = Host("i", answers=("other",))
    came = log_in(User(RIGHT), Host("p"), other, Host("p"))
    assert [came[0], came[2]] == [AFTER, AFTER]
    assert came[1].why == "me: the password was refused; the host takes keyboard-interactive"
    assert other.sent == [RIGHT]


def test_hosts_that_hang_up_settle_nothing(log_in: Login) -> None:
    hosts = [Host("p", hangs_up=True) for _ in range(MOST_UNSETTLED + 2)]
    came = log_in(User(RIGHT), *hosts)
    assert [len(host.sent) for host in hosts] == [1] * MOST_UNSETTLED + [0, 0]
    assert {failure.kind for failure in came[:MOST_UNSETTLED]} == {Kind.DROPPED}
    words = f"{MOST_UNSETTLED} hosts hung up when they were sent the password"
    assert words in came[-1].why


@cases(
    ("who", "asked"),
    [("one", ["password of me on n1 port P: "]), ("nobody", [])],
)
def test_a_single_host_asks_as_ssh_does(log_in: Login, who: Who, asked: list[str]) -> None:
    user = User(RIGHT)
    came = log_in(user, Host("kp"), who=who)
    assert user.asked == asked
    assert (came == [AFTER]) is bool(asked)


def test_behind_one_name_is_a_host_at_each_port(log_in: Login) -> None:
    user, tunnels = User("one", RIGHT, "other", "again"), [Host("p"), Host("p")]
    log_in(user, *tunnels, who="one", one_name=True)
    assert user.asked[::2] == ["password of me on n port P: "] * 2
    assert [tunnel.sent for tunnel in tunnels] == [["one", RIGHT], ["other", "again"]]


def test_where_nobody_is_there_the_message_names_the_option(log_in: Login) -> None:
    [failure] = log_in(User(None), Host("ip"), who="one")
    assert failure.why == "me: this host takes no keys, only keyboard-interactive, password"
    assert (failure.hint or "").startswith("--ask-pass  # ")


def test_what_is_known_is_not_asked_for_again() -> None:
    user, passwords = User(RIGHT), Passwords()
    for _ in range(2):
        passwords.serve(user, "all")
        assert passwords.begin()
    assert user.asked == ["password of all hosts: "]


JUMP = "Host n2\n  ProxyJump n1\nHost *"


def test_a_jump_host_has_a_password_of_its_own(log_in: Login) -> None:
    gate, behind = Host("p"), Host("p")
    user = User("for all", RIGHT)
    [failure] = log_in(user, gate, behind, extra=JUMP, only="n2")
    assert user.asked == ["password of all hosts: ", "password of me on n1 port P: "]
    assert (gate.sent, behind.sent) == ([RIGHT], [])
    assert failure.why.startswith("jump host n1: ")  # which leads nowhere


def test_what_a_host_says_is_shown_under_its_name_and_harmless(log_in: Login) -> None:
    prompt = "\x1b]0;title\x07\x1b[2J\npassphrase for /home/me/.ssh/id: " + "\u202e" * 70
    host, user = Host("i", rounds=([(prompt, False)],), answers=("x",)), User(RIGHT, "x")
    assert log_in(user, host) == [AFTER]
    shown = user.asked[1].replace(" port P", "")
    assert all(line.startswith("n1: ") for line in shown.split("\n"))
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert shown.startswith("n1: title\nn1: instruction\nn1: ?]0;title?")


PROMPTS = st.one_of(
    st.text(st.sampled_from(" aé\u3164\u4e2d\t\n\r\u2028\x1b"), max_size=300),
    st.builds(
        "{}{}".format, st.integers(0, 90).map(" ".__mul__), st.just("password of all hosts:")
    ),
)


def rows(text: str, columns: int) -> list[str]:
    """Of a terminal that gives each character but those of ASCII two columns."""
    rows = []
    for line in text.split("\n"):
        at = columns
        for c in line:
            width = 1 if c.isascii() else 2
            if at + width > columns:
                rows.append("")
                at = 0
            rows[-1] += c
            at += width
    return rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROMPTS, PROMPTS, st.sampled_from([1, 38, 79, 200]), st.sampled_from([16, 40, 80, 300]))
def test_every_row_of_a_question_says_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, above: str, prompt: str, length: int, columns: int
) -> None:
    monkeypatch.setattr(passwords, "_columns", lambda: columns)
    seen: list[str] = []
    Passwords(seen.append).answer("n" * length, [above], prompt)
    name = "n" * min(length, columns // 2)
    assert all(row.startswith(f"{name}: ") for row in rows(seen[0], columns))


@pytest.mark.parametrize(("told", "columns"), [(None, 80), (0, 80), (132, 132)])
def test_how_wide_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, told: int | None, columns: int
) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, told or 0, 0, 0))

    def opened(path: str, mode: str) -> Any:
        assert path == "/dev/tty"
        if told is None:
            raise OSError
        return os.fdopen(slave, mode, closefd=False)

    monkeypatch.setattr(passwords, "open", opened, raising=False)
    assert passwords._columns() == columns
    os.close(slave)
    os.close(master)
