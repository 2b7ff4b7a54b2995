"""Connecting: every address gets its turn, and nothing outlasts the deadline."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.ssh import dial as module
from dispatcher.transport.ssh.dial import dial

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
    sock = dial(ADDRESS, server.getsockname()[1], time.monotonic() + 40)
    assert isinstance(sock, socket.socket)
    with sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) > 0
        assert sock.gettimeout() is None


def test_second_address_when_the_first_refuses(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, "127.0.0.43", ADDRESS)
    sock = dial("name", server.getsockname()[1], time.monotonic() + 40)
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
        sock = dial("name", port, started + 30)
        assert isinstance(sock, socket.socket)
        with sock:
            assert sock.getpeername()[0] == ADDRESS
        assert time.monotonic() - started < 20
        for filler in fillers:
            filler.close()


def test_families_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "::1", "::2", "127.0.0.1", "127.0.0.2")
    found = module.look_up("name", 1, time.monotonic() + 40, socket.AF_UNSPEC)
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
        assert 0.4 < time.monotonic() - started < 20
        for filler in fillers:
            filler.close()


def test_refused_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "127.0.0.43", "127.0.0.44")
    failure = dial("name", free_port("127.0.0.43"), time.monotonic() + 40)
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.REFUSED
    assert "127.0.0.43" in failure.why
    assert "127.0.0.44" in failure.why


def test_resolver_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def never(host: str, port: int, *rest: int) -> list[object]:
        if rest[3] & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        release.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", never)
    started = time.monotonic()
    failure = dial("name", 22, started + 0.3)
    release.set()
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.TIMEOUT
    assert "name lookup" in failure.why
    assert time.monotonic() - started < 20


@cases(("code", "retryable"), [(socket.EAI_AGAIN, True), (socket.EAI_NONAME, False)])
def test_resolver_says_no(monkeypatch: pytest.MonkeyPatch, code: int, retryable: bool) -> None:
    def no(*_: object) -> list[object]:
        raise socket.gaierror(code, "no such luck")

    monkeypatch.setattr(socket, "getaddrinfo", no)
    failure = dial("name", 22, time.monotonic() + 40)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.retryable) == (Kind.DNS, retryable)
    assert "no such luck" in failure.why


def test_source_address(server: socket.socket) -> None:
    sock = dial(ADDRESS, server.getsockname()[1], time.monotonic() + 40, source="127.0.0.45")
    assert isinstance(sock, socket.socket)
    with sock:
        assert sock.getsockname()[0] == "127.0.0.45"
    failure = dial(ADDRESS, server.getsockname()[1], time.monotonic() + 40, source="not-ours")
    assert isinstance(failure, Failure)


# -- why not ------------------------------------------------------------------------------


class Failing(socket.socket):
    """Fails at once, as the test says of the address."""

    codes: dict[str, int]

    def connect_ex(self, address: Any) -> int:
        return self.codes[address[0]]


@cases(
    ("codes", "kind", "retryable"),
    [
        ({"127.0.0.43": errno.ECONNREFUSED}, Kind.REFUSED, False),
        ({"127.0.0.43": errno.ECONNREFUSED, "127.0.0.44": errno.ECONNREFUSED}, Kind.REFUSED, False),
        ({"127.0.0.43": errno.EHOSTUNREACH, "127.0.0.44": errno.ECONNREFUSED},
         Kind.REFUSED, False),
        ({"127.0.0.43": errno.ETIMEDOUT, "127.0.0.44": errno.EHOSTUNREACH},
         Kind.TIMEOUT, False),
        ({"127.0.0.43": errno.EHOSTUNREACH, "127.0.0.44": errno.ENETUNREACH},
         Kind.UNREACHABLE, False),
        *(({"127.0.0.43": code, "127.0.0.44": errno.ENETUNREACH}, Kind.UNREACHABLE, True)
          for code in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM,
                       errno.EADDRNOTAVAIL, errno.ECONNRESET)),
    ],
)  # fmt: skip
def test_what_the_system_says(
    monkeypatch: pytest.MonkeyPatch, codes: dict[str, int], kind: Kind, retryable: bool
) -> None:
    pretend(monkeypatch, *codes)
    monkeypatch.setattr(Failing, "codes", codes, raising=False)
    monkeypatch.setattr(socket, "socket", Failing)
    said = "; ".join(f"{text}: {os.strerror(code).lower()}" for text, code in codes.items())
    if {*codes.values()} == {errno.ECONNREFUSED}:
        said = ", ".join(codes)  # the kind says it
    hint = "is sshd running on name?" if kind is Kind.REFUSED else None
    failure = dial("name", 2222, time.monotonic() + 20)
    assert failure == Failure(kind, f"{said} (port 2222)", hint, retryable)


def test_a_source_that_is_not_ours() -> None:
    failure = dial(ADDRESS, 22, time.monotonic() + 20, source="203.0.113.9")
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.retryable) == (Kind.UNREACHABLE, True)


def test_a_name_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    failure = dial("name", 22, time.monotonic() + 20)
    assert failure == Failure(Kind.UNREACHABLE, "no address (port 22)")


def test_those_who_are_silent_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the others said."""

    class Silent(socket.socket):
        def connect_ex(self, address: Any) -> int:
            return errno.EINPROGRESS if address[0] < "127.0.0.46" else errno.ECONNREFUSED

    pretend(monkeypatch, "127.0.0.43", "127.0.0.46", "127.0.0.44", "127.0.0.45")
    monkeypatch.setattr(socket, "socket", Silent)
    monkeypatch.setattr(module, "_STAGGER", 0.3)

    now = [100.0]

    class Deaf:
        """Nobody answers."""

        def register(self, *_: object) -> None: ...

        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            now[0] += milliseconds / 1000
            return []

    monkeypatch.setattr(select, "poll", Deaf)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    failure = dial("name", 22, now[0] + 0.4)
    assert failure == Failure(
        Kind.TIMEOUT,
        "connection: no answer from 127.0.0.43, 127.0.0.44, 127.0.0.45 port 22; "
        "127.0.0.46: connection refused",
    )


# -- looking up -----------------------------------------------------------------------------


@cases("name", ["a..b", "x" * 70 + ".org", "\udc80"])
def test_what_is_no_name_at_all(name: str) -> None:
    failure = dial(name, 22, time.monotonic() + 20)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.hint) == (Kind.DNS, f"getent hosts {name}")
    assert failure.why.startswith(f"{name}: ")


def test_an_address_is_looked_up_by_nobody(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []
    real = socket.getaddrinfo

    def ask(*words: Any) -> Any:
        asked.append(words)
        return real(*words)

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    port = server.getsockname()[1]
    sock = dial(ADDRESS, port, time.monotonic() + 20, family=socket.AF_INET)
    assert isinstance(sock, socket.socket)
    sock.close()
    numeric = socket.AI_NUMERICHOST
    assert asked == [(ADDRESS, port, socket.AF_INET, socket.SOCK_STREAM, 0, numeric)]
    failure = dial(ADDRESS, port, time.monotonic() + 20, family=socket.AF_INET6)
    assert isinstance(failure, Failure)  # and so are those of another family
    assert failure.kind is Kind.DNS
    assert [words[2] for words in asked[1:]] == [socket.AF_INET6] * 2
