"""paramiko's ``Transport`` and ``Channel``, made fit for a thousand of them.

What is changed, and why (paramiko 5):

- the reading thread wakes after 7.5 s of silence and not ten times a second (idle cost 40 times
  less), has a small stack, and ends at once because closing shuts the socket;
- no timer thread a handshake and no waiting in steps of 0.1 s: every wait is on
  an event, with the caller's deadline;
- the host key is judged inside the key exchange, before anything of ours is sent;
- the receive window is enforced and the packet size bounded: a peer that sends
  more than it was granted is disconnected (paramiko would buffer it all);
- ``exit-signal`` is understood, as well as ``exit-status``;
- nothing is logged: what went wrong is in the exception we keep.

Imported only through ``paramiko_.preload``: importing paramiko costs time.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.auth_handler import AuthHandler
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_REQUEST,
    cMSG_CHANNEL_OPEN,
    cMSG_GLOBAL_REQUEST,
)
from paramiko.message import Message
from paramiko.ssh_exception import PartialAuthentication, SSHException

from dispatcher.model.failure import Failure
from dispatcher.transport import base
from dispatcher.transport.base import Steps, Window
from dispatcher.transport.ssh import algorithms
from dispatcher.transport.ssh.byte_stream import Wire, read_identification
from dispatcher.transport.ssh.channel import WINDOW, Packets, Pipe, request
from dispatcher.transport.ssh.standby import Standby
from dispatcher.transport.ssh_auth.host_keys import HostKeyCheck
from dispatcher.transport.ssh_auth.identities import methods

#: seconds for which a connection counts as alive after it was heard: longer than idle ones,
#: which are asked every ``keepalive.INTERVAL``, are silent
FRESH = base.INTERVAL + 10.0
#: seconds of silence after which we look after a host: more than between two heartbeats
LOOK = 7.5
_MAX_PACKET = 32768
_STACK = 512 * 1024
_REFUSALS = {1: "prohibited", 2: "connect failed", 3: "unknown kind", 4: "short of resources"}
_NOT_THERE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_stack_lock = threading.Lock()


class HostKeyRefused(SSHException):  # type: ignore[misc]
    """The host's key is not to be trusted; ``failure`` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.why)
        self.failure = failure


class FellSilent(SSHException):  # type: ignore[misc]
    """The host was asked whether it lives, and did not answer."""


class _Login(AuthHandler):  # type: ignore[misc]
    """Keeps what paramiko drops: the ways to log in that the host names with a refusal."""

    def _parse_userauth_failure(self, m: Any) -> None:
        self.transport.offered = methods(m.get_list())
        m.rewind()
        super()._parse_userauth_failure(m)


class Session(paramiko.Transport):  # type: ignore[misc]
    """One SSH connection: key exchange, login, channels, each by a deadline."""

    #: seconds for which the user typed a passphrase meanwhile, which are not the host's
    typed = 0.0
    _active_check_timeout = LOOK
    _channel_handler_table = {  # noqa: RUF012 - paramiko's own way: message number -> function
        **paramiko.Transport._channel_handler_table,
        # paramiko's table holds its own class's functions: ours would not be called.
        MSG_CHANNEL_DATA: lambda channel, m: channel._feed(m),
        MSG_CHANNEL_EXTENDED_DATA: lambda channel, m: channel._feed_extended(m),
        MSG_CHANNEL_REQUEST: lambda channel, m: channel._handle_request(m),
    }

    def __init__(
        self, wire: Wire, check: HostKeyCheck, offers: dict[str, tuple[str, ...]], steps: Steps
    ) -> None:
        super().__init__(wire, packetizer_class=Packets, strict_kex=True)
        self.wire = wire
        self.steps = steps
        steps.enter("ssh banner")
        self.before_banner = ""
        self.goodbye = ""
        self.offered: tuple[str, ...] = ()  # ways to log in that the host has named last
        self._check = check
        self._host_key_blob: bytes | None = None
        self._preferred_ciphers = offers["ciphers"]
        self._preferred_macs = offers["macs"]
        self._preferred_kex = offers["kex"]
        self._preferred_pubkeys = offers["pubkeys"]
        self._standby: Standby | None = None
        self._answered = threading.Event()
        self._alive = (0.0, base.MOST)
        self._heard_then = 0.0
        self._questions = 0  # that the present silence was met with
        self.packetizer.silent = self._on_silence
        self._wanted_keys = check.wanted(offers["host_keys"])

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return self._wanted_keys

    # -- what the caller does --------------------------------------------------

    def handshake(self, deadline: float) -> bool:
        """True when keys are exchanged and the host's key is trusted."""
        done = threading.Event()
        self.start_client(event=done)
        return self._wait(done, deadline) and self.active and self.initial_kex_done

    def try_key(self, user: str, key: Any, deadline: float) -> str:
        """One login attempt: ``in``, ``refused``, ``partial``, ``late`` or ``gone``."""
        return self._log_in(lambda login, done: login.auth_publickey(user, key, done), deadline)

    def try_nothing(self, user: str, deadline: float) -> str:
        """As ``try_key``, without a key: few hosts let us in so, all say what they want."""
        return self._log_in(lambda login, done: login.auth_none(user, done), deadline)

    def _log_in(self, ask: Callable[[Any, threading.Event], None], deadline: float) -> str:
        self.steps.enter("authentication")
        done = threading.Event()
        if not self.active:
            return "gone"
        self.auth_handler = _Login(self)
        try:
            ask(self.auth_handler, done)
        except (SSHException, EOFError, OSError):
            return "gone"
        if not self._wait(done, deadline):
            return "late"
        if self.is_authenticated():
            return "in"
        if not self.active:
            return "gone"
        problem = self.get_exception()
        return "partial" if isinstance(problem, PartialAuthentication) else "refused"

    def open_pipe(
        self, deadline: float, forward: tuple[str, int] | None = None
    ) -> tuple[Pipe | None, str]:
        """A channel and ``""``, or ``None`` and ``late``, ``gone`` or the peer's refusal.

        forward: the address a jump host shall connect to; otherwise a command channel.
        """
        opened = threading.Event()
        pipe = self.new_pipe(opened)
        if not self.ask_for(pipe, forward):
            return None, "gone"
        if not self._wait(opened, deadline):
            return None, "late"
        if pipe.refusal:
            return None, pipe.refusal
        return (pipe, "") if pipe.active and self.active else (None, "gone")

    def new_pipe(self, opened: Any) -> Pipe:
        """A channel to be asked for; ``opened.set`` is called, on our thread, with the answer."""
        with self.lock:
            number = self._next_channel()
            pipe = Pipe(number, WINDOW)
            self._channels.put(number, pipe)
            self.channel_events[number] = opened
            self.channels_seen[number] = True
            pipe._set_transport(self)
            pipe._set_window(WINDOW, _MAX_PACKET)
            pipe.in_window_threshold = WINDOW // 4  # fewer packets than with paramiko's tenth
        return pipe

    def ask_for(self, pipe: Pipe, forward: tuple[str, int] | None = None) -> bool:
        """Ask the host to open ``pipe``; False when the connection is gone."""
        message = Message()
        message.add_byte(cMSG_CHANNEL_OPEN)
        message.add_string("direct-tcpip" if forward else "session")
        for value in (pipe.chanid, WINDOW, _MAX_PACKET):
            message.add_int(value)
        if forward:
            for host, port in (forward, ("127.0.0.1", 0)):
                message.add_string(host)
                message.add_int(port)
        return self.send(message)

    def stand_by(self, command: str) -> None:
        """Start ``command`` on a channel for ``take_standby``; returns at once."""
        if self._standby is None:
            self._standby = Standby(self, command)
            self._standby.begin()

    def take_standby(self, command: str, deadline: float) -> Pipe | None:
        """A channel where ``command`` has started already, for its one user; or None."""
        standby = self._standby
        if standby is None or not standby.serves(command) or not self.answers(deadline):
            return None
        self._standby = None
        return standby.take(deadline)

    def at_hand(self, command: str) -> bool:
        """Whether ``take_standby`` gives a channel without waiting."""
        standby = self._standby
        fresh = time.monotonic() - self.packetizer.heard < FRESH
        return fresh and standby is not None and standby.serves(command) and standby.ready()

    def look_after(self, interval: float, most: int) -> None:
        """Ask the host after ``interval`` seconds of silence (0: never) whether it lives.

        most: as many questions may stay without an answer.
        """
        self._alive = interval, most
        if interval:
            self.wire.settimeout(min(LOOK, interval))

    def answers(self, deadline: float) -> bool:
        """Whether the host lives: it was heard just now, or answers by ``deadline``."""
        if time.monotonic() - self.packetizer.heard < FRESH:
            return True
        self._answered.clear()
        return self._question() and self._wait(self._answered, deadline)

    def give_terminal(self, pipe: Pipe, window: Window, deadline: float) -> str:
        """``""`` when the channel has a terminal, or ``late``, ``gone`` or ``refused``."""
        message = request(pipe, "pty-req", wants_reply=True)
        message.add_string(os.environ.get("TERM") or "dumb")
        for value in (window.columns, window.rows, 0, 0):
            message.add_int(value)
        message.add_string(b"\0")  # no modes: those of the host
        return self._ask(pipe, message, deadline)

    def resize(self, pipe: Pipe, window: Window) -> None:
        """Tell the channel's terminal its new size."""
        message = request(pipe, "window-change", wants_reply=False)
        for value in (window.columns, window.rows, 0, 0):
            message.add_int(value)
        self.say(pipe, message)

    def execute(self, pipe: Pipe, command: str, deadline: float) -> str:
        """``""`` when the command runs, or ``late``, ``gone`` or ``refused``."""
        message = request(pipe, "exec", wants_reply=True)
        message.add_string(command)
        return self._ask(pipe, message, deadline)

    def _ask(self, pipe: Pipe, message: Any, deadline: float) -> str:
        pipe._event_pending()
        if not self.say(pipe, message):
            return "gone"
        if not self._wait(pipe.event, deadline):
            return "late"
        if pipe.event_ready:
            return ""
        return "refused" if self.active else "gone"

    def silence(self) -> str | None:
        """What was seen of it if the host does not answer any more, else None."""
        problem = self.saved_exception
        if isinstance(problem, FellSilent):
            return str(problem)
        if isinstance(problem, OSError) and problem.errno in _NOT_THERE:
            return os.strerror(problem.errno).lower()
        return None

    def end(self, patience: float = 0.8) -> None:
        """End the connection and its thread; any thread, any number of times."""
        self.wire.shut()
        if self.ident is not None and self is not threading.current_thread():
            self.join(patience)
        if not self.is_alive():
            self.wire.close()

    # -- what paramiko calls ---------------------------------------------------

    def start(self) -> None:
        with _stack_lock:
            before = threading.stack_size(_STACK)
            try:
                super().start()
            finally:
                threading.stack_size(before)

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.wire.close()

    def _filter_algorithm(self, kind: str) -> Any:
        """What we offer, narrowed once and for all; paramiko asks 60 times a handshake."""
        return getattr(self, f"_preferred_{kind}")

    def _parse_debug(self, m: Any) -> None:
        """Nothing: sshd explains each login, which paramiko escapes for a log that nobody reads."""

    def _check_banner(self) -> None:
        try:
            version, self.before_banner = read_identification(self.wire)
        except EOFError as end:
            self.before_banner = str(end)
            raise
        except ValueError as error:
            raise SSHException(str(error)) from None
        if not version.startswith(("SSH-2.0-", "SSH-1.99-")):
            raise SSHException(f"it speaks another protocol: {version[:40]!r}")
        self.remote_version = version
        self.steps.enter("key exchange")

    def _verify_key(self, host_key: bytes, sig: bytes) -> None:
        super()._verify_key(host_key, sig)
        if self._host_key_blob is not None:
            if host_key != self._host_key_blob:
                raise SSHException("it changed its host key during the connection")
            return
        failure = self._check.judge(host_key, Message(host_key).get_text())
        if failure is not None:
            raise HostKeyRefused(failure)
        self._host_key_blob = host_key

    def _on_silence(self, seconds: float) -> None:
        """Nothing was heard for so long: ask whether the host lives, or give it up."""
        if not self.clear_to_send.is_set() or not self.is_authenticated():
            return  # what is due by a deadline is waited for elsewhere
        if self.packetizer.heard != self._heard_then:
            self._heard_then, self._questions = self.packetizer.heard, 0
        due = base.due(seconds, *self._alive)
        if due is None and self._questions >= self._alive[1]:
            raise FellSilent(f"no answer for {seconds:.0f} s")
        if due is None or due > self._questions:  # if late: nobody is given up unasked
            self._questions += 1
            if not self.packetizer.sends():  # else what is under way has to be answered as well
                self._question()

    def _question(self) -> bool:
        """Ask what has to be answered, be it with a refusal."""
        message = Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        return self.send(message)

    def _parse_request_success(self, m: Any) -> None:
        self._answered.set()

    _parse_request_failure = _parse_request_success  # sshd knows no such request, and says so

    def _parse_disconnect(self, m: Any) -> None:
        m.get_int()
        text = m.get_string().decode("utf-8", "replace")
        self.goodbye = "".join(c for c in text if c.isprintable())[:200]

    def _parse_channel_open_failure(self, m: Any) -> None:
        number, reason = m.get_int(), m.get_int()
        text = m.get_string().decode("utf-8", "replace")
        words = "".join(c for c in text if c.isprintable())[:200]
        with self.lock:
            pipe = self._channels.get(number)
            opened = self.channel_events.pop(number, None)
            self._channels.delete(number)
        if isinstance(pipe, Pipe) and opened is not None:
            name = _REFUSALS.get(reason, f"reason {reason}")
            pipe.refusal = f"{name}: {words.lower()}" if words else name
            opened.set()

    def _log(self, level: int, msg: Any, *args: Any) -> None:
        pass

    # -- small things ------------------------------------------------------------

    def send(self, message: Any) -> bool:
        """Whether the connection still stood when ``message`` was sent."""
        try:
            self._send_user_message(message)
        except (EOFError, OSError, SSHException):
            return False
        return bool(self.active)

    def say(self, pipe: Pipe, message: Any) -> bool:
        """As ``send``, but not after the channel's close."""
        try:
            return pipe.say(message) and bool(self.active)
        except (EOFError, OSError, SSHException):
            return False

    @staticmethod
    def _wait(event: threading.Event, deadline: float) -> bool:
        return event.wait(max(0.0, deadline - time.monotonic()))


def offers(config: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """What to offer a host, narrowed by its config; a key with nothing left is ``()``."""
    available = {
        "ciphers": (algorithms.CIPHERS, "ciphers", paramiko.Transport._cipher_info),
        "macs": (algorithms.MACS, "macs", paramiko.Transport._mac_info),
        "kex": (algorithms.KEX, "kexalgorithms", paramiko.Transport._kex_info),
        "host_keys": (algorithms.HOST_KEYS, "hostkeyalgorithms", paramiko.Transport._key_info),
        "pubkeys": (
            algorithms.HOST_KEYS,
            "pubkeyacceptedalgorithms",
            paramiko.Transport._key_info,
        ),
    }
    return {
        name: algorithms.narrow([item for item in ours if item in known], config.get(option))
        for name, (ours, option, known) in available.items()
    }
