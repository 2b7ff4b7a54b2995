"""A session that sends nothing: what it would send is noted, and the test is the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from dispatcher.model.failure import Failure
from dispatcher.transport.base import Steps
from dispatcher.transport.ssh import paramiko_transport
from dispatcher.transport.ssh.byte_stream import ByteStream

paramiko_transport.preload()
from paramiko.message import Message  # noqa: E402 - paramiko is imported by preload alone

from dispatcher.transport.ssh.paramiko_internals import (  # noqa: E402
    WINDOW,
    SshChannel,
)
from dispatcher.transport.ssh.session import (  # noqa: E402
    Session,
    offered_algorithms,
)

GLOBAL, OPEN, DATA, REQUEST = 80, 90, 94, 98


class Check:
    """Trusts a host's key, or does not."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, str]] = []
        self.failure: Failure | None = None

    def wanted_types(self, offered: tuple[str, ...]) -> tuple[str, ...]:
        return offered[:1]

    def verify(self, blob: bytes, kind: str) -> Failure | None:
        self.seen.append((blob, kind))
        return self.failure


class Quiet(Session):
    """Sends nothing: ``heard`` has it, and ``reply`` is what the host does about it."""

    def __init__(self) -> None:
        socket = SimpleNamespace(settimeout=self._limited, send=len, recv=lambda size: b"")
        self.limits: list[float] = []
        stream = ByteStream(socket, lambda: None, lambda: None)
        self.judge = Check()
        check: Any = self.judge
        super().__init__(stream, check, offered_algorithms({}), Steps("start"))
        self.limits.clear()
        self.heard: list[Message] = []
        self.reply: Callable[[], object] = lambda: None
        self.fails: Exception | None = None
        self.authenticated = True
        self.active = True
        self.clear_to_send.set()
        self.packetizer.last_received = time.monotonic()

    def _limited(self, seconds: float) -> None:
        self.limits.append(seconds)

    def _send_user_message(self, data: Message) -> None:
        if self.fails is not None:
            raise self.fails
        self.heard.append(Message(data.asbytes()))
        self.reply()

    def is_authenticated(self) -> bool:
        return self.authenticated

    def kinds(self) -> list[int]:
        return [message.asbytes()[0] for message in self.heard]

    def channel(self) -> SshChannel:
        """One that is open."""
        made = self.new_channel(threading.Event())
        made._set_remote_channel(77, WINDOW, 32768)
        return made


def soon() -> float:
    return time.monotonic() + 20


def newest(session: Quiet) -> Any:
    """The channel that was asked for last."""
    return session._channels.get(max(session.channel_events))


def opens(session: Quiet) -> None:
    """The host opens what was asked for."""
    number = max(session.channel_events)
    session._channels.get(number)._set_remote_channel(77, WINDOW, 32768)
    session.channel_events.pop(number).set()
