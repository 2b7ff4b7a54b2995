"""Calls of a survey between hosts, in this process: who listens, who calls, and for how long.

The half of ``probes`` that opens connections.
"""

from __future__ import annotations

import errno
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from dispatcher.remote.probe import probes

#: what a call opens goes with the process that a survey makes for it
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture
def sockets() -> Iterator[None]:
    """What was left open goes now, not in another test, which would be warned."""
    yield
    gc.collect()


def soon(seconds: float = 30.0) -> float:
    """A deadline that nobody should meet."""
    return time.monotonic() + seconds


@pytest.fixture
def port() -> int:
    return probes.free_port()


def test_a_free_port_can_be_had(port: int) -> None:
    assert probes.free_port() > 1023
    with socket.socket() as sock:
        sock.bind(("", port))


class Beside:
    """A function in a thread of its own; ``result`` waits for its answer."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._found: list[Any] = []
        self._thread = threading.Thread(
            target=lambda: self._found.append(function(*arguments)), daemon=True
        )
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(60)
        assert self._found
        return self._found[0]


def oversleeping(monkeypatch: pytest.MonkeyPatch) -> float:
    """A deadline that passes while a call sleeps for the first time, and not before."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += 60.0

    monkeypatch.setattr(probes, "monotonic", lambda: now[0])
    monkeypatch.setattr(probes, "sleep", sleep)
    return 130.0


@pytest.mark.usefixtures("sockets")
class TestMeeting:
    @pytest.fixture(autouse=True)
    def name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DISPATCH_INDEX", "2")

    def test_callers_are_counted_once(self, port: int) -> None:
        """By what they say: one that calls twice, or says nothing, is nobody more."""
        waits = Beside(probes.await_calls, port, 2, soon())
        for word in (b"1", b"1", b"", b"2"):
            with closing(probes.connect("127.0.0.1", port, soon())) as caller:
                caller.send(word)
                if word:
                    caller.recv(1)
        assert waits.result() == []

    def test_it_is_over_when_time_is_up_or_nobody_is_to_come(self, port: int) -> None:
        assert probes.await_calls(port, 0, soon()) == []
        assert probes.await_calls(port, 1, soon(0.2)) == []

    @pytest.mark.parametrize(
        ("last", "why"), [("it is taken", "it is taken"), (None, "cannot listen")]
    )
    def test_who_cannot_listen_says_why(
        self, port: int, monkeypatch: pytest.MonkeyPatch, last: str | None, why: str
    ) -> None:
        """The last reason counts: where there is no IPv6, the first says only that."""
        asked: list[str] = []

        def refuse(address: str, port: int) -> None:
            asked.append(address)
            raise OSError(errno.EADDRINUSE, "no such family" if address else last)

        monkeypatch.setattr(probes, "listener", refuse)
        assert probes.await_calls(port, 1, soon()) == [["", why]]
        assert asked == ["::", ""]

    @pytest.mark.parametrize(("said", "why"), [("no way", "no way"), (None, "no answer")])
    def test_who_cannot_call_says_why(
        self, port: int, monkeypatch: pytest.MonkeyPatch, said: str | None, why: str
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.EHOSTUNREACH, said)

        monkeypatch.setattr(probes, "connect", refuse)
        assert probes.announce("a", port, soon()) == why
        assert probes.pair({"2": ["call", "a", port]}, 0.1, 20.0) == [None, None, why]

    def test_a_caller_says_who_it_is(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        with closing(probes.listener("127.0.0.1", port)) as door:
            calls = Beside(probes.announce, "127.0.0.1", port, soon())
            line = socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            assert line.recv(9) == b"2"
            line.close()
            assert calls.result() == ""
        assert probes.announce("no address", port, soon()) != ""
        until = oversleeping(monkeypatch)
        assert probes.announce("127.0.0.1", port, until) == "Connection refused"

    def test_addresses_are_tried_in_turn(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first has two thirds of the time, each further one a second at most."""
        asked: list[tuple[str, float]] = []
        answers: dict[str, str] = {}
        now = [100.0]

        def announce(address: str, number: int, until: float) -> str:
            assert number == port
            asked.append((address, round(until - 100.0, 3)))
            now[0] += 5.0
            return answers.get(address, "no answer")

        monkeypatch.setattr(probes, "announce", announce)
        monkeypatch.setattr(probes, "monotonic", lambda: now[0])
        assert probes.meet(["a", "b", "c"], port, 30.0) == [
            ["a", "no answer"], ["b", "no answer"], ["c", "no answer"],
        ]  # fmt: skip
        assert asked == [("a", 20.0), ("b", 6.0), ("c", 11.0)]
        answers["b"] = ""
        now[0] = 100.0
        assert probes.meet(["a", "b", "c"], port, 30.0)[1:] == [["b", ""]]
        now[0] = 100.0
        assert probes.meet(["a", "c"], port, 5.0) == [["a", "no answer"]]  # time is up


@pytest.mark.usefixtures("sockets")
class TestPair:
    def test_round_trips_end_with_the_other_end(self, port: int) -> None:
        """The one who listens hangs up after three: the middle one of the times counts."""
        found: list[Any] = [None, None, ""]
        most, since = [], time.monotonic()  # that each may have taken, as we see it
        with closing(probes.listener("127.0.0.1", port)) as door:
            calls = Beside(attempt, probes.call, "127.0.0.1", port, 0.1, soon(), found)
            line = socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            assert line.recv(1) == probes.PING
            line.recv(1)
            for pause in (0.0, 1.0, 0.0):
                time.sleep(pause)
                before = time.monotonic()
                line.send(b"x")
                line.recv(1)
                most.append(time.monotonic() - since)
                since = before
            line.close()
            line = socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            assert line.recv(1) == probes.SEND
            line.close()
            line = socket.socket(fileno=door._accept()[0])  # type: ignore[attr-defined]
            assert line.recv(1) == probes.RECEIVE
            line.sendall(b"x" * 1000)
            line.close()
            assert calls.result() is None
        assert 0 < found[0] <= sorted(most)[1]
        assert found[1] > 0

    @pytest.mark.parametrize(
        ("address", "others"), [("127.0.0.1", ()), ("::", ("127.0.0.1", "::1"))]
    )
    def test_where_one_listens(self, port: int, address: str, others: tuple[str, ...]) -> None:
        if ":" in address and not os.path.exists("/proc/net/if_inet6"):
            pytest.skip("no IPv6 on this machine")
        for _ in range(2):  # at once again, though connections of the first time linger
            with closing(probes.listener(address, port)):
                for other in others or (address,):
                    with closing(probes.connect(other, port, soon())) as line:
                        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                        assert 20 < (line.gettimeout() or 0) <= 30

    def test_who_listens_later_is_waited_for(
        self, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = Beside(probes.connect, "127.0.0.1", port, soon())
        time.sleep(0.1)
        with closing(probes.listener("127.0.0.1", port)):
            calls.result().close()
        until = oversleeping(monkeypatch)
        with pytest.raises(ConnectionRefusedError):
            probes.connect("127.0.0.1", port, until)


def attempt(function: Any, *arguments: Any) -> Exception | None:
    """What the function raises."""
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None
