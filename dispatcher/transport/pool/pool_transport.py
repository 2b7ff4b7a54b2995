"""``PoolTransport``: runs commands over the daemon's connections, or directly without it.

All commands of a launcher share one ``PoolConnection``: its thread reads, any thread may write.
``PoolLink`` is one command. SSH is loaded only if we have to connect ourselves.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol import mux
from dispatcher.transport import base
from dispatcher.transport.base import Call, Link, LinkClosed, PromptTimer, Target, Transport, Window
from dispatcher.transport.mux_link import MuxLink
from dispatcher.transport.pool import daemon_socket
from dispatcher.transport.pool.daemon_socket import ACCEPTED, FAILED, NOT_POOLED, fields
from dispatcher.transport.ssh_auth.passwords import Passwords

_READ_SIZE = 256 << 10


class PoolConnection:
    """Frames to and from the daemon at the other end of ``link``. Any thread may send.

    passwords: answer the daemon's questions.
    """

    def __init__(self, link: socket.socket, passwords: Passwords) -> None:
        self._link = link
        self._passwords = passwords
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._links: dict[int, PoolLink] = {}
        self._over = False
        link.settimeout(None)
        self._thread = threading.Thread(target=self._run, name="transport:pool:read", daemon=True)
        self._thread.start()

    def order(self, **wanted: Any) -> PoolLink:
        """Ask for the command that ``wanted`` describes. Raises: LinkClosed."""
        number = next(self._numbers)
        with self._lock:
            if self._over:
                raise LinkClosed("the daemon is gone")
            link = self._links[number] = PoolLink(self, number)
        self.send(number, mux.OPEN, json.dumps(wanted).encode())
        return link

    def send(self, channel: int, kind: int, body: bytes = b"") -> None:
        """Send a frame. Raises: LinkClosed."""
        try:
            with self._lock:
                self._link.sendall(mux.frame(channel, kind, body))
        except OSError:
            raise LinkClosed("the daemon is gone") from None

    def forget(self, channel: int) -> None:
        """Drop the channel, which has no listener any more."""
        self._links.pop(channel, None)

    def close(self) -> None:
        """End all channels; idempotent."""
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _run(self) -> None:
        frames = mux.Decoder(daemon_socket.LARGEST)
        # one for all reads: a large one for each, which is then cut to a line, scatters the heap
        buffer = memoryview(bytearray(_READ_SIZE))
        try:
            while size := self._link.recv_into(buffer):
                for number, kind, body in frames.feed(bytes(buffer[:size])):
                    if kind == daemon_socket.ASK:
                        threading.Thread(
                            target=self._answer, args=(fields(body),), name="asked", daemon=True
                        ).start()
                        continue
                    link = self._links.get(number)
                    if link is not None:  # else it was closed meanwhile
                        link.take(kind, body)
        except (OSError, mux.Malformed):
            pass
        with self._lock:
            self._over = True
            left = list(self._links.values())
            self._link.close()  # no thread sends now
        for link in left:
            link.lose(None)

    def _answer(self, question: dict[str, Any]) -> None:
        told = {"number": question["number"], "answer": answer(self._passwords, question)}
        with contextlib.suppress(LinkClosed):
            self.send(0, daemon_socket.ANSWER, json.dumps(told).encode())


def answer(passwords: Passwords, question: dict[str, Any]) -> str | bool | None:
    """The answer of ``passwords`` to a question from the daemon; see ``daemon.FarPasswords``."""
    name = str(question["name"])
    if question["what"] == "answer":
        return passwords.answer(name, question["above"], question["prompt"])
    password = passwords.of(question["user"], name, jump=question["jump"])
    match question["what"]:
        case "take":
            return password.take(question["who"], passwords.timer.now() + question["seconds"])
        case "came":
            outcome, again = question["outcome"], question["again"]
            return password.came(question["who"], name, outcome, again=again)
        case _:
            return password.why(name)


class PoolLink(MuxLink):
    """A command that was ordered; the daemon's ``answer`` gives the result."""

    by: str | None = "kept"

    def __init__(self, connection: PoolConnection, channel: int) -> None:
        super().__init__(connection, channel)
        self._answer: tuple[int, bytes] | None = None

    def answer(self, seconds: float) -> tuple[int, bytes] | None:
        """Kind and body of the answer; None when none comes in so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None or self._over, seconds)
            return self._answer or ((NOT_POOLED, b"") if self._over else None)

    def _answered(self, kind: int, body: bytes) -> None:
        if self._answer is not None or kind not in (ACCEPTED, FAILED, NOT_POOLED):
            raise mux.Malformed("no answer")
        if kind == ACCEPTED:
            self.address = fields(body).get("address")
        self._answer = kind, body

    def _ending_of(self, body: bytes) -> tuple[Ending, Failure | None]:
        answer = fields(body)
        silence = answer.get("silence")
        lost = None if silence is None else Failure(Kind.UNREACHABLE, silence)
        return Ending(answer.get("code"), answer.get("signal")), lost

    def let_end(self) -> None:
        self._leave(daemon_socket.LET_END)

    def resize(self, window: Window) -> None:
        size = {"columns": window.columns, "rows": window.rows}
        self._send(daemon_socket.RESIZE, json.dumps(size).encode())


#: variables of ours that the daemon may send to hosts where SendEnv allows it: those that the
#: ssh_config of distributions names, since all that we have would make each order long
_SENT = re.compile(r"(LANG|LANGUAGE|LC_\w{1,40}|COLORTERM|NO_COLOR|XMODIFIERS)$")
#: seconds that the daemon's answer may be late
SLACK = 1.0
LATE = "no answer in time over the kept connection"


class PoolTransport(Transport):
    """Connects through the daemon where it has a connection; otherwise by ``direct``, called once.

    keep: seconds for which the daemon keeps a new connection; None: it makes no new ones.
    config, host_keys, alive, reach: as for ``ParamikoTransport``. passwords: the user's, for
    connections that the daemon makes. say: shows a note.
    """

    name = "kept"

    def __init__(
        self,
        direct: Callable[[], Transport],
        *,
        keep: float | None = None,
        config: str | None = None,
        host_keys: str | None = None,
        alive: base.Keepalive = base.UNLESS_CONFIGURED,
        passwords: Passwords | None = None,
        say: Callable[[str], None] = lambda note: None,
        reach: float | None = None,
    ) -> None:
        self._make_direct = direct
        self._say = say
        self._passwords = passwords or Passwords()
        self._direct: Transport | None = None
        self._order = {
            "keep": keep,
            "run": os.urandom(8).hex(),
            "config": None if config is None else os.path.abspath(config),
            "host_keys": host_keys,
            "agent": os.environ.get("SSH_AUTH_SOCK"),
            "reach": reach,
            "sends": {name: text for name, text in os.environ.items() if _SENT.match(name)},
            "alive": [alive.seconds, alive.otherwise],
            "asks": [self._passwords.may_ask(jump=jump) for jump in (False, True)],
        }
        self._lock = threading.Lock()
        self._line: PoolConnection | None = None
        self._dialled = False

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        opened = self._by_daemon(target, command, deadline, window)
        if opened is not None:
            return opened
        direct = self._instead()
        link = direct.open(target, command, deadline, window)
        if isinstance(link, Link):
            link.by = direct.name
        return link

    def _by_daemon(
        self, target: Target, command: str, deadline: float, window: Window | None
    ) -> Link | Failure | None:
        """The result of asking the daemon; None where it cannot serve us, for any reason."""
        left = deadline - time.monotonic()
        if left <= 0:
            return Failure(Kind.TIMEOUT, "no time left to connect")
        line = self._our_line()
        if line is None:
            return None
        link = self._ordered(line, target, command, left, window)
        if link is None:
            return None
        timer, answer = self._passwords.timer, None
        until = timer.now() + left + SLACK
        while answer is None and (more := until - timer.now()) > 0:
            answer = link.answer(more)
        if answer is not None and answer[0] == ACCEPTED:
            return link
        link.close()
        return Failure(Kind.TIMEOUT, LATE) if answer is None else _failure(*answer)

    def _ordered(
        self,
        line: PoolConnection,
        target: Target,
        command: str,
        left: float,
        window: Window | None = None,
        opening: bytes = b"",
    ) -> PoolLink | None:
        """The link to a command that was ordered; None if the daemon has gone."""
        try:
            return line.order(
                host=target.host,
                user=target.user,
                port=target.port,
                command=command,
                seconds=left,
                window=None if window is None else [window.columns, window.rows],
                opening=opening.decode("latin-1"),
                **self._order,
            )
        except LinkClosed:
            return None

    def call(self, target: Target, command: str, deadline: float, opening: bytes) -> Call | None:
        left = deadline - time.monotonic()
        line = self._our_line() if len(opening) <= daemon_socket.OPENING else None
        if left <= 0 or line is None:
            return None
        link = self._ordered(line, target, command, left, opening=opening)
        if link is None:
            return None
        return PoolCall(link, deadline + SLACK, self._instead, self._passwords.timer)

    def _instead(self) -> Transport:
        """The transport for hosts that the daemon does not reach."""
        with self._lock:
            if self._direct is None:
                self._direct = self._make_direct()
            return self._direct

    def _our_line(self) -> PoolConnection | None:
        with self._lock:
            if not self._dialled:
                self._dialled = True
                caller = daemon_socket.reach(self._say)
                self._line = None if caller is None else PoolConnection(caller, self._passwords)
            return self._line

    def prepare(self, command: str) -> None:
        if self._direct is not None:
            self._direct.prepare(command)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._direct is not None:
            self._direct.close()


class PoolCall(Call):
    """The daemon was asked for ``link``. until: when it is late; instead: the transport then.

    timer: how long the user has typed, which does not count.
    """

    def __init__(
        self, link: PoolLink, until: float, instead: Callable[[], Transport], timer: PromptTimer
    ) -> None:
        self._link = link
        self._until = until - timer.seconds()
        self._timer = timer
        self._instead = instead

    @property
    def until(self) -> float:  # type: ignore[override]
        return self._timer.real(self._until)

    def watch(self, ready: Callable[[], None]) -> None:
        self._link.watch(ready)

    def answer(self) -> Link | Failure | Transport | None:
        answer = self._link.answer(0.0)
        if answer is not None and answer[0] == ACCEPTED:
            return self._link
        if answer is None and time.monotonic() < self.until:
            return None
        self._link.close()
        if answer is None:
            return Failure(Kind.TIMEOUT, LATE)
        return _failure(*answer) or self._instead()

    def close(self) -> None:
        self._link.close()


def _failure(kind: int, body: bytes) -> Failure | None:
    """The failure in the daemon's answer; None if it has none, or makes no sense."""
    if kind != FAILED:
        return None
    try:
        sent = fields(body)
        return Failure(Kind(sent["kind"]), str(sent["why"]), sent["hint"], bool(sent["retryable"]))
    except (mux.Malformed, ValueError, KeyError):
        return None
