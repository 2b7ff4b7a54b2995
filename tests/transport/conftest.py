"""Fixtures: the session's sshd, and one way per transport for the contract suite."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dispatcher.bootstrap import payload
from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Link, Target, Transport
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_socket import LIST, ask_daemon
from dispatcher.transport.pool.pool_transport import PoolTransport
from dispatcher.transport.process.command import CommandTransport, LocalTransport, template
from dispatcher.transport.process.openssh import SshTransport
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport
from dispatcher.transport.tree.topology import HostTree
from dispatcher.transport.tree.tree_transport import TreeTransport

from .sshd import Sshd, start_sshd


class Way:
    """A transport with a target, and ways to wait for what its links do."""

    kind = ""

    def __init__(self, transport: Transport, host: str) -> None:
        self.transport = transport
        self.target = Target(host)
        self.links: list[Link] = []

    def open(self, command: str, seconds: float = 40) -> Link:
        link = self.transport.open(self.target, command, time.monotonic() + seconds)
        assert isinstance(link, Link), link
        self.links.append(link)
        return link

    def fail(self, seconds: float = 40) -> Failure:
        """The failure of an attempt that must not succeed, at once or by its first end."""
        link = self.transport.open(self.target, "echo reached", time.monotonic() + seconds)
        if isinstance(link, Failure):
            return link
        self.links.append(link)
        gather(link, seconds)  # all that it says, before it is asked why
        failure = link.failure(seconds)
        assert failure is not None, "the host was reached"
        return failure

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.transport.close()


@pytest.fixture
def most_held() -> Iterator[Callable[[], int]]:
    """How many bytes of Python's were held at most since the test began.

    The process's own peak would not tell: an earlier test may have taken more.
    """
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def gather(link: Link, seconds: float = 60) -> tuple[bytes, bytes]:
    """All output and all error output of a link, each to its own end."""
    reader = Reader(link)
    reader.until(lambda: reader.ended and link.errors_ended(), seconds)
    return bytes(reader.output), bytes(reader.errors)


class Reader:
    """The owner's side of a link: reads when told that something is ready."""

    def __init__(self, link: Link, limit: int = 65536) -> None:
        self.link = link
        self.limit = limit
        self.output = bytearray()
        self.errors = bytearray()
        self.ended = False
        self._ready = threading.Event()
        link.watch(self._ready.set)

    def until(self, enough: object, seconds: float = 60) -> None:
        assert callable(enough)
        deadline = time.monotonic() + seconds
        self._read()
        while not enough():
            left = deadline - time.monotonic()
            assert left > 0, f"not in time; output so far: {bytes(self.output[:200])!r}"
            self._ready.wait(left)
            self._ready.clear()
            self._read()

    def _read(self) -> None:
        while not self.ended:
            data = self.link.read(self.limit)
            if data is None:
                break
            self.ended = data == b""
            self.output += data
        while errors := self.link.read_errors(self.limit):
            self.errors += errors


def log_in(config: str, host: str = "node", seconds: float = 40, **how: Any) -> Link | Failure:
    """What comes of the built-in client's way to a host; a link has been tried, and is closed."""
    transport = ParamikoTransport(config=config, **how)
    opened = transport.open(Target(host), "echo in", time.monotonic() + seconds)
    if isinstance(opened, Link):
        assert gather(opened)[0] == b"in\n"
        opened.close()
    transport.close()
    return opened


def accepted(config: str, **how: Any) -> None:
    """It leads to the host."""
    opened = log_in(config, **how)
    assert isinstance(opened, Link), opened


def refused(config: str, kind: Kind, words: str = "", **how: Any) -> Failure:
    """It does not, for a reason of that kind, and says these words."""
    failure = log_in(config, **how)
    assert isinstance(failure, Failure), "the host was reached"
    assert (failure.kind, words in failure.why) == (kind, True), failure
    return failure


def open_all(
    transport: ParamikoTransport, hosts: Sequence[str], command: str = "true"
) -> list[Link | Failure]:
    """All of ``hosts`` at once, each from a thread of its own."""
    with ThreadPoolExecutor(len(hosts)) as threads:
        until = time.monotonic() + 60
        return list(threads.map(lambda host: transport.open(Target(host), command, until), hosts))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Sshd]:
    """An sshd of this test alone."""
    with start_sshd(tmp_path / "own") as server:
        yield server


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = start_sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    for tree in _trees:
        tree.close()
    server.stop()


def make_way(kind: str, sshd: Sshd | None) -> Way:
    if kind == "local":
        return Way(LocalTransport(), "anything")
    if kind == "command":
        return Way(CommandTransport(template("env NODE={host} sh -c {command}")), "node")
    assert sshd is not None
    if kind == "ssh":
        if shutil.which("ssh") is None:
            pytest.skip("needs the ssh program")
        return Way(SshTransport(config=sshd.config()), "node")
    if kind == "tree":
        return SharedWay(tree_to(sshd), "leaf")
    if kind == "daemon":
        way = Way(PoolTransport(_nobody_else, keep=60.0, config=sshd.config()), "node")
        daemon_socket.dial_or_start().close()
        return way
    return Way(ParamikoTransport(config=sshd.config(), keep=kind == "kept"), "node")


class SharedWay(Way):
    """A way whose transport other tests use as well."""

    def close(self) -> None:
        for link in self.links:
            link.close()


_trees: list[TreeTransport] = []


def tree_to(sshd: Sshd) -> TreeTransport:
    """A host that is reached through another, both the same sshd; one tree for many tests."""
    if _trees and not _trees[-1].closed:
        return _trees[-1]
    config = sshd.config("head leaf")
    transport = TreeTransport(
        [Target("head"), Target("leaf")],
        HostTree((None, 0)),
        ParamikoTransport(config=config),
        command=payload.command(),
        config=config,
        program=("ssh", "-F", config),
    )
    _trees.append(transport)
    return transport


def _nobody_else() -> Transport:
    raise AssertionError("the daemon serves")


@pytest.fixture(scope="session")
def _runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = str(tmp_path_factory.mktemp("runtime"))
    yield folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        end_daemon()


@pytest.fixture
def own_daemon(_runtime_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon of connections for these tests alone, ended after all of them."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", _runtime_folder)


def end_daemon() -> None:
    """End the daemon there is, if any, and wait until it is gone."""
    said = ask_daemon(LIST)
    if said is None:
        return
    pid = said["pid"]
    end = os.pidfd_open(pid)
    signal.pidfd_send_signal(end, signal.SIGTERM)
    select.select([end], [], [], 30)
    os.close(end)


ALL = ("local", "command", "ssh", "paramiko", "kept", "daemon", "tree")
OVER_SSH = ("ssh", "paramiko", "kept", "daemon", "tree")


@pytest.fixture(params=ALL)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    kind = request.param
    if kind == "daemon":
        request.getfixturevalue("own_daemon")
    made = make_way(kind, request.getfixturevalue("sshd") if kind in OVER_SSH else None)
    made.kind = kind
    yield made
    made.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    """An empty ssh-agent; its socket's path."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("needs ssh-agent")
    path = str(tmp_path / "agent")
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not _listens(path):
        assert time.monotonic() < deadline
        assert process.poll() is None
        threading.Event().wait(0.01)
    yield path
    process.kill()
    process.wait(60)


def _listens(path: str) -> bool:
    """Whether somebody takes calls there; the socket has its name before."""
    with socket.socket(socket.AF_UNIX) as link:
        return link.connect_ex(path) == 0
