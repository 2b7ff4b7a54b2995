"""What is asked of an ssh-agent, and what is made of its answers; the test is the agent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from open_files import open_files

from dispatcher.transport.ssh_auth.known_hosts import ssh_string
from dispatcher.transport.ssh_auth.ssh_agent import AgentError, SshAgent

KEY = ssh_string(b"ssh-ed25519") + ssh_string(b"k" * 32)
RSA = ssh_string(b"ssh-rsa") + ssh_string(b"e") + ssh_string(b"n")


def reply(kind: int, body: bytes) -> bytes:
    return ssh_string(bytes((kind,)) + body)


def identities(*keys: tuple[bytes, bytes]) -> bytes:
    body = b"".join(ssh_string(part) for key in keys for part in key)
    return reply(12, len(keys).to_bytes(4, "big") + body)


class Played:
    """An agent at ``path``: answers in turn, ``None`` hangs up; one connection after another."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.answers: list[bytes | None] = []
        self.asked: list[bytes] = []
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(5)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with link, link.makefile("rb") as said, suppress(BrokenPipeError, ConnectionResetError):
                while size := said.read(4):
                    self.asked.append(said.read(int.from_bytes(size, "big")))
                    answer = self.answers.pop(0)
                    if answer is None:
                        break
                    for at in range(0, 70, 7):  # in pieces
                        link.sendall(answer[at : at + 7])
                    link.sendall(answer[70:])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    made = Played(tmp_path / "agent")
    yield made
    made.close()


@pytest.fixture
def agent(played: Played) -> Iterator[SshAgent]:
    made = SshAgent(played.path)
    yield made
    made.close()


def test_keys_are_asked_for_once(played: Played, agent: SshAgent) -> None:
    played.answers.append(identities((KEY, b"mine"), (RSA, b"\xff old")))
    for _ in range(2):
        first, second = agent.keys()
        assert (first.blob, first.comment, first.get_name()) == (KEY, "mine", "ssh-ed25519")
        assert (second.asbytes(), second.comment) == (RSA, "\ufffd old")
        assert second.get_name() == "ssh-rsa"
    assert (played.asked, agent.silent) == ([b"\x0b"], False)
    assert first.public_blob is None


@pytest.mark.parametrize(
    "answer",
    [
        reply(5, b""),
        reply(12, b"\0\0"),
        reply(12, b"\0\0\0\2" + ssh_string(KEY) + ssh_string(b"only one")),
        b"\0\0\0\0",
        ((1 << 20) + 1).to_bytes(4, "big") + b"\x0c",
        None,
    ],
)
def test_an_agent_that_makes_no_sense_holds_nothing(
    played: Played, agent: SshAgent, answer: bytes | None
) -> None:
    played.answers += [answer, identities((KEY, b"late"))]
    for _ in range(2):  # nor is it asked again
        assert (agent.keys(), agent.silent) == ((), True)
    assert len(played.asked) == 1


def test_no_agent_is_there(tmp_path: Path) -> None:
    agent, before = SshAgent(str(tmp_path / "gone")), open_files()
    assert (agent.keys(), agent.silent) == ((), True)
    with pytest.raises(AgentError, match="ssh-agent: "):
        agent.sign(KEY, b"data", "")
    assert open_files() <= before
    agent.close()


def test_an_agent_that_does_not_answer_is_waited_for_so_long(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        deaf.listen()
        agent = SshAgent(str(tmp_path / "deaf"), timeout=0.05)
        assert (agent.keys(), agent.silent) == ((), True)
        agent.close()


@pytest.mark.parametrize(
    ("algorithm", "flags"),
    [
        (None, 0), ("ssh-ed25519", 0), ("rsa-sha2-256", 2), ("rsa-sha2-512", 4),
        ("rsa-sha2-512-cert-v01@openssh.com", 4),
    ],
)  # fmt: skip
def test_a_signature(played: Played, agent: SshAgent, algorithm: str | None, flags: int) -> None:
    played.answers += [identities((KEY, b"")), reply(14, ssh_string(b"signed"))]
    (key,) = agent.keys()
    assert key.sign_ssh_data(b"data", algorithm) == b"signed"
    body = ssh_string(KEY) + ssh_string(b"data") + flags.to_bytes(4, "big")
    assert played.asked[1] == b"\x0d" + body
    assert played.connections == 1  # the same for all


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (reply(5, b""), "ssh-agent refuses to sign"),
        (reply(14, b"\0\0\0\2x"), "ssh-agent: answer cut short"),
        (b"\0\0\0\0", "ssh-agent: answer of a bad size"),
        (None, "ssh-agent: the agent closed the connection"),
    ],
)
def test_an_agent_that_does_not_sign(
    played: Played, agent: SshAgent, answer: bytes | None, why: str
) -> None:
    played.answers.append(answer)
    with pytest.raises(AgentError) as caught:
        agent.sign(KEY, b"data", "")
    assert str(caught.value) == why


@pytest.mark.parametrize("broken", [None, b"\xff\xff\xff\xffrest"])
def test_a_connection_that_broke_is_made_anew(
    played: Played, agent: SshAgent, broken: bytes | None
) -> None:
    played.answers += [broken, reply(14, ssh_string(b"signed"))]
    with pytest.raises(AgentError):
        agent.sign(KEY, b"data", "")
    assert agent.sign(KEY, b"data", "") == b"signed"
    assert played.connections == 2
    agent.close()
    agent.close()


def test_one_signature_at_a_time(played: Played, agent: SshAgent) -> None:
    """Many hosts share the connection."""
    played.answers += [reply(14, ssh_string(b"%d" % number)) for number in range(20)]
    got: list[bytes] = []
    ask: Callable[[], None] = lambda: got.append(agent.sign(KEY, b"data", ""))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(got) == sorted(b"%d" % number for number in range(20))
    assert (len(played.asked), played.connections) == (20, 1)
