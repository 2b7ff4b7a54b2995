"""What comes of a connection, step by step, and which it is made over; sessions are played."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Keepalive, Link, Steps, Target, Window
from dispatcher.transport.ssh import paramiko_transport as module
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport, preload
from dispatcher.transport.ssh.shared_sessions import Route, SessionPool
from dispatcher.transport.ssh_config.host_config import HostConfig

preload()

from dispatcher.transport.ssh.session import ParamikoLink  # noqa: E402

NODE = Target("n1")


class Played:
    """A session that is logged in: what it is asked, and what it answers."""

    def __init__(self) -> None:
        self.active = True
        self.ended = 0
        self.steps = Steps("before")
        self.asked: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {
            "channel": ("the channel", ""), "terminal": "", "command": "", "standby": None,
        }  # fmt: skip
        self.problem: Exception | None = None
        self.stream = SimpleNamespace(
            address="10.0.0.7", acknowledge=lambda: None, words=lambda: ""
        )
        self.before_banner = self.goodbye = ""
        self.preferred_keys: tuple[str, ...] = ()

    def _ask(self, what: str, *words: Any) -> Any:
        self.asked.append((what, *words))
        return self.answers[what]

    def open_ssh_channel(self, deadline: float) -> Any:
        return self._ask("channel", deadline)

    def request_pty(self, channel: Any, window: Window, deadline: float) -> Any:
        return self._ask("terminal", channel, window, deadline)

    def execute(self, channel: Any, command: str, deadline: float) -> Any:
        return self._ask("command", channel, command, deadline)

    def take_standby(self, command: str, deadline: float) -> Any:
        return self._ask("standby", command, deadline)

    def has_standby(self, command: str) -> bool:
        return bool(self.answers["standby"])

    def stand_by(self, command: str) -> None:
        self.asked.append(("stand by", command))

    def set_keepalive(self, interval: float, most: int) -> None:
        self.alive = interval, most

    def get_exception(self) -> Exception | None:
        return self.problem

    def end(self) -> None:
        self.active = False
        self.ended += 1


class Way(ParamikoTransport):
    """Makes its connections as the test says."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gives: Any = Played()
        self.connected: list[tuple[Route, float]] = []

    def connect(self, route: Route, deadline: float, steps: Steps, *, jump: bool = False) -> Any:
        self.connected.append((route, deadline))
        if isinstance(self.gives, Played):
            self.gives.steps = steps
        return self.gives


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "config"
        path.write_text(text)
        return str(path)

    return write


def route(transport: ParamikoTransport, target: Target = NODE) -> Route:
    """The way to a host that has no jumps."""
    found = transport._config.resolve(target)
    assert isinstance(found, HostConfig)
    return (found,)


def soon() -> float:
    return time.monotonic() + 20


# -- a new connection ---------------------------------------------------------------------


def test_a_command_over_a_new_connection(config: Callable[[str], str]) -> None:
    transport, until = Way(config=config("")), soon()
    link = transport.open(NODE, "run it", until)
    assert isinstance(link, ParamikoLink)
    session = transport.gives
    assert [deadline for _, deadline in transport.connected] == [until]
    assert session.asked == [
        ("standby", "run it", until), ("channel", until),
        ("command", "the channel", "run it", until),
    ]  # fmt: skip
    assert session.stream.acknowledge is None
    assert (link.address, session.ended) == ("10.0.0.7", 0)
    names = [name for name, _ in link.steps]
    assert names == [
        "ssh configuration", "paramiko", "known hosts and keys", "channel", "command start",
    ]  # fmt: skip
    transport.close()
    link.close()
    assert session.ended == 1  # nobody keeps it


def test_a_terminal_comes_before_the_command(config: Callable[[str], str]) -> None:
    transport, until, window = Way(config=config("")), soon(), Window(90, 30)
    transport.gives.answers["standby"] = "a shell that waits has no terminal"
    link = transport.open(NODE, "top", until, window)
    assert isinstance(link, ParamikoLink)
    assert transport.gives.asked == [
        ("channel", until), ("terminal", "the channel", window, until),
        ("command", "the channel", "top", until),
    ]  # fmt: skip
    assert [name for name, _ in link.steps][-3:] == ["channel", "terminal", "command start"]


BOOT, DROPPED = Kind.BOOT, Kind.DROPPED


SLOW = "--connect-timeout 200  # if it is slow to let you in"


@pytest.mark.parametrize(
    ("step", "answer", "failure"),
    [
        ("channel", (None, "prohibited"),
         Failure(DROPPED, "the host refuses to open a channel: prohibited")),
        ("terminal", "refused", Failure(BOOT, "the host refuses to give a terminal")),
        ("command", "refused", Failure(BOOT, "the host refuses to run a command")),
        ("channel", (None, "gone"), Failure(DROPPED, "channel: closed by the host",
                                            retryable=True)),
        ("terminal", "gone", Failure(DROPPED, "terminal: closed by the host", retryable=True)),
        ("command", "gone", Failure(DROPPED, "command start: closed by the host",
                                    retryable=True)),
        ("channel", (None, "late"), Failure(Kind.TIMEOUT, "channel: no answer in time", SLOW)),
        ("command", "late", Failure(Kind.TIMEOUT, "command start: no answer in time", SLOW)),
    ],
)  # fmt: skip
def test_a_step_that_fails(
    config: Callable[[str], str], step: str, answer: Any, failure: Failure
) -> None:
    transport = Way(config=config(""))
    session = transport.gives
    session.answers[step] = answer
    session.active = "gone" not in answer
    late = "late" in answer
    opened = transport.open(NODE, "run it", time.monotonic() if late else soon(), Window())
    assert opened == failure
    assert session.ended == 1
    assert [what for what, *_ in session.asked][-1] == step  # nothing more was tried


def test_who_cannot_connect_says_why(config: Callable[[str], str]) -> None:
    transport = Way(config=config(""))
    transport.gives = refused = Failure(Kind.REFUSED, "no")
    assert transport.open(NODE, "run it", soon()) == refused
    transport = Way(config=config("Port nowhere"))
    for opened in (transport.open(NODE, "x", soon()), transport.open(Target("-x"), "x", soon())):
        assert isinstance(opened, Failure)
        assert opened.kind is Kind.CONFIG
    assert transport.open_pooled(NODE, "x", soon()) is None
    assert transport.open_started(NODE, "x") is None
    assert transport.connected == []


@pytest.mark.parametrize(
    ("said", "text", "alive"),
    [
        (Keepalive(), "", (0.0, 3)),
        (Keepalive(otherwise=15.0), "ServerAliveInterval 4\nServerAliveCountMax 2", (4.0, 2)),
        (Keepalive(9.0), "ServerAliveInterval 4", (9.0, 3)),
    ],
)
def test_when_a_silent_host_is_asked(
    config: Callable[[str], str], said: Keepalive, text: str, alive: tuple[float, int]
) -> None:
    transport = Way(config=config(text), alive=said)
    transport.open(NODE, "run it", soon())
    assert transport.gives.alive == alive


# -- a connection that is there -------------------------------------------------------------


@pytest.fixture
def pool() -> SessionPool:
    return SessionPool()


def held(pool: SessionPool, transport: ParamikoTransport) -> Any:
    session: Any = Played()
    pool.give(route(transport), session)
    return session


@pytest.mark.parametrize("only", [False, True])
def test_a_command_over_a_connection_that_is_there(
    config: Callable[[str], str], pool: SessionPool, only: bool
) -> None:
    transport = Way(config=config(""), keep=pool)
    session, until = held(pool, transport), time.monotonic() + 2.5
    link = (transport.open_pooled if only else transport.open)(NODE, "run it", until)
    assert isinstance(link, ParamikoLink)
    assert session.asked[-1] == ("command", "the channel", "run it", until)
    assert (transport.connected, link.steps, pool.names()) == ([], (), [])


@pytest.mark.parametrize(("step", "answer"), [("channel", (None, "late")), ("command", "gone")])
def test_one_that_does_not_serve_is_given_up(
    config: Callable[[str], str], pool: SessionPool, step: str, answer: Any
) -> None:
    transport = Way(config=config(""), keep=pool)
    before = time.monotonic()
    for opens in (transport.open_pooled, transport.open):
        session = held(pool, transport)
        session.answers[step] = answer
        link = opens(NODE, "run it", before + 100)
        deadline = session.asked[-1][-1]
        assert before + 3 <= deadline <= time.monotonic() + 3  # it has to prove itself soon
        assert (session.ended, pool.names()) == (1, [])
        assert (link is None) == (opens == transport.open_pooled)
    assert len(transport.connected) == 1


def test_nothing_is_there(config: Callable[[str], str], pool: SessionPool) -> None:
    for keep in (pool, False, True):
        transport = Way(config=config(""), keep=keep)
        assert transport.open_pooled(NODE, "run it", soon()) is None
        assert transport.open_started(NODE, "run it") is None
        transport.prepare("sh")
        assert transport.connected == []
        transport.close()


def test_a_command_that_has_started_already(
    config: Callable[[str], str], pool: SessionPool
) -> None:
    transport = Way(config=config(""), keep=pool)
    session = held(pool, transport)
    assert transport.open_started(NODE, "sh") is None
    transport.prepare("sh")
    assert session.asked == [("stand by", "sh")]
    session.answers["standby"] = "its channel"
    link = transport.open_started(NODE, "sh")
    assert isinstance(link, ParamikoLink)
    assert session.asked[1:] == [("standby", "sh", 0.0)]  # without waiting


@pytest.mark.parametrize("own", [False, True])
def test_connections_come_back_and_are_closed_by_their_owner(
    config: Callable[[str], str], pool: SessionPool, own: bool
) -> None:
    transport = Way(config=config(""), keep=True if own else pool)
    session, kept = transport.gives, transport.session_pool
    assert kept is not None
    session.answers["channel"] = Ended(), ""
    link = transport.open(NODE, "run it", soon())
    assert isinstance(link, Link)
    link.close()
    assert kept.names() == ["n1"]
    transport.close()
    assert (session.ended, kept.names()) == ((1, []) if own else (0, ["n1"]))


class Ended:
    """The channel of a command that has ended."""

    def __init__(self) -> None:
        self.status_event = threading.Event()
        self.status_event.set()

    def close(self) -> None: ...


# -- the way there ------------------------------------------------------------------------------


def test_a_way_through_others(config: Callable[[str], str]) -> None:
    text = (
        "Host n1\n  ProxyJump me@a:23,b\n"
        "Host a\n  ProxyJump c\nHost b\n  ProxyCommand nc\nHost c\n  User you\n"
    )
    transport = Way(config=config(text))
    transport.open(NODE, "run it", soon())
    ((way, _),) = transport.connected
    # "-J a,b": the way to b is a, whatever b's own config says; a's own holds for itself
    assert [(one.name, one.user if one.name in "ac" else "", one.port) for one in way] == [
        ("c", "you", 22), ("a", "me", 23), ("b", "", 22), ("n1", "", 22),
    ]  # fmt: skip
    assert way[2].proxy_command is None
    assert [jump.host for jump in way[2].jumps] == ["a"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Host n1\n  ProxyJump a\nHost a\n  Port nowhere\n", "jump host a: "),
        ("Host *\n  ProxyJump a\n", "ProxyJump: more than 8 jumps; does a jump through itself?"),
    ],
)
def test_a_way_that_leads_nowhere(config: Callable[[str], str], text: str, why: str) -> None:
    opened = Way(config=config(text)).open(NODE, "run it", soon())
    assert isinstance(opened, Failure)
    assert (opened.kind, opened.why[: len(why)]) == (Kind.CONFIG, why)


def test_eight_jumps_are_no_circle(config: Callable[[str], str]) -> None:
    text = "".join(f"Host j{n}\n  ProxyJump j{n + 1}\n" for n in range(8))
    transport = Way(config=config(text))
    transport.open(Target("j0"), "run it", soon())
    ((way, _),) = transport.connected
    assert [one.name for one in way] == [f"j{n}" for n in range(8, -1, -1)]


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """How the network is called; nobody answers."""
    calls: list[tuple[Any, ...]] = []

    def dial(host: str, port: int, deadline: float, **options: Any) -> Failure:
        calls.append((host, port, deadline, options))
        return Failure(Kind.REFUSED, "no")

    monkeypatch.setattr(module, "dial", dial)
    return calls


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 20.0), ("ConnectTimeout 5", 5.0), ("ConnectTimeout 50", 20.0)]
)
def test_how_a_host_is_dialled(
    config: Callable[[str], str], dialled: list[tuple[Any, ...]], text: str, seconds: float
) -> None:
    lines = "HostName real\nPort 23\nAddressFamily inet6\nBindAddress ::1\nIdentityAgent none\n"
    transport = ParamikoTransport(config=config(lines + text))
    before = time.monotonic()
    assert transport.open(NODE, "run it", before + 20) == Failure(Kind.REFUSED, "no")
    ((host, port, deadline, options),) = dialled
    assert (host, port) == ("real", 23)
    assert before + seconds - 0.01 <= deadline <= time.monotonic() + seconds
    assert options.pop("steps").name == "known hosts and keys"
    assert options == {"family": 10, "source": "::1"}


@pytest.mark.parametrize(
    ("option", "what"),
    [("Ciphers", "ciphers"), ("MACs", "macs"), ("KexAlgorithms", "kex"),
     ("HostKeyAlgorithms", "host_keys"), ("PubkeyAcceptedAlgorithms", "pubkeys")],
)  # fmt: skip
def test_algorithms_of_which_none_is_left(
    config: Callable[[str], str], dialled: list[tuple[Any, ...]], option: str, what: str
) -> None:
    transport = ParamikoTransport(config=config(f"{option} none-of-ours"))
    failure = transport.open(NODE, "run it", soon())
    assert isinstance(failure, Failure)
    assert failure.why == f"ssh_config allows none of the {what} that we have"
    assert (failure.hint or "").startswith("--transport ssh")
    assert dialled == []


def test_policies() -> None:
    for policy in (None, "strict", "accept-new"):
        ParamikoTransport(config="none", host_keys=policy).close()
    with pytest.raises(ValueError, match="host_keys: 'ask'"):
        ParamikoTransport(config="none", host_keys="ask")
