"""The port where the ranks meet: kept from everybody but them, and proved to be reachable."""

from __future__ import annotations

import _socket
import errno
import gc
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from open_files import open_files
from rig import wait_for

from dispatcher.remote.agent import rendezvous_port
from dispatcher.remote.agent.rendezvous_port import RendezvousPort, probe
from remote.driver import Agent

TOKEN = b"0123456789abcdef"

#: in a network of its own with 20 ports to give away: who gets the reserved one?
ALL_PORTS = """
import socket, sys
from dispatcher.remote.agent import rendezvous_port
from dispatcher.remote.agent.rendezvous_port import RendezvousPort
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("40000 40019")
rendezvous = RendezvousPort(b"T" * 16)
if sys.argv[1] == "started":
    rendezvous.close_listener()
given, kept = set(), []
for reuse in (0, 1):
    while True:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            sock.bind(("", 0))
        except OSError:
            break
        kept.append(sock)
        given.add(sock.getsockname()[1])
        if len(kept) > 200:
            break
    for sock in kept:
        sock.close()
    kept = []
print(40000 <= rendezvous.port <= 40019, rendezvous.port in given, len(given))
"""


@pytest.fixture
def agent_with_port(agent: Agent) -> tuple[Agent, int]:
    facts = agent.prepare(reserve=0, token=TOKEN)["facts"]
    return agent, facts["port"]


def listeners(port: int) -> int:
    """How many sockets of this machine listen at ``port``."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                count += words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port
    return count


@pytest.mark.parametrize("when", ["before", "started"])
def test_the_port_is_given_to_nobody_else(when: str) -> None:
    if not shutil.which("unshare"):
        pytest.skip("needs unshare: a network with few ports")
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, "-c", ALL_PORTS, when],
        capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip())
    in_range, given, count = done.stdout.split()
    assert (in_range, given) == ("True", "False"), done.stderr
    assert int(count) >= 10


def is_greeted(rendezvous: RendezvousPort, caller: socket.socket) -> bool:
    """Whether it was told something, if its call has come."""
    rendezvous.greet()
    return bool(select.select([caller], [], [], 0.0)[0])


class TestReserved:
    """The two sockets themselves, in this process."""

    def test_everybody_is_told_the_token_until_the_listener_goes(self) -> None:
        rendezvous = RendezvousPort(TOKEN)
        try:
            callers = [
                socket.create_connection((address, rendezvous.port), timeout=60)
                for address in ("127.0.0.1", "127.0.0.2")
            ]
            callers[0].close()  # one that has gone again hinders nobody
            wait_for(partial(is_greeted, rendezvous, callers[1]), 30, "it is greeted")
            with callers[1]:
                assert callers[1].recv(99) == TOKEN
                assert callers[1].recv(99) == b""
            assert rendezvous.fileno() >= 0
            rendezvous.close_listener()
            assert rendezvous.fileno() == -1
            rendezvous.greet()
            assert probe(["127.0.0.1"], rendezvous.port, TOKEN, 5.0) == []
            with socket.socket() as sock, pytest.raises(OSError, match="in use"):
                sock.bind(("", rendezvous.port))
            rendezvous.close_listener()
        finally:
            rendezvous.close()

    def test_it_is_given_back(self) -> None:
        rendezvous = RendezvousPort(TOKEN)
        for _ in range(2):
            rendezvous.close()
            assert rendezvous.fileno() == -1
        with socket.socket() as sock:
            sock.bind(("", rendezvous.port))

    @pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # let go of, not closed
    def test_a_port_of_one_s_choice(self) -> None:
        with socket.socket() as sock:
            sock.bind(("", 0))
            port = sock.getsockname()[1]
            sock.listen()
            with pytest.raises(OSError, match="in use"):
                RendezvousPort(TOKEN, port)
        rendezvous = RendezvousPort(TOKEN, port)
        assert rendezvous.port == port
        rendezvous.close()
        gc.collect()

    @pytest.mark.parametrize("chosen", [True, False])
    def test_a_port_of_another_job_is_refused_before_that_listens(self, chosen: bool) -> None:
        """The second job's ranks met in the first one's store, and wrote there."""
        with socket.socket() as sock:
            sock.bind(("", 0))
            port = sock.getsockname()[1]
        first = RendezvousPort(TOKEN, port if chosen else 0)
        before = open_files()
        first.close_listener()
        with pytest.raises(OSError, match="in use"):
            RendezvousPort(TOKEN, first.port)
        assert open_files() <= before
        first.close()
        RendezvousPort(TOKEN, first.port).close()

    def test_a_host_without_ipv6(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = rendezvous_port._reusable

        def refuse(family: int) -> socket.socket:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "no such family")
            return made(family)  # type: ignore[return-value]

        monkeypatch.setattr(rendezvous_port, "_reusable", refuse)
        rendezvous = RendezvousPort(TOKEN)
        with socket.create_connection(("127.0.0.1", rendezvous.port), timeout=60) as caller:
            wait_for(partial(is_greeted, rendezvous, caller), 30, "it is greeted")
            assert caller.recv(99) == TOKEN
        rendezvous.close()


class Greeter:
    """Says ``word`` at a port of ``address`` to whoever comes; nothing, and holds on, without."""

    def __init__(self, address: str, word: bytes | None, port: int = 0) -> None:
        self.door = socket.socket()
        self.door.bind((address, port))
        self.door.listen()
        self.port = self.door.getsockname()[1]
        self.word = word
        self.held: list[socket.socket] = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        try:
            while True:
                caller, _ = self.door.accept()
                self.held.append(caller)
                if self.word is not None:
                    caller.sendall(self.word)
                    caller.close()
        except OSError:
            pass

    def close(self) -> None:
        self.door.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        for one in (self.door, *self.held):
            one.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # let go of, not closed
@pytest.mark.parametrize(
    ("words", "reached"),
    [
        ({"127.0.0.5": TOKEN, "127.0.0.4": TOKEN, "127.0.0.3": TOKEN}, [5, 4, 3]),
        ({"127.0.0.3": b"F" * 16, "127.0.0.4": TOKEN}, [4]),
        ({"127.0.0.3": TOKEN[:-1], "127.0.0.4": TOKEN}, [4]),
        ({"127.0.0.3": b"", "127.0.0.4": TOKEN}, [4]),
        ({"127.0.0.3": TOKEN, "127.0.0.4": None}, [3]),
    ],
    ids=["all", "stranger", "short", "closed", "silent"],
)
def test_who_answers_a_probe(words: dict[str, bytes | None], reached: list[int]) -> None:
    """The silent are waited for until the end of time, all others only until they have spoken."""
    greeters: list[Greeter] = []
    try:
        for address, word in words.items():
            greeters.append(Greeter(address, word, greeters[0].port if greeters else 0))
        began = time.monotonic()
        seconds = 6.0 if None in words.values() else 60.0
        asked = [*words, "127.0.0.9", "::1", "no address"]
        found = probe(asked, greeters[0].port, TOKEN, seconds)
        assert found == [f"127.0.0.{n}" for n in reached]
        assert time.monotonic() - began >= 6.0 or seconds == 60.0
        assert time.monotonic() - began < 50
    finally:
        for one in greeters:
            one.close()
        gc.collect()


def test_who_cannot_be_reached_is_tried_again_until_the_time_is_over() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.3", 0))
        port = sock.getsockname()[1]
        began = time.monotonic()
        assert probe(["127.0.0.3"], port, TOKEN, 0.6) == []  # it refuses: nobody listens
        assert time.monotonic() - began >= 0.6
    greeters: list[Greeter] = []
    comes = threading.Timer(0.5, lambda: greeters.append(Greeter("127.0.0.3", TOKEN, port)))
    comes.start()
    try:
        assert probe(["127.0.0.3", "127.0.0.9"], port, TOKEN, 60.0) == ["127.0.0.3"]
    finally:
        comes.join()
        greeters[0].close()
        gc.collect()


def test_an_address_that_no_descriptor_was_free_for_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = iter([OSError(errno.EMFILE, "none is free")])

    class Scarce:
        def __getattr__(self, name: str) -> object:
            return getattr(_socket, name)

        def socket(self, *words: int) -> _socket.socket:
            for error in errors:
                raise error
            return _socket.socket(*words)

    greeter = Greeter("127.0.0.3", TOKEN, 0)
    monkeypatch.setattr(rendezvous_port, "_socket", Scarce())
    try:
        assert probe(["127.0.0.3"], greeter.port, TOKEN, 20.0) == ["127.0.0.3"]
    finally:
        monkeypatch.undo()
        greeter.close()
        gc.collect()


def test_who_waits_for_an_answer_computes_nothing() -> None:
    with socket.create_server(("127.0.0.3", 0)) as silent:
        began = time.thread_time()
        assert probe(["127.0.0.3"], silent.getsockname()[1], TOKEN, 0.6) == []
        assert time.thread_time() - began < 0.2


class TestRanks:
    def test_no_socket_listens_once_ranks_run(self, agent_with_port: tuple[Agent, int]) -> None:
        agent, port = agent_with_port
        assert listeners(port) == 1
        agent.start(["sleep", "300"])
        assert listeners(port) == 0
        agent.finish()

    @pytest.mark.parametrize("family", ["ipv4", "ipv6", "dual", "torch"])
    def test_a_usual_listener_can_use_it(
        self, agent_with_port: tuple[Agent, int], family: str
    ) -> None:
        agent, port = agent_with_port
        agent.start(["sleep", "300"])
        six = family != "ipv4"
        if six and not os.path.exists("/proc/net/if_inet6"):
            pytest.skip("no IPv6 on this machine")
        with socket.socket(socket.AF_INET6 if six else socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family in ("dual", "torch"):
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("::" if six else "0.0.0.0", port))
            sock.listen(2048)
            address = "::1" if family == "ipv6" else "127.0.0.1"
            with socket.create_connection((address, port), timeout=60):
                pass
        with socket.socket() as taken, pytest.raises(OSError):  # without SO_REUSEADDR: refused
            taken.bind(("", port))
        agent.finish()


class TestProbe:
    def test_many_are_greeted(self) -> None:
        rendezvous = RendezvousPort(TOKEN)
        stop = threading.Event()

        def greet() -> None:
            while not stop.wait(0.005):
                rendezvous.greet()

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            for _ in range(20):
                assert probe(["127.0.0.1"], rendezvous.port, TOKEN, 60.0) == ["127.0.0.1"]
        finally:
            stop.set()
            thread.join()
            rendezvous.close()
        assert rendezvous.fileno() == -1
