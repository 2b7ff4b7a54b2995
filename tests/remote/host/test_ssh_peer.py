"""The other end of our connection, as the kernel knows it: real sockets of this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from cases import cases
from rig import wait_for

from dispatcher.remote.host.ssh_peer import SilenceWatch, SshPeer


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Of one connection: the server's, the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        with client, server:
            yield server, client


def named(server: socket.socket) -> str:
    """``SSH_CONNECTION`` as sshd would have it."""
    return " ".join(map(str, (*server.getpeername(), *server.getsockname())))


def test_what_is_acknowledged_is_heard(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = ends
    monkeypatch.setenv("SSH_CONNECTION", named(server))
    peer = SshPeer()
    before = peer.silence()
    time.sleep(0.05)
    assert peer.silence() > before
    said = time.monotonic()
    server.send(b"x")  # nobody reads it: the kernel acknowledges all the same
    # the last moment at which it was heard, as near as the kernel's clock goes; whenever we look
    wait_for(lambda: time.monotonic() - peer.silence() > said - 0.02, 30, "an acknowledgement")


@cases(
    "text",
    [
        None,
        "",
        "10.0.0.1 1 10.0.0.2",
        "a 1 b 2",
        "10.0.0.1 x 10.0.0.2 22",
        "192.0.2.1 40000 127.0.0.1 22",
        "2001:db8::1 40000 ::1 22",
        "fe80::1%lo 1 ::1 22",
    ],
)
def test_a_connection_that_is_not_to_be_found(text: str | None) -> None:  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSH_CONNECTION", raising=False)
        if text is not None:
            patch.setenv("SSH_CONNECTION", text)
        with pytest.raises((OSError, ValueError, KeyError)):
            SshPeer()


class Said(SshPeer):
    """A peer whose silence is known."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    def silence(self) -> float:
        if self.seconds is None:
            raise ValueError
        return self.seconds


#: of a heartbeat of 3 s
DOUBT = 6.0


@cases(
    ("waited", "silence", "cut"),
    [
        (0.0, 1000.0, False),  # nothing was sent that it ought to acknowledge
        (DOUBT - 0.1, 1000.0, False),
        (DOUBT, DOUBT, True),
        (DOUBT, DOUBT - 0.1, False),
        (100.0, 99.0, False),
        (100.0, None, False),
    ],
)
def test_a_question_wants_its_time(waited: float, silence: float | None, cut: bool) -> None:
    question = SilenceWatch(Said(silence), 50.0, 3.0)
    assert question.look(50.0 + waited) is cut
