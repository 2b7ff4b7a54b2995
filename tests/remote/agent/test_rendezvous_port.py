"""The port where the ranks meet: kept from everybody but them, and proved to be reachable."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher.remote.agent.rendezvous_port import RendezvousPort, probe
from remote.driver import Agent

TOKEN = b"0123456789abcdef"

#: in a network of its own with 20 ports to give away: who gets the reserved one?
ALL_PORTS = """
import socket, sys
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
        capture_output=True, text=True, check=False, timeout=30,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip())
    in_range, given, count = done.stdout.split()
    assert (in_range, given) == ("True", "False"), done.stderr
    assert int(count) >= 10


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
            with socket.create_connection((address, port), timeout=5):
                pass
        with socket.socket() as taken, pytest.raises(OSError):  # without SO_REUSEADDR: refused
            taken.bind(("", port))
        agent.finish()

    def test_it_is_free_again_after_the_end(self, agent_with_port: tuple[Agent, int]) -> None:
        agent, port = agent_with_port
        agent.finish()
        with socket.socket() as sock:
            sock.bind(("", port))
            assert sock.getsockname()[1] == port


class TestProbe:
    def test_only_addresses_that_say_the_token_count(
        self, boot: Callable[..., Agent], agent_with_port: tuple[Agent, int]
    ) -> None:
        _, port = agent_with_port
        other = boot()
        other.prepare(node=1)
        head, _ = agent_with_port
        addresses = ["127.0.0.1", "127.0.0.9", "not an address", "256.1.1.1"]
        other.order("probe", addresses=addresses, port=port, token=TOKEN, seconds=2.0)

        def is_probed() -> object:
            head.hear(0.01)
            return other.found("probed")

        other.until(is_probed)
        assert other.report("probed")["reached"] == ["127.0.0.1", "127.0.0.9"]
        other.order("probe", addresses=addresses, port=port, token=b"F" * 16, seconds=2.0)
        other.until(lambda: sum(r["type"] == "probed" for r in other.reports) == 2)
        assert other.reports[-1]["reached"] == []

    def test_silence_and_strangers_do_not_count(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            port = silent.getsockname()[1]
            assert probe(["127.0.0.1"], port, TOKEN, 0.1) == []
        assert probe(["127.0.0.1"], port, TOKEN, 0.5) == []  # nobody listens

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
                assert probe(["127.0.0.1"], rendezvous.port, TOKEN, 5.0) == ["127.0.0.1"]
        finally:
            stop.set()
            thread.join()
            rendezvous.close()
        assert rendezvous.fileno() == -1
