"""``Session``: one SSH connection to one host, each step of it by a deadline.

``ParamikoLink`` is a channel of it as a ``Link``. ``docs/design/ssh.md`` explains the order
of ``offered_algorithms``; ``paramiko_internals`` brings paramiko to do all this.

Imported only after ``paramiko_transport.preload``: importing paramiko costs time.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paramiko.common import cMSG_GLOBAL_REQUEST, cMSG_USERAUTH_INFO_RESPONSE
from paramiko.message import Message
from paramiko.ssh_exception import PartialAuthentication, SSHException

from dispatcher.model.failure import AWAY, Ending, Failure, Kind
from dispatcher.transport import base
from dispatcher.transport.base import Link, LinkClosed, Steps, Window
from dispatcher.transport.ssh import paramiko_internals
from dispatcher.transport.ssh.byte_stream import ByteStream
from dispatcher.transport.ssh.paramiko_internals import Connection, Misbehaved, SshChannel, request
from dispatcher.transport.ssh_auth.host_keys import HostKeyCheck
from dispatcher.transport.ssh_auth.identities import methods
from dispatcher.transport.ssh_auth.known_hosts import CERT, PLAIN
from dispatcher.transport.ssh_auth.ssh_agent import AgentError
from dispatcher.transport.ssh_config.config_lines import narrow
from dispatcher.transport.ssh_config.host_config import Variables

CIPHERS = (
    "aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr",
)  # fmt: skip
MACS = (
    "hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256", "hmac-sha2-512",
)  # fmt: skip
KEX = (
    "mlkem768x25519-sha256", "curve25519-sha256@libssh.org",
    "ecdh-sha2-nistp256", "ecdh-sha2-nistp384", "ecdh-sha2-nistp521",
    "diffie-hellman-group14-sha256", "diffie-hellman-group16-sha512",
    "diffie-hellman-group-exchange-sha256",
)  # fmt: skip
HOST_KEYS = (*PLAIN, *(name + CERT for name in PLAIN))
_SECURITY_KEYS = (  # of an ssh-agent
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
    "sk-ssh-ed25519-cert-v01@openssh.com", "sk-ecdsa-sha2-nistp256-cert-v01@openssh.com",
)  # fmt: skip
#: the algorithms that sign a login
PUBKEYS = (*HOST_KEYS, *_SECURITY_KEYS)

#: seconds for which a connection counts as alive after it was heard: longer than idle ones,
#: which are asked every ``base.ALIVE_INTERVAL``, are silent
FRESH = base.ALIVE_INTERVAL + 10.0
_NOT_THERE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


#: questions that a host may ask at once, and bytes of one: sshd's own ask one or two
MOST_PROMPTS, MOST_WORDS = 8, 8192


@dataclass(frozen=True)
class HostQuestion:
    """A host's keyboard-interactive question; its text is as the host sent it.

    prompts: each with whether the answer may be shown. expired: it asks nothing, but wants
    another password to be set.
    """

    above: tuple[str, ...] = ()
    prompts: tuple[tuple[str, bool], ...] = ()
    expired: bool = False


def _read_question(m: Any) -> HostQuestion:
    """Read a question. Raises: Misbehaved for more than a host needs to ask, which is not read."""
    above = [_words(m), _words(m)]
    m.get_binary()  # the language
    count = m.get_int()
    if count > MOST_PROMPTS:
        raise Misbehaved(f"it asks {count:,} questions at once")
    return HostQuestion(tuple(above), tuple((_words(m), m.get_boolean()) for _ in range(count)))


def _words(m: Any) -> str:
    text = m.get_binary()
    if len(text) > MOST_WORDS:
        raise Misbehaved(f"it asks a question of {len(text):,} bytes")
    return str(text.decode("utf-8", "replace"))


class HostKeyRefused(SSHException):  # type: ignore[misc]
    """The host's key must not be trusted; ``failure`` has the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.why)
        self.failure = failure


class HostUnresponsive(SSHException):  # type: ignore[misc]
    """The host was asked whether it lives, and did not answer."""


class Standby:
    """``command``, started on a channel of ``session`` before any user wants it.

    It is a shell that reads its command from standard input, so all commands fit it
    (docs/design/exec.md). It ends with the connection, having done nothing. The keeper of the
    session calls ``begin``, the code that opens a link calls ``take``; between them things happen
    on the session's own thread, which sends but never waits here.
    """

    def __init__(self, session: Connection, command: str, environment: Variables) -> None:
        self.command = command
        self.environment = environment
        self._session = session
        self._opened = threading.Event()
        self._channel = session.new_channel(self)

    def begin(self) -> None:
        """Ask the host for the channel; all else follows when it answers."""
        self._session.ask_for(self._channel)

    def set(self) -> None:
        """Start the command: the host has answered, or has gone; on the session's thread."""
        # no exec during a new key exchange: this thread is the one that carries it out
        if self._channel.active and self._session.clear_to_send.is_set():
            for message in _to_start(self._channel, self.command, self.environment):
                self._session.send_message(self._channel, message)
        self._opened.set()

    def may_be_taken(self) -> bool:
        """Whether it may still be taken: the host did not refuse it."""
        return not self._channel.refusal

    def take(self, deadline: float) -> SshChannel | None:
        """The channel where the command has started; None if it has ended since, or is late."""
        channel = self._channel
        if self._opened.wait(max(0.0, deadline - time.monotonic())) and channel.active:
            channel.event.wait(max(0.0, deadline - time.monotonic()))
            if self.ready():
                return channel
        channel.close()
        return None

    def ready(self) -> bool:
        """Whether the command runs on the channel now."""
        channel = self._channel
        return channel.event_ready and not channel.closed and not channel.status_event.is_set()


def _to_start(channel: SshChannel, command: str, environment: Variables) -> Iterator[Any]:
    """The messages that start ``command``: its variables, without a reply, and itself."""
    for texts in (*environment, (command,)):
        message = request(channel, "env" if texts[1:] else "exec", wants_reply=not texts[1:])
        for text in texts:
            message.add_string(os.fsencode(text))
        yield message


def wait_until(event: threading.Event, deadline: float) -> bool:
    """Whether ``event`` was set by ``deadline``."""
    return event.wait(max(0.0, deadline - time.monotonic()))


class Session(Connection):
    """One SSH connection: key exchange, login, channels, each by a deadline."""

    def __init__(
        self,
        stream: ByteStream,
        check: HostKeyCheck,
        offers: dict[str, tuple[str, ...]],
        steps: Steps,
    ) -> None:
        wanted = check.wanted_types(offers["host_keys"])
        super().__init__(stream, {**offers, "host_keys": wanted})
        self.steps = steps
        self.offered: tuple[str, ...] = ()  # ways to log in that the host has named last
        self.question: HostQuestion | None = None  # that the host waits to be answered
        #: for the next commands, as in ``HostConfig``
        self.environment: Variables = ()
        self.unsigned = ""  # why the key that was tried last did not sign
        self._heard = threading.Event()  # set when an attempt to log in has a result
        steps.enter("ssh banner")
        self._check = check
        self._host_key_blob: bytes | None = None
        self._standby: Standby | None = None
        self._answered = threading.Event()
        self._alive = (0.0, base.ALIVE_COUNT)
        self._silent_since = 0.0
        self._questions = 0  # that the present silence was met with

    # -- what the caller does --------------------------------------------------

    def handshake(self, deadline: float) -> bool:
        """True when keys are exchanged and the host's key is trusted."""
        done = threading.Event()
        self.start_client(event=done)
        return wait_until(done, deadline) and self.active and self.initial_kex_done

    def try_key(self, user: str, key: Any, deadline: float) -> str:
        """One login attempt: ``in``, ``refused``, ``partial``, ``late`` or ``gone``.

        Or ``unsigned``: the key did not sign, as ``unsigned`` says, and the host counts no attempt.
        """
        return self._log_in(lambda login, done: login.auth_publickey(user, key, done), deadline)

    def try_none(self, user: str, deadline: float) -> str:
        """As ``try_key``, without a key: few hosts let us in so, all list their ways."""
        return self._log_in(lambda login, done: login.auth_none(user, done), deadline)

    def try_password(self, user: str, password: bytes, deadline: float) -> str:
        """As ``try_key``, by a password; or ``asked``: it was right, but must be changed."""
        return self._log_in(lambda login, done: login.auth_password(user, password, done), deadline)

    def try_interactive(self, user: str, deadline: float) -> str:
        """As ``try_key``; or ``asked``: ``question`` has what the host asks, see ``answer``."""
        return self._log_in(lambda login, done: login.auth_interactive(user, None, done), deadline)

    def answer(self, answers: Sequence[bytes], deadline: float) -> str:
        """Answer the host's ``question``; the result is as for ``try_interactive``."""
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
        self.auth_handler = login = paramiko_internals.Login(self)
        try:
            ask(login, self._heard)
            outcome = self._outcome(deadline)
            if outcome == "refused" and login.takes_key:
                self._heard.clear()
                login.sign()
                outcome = self._outcome(deadline)
        except (SSHException, EOFError, OSError):
            return "gone"
        except AgentError as error:
            login.unfit = str(error)
        finally:
            login.forget()
        self.unsigned = login.unfit
        return "unsigned" if self.unsigned else outcome

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

    def open_ssh_channel(
        self, deadline: float, forward: tuple[str, int] | None = None
    ) -> tuple[SshChannel | None, str]:
        """A channel and ``""``, or ``None`` and ``late``, ``gone`` or the peer's refusal.

        forward: the address a jump host shall connect to; otherwise a command channel.
        """
        opened = threading.Event()
        channel = self.new_channel(opened)
        if not self.ask_for(channel, forward):
            return None, "gone"
        if not wait_until(opened, deadline):
            return None, "late"
        if channel.refusal:
            return None, channel.refusal
        return (channel, "") if channel.active and self.active else (None, "gone")

    def stand_by(self, command: str) -> None:
        """Start ``command`` on a channel for ``take_standby``; returns at once."""
        if self._standby is None:
            self._standby = Standby(self, command, self.environment)
            self._standby.begin()

    def take_standby(self, command: str, deadline: float) -> SshChannel | None:
        """A channel where ``command`` runs already, for its one user; or None."""
        standby = self._standby_of(command)
        if standby is None or not self.answers(deadline):
            return None
        self._standby = None
        return standby.take(deadline)

    def has_standby(self, command: str) -> bool:
        """Whether ``take_standby`` gives a channel without waiting."""
        standby = self._standby_of(command)
        fresh = time.monotonic() - self.packetizer.last_received < FRESH
        return fresh and standby is not None and standby.ready()

    def _standby_of(self, command: str) -> Standby | None:
        standby = self._standby
        if standby is None or not standby.may_be_taken():
            return None
        fits = (standby.command, standby.environment) == (command, self.environment)
        return standby if fits else None

    def set_keepalive(self, interval: float, most: int) -> None:
        """Ask the host after ``interval`` seconds of silence (0: never) whether it lives.

        most: as many questions may stay without an answer.
        """
        self._alive = interval, most
        if interval:
            self.stream.settimeout(min(paramiko_internals.SILENCE_CHECK, interval))

    def answers(self, deadline: float) -> bool:
        """Whether the host lives: it was heard just now, or answers by ``deadline``."""
        if time.monotonic() - self.packetizer.last_received < FRESH:
            return True
        self._answered.clear()
        return self._question() and wait_until(self._answered, deadline)

    def request_pty(self, channel: SshChannel, window: Window, deadline: float) -> str:
        """``""`` when the channel has a terminal, or ``late``, ``gone`` or ``refused``."""
        message = request(channel, "pty-req", wants_reply=True)
        message.add_string(os.environ.get("TERM") or "dumb")
        for value in (window.columns, window.rows, 0, 0):
            message.add_int(value)
        message.add_string(b"\0")  # no modes: those of the host
        return self._ask(channel, message, deadline)

    def resize(self, channel: SshChannel, window: Window) -> None:
        """Set the size of the channel's terminal."""
        message = request(channel, "window-change", wants_reply=False)
        for value in (window.columns, window.rows, 0, 0):
            message.add_int(value)
        self.send_message(channel, message)

    def execute(self, channel: SshChannel, command: str, deadline: float) -> str:
        """``""`` when the command runs, or ``late``, ``gone`` or ``refused``."""
        *variables, message = _to_start(channel, command, self.environment)
        for one in variables:
            self.send_message(channel, one)
        return self._ask(channel, message, deadline)

    def _ask(self, channel: SshChannel, message: Any, deadline: float) -> str:
        channel.expect_reply()
        if not self.send_message(channel, message):
            return "gone"
        if not wait_until(channel.event, deadline):
            return "late"
        if channel.event_ready:
            return ""
        return "refused" if self.active else "gone"

    def silence(self) -> str | None:
        """How a host that does not answer any more was noticed; None if it answers."""
        problem = self.saved_exception
        if isinstance(problem, HostUnresponsive):
            return str(problem)
        if isinstance(problem, OSError) and problem.errno in _NOT_THERE:
            return os.strerror(problem.errno).lower()
        return None

    def broken_by(self) -> str | None:
        """How the host broke a bound of ours; None if it did not."""
        problem = self.saved_exception
        return str(problem) if isinstance(problem, Misbehaved) else None

    def end(self, timeout: float = 0.8) -> None:
        """End the connection and its thread; any thread, any number of times."""
        self.stream.shut()
        if self.ident is not None and self is not threading.current_thread():
            self.join(timeout)
        if not self.is_alive():
            self.stream.close()

    # -- on the connection's thread ------------------------------------------------

    def on_version(self) -> None:
        self.steps.enter("key exchange")

    def on_host_key(self, key: bytes) -> None:
        if self._host_key_blob is not None:
            if key != self._host_key_blob:
                raise SSHException("it changed its host key during the connection")
            return
        failure = self._check.verify(key, Message(key).get_text())
        if failure is not None:
            raise HostKeyRefused(failure)
        self._host_key_blob = key

    def on_refusal(self, ways: list[str]) -> None:
        self.offered = methods(ways)

    def on_question(self, m: Any) -> None:
        self.question = _read_question(m)

    def on_expired(self) -> None:
        self.question = HostQuestion(expired=True)

    def on_silence(self, seconds: float) -> None:
        if not self.is_authenticated():
            return  # the login has its own deadline
        if self.packetizer.last_received != self._silent_since:
            self._silent_since, self._questions = self.packetizer.last_received, 0
        due = base.questions_due(seconds, *self._alive)
        if due is None and self._questions >= self._alive[1]:
            raise HostUnresponsive(f"no answer for {seconds:.0f} s")
        if due is None or due > self._questions:  # if late: every host is asked before it is lost
            self._questions += 1
            if not self.packetizer.sends():  # else what is under way has to be answered as well
                self._question()

    def _question(self) -> bool:
        message = Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        return self.send(message)

    def on_answer(self) -> None:
        self._answered.set()


_CHUNK = 32000  # a packet's worth


class ParamikoLink(Link):
    """The link to one command on one host; see ``Link`` for the contract.

    release: takes the session when the link is closed and its command has ended;
    otherwise, and without it, the session is ended.
    """

    tells_end = True

    def __init__(
        self,
        session: Session,
        channel: SshChannel,
        release: Callable[[Session], None] | None = None,
    ) -> None:
        self._session = session
        self._channel = channel
        self._release = release
        self._closed = False
        self._watched = 0.0
        self.address = session.stream.address

    def watch(self, ready: Callable[[], None]) -> None:
        self._channel.in_buffer.watch(ready)
        self._channel.in_stderr_buffer.watch(ready)
        self._channel.on_status = ready
        if self._channel.status_event.is_set():
            ready()

    def read(self, limit: int) -> bytes | None:
        return self._channel.take(self._channel.in_buffer, limit)

    def read_errors(self, limit: int) -> bytes:
        return self._channel.take(self._channel.in_stderr_buffer, limit) or b""

    def write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._closed or self._channel.closed or not self._session.active:
                raise LinkClosed("link closed")
            try:
                sent = self._channel.send(data[at : at + _CHUNK])
            except (OSError, EOFError, SSHException):
                raise LinkClosed("the other end is gone") from None
            if sent == 0:
                raise LinkClosed("link closed")
            at += sent

    def end_input(self) -> None:
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError, SSHException):
            pass  # the connection is gone, and the input with it

    def resize(self, window: Window) -> None:
        self._session.resize(self._channel, window)

    def expect_answers(self, seconds: float) -> bool:
        self._watched = seconds
        return self._session.stream.expect_answers(seconds)

    def silence(self) -> tuple[float, bool]:
        return self._session.stream.silence() if self._watched else (0.0, False)

    def gone(self) -> bool:
        return bool(self._channel.status_event.is_set())

    def errors_ended(self) -> bool:
        return bool(self._channel.in_stderr_buffer.spent)

    def failure(self, timeout: float) -> Failure | None:
        did, seen = self._session.broken_by(), self._session.silence()
        if did is not None:
            return Failure(Kind.PROTOCOL, did)
        if seen is None:
            return None
        if self._watched:
            return Failure(Kind.UNREACHABLE, f"no answer for {self._watched:g} s", AWAY)
        return Failure(Kind.UNREACHABLE, seen)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._release is None or not self.gone() or not self._session.active:
            self._session.end()
            return
        try:
            self._channel.close()
        except (OSError, EOFError, SSHException):
            self._session.end()  # the connection went just now
            return
        if self._watched:
            self._session.stream.expect_answers(None)
        self._release(self._session)

    def ending(self, timeout: float) -> Ending:
        self._channel.status_event.wait(max(0.0, timeout))
        if self._channel.exit_signal is not None:
            return Ending(None, self._channel.exit_signal)
        return Ending(self._channel.exit_code)


def offered_algorithms(config: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """The algorithms to offer a host, narrowed by its config; a key with nothing left is ``()``."""
    supported = {
        "ciphers": (CIPHERS, "ciphers"),
        "macs": (MACS, "macs"),
        "kex": (KEX, "kexalgorithms"),
        "host_keys": (HOST_KEYS, "hostkeyalgorithms"),
    }
    found = {}
    for name, (names, option) in supported.items():
        ours = [n for n in names if n in paramiko_internals.SUPPORTED[name]]
        found[name] = narrow(ours, config.get(option))
    # paramiko chooses RSA's from these, and adds by itself that it signs for a certificate
    pubkeys = (
        name if name in _SECURITY_KEYS else name.removesuffix(CERT)
        for name in narrow(PUBKEYS, config.get("pubkeyacceptedalgorithms"))
    )
    return {**found, "pubkeys": tuple(dict.fromkeys(pubkeys))}
