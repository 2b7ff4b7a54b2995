"""``ExecPlan``: one command for many hosts, as planned; frozen before any host is touched.

Unlike a run, it is the same command once on every host, each for itself: no ranks, no agent.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from dispatcher.model import errors
from dispatcher.model.arguments import Arguments
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host, Hostlist
from dispatcher.model.names import MOST_RANKS, BadName, digits, quoted

LONGEST = 10**7  # seconds; four months


@value
class ExecLimits(Arguments):
    """How long to wait (seconds; None: for ever), and how many hosts at once (None: all).

    connect: one host's name, TCP, key exchange, login and start of the command. login: extra time
    for the last two. command: from that start to its end. total: the whole command. grace: from a
    signal to the next, harder signal.
    fanout: hosts being connected. serial: hosts being connected or running, as a number or a share
    of all hosts, rounded up: 4, "10%". As soon as one is done the next begins. With several,
    "1,10%,50%", or with a ``delay``, they go in batches: the next begins ``delay`` seconds after
    the last host of a batch is done, and the last number holds for all later batches. If
    several are named, none begins after a batch of which all hosts failed; with ``max_fail``, only
    the batches before the last number are such canaries. max_fail: failed hosts, as a number or a
    share of all hosts, after which no other host is started.
    """

    connect: float = 10.0
    login: float = 0.0
    command: float | None = None
    total: float | None = None
    grace: float = 5.0
    fanout: int = 64
    serial: int | str | None = None
    max_fail: int | str | None = None
    delay: float = 0.0

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if isinstance(limit, str) and name in ("serial", "max_fail"):
                check_share(limit, name, several=name == "serial")
                continue
            least = 1 if name in ("fanout", "serial", "max_fail") else 0
            if limit is not None and not (
                least <= limit < LONGEST
                and (limit > 0 or name in ("grace", "delay", "login"))
                and (name not in ("serial", "max_fail") or limit == int(limit))
            ):
                raise errors.UsageError(f"{name}: {limit} is not a sensible limit")
        if self.delay and self.serial is None:
            raise errors.ConflictingOptions("delay: needs serial")

    def canaries(self, hosts: int) -> int:
        """How many of the first batches must have a host that did well, for others to begin."""
        before_last = str(self.serial).count(",")
        if not before_last:
            return 0
        batches = len(self.batches(hosts))
        return min(before_last, batches) if self.max_fail else batches

    def at_once(self, hosts: int) -> int:
        """How many of ``hosts`` may be at work at the same time, whatever their batch."""
        if self.serial is None:
            return hosts
        return min(hosts, max(share(one, hosts) for one in str(self.serial).split(",")))

    def batches(self, hosts: int) -> tuple[int, ...]:
        """How many hosts each batch has, ``hosts`` in all; one where they go without batches."""
        if not (self.delay or "," in str(self.serial)):
            return (hosts,)
        sizes = [share(one, hosts) for one in str(self.serial).split(",")]
        found: list[int] = []
        left = hosts
        while left > 0:
            found.append(min(left, sizes[min(len(found), len(sizes) - 1)]))
            left -= found[-1]
        return tuple(found)

    def most_failures(self, hosts: int) -> int | None:
        """How many of ``hosts`` must fail until no other host is started."""
        return None if self.max_fail is None else share(str(self.max_fail), hosts)


def check_share(text: str, name: str, *, several: bool = False) -> None:
    """Check that ``text`` is a number or a share of hosts: ``4``, ``10%``. several: or a list.

    Raises: UsageError that begins with ``name``.
    """
    hint = f"{name} 4, or {name} 10%" + (f", or {name} 1,10%,50%" if several else "")
    for one in text.split(",") if several else [text]:
        try:
            digits(one.removesuffix("%"), name, 1, 100 if one.endswith("%") else MOST_RANKS)
        except BadName as bad:
            raise errors.UsageError(bad.message, hint=hint) from None


def share(text: str, hosts: int) -> int:
    """How many of ``hosts`` are ``text``: ``4``, or ``10%`` of them, rounded up."""
    number = int(text.removesuffix("%"))
    return -(-number * hosts // 100) if text.endswith("%") else number


@value
class Script(Value):
    """A file of ours that is sent, run and removed: its ``name`` on the host, its bytes.

    Raises: UsageError if it is not a script.
    """

    name: str
    content: bytes

    def __post_init__(self) -> None:
        if self.content.startswith(b"\x7fELF"):
            hint = f"dispatch put -H hostfile {shlex.quote(self.name)} /tmp/"
            raise errors.NotAScript(f"{quoted(self.name)}: a program, not a script", hint=hint)
        if self._first_line.endswith(b"\r"):
            why = "its lines end in \\r\\n, and no interpreter has such a name"
            hint = f"sed -i 's/\\r$//' {shlex.quote(self.name)}"
            raise errors.NotAScript(f"{quoted(self.name)}: {why}", hint=hint)

    @property
    def _first_line(self) -> bytes:
        return self.content.split(b"\n", 1)[0] if self.content.startswith(b"#!") else b""

    @property
    def words(self) -> tuple[str, ...]:
        """The argv with which a kernel would run it; the last word stands for its path on the host.

        The interpreter is called by name, so the file needs no execute bit, nor a place without
        ``noexec``. As on Linux, all behind the interpreter is one argument (execve(2)).
        """
        line = self._first_line[2:].decode("utf-8", "surrogateescape").strip(" \t")
        return (*(line.split(None, 1) or ["/bin/sh"]), self.name)


@value
class ExecPlan(Value):
    """``words`` and its own tail (an argv, never empty) once on each of ``hosts``.

    stdin: each command reads a copy of our standard input; otherwise it has none. tails: words for
    each host alone, after the common words. sudo: the user that sudo switches to. terminal:
    (columns, rows) of the terminal it gets. script: of whose path one of the words is the
    name. one_pipe: standard error need not be distinguished, so both come in one pipe, in the order
    in which they were written; with two pipes, sshd loses the order. exports: variables that the
    user gives the command. plain: the words are sent as they are, and nothing else.
    """

    hosts: tuple[Host, ...]
    words: tuple[str, ...]
    stdin: bool = False
    limits: ExecLimits = ExecLimits()
    tails: tuple[tuple[str, ...], ...] = ()
    sudo: str | None = None
    terminal: tuple[int, int] | None = None
    script: Script | None = None
    one_pipe: bool = False
    exports: tuple[tuple[str, str], ...] = ()
    plain: bool = False

    def __post_init__(self) -> None:
        if not all(words and words[0] for words in map(self.words_for, range(len(self.hosts)))):
            raise errors.MissingArgument("no command given")
        for word in (*self.words, *(word for tail in self.tails for word in tail)):
            if "\0" in word:
                raise errors.UsageError("a NUL byte in the command: no program can be given one")

    @property
    def names(self) -> list[str]:
        """A name per host for labels: with its port if only the port distinguishes two hosts."""
        counts = Counter(host.name for host in self.hosts)
        return [
            f"{host.name}:{host.port}" if host.port and counts[host.name] > 1 else host.name
            for host in self.hosts
        ]

    def words_for(self, node: int) -> tuple[str, ...]:
        """The argv of host ``node``."""
        return self.words + self.tails[node] if self.tails else self.words

    def plain_for(self, node: int) -> str | None:
        """The command line that is sent to host ``node`` alone; one word is shell text."""
        words = self.words_for(node)
        return None if not self.plain else words[0] if len(words) == 1 else shlex.join(words)

    def environment(self, node: int) -> tuple[tuple[str, str], ...]:
        """Variables that give the command on host ``node`` its place."""
        return (
            ("DISPATCH_HOST", self.hosts[node].name),
            ("DISPATCH_INDEX", str(node)),
            ("DISPATCH_COUNT", str(len(self.hosts))),
        )


def spelled(
    hosts: Iterable[Host], user: str | None = None, port: int | None = None
) -> list[str | None]:
    """``hosts`` as -w names each, None where it cannot. user, port: those set by other options."""

    def one(host: Host) -> str | None:
        if host.port == port:
            return host.name if host.user == user else f"{host.user}@{host.name}"
        if host.user is None:  # only behind user@ is a number the port
            return None
        name = f"[{host.name}]" if ":" in host.name else host.name
        return f"{host.user}@{name}:{host.port}"

    return [one(host) for host in hosts]


def target_hosts(
    lists: Iterable[Hostlist],
    excluded: Iterable[str],
    user: str | None = None,
    port: int | None = None,
    *,
    option: str = "-x",
    hint: str | None = None,
) -> tuple[Host, ...]:
    """The hosts of all lists in written order, each place once, less the ``excluded`` names.

    user, port: for hosts that name none. option: the excluding option; hint: the remedy.
    Raises: PlanError when no host is left.
    """
    first: dict[tuple[str, int | None], Host] = {}
    for hostlist in lists:
        for one in hostlist.hosts:
            host = replace(one, user=one.user or user, port=one.port or port)
            first.setdefault(host.place, host)
    gone = frozenset(excluded)
    left = [host for host in first.values() if host.name not in gone]
    if not left:
        raise errors.NoHosts(f"no host is left after {option}" if gone else "no hosts", hint=hint)
    return tuple(left)
