"""``SshTransport``: the system's ``ssh``, with all it can do and one process a host.

For sites whose logins need methods that the built-in client lacks (GSSAPI, smart cards, security
keys). ``ssh`` does not show its caller when it is connected, so ``open`` succeeds as soon as the
program lives; ``Link.failure`` reads ssh's error output if the stream ended before any byte came.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.transport import base
from dispatcher.transport.base import Link, Target, Transport, Window, bad_target
from dispatcher.transport.process.child import ChildLink, start
from dispatcher.transport.process.pump import Pump
from dispatcher.transport.ssh_auth import identities
from dispatcher.transport.ssh_auth.host_keys import unknown_key

#: ssh's own exit code when the connection failed or broke
SSH_FAILED = 255

_RULES: tuple[tuple[str, Kind, bool], ...] = (
    (r"Could not resolve hostname.*(Temporary failure|try again)", Kind.DNS, True),
    (r"Could not resolve hostname|name resolution", Kind.DNS, False),
    (r"is marked as revoked|REVOKED HOST KEY", Kind.HOST_KEY_REVOKED, False),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|key for .* has changed",
     Kind.HOST_KEY_CHANGED, False),
    (r"No .* host key is known for|Host key verification failed|"
     r"host key .* not (?:found|known)|Host key fingerprint verification failed",
     Kind.HOST_KEY_UNKNOWN, False),
    (r"Too many authentication failures|Permission denied", Kind.AUTH, False),
    (r"No more authentication methods|Authentication failed", Kind.AUTH, False),
    (r"Bad configuration option|terminating, \d+ bad configuration", Kind.CONFIG, False),
    (r"Bad owner or permissions|Can't open user config|jumphost loop", Kind.CONFIG, False),
    (r"line \d+: |Unable to negotiate|hostname contains invalid", Kind.CONFIG, False),
    (r"Not allowed at this time", Kind.DROPPED, False),
    # Both come from sshd's MaxStartups: some connections are dropped at random.
    (r"kex_exchange_identification|banner exchange.*(?:reset|closed|refused)", Kind.DROPPED, True),
    (r"timed out", Kind.TIMEOUT, False),
    (r"Connection refused", Kind.REFUSED, False),
    (r"server .* not responding", Kind.UNREACHABLE, False),
    (r"No route to host|Network is unreachable|Host is down", Kind.UNREACHABLE, False),
    (r"Can't assign requested address|Address family not supported", Kind.UNREACHABLE, False),
    (r"open failed: (?:connect failed|administratively)", Kind.UNREACHABLE, False),
    (r"Connection (?:reset|closed) by|Broken pipe|Connection to .* closed", Kind.DROPPED, True),
)  # fmt: skip


_LONG = 1000  # characters of a line that are looked at
_DENIED = re.compile(r"(?P<user>[^\s@]+)@\S+: Permission denied \((?P<methods>[\w,@.-]+)\)")


def classify(errors: str, host: str) -> Failure:
    """The failure that ssh's error output reports; ``LOST`` when no line of it is known."""
    lines = [line.strip()[:_LONG] for line in errors.splitlines() if line.strip()]
    for pattern, kind, retryable in _RULES:
        for line in lines:
            if re.search(pattern, line):
                return Failure(kind, _quoted(line), _hint(kind, host, line), retryable)
    return Failure(Kind.LOST, _quoted(lines[-1]) if lines else "ssh failed without a word")


def _quoted(line: str) -> str:
    return "ssh says: " + "".join(c for c in line if c.isprintable())[:300].rstrip(".")


def _hint(kind: Kind, host: str, line: str) -> str | None:
    if kind is Kind.HOST_KEY_UNKNOWN:
        return unknown_key(host, None, "~/.ssh/known_hosts")
    if kind is Kind.HOST_KEY_CHANGED:
        return f"ssh-keygen -R {host}  # if you know why the key changed"
    if denied := _DENIED.search(line):
        offered, ask = identities.methods(denied["methods"].split(",")), identities.ASK_NOT_BY_SSH
        if "publickey" in offered:
            return identities.refused_key(f"{denied['user']}@{host}", None, offered, ask=ask)
        return identities.takes_no_key(offered, ask)
    if kind in (Kind.AUTH, Kind.CONFIG):
        return f"ssh -v {host} true"
    return None


NO_FORWARDING = {"ForwardAgent": "no", "ForwardX11": "no", "ClearAllForwardings": "yes"}


def connect_timeout(seconds: float) -> str:
    """The value of ssh's ConnectTimeout for a deadline so far off: whole seconds, one at least."""
    return str(max(1, math.ceil(seconds)))


def ssh_words(
    program: Sequence[str], options: Mapping[str, str], target: Target, command: str
) -> list[str]:
    """The argv of an ssh that runs ``command`` on ``target``. program: with its own flags."""
    argv = [*program, *(word for name in options for word in ("-o", f"{name}={options[name]}"))]
    if target.user is not None:
        argv += ["-l", target.user]
    if target.port is not None:
        argv += ["-p", str(target.port)]
    return [*argv, "--", target.host, command]


class SshLink(ChildLink):
    """A child link that knows what ssh's end means."""

    host = ""
    _answered = False

    def read(self, limit: int) -> bytes | None:
        data = super().read(limit)
        self._answered = self._answered or bool(data)
        return data

    def ending(self, timeout: float) -> Ending:
        # ssh says 255 for its own failures, too, and for a command that a signal ended
        ending = super().ending(timeout)
        if ending.code == SSH_FAILED:
            words = self._first_errors(0.1).decode("utf-8", "replace")
            if words.strip() and classify(words, self.host).kind is not Kind.LOST:
                return Ending(None)
        return ending

    def failure(self, timeout: float) -> Failure | None:
        deadline = time.monotonic() + timeout
        if self._answered or self._wait(timeout) != SSH_FAILED:
            return None
        words = self._first_errors(min(1.0, max(0.1, deadline - time.monotonic())))
        return classify(words.decode("utf-8", "replace"), self.host)


class SshTransport(Transport):
    """Runs one ``ssh`` a host.

    config: a file for ``ssh -F`` instead of the user's and the system's.
    reach: seconds at most for connection and banner. accept_new: store and trust the key of a host
    has none yet. alive: seconds of silence until a host is asked whether it lives; 0: never,
    as another part of dispatch watches.
    """

    name = "ssh"

    def __init__(
        self,
        *,
        config: str | None = None,
        accept_new: bool = False,
        alive: base.Keepalive = base.UNLESS_CONFIGURED,
        program: str = "ssh",
        reach: float = math.inf,
    ) -> None:
        self._reach = reach
        self._program = program
        self._config = config
        self._accept_new = accept_new
        self._alive = alive
        self._pump = Pump("transport:ssh:read")

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        problem = bad_target(target)
        if problem is not None:
            return problem
        left = deadline - time.monotonic()
        if left <= 0:
            return Failure(Kind.TIMEOUT, "no time left to start ssh")
        argv = self.argv(target, command, left, "-T" if window is None else "-tt")
        opened = start(argv, self._pump, SshLink)
        if isinstance(opened, SshLink):
            opened.host = target.host
        return opened

    def argv(self, target: Target, command: str, seconds: float, terminal: str = "-T") -> list[str]:
        """The program and its arguments; ``seconds`` limits connection and banner.

        terminal: ``-T`` for none, ``-tt`` for one (ssh without a terminal of its own
        cannot give it a size).
        """
        options = {
            "BatchMode": "yes",  # no user is there to answer a prompt
            "ConnectTimeout": connect_timeout(min(seconds, self._reach)),
            **NO_FORWARDING,
        }
        if self._alive != base.UNLESS_CONFIGURED:  # else as its own configuration has it
            seconds, most = self._alive.limits(None, None)
            options["ServerAliveInterval"] = str(math.ceil(seconds))
            options["ServerAliveCountMax"] = str(most)
        if terminal != "-T":
            options["LogLevel"] = "ERROR"  # else it says "Connection closed" in the output
        if self._accept_new:
            options["StrictHostKeyChecking"] = "accept-new"
        file = () if self._config is None else ("-F", self._config)
        return ssh_words([self._program, terminal, *file], options, target, command)

    def close(self) -> None:
        self._pump.close()
