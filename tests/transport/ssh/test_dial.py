"""Connecting: every address gets its turn, and nothing outlasts the deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.ssh import dial as module
from dispatcher.transport.ssh.dial import dial

from ..open_files import open_files
from ..sshd import ADDRESS, free_port


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server((ADDRESS, 0)) as listening:
        yield listening


def pretend(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """The resolver answers with these addresses for any name."""

    def answer(host: str, port: int, *rest: int) -> list[object]:
        if rest[3] & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        kinds = {True: socket.AF_INET6, False: socket.AF_INET}
        return [
            (kinds[":" in address], socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


def full(address: str = "127.0.0.42") -> socket.socket:
    """A listening socket whose queue is full: connections to it get no answer."""
    listening = socket.socket()
    listening.bind((address, 0))
    listening.listen(0)
    return listening


def test_connects_without_delay_on_small_writes(server: socket.socket) -> None:
    sock = dial(ADDRESS, server.getsockname()[1], time.monotonic() + 5)
    assert isinstance(sock, socket.socket)
    with sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) > 0
        assert sock.gettimeout() is None


def test_second_address_when_the_first_refuses(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, "127.0.0.43", ADDRESS)
    sock = dial("name", server.getsockname()[1], time.monotonic() + 5)
    assert isinstance(sock, socket.socket)
    with sock:
        assert sock.getpeername()[0] == ADDRESS


def test_second_address_when_the_first_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with full() as silent, socket.socket() as listening:
        port = silent.getsockname()[1]
        listening.bind((ADDRESS, port))
        listening.listen(5)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.42", port))
        pretend(monkeypatch, "127.0.0.42", ADDRESS)
        started = time.monotonic()
        sock = dial("name", port, started + 5)
        assert isinstance(sock, socket.socket)
        with sock:
            assert sock.getpeername()[0] == ADDRESS
        assert time.monotonic() - started < 6
        for filler in fillers:
            filler.close()


def test_families_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "::1", "::2", "127.0.0.1", "127.0.0.2")
    found = module.look_up("name", 1, time.monotonic() + 5, socket.AF_UNSPEC)
    assert not isinstance(found, Failure)
    assert [address[0] for _, address in found] == ["::1", "127.0.0.1", "::2", "127.0.0.2"]


def test_silence_ends_at_the_deadline() -> None:
    with full() as silent:
        address = silent.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        started = time.monotonic()
        failure = dial(address[0], address[1], started + 0.5)
        assert isinstance(failure, Failure)
        assert failure.kind is Kind.TIMEOUT
        assert 0.4 < time.monotonic() - started < 5
        for filler in fillers:
            filler.close()


def test_refused_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "127.0.0.43", "127.0.0.44")
    failure = dial("name", free_port("127.0.0.43"), time.monotonic() + 5)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.REFUSED
    assert "127.0.0.43" in failure.why
    assert "127.0.0.44" in failure.why


def test_resolver_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def never(host: str, port: int, *rest: int) -> list[object]:
        if rest[3] & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        release.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", never)
    started = time.monotonic()
    failure = dial("name", 22, started + 0.3)
    release.set()
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.TIMEOUT
    assert "name lookup" in failure.why
    assert time.monotonic() - started < 6


@pytest.mark.parametrize(
    ("code", "retryable"), [(socket.EAI_AGAIN, True), (socket.EAI_NONAME, False)]
)
def test_resolver_says_no(monkeypatch: pytest.MonkeyPatch, code: int, retryable: bool) -> None:
    def no(*_: object) -> list[object]:
        raise socket.gaierror(code, "no such luck")

    monkeypatch.setattr(socket, "getaddrinfo", no)
    failure = dial("name", 22, time.monotonic() + 5)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.retryable) == (Kind.DNS, retryable)
    assert "no such luck" in failure.why


def test_source_address(server: socket.socket) -> None:
    sock = dial(ADDRESS, server.getsockname()[1], time.monotonic() + 5, source="127.0.0.45")
    assert isinstance(sock, socket.socket)
    with sock:
        assert sock.getsockname()[0] == "127.0.0.45"
    failure = dial(ADDRESS, server.getsockname()[1], time.monotonic() + 5, source="not-ours")
    assert isinstance(failure, Failure)


def test_no_descriptor_is_left(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "127.0.0.43", "::1", ADDRESS)
    before = open_files()
    for _ in range(3):
        sock = dial("name", server.getsockname()[1], time.monotonic() + 5)
        assert isinstance(sock, socket.socket)
        sock.close()
        assert isinstance(dial("name", free_port(), time.monotonic() + 5), Failure)
    assert open_files() <= before
