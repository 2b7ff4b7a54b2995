"""Each way a host can fail has its kind, says why, and ends by the deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cases import cases
from rig import wait_for

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Link, Target
from dispatcher.transport.process.openssh import SshTransport
from dispatcher.transport.ssh.paramiko_transport import ParamikoTransport

from . import hostile
from .conftest import Way, gather, refused
from .sshd import ADDRESS, Sshd, free_port, keygen, start_sshd

Try = Callable[..., Failure]


@pytest.fixture(params=["ssh", "paramiko"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def attempt(kind: str) -> Iterator[Try]:
    """Connects with a config file that must not lead to a command; the failure."""
    with ExitStack() as stack:

        def fail(
            config: str, seconds: float = 60, host: str = "node", **options: object
        ) -> Failure:
            cls = ParamikoTransport if kind == "paramiko" else SshTransport
            way = Way(cls(config=config, **options), host)  # type: ignore[arg-type]
            stack.callback(way.close)
            return way.fail(seconds)

        yield fail


def at_port(sshd: Sshd, port: int) -> str:
    """A config that leads to another port of the same address."""
    config = Path(sshd.config(f"port{port}"))
    text = config.read_text().replace(f"Port {sshd.port}", f"Port {port}")
    config.write_text(text.replace(f"Host port{port}\n", "Host node\n"))
    return str(config)


def fingerprint(sshd: Sshd) -> str:
    from base64 import b64decode

    from dispatcher.transport.ssh_auth.known_hosts import fingerprint

    return fingerprint(b64decode(sshd.public().split()[1]))


def test_unknown_key(own: Sshd, attempt: Try, kind: str) -> None:
    own.known_hosts.write_text("")
    failure = attempt(own.config())
    assert failure.kind is Kind.HOST_KEY_UNKNOWN
    assert not failure.retryable
    assert "ssh-keyscan" in (failure.hint or "")
    if kind == "paramiko":
        assert fingerprint(own) in failure.why
        assert f"-p {own.port} {ADDRESS}" in (failure.hint or "")
    assert own.known_hosts.read_text() == ""


def test_changed_key(own: Sshd, attempt: Try, kind: str, tmp_path: Path) -> None:
    other = keygen(tmp_path / "other")
    own.known_hosts.write_text(f"{own.known_name} {own.public(other)}\n")
    for options in ({}, {"accept_new": True} if kind == "ssh" else {"host_keys": "accept-new"}):
        failure = attempt(own.config(), **options)
        assert failure.kind is Kind.HOST_KEY_CHANGED
        assert "ssh-keygen -R" in (failure.hint or "")
        if kind == "paramiko":
            assert fingerprint(own) in failure.why
            assert f"{own.known_hosts}:1" in failure.why
    assert not any("Accepted" in line for line in own.log)


def test_revoked_key(own: Sshd, attempt: Try) -> None:
    own.known_hosts.write_text(f"{own.known_name} {own.public()}\n@revoked * {own.public()}\n")
    assert attempt(own.config()).kind is Kind.HOST_KEY_REVOKED


def test_refused(sshd: Sshd, attempt: Try) -> None:
    failure = attempt(at_port(sshd, free_port()))
    assert failure.kind is Kind.REFUSED
    assert not failure.retryable


def test_name_not_found(sshd: Sshd, attempt: Try) -> None:
    config = Path(sshd.config("nowhere"))
    # An empty label fails in the resolver itself: no question leaves this host.
    config.write_text(config.read_text().replace(f"HostName {ADDRESS}", "HostName a..b"))
    assert attempt(str(config), host="nowhere").kind is Kind.DNS


def test_login_refused(sshd: Sshd, attempt: Try, tmp_path: Path) -> None:
    failure = attempt(sshd.config("stranger", key=keygen(tmp_path / "stranger")), host="stranger")
    assert failure.kind is Kind.AUTH
    assert not failure.retryable


def test_no_key_at_all(sshd: Sshd, attempt: Try, tmp_path: Path) -> None:
    failure = attempt(sshd.config("keyless", key=tmp_path / "missing"), host="keyless")
    assert failure.kind is Kind.AUTH


@pytest.mark.parametrize(
    ("peer", "step"), [(hostile.silent, "ssh banner"), (hostile.banner_only, "key exchange")]
)
def test_tarpit_ends_at_the_deadline(
    sshd: Sshd, peer: Callable[[socket.socket], None], step: str
) -> None:
    before = set(threading.enumerate())
    with hostile.listener(peer) as port:
        transport = ParamikoTransport(config=at_port(sshd, port))
        started = time.monotonic()
        failure = transport.open(Target("node"), "true", started + 6)
        assert isinstance(failure, Failure)
        assert failure.kind is Kind.TIMEOUT
        assert step in failure.why
        assert 5.9 < time.monotonic() - started < 30
        transport.close()

    def left() -> list[threading.Thread]:
        new = set(threading.enumerate()) - before
        return [thread for thread in new if "paramiko" in repr(thread).lower()]

    wait_for(lambda: not left(), 30, left)


def test_tarpit_with_ssh(sshd: Sshd) -> None:
    with hostile.listener(hostile.silent) as port:
        way = Way(SshTransport(config=at_port(sshd, port)), "node")
        started = time.monotonic()
        link = way.transport.open(way.target, "true", started + 1)
        assert isinstance(link, Link)
        gather(link)
        failure = link.failure(30)
        assert failure is not None
        assert failure.kind is Kind.TIMEOUT
        assert time.monotonic() - started < 30
        link.close()
        way.transport.close()


@pytest.mark.parametrize("peer", [hostile.hangs_up, hostile.over_limit])
def test_dropped_before_the_banner(
    sshd: Sshd, attempt: Try, peer: Callable[[socket.socket], None]
) -> None:
    with hostile.listener(peer) as port:
        failure = attempt(at_port(sshd, port))
    assert failure.kind is Kind.DROPPED
    assert failure.retryable


def test_locked_out_is_not_tried_again(sshd: Sshd, attempt: Try, kind: str) -> None:
    with hostile.listener(hostile.locked_out) as port:
        failure = attempt(at_port(sshd, port))
    assert failure.kind is Kind.DROPPED
    if kind == "paramiko":  # ssh does not pass on what it was told
        assert not failure.retryable
        assert "not allowed at this time" in failure.why.lower()


@pytest.mark.parametrize("peer", [hostile.web_server, hostile.endless_line])
def test_not_an_sshd(sshd: Sshd, peer: Callable[[socket.socket], None]) -> None:
    with hostile.listener(peer) as port:
        refused(at_port(sshd, port), Kind.PROTOCOL, "no ssh banner")


def test_max_startups(tmp_path: Path, attempt: Try) -> None:
    with start_sshd(tmp_path / "busy", "MaxStartups 1:100:1", "LoginGraceTime 120") as server:
        with socket.create_connection((ADDRESS, server.port)) as holder:
            assert holder.recv(4) == b"SSH-"  # it has the only place now
            failure = attempt(server.config())
        assert failure.kind is Kind.DROPPED
        assert failure.retryable


@cases(
    ("option", "kind_", "words"),
    [
        ("Ciphers aes128-cbc,aes256-cbc", Kind.PROTOCOL, "cipher"),
        ("MaxSessions 0", Kind.DROPPED, "channel"),
    ],
)
def test_what_an_sshd_does_not_offer(tmp_path: Path, option: str, kind_: Kind, words: str) -> None:
    with start_sshd(tmp_path / "lacks", option) as server:
        refused(server.config(), kind_, words)


def test_sshd_dies_under_a_link(tmp_path: Path, kind: str) -> None:
    server = start_sshd(tmp_path / "mortal")
    cls = ParamikoTransport if kind == "paramiko" else SshTransport
    way = Way(cls(config=server.config()), "node")
    link = way.open("echo $PPID; exec cat")
    output = bytearray()
    rang = threading.Event()
    link.watch(rang.set)
    while not output.endswith(b"\n"):
        assert rang.wait(60)
        rang.clear()
        output += link.read(100) or b""
    import os
    import signal

    os.kill(int(output), signal.SIGKILL)  # the sshd process of this connection
    assert gather(link)[0] == b""
    assert link.ending(30).code is None
    way.close()
    server.stop()
