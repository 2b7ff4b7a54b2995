"""One attempt to log in: what each way sends (RFC 4252, RFC 4256), and what came of it.

``logging_in`` says which way is tried when. A host answers on the connection's thread: it refuses
and says which ways it takes (``offered``), or asks something (``question``).

Imported only after ``paramiko_transport.preload``: importing paramiko costs time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paramiko.common import cMSG_USERAUTH_INFO_RESPONSE
from paramiko.message import Message
from paramiko.ssh_exception import PartialAuthentication, SSHException

from dispatcher.transport.base import Steps
from dispatcher.transport.ssh.byte_stream import ByteStream
from dispatcher.transport.ssh.paramiko_internals import Connection, Login, Misbehaved
from dispatcher.transport.ssh_auth.identities import methods

#: questions that a host may ask at once, and bytes of one: sshd's own ask one or two
MOST_PROMPTS, MOST_WORDS = 8, 8192


@dataclass(frozen=True)
class Question:
    """What a host wants to be answered by keyboard-interactive; its words are as it sent them.

    prompts: each with whether what is typed may be shown. expired: it asks nothing, but wants
    another password to be set.
    """

    above: tuple[str, ...] = ()
    prompts: tuple[tuple[str, bool], ...] = ()
    expired: bool = False


def _read_question(m: Any) -> Question:
    """Raises: Misbehaved for more than anybody would ask, which is not read then."""
    above = [_words(m), _words(m)]
    m.get_binary()  # the language
    count = m.get_int()
    if count > MOST_PROMPTS:
        raise Misbehaved(f"it asks {count:,} questions at once")
    return Question(tuple(above), tuple((_words(m), m.get_boolean()) for _ in range(count)))


def _words(m: Any) -> str:
    text = m.get_binary()
    if len(text) > MOST_WORDS:
        raise Misbehaved(f"it asks a question of {len(text):,} bytes")
    return str(text.decode("utf-8", "replace"))


class LoginConnection(Connection):
    """A connection over which one logs in, an attempt at a time, each by a deadline."""

    def __init__(
        self, stream: ByteStream, offers: dict[str, tuple[str, ...]], steps: Steps
    ) -> None:
        super().__init__(stream, offers)
        self.steps = steps
        self.offered: tuple[str, ...] = ()  # ways to log in that the host has named last
        self.question: Question | None = None  # that the host waits to be answered
        self._heard = threading.Event()  # set when an attempt has come to something

    # -- what the caller does --------------------------------------------------

    def try_key(self, user: str, key: Any, deadline: float) -> str:
        """One login attempt: ``in``, ``refused``, ``partial``, ``late`` or ``gone``."""
        return self._log_in(lambda login, done: login.auth_publickey(user, key, done), deadline)

    def try_none(self, user: str, deadline: float) -> str:
        """As ``try_key``, without a key: few hosts let us in so, all say what they want."""
        return self._log_in(lambda login, done: login.auth_none(user, done), deadline)

    def try_password(self, user: str, password: bytes, deadline: float) -> str:
        """As ``try_key``, by a password; or ``asked``: it was right, and is to be changed."""
        return self._log_in(lambda login, done: login.auth_password(user, password, done), deadline)

    def try_interactive(self, user: str, deadline: float) -> str:
        """As ``try_key``; or ``asked``: ``question`` has what the host asks, see ``answer``."""
        return self._log_in(lambda login, done: login.auth_interactive(user, None, done), deadline)

    def answer(self, answers: Sequence[bytes], deadline: float) -> str:
        """Answer the host's ``question``; what comes of it is as for ``try_interactive``."""
        self.question = None
        self._heard.clear()
        message = Message()
        message.add_byte(cMSG_USERAUTH_INFO_RESPONSE)
        message.add_int(len(answers))
        for answer in answers:
            message.add_string(answer)
        return self._outcome(deadline) if self.send(message) else "gone"

    def _log_in(self, ask: Callable[[Any, threading.Event], None], deadline: float) -> str:
        self.steps.enter("authentication")
        self._heard = threading.Event()
        self.question = None
        if not self.active:
            return "gone"
        self.auth_handler = Login(self)
        try:
            ask(self.auth_handler, self._heard)
        except (SSHException, EOFError, OSError):
            return "gone"
        outcome = self._outcome(deadline)
        self.auth_handler.forget()
        return outcome

    def _outcome(self, deadline: float) -> str:
        if not wait_until(self._heard, deadline):
            return "late"
        if self.is_authenticated():
            return "in"
        if not self.active:
            return "gone"
        if self.question is not None:
            return "asked"
        problem = self.get_exception()
        return "partial" if isinstance(problem, PartialAuthentication) else "refused"

    # -- on the connection's thread ------------------------------------------------

    def on_refusal(self, ways: list[str]) -> None:
        self.offered = methods(ways)

    def on_question(self, m: Any) -> None:
        self.question = _read_question(m)

    def on_expired(self) -> None:
        self.question = Question(expired=True)


def wait_until(event: threading.Event, deadline: float) -> bool:
    """Whether ``event`` was set by ``deadline``."""
    return event.wait(max(0.0, deadline - time.monotonic()))
