"""The daemon: how long it lives, whom it serves, and what it asks of its connections.

No host and no process: connections are played, and callers are of this process.
"""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rig import wait_for

from dispatcher.bootstrap import shell
from dispatcher.remote.protocol.mux import Decoder
from dispatcher.transport.base import Keepalive, Target, Window
from dispatcher.transport.pool import daemon as module
from dispatcher.transport.pool import daemon_socket, pool_transport
from dispatcher.transport.pool.daemon import Daemon
from dispatcher.transport.pool.daemon_socket import LIST, fields, json_frame
from dispatcher.transport.ssh_auth.passwords import Passwords

from ..far_link import FarLink

ORDER: dict[str, Any] = {
    "host": "n1", "user": "me", "port": 22, "command": "true", "seconds": 10.0, "window": None,
    "keep": None, "run": "a", "config": "/c", "host_keys": "strict", "alive": [3.0, 4.0],
    "asks": [False, True], "agent": "/run/mine",
}  # fmt: skip


class Pool:
    """Idle connections: only their names."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.dropped: list[tuple[float, Collection[str] | None]] = []
        self.standing_by: list[str] = []
        self.closed = 0

    def names(self) -> list[str]:
        return self.held

    def drop(self, seconds: float = 0.0, names: Collection[str] | None = None) -> None:
        self.dropped.append((seconds, names))

    def stand_by(self, command: str) -> None:
        self.standing_by.append(command)

    def close(self) -> None:
        self.closed += 1


def nobody(**question: Any) -> None:
    """A launcher that has gone."""


class Reading:
    """A transport of one launcher: what it was made with, and asked for."""

    made: list[Reading]

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.asked: list[tuple[Any, ...]] = []
        self.link = FarLink()
        self.connections = 0  # that it has made, and that are there
        self.closed = False
        self.made.append(self)

    def _asked(self, *words: Any) -> FarLink:
        self.asked.append(words)
        return self.link

    def open_started(self, *words: Any) -> FarLink:
        return self._asked("started", *words)

    def open_pooled(self, *words: Any) -> FarLink:
        return self._asked("pooled", *words)

    def open(self, *words: Any) -> FarLink:
        self.connections += 1
        return self._asked("any", *words)

    def serves(self) -> bool:
        return self.connections > 0

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    made = Pool()
    monkeypatch.setattr(module, "SessionPool", lambda: made)
    return made


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Reading]:
    made: list[Reading] = []
    monkeypatch.setattr(Reading, "made", made, raising=False)
    monkeypatch.setattr(module, "ParamikoTransport", Reading)
    return made


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        made.listen(5)
        yield made


@pytest.fixture
def daemon(pool: Pool, readings: list[Reading], listener: socket.socket) -> Daemon:
    return Daemon(listener)


# -- what a launcher asks for -----------------------------------------------------------


def test_a_command_where_a_shell_waits(daemon: Daemon, pool: Pool, readings: list[Reading]) -> None:
    link = daemon.at_hand(ORDER, nobody)
    (reading,) = readings
    assert link is reading.link
    assert reading.asked == [("started", Target("n1", "me", 22), "true")]
    alive = Keepalive(3.0, 4.0)
    passwords = reading.options.pop("passwords")
    assert [passwords.may_ask(jump=jump) for jump in (False, True)] == [False, True]
    assert reading.options.pop("config")._path == "/c"
    assert reading.options == {
        "host_keys": "strict", "keep": pool, "alive": alive, "reach": math.inf,
    }  # fmt: skip


@pytest.mark.parametrize("agent", ["/run/mine", None])
def test_the_ssh_agent_is_the_launcher_s(
    daemon: Daemon, readings: list[Reading], monkeypatch: pytest.MonkeyPatch, agent: str | None
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/of-who-started-us")
    daemon.at_hand({**ORDER, "config": "none", "agent": agent}, nobody)
    host = readings[0].options["config"].resolve(Target("n1"))
    assert host.identity_agent == (agent or "")


def test_no_shell_waits_on_a_terminal(daemon: Daemon, readings: list[Reading]) -> None:
    assert daemon.at_hand({**ORDER, "window": [80, 24]}, nobody) is None
    assert readings == []


@pytest.mark.parametrize(("keep", "how", "idle"), [(None, "pooled", 600.0), (7, "any", 7.0)])
@pytest.mark.parametrize("window", [None, Window(100, 40)])
def test_a_command_that_has_to_wait(
    daemon: Daemon,
    readings: list[Reading],
    keep: float | None,
    how: str,
    idle: float,
    window: Window | None,
) -> None:
    size = None if window is None else [window.columns, window.rows]
    before = time.monotonic()
    assert daemon.open({**ORDER, "keep": keep, "window": size}, nobody) is readings[0].link
    ((asked, target, command, deadline, given),) = readings[0].asked
    assert (asked, target, command, given) == (how, Target("n1", "me", 22), "true", window)
    assert before + 10 <= deadline <= time.monotonic() + 10
    assert daemon.listed()["idle"] == idle


def test_files_are_read_once_a_launcher_and_few_are_remembered(
    daemon: Daemon, readings: list[Reading]
) -> None:
    daemon.open({**ORDER, "run": "kept", "keep": 60}, nobody)
    for number in range(module.MOST_READINGS):
        daemon.open({**ORDER, "run": number}, nobody)
        daemon.at_hand({**ORDER, "run": number}, nobody)
    assert len(readings) == 1 + module.MOST_READINGS
    daemon.open({**ORDER, "run": 0}, nobody)
    daemon.open({**ORDER, "run": "kept"}, nobody)
    assert len(readings) == 1 + module.MOST_READINGS  # all are known
    daemon.open({**ORDER, "run": "one more"}, nobody)
    daemon.open({**ORDER, "run": 1}, nobody)
    daemon.open({**ORDER, "run": "kept"}, nobody)  # made a connection: is not forgotten
    assert len(readings) == 2 + module.MOST_READINGS
    daemon.open({**ORDER, "run": 0}, nobody)  # the oldest was
    assert len(readings) == 3 + module.MOST_READINGS
    assert [reading.closed for reading in readings[:3]] == [False, True, True]
    readings[0].connections = 0
    daemon.open({**ORDER, "run": "another"}, nobody)
    assert readings[0].closed  # with its connections to jump hosts


def test_a_reading_stays_while_it_connects(daemon: Daemon, readings: list[Reading]) -> None:
    def others(*_: Any) -> FarLink:
        for number in range(2 * module.MOST_READINGS):
            daemon.open({**ORDER, "run": number}, nobody)
        return readings[0].link

    daemon.at_hand({**ORDER, "run": "slow"}, nobody)
    readings[0].open = others  # type: ignore[method-assign]
    daemon.open({**ORDER, "run": "slow", "keep": 60}, nobody)
    assert not readings[0].closed
    daemon.open({**ORDER, "run": "next"}, nobody)
    assert readings[0].closed  # nothing came of it


# -- how long it lives --------------------------------------------------------------------


class Ticking:
    """A listener that nobody calls; each wait for a caller takes a second of ``now``."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.limit: float | None = None

    def monotonic(self) -> float:
        return self.now

    def settimeout(self, seconds: float) -> None:
        self.limit = seconds

    def accept(self) -> tuple[socket.socket, str]:
        self.now += 1
        raise TimeoutError


@pytest.mark.parametrize("held_for", [None, 3.0, 20.0])
def test_it_ends_some_seconds_after_it_held_something(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, held_for: float | None
) -> None:
    clock = Ticking()
    monkeypatch.setattr(module, "time", clock)
    until = clock.now + (held_for or 0.0)
    monkeypatch.setattr(pool, "names", lambda: ["n1"] if held_for and clock.now <= until else [])
    Daemon(clock).run()  # type: ignore[arg-type]
    assert clock.limit == module.POLL
    assert clock.now == until + module.LINGER + 1
    # at each look, those that nobody used for so long are closed
    assert pool.dropped == [(600.0, None)] * int(clock.now - 1000)


def test_no_room_for_who_calls_ends_nobody(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Ticking):
        """Three times no descriptor is free."""

        def sleep(self, seconds: float) -> None:
            self.now += seconds

        def accept(self) -> tuple[socket.socket, str]:
            if self.now < 1003:
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    clock = Full()
    monkeypatch.setattr(module, "time", clock)
    Daemon(clock).run()  # type: ignore[arg-type]
    assert clock.now == 1000 + module.LINGER + 1


@pytest.fixture
def running(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Thread]:
    """Looks often; after the test it does not linger."""
    monkeypatch.setattr(module, "POLL", 0.01)
    monkeypatch.setattr(module, "LINGER", 60.0)
    thread = threading.Thread(target=daemon.run, daemon=True)
    thread.start()
    yield thread
    monkeypatch.setattr(module, "LINGER", 0.0)
    thread.join(60)
    assert not thread.is_alive()


def call(listener: socket.socket) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(60)
    caller.connect(listener.getsockname())
    return caller


def answer(caller: socket.socket) -> dict[str, Any]:
    caller.sendall(json_frame(LIST))
    ((_, _, body),) = Decoder().feed(caller.recv(1 << 16))
    return fields(body)


def clients() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "client"}


def test_who_calls_does_not_wait_for_a_host_that_takes_nothing(
    running: threading.Thread,
    listener: socket.socket,
    daemon: Daemon,
    pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries, free = threading.Event(), threading.Event()

    def stand_by(*_: object) -> None:
        tries.set()
        assert free.wait(60)

    monkeypatch.setattr(pool, "stand_by", stand_by)
    with call(listener) as long_job:
        answer(long_job)
        daemon._is_due = True
        assert tries.wait(60)
        with call(listener) as caller:
            assert answer(caller)["pid"] == os.getpid()
        free.set()


def test_it_serves_as_long_as_somebody_calls(
    running: threading.Thread,
    listener: socket.socket,
    pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = clients()
    first, second = call(listener), call(listener)
    for caller in (first, second):
        assert answer(caller)["pid"] == os.getpid()
    monkeypatch.setattr(module, "LINGER", 0.02)
    assert all(thread.daemon for thread in clients() - before)
    looks = len(pool.dropped)
    wait_for(lambda: len(pool.dropped) > looks + 10, 20, "it looks on")
    assert running.is_alive()  # it would have ended by now
    first.close()
    wait_for(lambda: len(clients() - before) == 1, 20, "one has gone")
    # the other may stay for days
    wait_for(lambda: pool.standing_by == [shell.COMMAND], 20, "it makes ready")
    assert answer(second)["pid"] == os.getpid()
    looks = len(pool.dropped)
    wait_for(lambda: len(pool.dropped) > looks + 10, 20, "it looks on")
    assert len(pool.standing_by) == 1
    second.close()
    # by who served the last one, or by who looks as well
    wait_for(lambda: len(pool.standing_by) >= 2, 20, "it makes ready once more")


def test_a_stranger_is_hung_up_on(
    running: threading.Thread,
    listener: socket.socket,
    pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon_socket, "uid_of", lambda link: os.geteuid() + 1)
    with call(listener) as stranger:
        assert stranger.recv(1) == b""
    monkeypatch.setattr(module, "LINGER", 0.0)
    running.join(60)
    assert pool.standing_by == []  # it was no client


# -- the process ----------------------------------------------------------------------------


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What ``main`` does to its process, which is this one: only noted."""
    noted = SimpleNamespace(folder=None, signals={}, forgot=0, preloaded=0, files=None)
    monkeypatch.setattr(os, "chdir", lambda path: setattr(noted, "folder", path))
    monkeypatch.setattr(signal, "signal", lambda number, act: noted.signals.update({number: act}))
    monkeypatch.setattr(resource, "setrlimit", lambda which, to: setattr(noted, "files", to))
    monkeypatch.setattr(module, "preload", lambda alone: setattr(noted, "preloaded", 1))
    monkeypatch.setattr(daemon_socket, "remove_socket", lambda: setattr(noted, "forgot", 1))
    return noted


@pytest.mark.parametrize("fails", [False, True])
def test_what_it_leaves_at_its_end(
    process: SimpleNamespace, pool: Pool, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def run(daemon: Daemon) -> None:
        assert (process.forgot, process.preloaded) == (0, 1)
        if fails:
            raise RuntimeError

    monkeypatch.setattr(daemon_socket, "listen", object)
    monkeypatch.setattr(Daemon, "run", run)
    if fails:
        with pytest.raises(RuntimeError):
            module.main()
    else:
        module.main()
    assert (process.folder, process.forgot, pool.closed) == ("/", 1, 1)
    assert process.signals[signal.SIGHUP] is signal.SIG_IGN
    assert process.files == (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    process.signals[signal.SIGTERM](signal.SIGTERM, None)
    assert ends == [0]


# -- what the launcher's user types ------------------------------------------------------


class Launcher:
    """Answers what the daemon asks, as a launcher does; ``heard`` are the questions."""

    def __init__(self, *typed: str | None) -> None:
        self.typed = list(typed)
        self.heard: list[dict[str, Any]] = []
        self.passwords = Passwords(lambda prompt: self.typed.pop(0) if self.typed else None, "all")

    def __call__(self, **question: Any) -> Any:
        self.heard.append(question)
        sent = json.loads(json.dumps(question))
        return json.loads(json.dumps(pool_transport.answer(self.passwords, sent)))


def test_passwords_stay_with_the_launcher() -> None:
    launcher = Launcher("wrong", "right", "42")
    far = module.FarPasswords(launcher, True, True)
    one, other = (far.of("me", name, jump=False) for name in ("n1", "n2"))
    first, until = object(), time.monotonic() + 10
    assert one.take(first, until) == "wrong"
    assert one.came(first, "n1", "wrong")
    assert one.take(first, until) == "right"
    assert not one.came(first, "n1", "right")
    assert other.take(object(), until) == "right"
    assert far.answer("n2", ["title"], "Code: ") == "42"
    assert far.answer("n2", [], "Code: ") is None
    assert far.ask("passphrase: ") is None
    assert other.why("n2") == "the password was refused"
    assert [question["what"] for question in launcher.heard] == [
        "take", "came", "take", "came", "take", "answer", "answer", "why"
    ]  # fmt: skip
    assert not [value for value in (vars(far), vars(one), vars(other)) if "right" in repr(value)]


def test_a_launcher_that_has_gone_knows_no_password() -> None:
    far = module.FarPasswords(nobody, True, True)
    password = far.of("me", "n1", jump=True)
    assert password.take(object(), time.monotonic()) is None
    assert not password.came(object(), "n1", "wrong")
    assert password.why("n1") == "no answer from the user"
