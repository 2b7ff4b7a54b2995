"""``TreeTransport``: reaches hosts through other hosts, and from here when that fails.

A host without others below it is a stream of its parent's branch; an inner host is reached on its
own branch, where its command runs beside the relay. Trust does not depend on an inner host:
its ``ssh`` gets the lines of our known_hosts for the host, and nothing else.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dispatcher.bootstrap import payload as bootstrap
from dispatcher.bootstrap import shell
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.hostset import fold
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.transport.base import Link, LinkClosed, Target, Transport, Window, bad_target
from dispatcher.transport.process.openssh import NO_FORWARDING, connect_timeout, ssh_words
from dispatcher.transport.ssh_auth.known_hosts import KnownHostsFiles, lookup_name
from dispatcher.transport.ssh_config.ssh_config import SshConfig
from dispatcher.transport.tree.branch import Branch, Stream
from dispatcher.transport.tree.topology import HostTree

_MARKER = SYNC.replace(b"\0", b"\\000").replace(b"\n", b"\\n").decode()

_OPTIONS = {
    # before all others, and all that its own file may name there: older ones cannot do all below
    "IgnoreUnknown": "*",
    "BatchMode": "yes",
    "ServerAliveInterval": "0",  # the agent's heartbeat decides who is lost
    **NO_FORWARDING,
    "ControlMaster": "no",  # another user of a shared connection may have checked other keys
    "ControlPath": "none",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
    "KnownHostsCommand": "none",
    "NoHostAuthenticationForLocalhost": "no",
    "GSSAPIKeyExchange": "no",  # by which a host need show no key
    "CheckHostIP": "no",
    "VerifyHostKeyDNS": "no",
    "UpdateHostKeys": "no",
    "LogLevel": "ERROR",  # a banner is not a reason
    "RemoteCommand": "none",  # beside one of its own file it takes no other
}

_EXCHANGE = "^curve25519-sha256"


@dataclass(frozen=True)
class Trusted:
    """A host's name in ``lines`` of known_hosts. exchange: the key exchange to prefer, or None."""

    alias: str
    lines: str
    exchange: str | None


class Trust:
    """Looks up host keys as ``ssh_config`` sets it. config: as ``ssh -F``, None for the usual."""

    def __init__(self, config: str | None = None) -> None:
        self._config = SshConfig(config)
        self._files = KnownHostsFiles()

    def of(self, target: Target) -> Trusted | Failure:
        """The keys on file here for ``target``."""
        config = self._config.resolve(target)
        if isinstance(config, Failure):
            return config
        index = self._files.index((*config.user_known_hosts, *config.global_known_hosts))
        named, bare = index.keys_of_host(config.host, config.port, config.known_as)
        trusted = (*named.authorities, *bare.authorities, *named.keys, *bare.keys)
        if not trusted:
            name = lookup_name(config.host, config.port, config.known_as)
            return Failure(Kind.HOST_KEY_UNKNOWN, f"no key of {name} is on file here")
        alias = config.known_as or config.host
        lines = dict.fromkeys(
            f"{entry.marker} {alias} {entry.kind} {entry.text}\n".lstrip()
            for entry in (*named.revoked, *bare.revoked, *trusted)
        )
        exchange = None if "kexalgorithms" in dict(config.algorithms) else _EXCHANGE
        return Trusted(alias, "".join(lines), exchange)


def ssh(target: Target, known: Trusted, seconds: float, program: tuple[str, ...]) -> list[str]:
    """The ssh command by which an inner host reaches ``target``. seconds: to connect."""
    timeout = connect_timeout(seconds)
    options = {**_OPTIONS, "HostKeyAlias": known.alias, "ConnectTimeout": timeout}
    if known.exchange is not None:
        options["KexAlgorithms"] = known.exchange
    start = [*program, "-T", "-o", tree_relay.KNOWN.decode()]
    return ssh_words(start, options, target, shell.COMMAND)


def opening(command: str) -> bytes:
    """The first input of that ssh's command: print that it has arrived, then run ``command``."""
    text = f"{shell.MARK}printf '{_MARKER}';unset s;{command}\n"
    return bootstrap.BLANK_LINES + text.encode("utf-8", "surrogateescape")


#: parts of a host's time after which the inner host above it, and the host, are late
_BRANCH_SHARE, _HOST_SHARE = 0.5, 0.75


class TreeTransport(Transport):
    """Reaches ``targets`` by the tree ``topology`` of their indexes, others by ``direct``.

    direct: the caller's, who closes it. command: starts a Python on a host (``payload.command``).
    config: as ``ssh -F`` here. say: shows a line to the user. program: the ssh of the hosts.
    """

    name = "tree"

    def __init__(
        self,
        targets: Sequence[Target],
        topology: HostTree,
        direct: Transport,
        *,
        command: str,
        config: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        program: tuple[str, ...] = ("ssh",),
    ) -> None:
        self._targets = tuple(targets)
        self._numbers: Mapping[Target, int] = {t: i for i, t in enumerate(targets)}
        self._topology = topology
        self._direct = direct
        self._command = command
        self._program = program
        self._trust = Trust(config)
        self._fallbacks = FallbackReport(say)
        self._lock = threading.Lock()
        self._branches: dict[int, Branch] = {}
        self.closed = False

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        problem = bad_target(target)
        if problem is not None:
            return problem
        now = time.monotonic()
        if now >= deadline:
            return Failure(Kind.TIMEOUT, "no time left to connect")
        number = self._numbers.get(target)
        if number is None or window is not None:
            return self._from_here(target, command, deadline, window)
        with self._fallbacks.under_way():
            above = self._topology.parents[number]
            if self._topology.children[number]:
                opened = self._beside_relay(number, command, now, deadline)
            elif above is not None:
                opened = self._behind(above, target, command, now, deadline)
            else:
                return self._from_here(target, command, deadline)
            if isinstance(opened, Link):
                return opened
            failure, goes_on = opened
            if not goes_on:
                return failure
            if above is not None:
                self._fallbacks.add(target.host, self._targets[above].host, failure)
            return self._from_here(target, command, deadline)

    def _from_here(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        opened = self._direct.open(target, command, deadline, window)
        if isinstance(opened, Link):
            opened.by = opened.by or self._direct.name
        return opened

    def _beside_relay(
        self, number: int, command: str, now: float, deadline: float
    ) -> Link | tuple[Failure, bool]:
        """A command on an inner host; else why not, and whether to try from here."""
        branch = self._branch(number, now, deadline)
        failure = branch.wait(now + (deadline - now) * _HOST_SHARE - time.monotonic())
        if failure is None:
            stream = branch.stream(("/bin/sh", "-c", command), branch.name)
            stream.address = branch.address
            return stream
        is_head = self._topology.parents[number] is None
        final = is_head and branch.unreached and failure.kind is not Kind.TIMEOUT
        return failure, failure.retryable or not final

    def _behind(
        self, above: int, target: Target, command: str, now: float, deadline: float
    ) -> Link | tuple[Failure, bool]:
        """A command on a host that ``above`` opens; else why not, and that it is worth a try."""
        until = now + (deadline - now) * _HOST_SHARE
        opened = self._through(self._branch(above, now, deadline), target, command, until)
        if isinstance(opened, Failure):
            return opened, True
        if (failure := opened.arrived(until)) is None:
            return opened
        opened.close()
        return failure, True

    def _through(
        self, branch: Branch, target: Target, command: str, until: float
    ) -> Stream | Failure:
        """A stream that will be the command, if all goes well on the way."""
        known = self._trust.of(target)
        if isinstance(known, Failure):
            return known
        argv = ssh(target, known, until - time.monotonic(), self._program)
        stream = branch.stream(argv, target.host, known.lines)
        try:
            stream.write(opening(command))
        except LinkClosed:
            pass  # its end, and why, is about to be read
        return stream

    def _branch(self, number: int, now: float, deadline: float) -> Branch:
        """The branch of an inner host; its relay may not have answered yet."""
        until = now + (deadline - now) * _BRANCH_SHARE
        target, above = self._targets[number], self._topology.parents[number]
        parent = None if above is None else self._branch(above, now, deadline)

        def open_link() -> Link | Failure:
            if parent is None:
                return self._direct.open(target, self._command, until)
            return self._through(parent, target, self._command, until)

        with self._lock:
            if number not in self._branches:
                self._branches[number] = Branch(target.host, payload(), open_link)
                if self.closed:
                    self._branches[number].close()
            return self._branches[number]

    def close(self) -> None:
        with self._lock:
            self.closed = True
            branches = list(self._branches.values())
        for branch in branches:
            branch.close()


#: the relay, in the order of its imports
_MODULES = ("protocol.mux", "host.poll", "tree_relay")


@functools.cache
def payload() -> bytes:
    """The relay's source, as it is sent."""
    modules = {name: bootstrap.source(name) for name in _MODULES}
    start = f"from {bootstrap.REMOTE}.tree_relay import serve\nserve({SYNC!r})\n"
    return bootstrap.payload_of(modules, start)


_HINTS = {
    Kind.AUTH: "ssh {parent} ssh {host} true  # hosts of a tree log in to each other",
    Kind.HOST_KEY_UNKNOWN: "ssh-keyscan {host} >> ~/.ssh/known_hosts"
    "  # here, after checking the fingerprint",
    Kind.NO_PYTHON: "--agent-python names one; an inner host needs Python",
    Kind.CONFIG: "ssh {parent} ssh -v {host} true",
    Kind.DNS: "ssh {parent} getent hosts {host}",
}


class FallbackReport:
    """Collects reasons. say: shows one line to the user."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiting: dict[Kind, list[tuple[str, str, Failure]]] = {}

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a host that is being reached."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                found = {} if self._under_way else self._waiting
                self._waiting = {} if found else self._waiting
            for kind, fallbacks in found.items():
                for line in fallback_lines(kind, fallbacks):
                    self._say(line)

    def add(self, host: str, parent: str, failure: Failure) -> None:
        """``host`` is connected from here, since ``parent`` cannot reach it."""
        with self._lock:
            self._waiting.setdefault(failure.kind, []).append((host, parent, failure))


def fallback_lines(kind: Kind, fallbacks: list[tuple[str, str, Failure]]) -> list[str]:
    """The lines for hosts that were all refused for a reason of one kind."""
    hosts = fold(host for host, _, _ in fallbacks)
    parents = fold({parent for _, parent, _ in fallbacks})
    host, parent, failure = fallbacks[0]
    lines = [f"note: {hosts}: connected from here, not through {parents}: {failure.why}"]
    hint = _HINTS.get(kind)
    if hint is not None:
        lines.append("  hint: " + hint.format(host=host, parent=parent))
    return lines
