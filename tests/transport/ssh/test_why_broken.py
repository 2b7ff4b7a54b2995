"""Why a session did not come as far as it should have, in words and kinds."""

from __future__ import annotations

import errno
import os
import time
from types import SimpleNamespace
from typing import Any

from cases import cases

from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Steps
from dispatcher.transport.ssh.logging_in import SSH_HINT, why_broken
from dispatcher.transport.ssh.paramiko_transport import preload
from dispatcher.transport.ssh_auth.ssh_agent import AgentError

preload()
from paramiko.ssh_exception import (  # noqa: E402 - paramiko is imported by preload alone
    IncompatiblePeer,
    SSHException,
)

from dispatcher.transport.ssh.session import HostKeyRefused  # noqa: E402


def broken(
    problem: Exception | None = None,
    *,
    active: bool = False,
    late: bool = False,
    banner: str = "",
    goodbye: str = "",
    words: str = "",
) -> Failure:
    session: Any = SimpleNamespace(
        steps=Steps("key exchange"), get_exception=lambda: problem, active=active,
        preferred_keys=("ssh-ed25519", "x" * 300), before_banner=banner, goodbye=goodbye,
        stream=SimpleNamespace(words=lambda: words),
    )  # fmt: skip
    return why_broken(session, time.monotonic() + (-1 if late else 20))


REFUSED = Failure(Kind.HOST_KEY_CHANGED, "another", "look")
TYPES = ("ssh-ed25519, " + "x" * 300)[:200]


@cases(
    ("problem", "state", "failure"),
    [
        (HostKeyRefused(REFUSED), {"late": True, "active": True}, REFUSED),
        (None, {"late": True, "active": True},
         Failure(Kind.TIMEOUT, "key exchange: no answer in time")),
        (SSHException("x"), {"late": True},  # it was over before that
         Failure(Kind.PROTOCOL, "key exchange: x")),
        (SSHException("y" * 300), {}, Failure(Kind.PROTOCOL, "key exchange: " + "y" * 200)),
        (IncompatiblePeer("no acceptable host key"), {},
         Failure(Kind.HOST_KEY_UNKNOWN,
                 f"it has no host key of a type that is on file ({TYPES})")),
        (IncompatiblePeer("No acceptable Ciphers"), {},
         Failure(Kind.PROTOCOL, "no acceptable ciphers", SSH_HINT)),
        (AgentError("ssh-agent refuses to sign"), {},
         Failure(Kind.AUTH, "ssh-agent refuses to sign")),
        (OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)), {},
         Failure(Kind.DROPPED, "key exchange: connection reset by peer", retryable=True)),
        (EOFError(), {}, Failure(Kind.DROPPED, "key exchange: closed by the host", retryable=True)),
        (None, {"active": True},
         Failure(Kind.DROPPED, "key exchange: closed by the host", retryable=True)),
    ],
)  # fmt: skip
def test_what_broke_a_connection(
    problem: Exception | None, state: dict[str, Any], failure: Failure
) -> None:
    assert broken(problem, **state) == failure


@cases(
    ("said", "failure"),
    [
        ({"banner": "busy", "goodbye": "bye", "words": "proxy: x"},
         Failure(Kind.DROPPED, "key exchange: closed by the host: busy; bye; proxy: x",
                 retryable=True)),
        ({"words": "z" * 400},
         Failure(Kind.DROPPED, "key exchange: closed by the host: " + "z" * 300, retryable=True)),
        # trying again prolongs it
        ({"banner": "Not allowed at this time"},
         Failure(Kind.DROPPED, "key exchange: closed by the host: Not allowed at this time")),
        ({"goodbye": "Too many authentication failures"},
         Failure(Kind.AUTH, "the host hung up: Too many authentication failures")),
    ],
)  # fmt: skip
def test_the_last_words_of_a_host(said: dict[str, Any], failure: Failure) -> None:
    assert broken(EOFError(), **said) == failure
