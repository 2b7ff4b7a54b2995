"""Jump hosts and proxy commands: shared connections, nesting, failures on the way."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from open_files import open_files
from rig import wait_for

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Link, Target
from dispatcher.transport.ssh import byte_stream
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport

from ..conftest import gather, open_all, refused
from ..sshd import ADDRESS, Sshd, free_port, start_sshd
from ..zombies import zombies

RELAY = """
import os, selectors, socket, sys
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
selector = selectors.DefaultSelector()
selector.register(0, selectors.EVENT_READ)
selector.register(link, selectors.EVENT_READ)
sys.stderr.write("relay up\\n" * 20000); sys.stderr.flush()
while True:
    for key, _ in selector.select():
        data = os.read(0, 65536) if key.fd == 0 else link.recv(65536)
        if not data:
            sys.exit()
        link.sendall(data) if key.fd == 0 else os.write(1, data)
"""


def config(sshd: Sshd, *blocks: str) -> str:
    """A config with extra host blocks; every name leads to the one sshd."""
    path = Path(sshd.config("base"))
    text = path.read_text().replace("Host base\n", "Host base jump jump2 node node?\n")
    path.write_text("\n".join(blocks) + "\n" + text)
    return str(path)


@pytest.fixture
def transports() -> Iterator[list[ParamikoTransport]]:
    made: list[ParamikoTransport] = []
    yield made
    for transport in made:
        transport.close()


def logins(sshd: Sshd) -> int:
    return sum("Accepted publickey" in line for line in sshd.log)


def test_one_login_at_the_jump_host_for_all_behind_it(
    own: Sshd, transports: list[ParamikoTransport]
) -> None:
    transport = ParamikoTransport(config=config(own, "Host node?\n  ProxyJump jump"))
    transports.append(transport)
    links = open_all(transport, [f"node{n}" for n in range(8)], "echo in")
    for link in links:
        assert isinstance(link, Link), link
        assert gather(link)[0] == b"in\n"
        link.close()
    assert logins(own) == 9
    again = transport.open(Target("node1"), "true", time.monotonic() + 40)
    assert isinstance(again, Link)
    again.close()
    assert logins(own) == 10


@pytest.mark.parametrize(
    "blocks",
    [
        ["Host node\n  ProxyJump jump,jump2"],
        ["Host node\n  ProxyJump jump2", "Host jump2\n  ProxyJump jump"],
    ],
)
def test_two_jumps(own: Sshd, transports: list[ParamikoTransport], blocks: list[str]) -> None:
    transport = ParamikoTransport(config=config(own, *blocks))
    transports.append(transport)
    link = transport.open(Target("node"), "cat", time.monotonic() + 40)
    assert isinstance(link, Link), link
    assert logins(own) == 3
    link.write(b"x" * 300_000)
    received = bytearray()
    rang = threading.Event()
    link.watch(rang.set)
    while len(received) < 300_000:
        data = link.read(65536)
        if data is None:
            assert rang.wait(60)
            rang.clear()
        else:
            received += data
    link.close()


def test_jump_through_itself(own: Sshd) -> None:
    refused(config(own, "Host *\n  ProxyJump jump"), Kind.CONFIG, "through itself")


def test_jump_host_that_refuses_us_is_asked_once(
    own: Sshd, transports: list[ParamikoTransport]
) -> None:
    path = config(own, "Host node?\n  ProxyJump jump")
    (own.folder / "authorized_keys").write_text("")
    transport = ParamikoTransport(config=path)
    transports.append(transport)
    for failure in open_all(transport, [f"node{n}" for n in range(6)]):
        assert isinstance(failure, Failure)
        assert failure.kind is Kind.AUTH
        assert failure.why.startswith("jump host jump:")
    deadline = time.monotonic() + 30
    while not any("Failed publickey" in line or "Connection closed" in line for line in own.log):
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    assert sum("Connection from" in line for line in own.log) == 1


def test_host_behind_the_jump_host_is_down(own: Sshd, transports: list[ParamikoTransport]) -> None:
    block = f"Host dead\n  HostName {ADDRESS}\n  Port {free_port()}\n  ProxyJump jump"
    transport = ParamikoTransport(config=config(own, block))
    transports.append(transport)
    failure = transport.open(Target("dead"), "true", time.monotonic() + 40)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.REFUSED
    assert "jump host jump" in failure.why
    # the jump host is as good as before
    link = transport.open(Target("jump"), "true", time.monotonic() + 40)
    assert isinstance(link, Link)
    link.close()


def test_jump_host_without_forwarding(tmp_path: Path) -> None:
    with start_sshd(tmp_path / "closed", "AllowTcpForwarding no") as server:
        path = config(server, "Host node\n  ProxyJump jump")
        refused(path, Kind.UNREACHABLE, "prohibited")


def proxy(sshd: Sshd, command: str) -> str:
    return config(sshd, f"Host node\n  ProxyCommand {command}")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a proxy command says last, and its end, are waited for however busy the machine is."""
    monkeypatch.setattr(byte_stream, "_LAST_WORDS", 60.0)
    monkeypatch.setattr(byte_stream, "_REAPED_IN", 60.0)


@pytest.mark.usefixtures("patient")
def test_proxy_command(own: Sshd, tmp_path: Path, transports: list[ParamikoTransport]) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(RELAY)
    transport = ParamikoTransport(config=proxy(own, f"{sys.executable} {relay} %h %p"))
    transports.append(transport)
    before, unreaped = open_files(), zombies()
    for _ in range(3):
        link = transport.open(Target("node"), "echo in; cat", time.monotonic() + 40)
        assert isinstance(link, Link), link
        started = time.monotonic()
        link.close()
        assert time.monotonic() - started < 15
    transport.close()
    wait_for(lambda: open_files() <= before, 30, lambda: open_files() - before)
    assert zombies() <= unreaped


@pytest.mark.usefixtures("patient")
def test_proxy_command_that_fails(own: Sshd) -> None:
    refused(proxy(own, "sh -c 'echo no way >&2; exit 1'"), Kind.DROPPED, "no way")


def test_proxy_command_that_hangs(own: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_stream, "_REAPED_IN", 60.0)
    unreaped, started = zombies(), time.monotonic()
    refused(proxy(own, "sleep 100"), Kind.TIMEOUT, seconds=1)
    assert time.monotonic() - started < 30
    assert zombies() <= unreaped
