"""``ExecPlan``: one command for many hosts, as planned; frozen before any host is touched.

A run (``plan.job.job_plan``) makes one job of all its ranks; a fan-out command is the same command
once on every host, each for itself: no ranks, no agent, no common environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from dispatcher.model.arguments import Arguments
from dispatcher.model.errors import MissingArgument, NoHosts, UsageError
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host, Hostlist

LONGEST = 10**7  # seconds; four months


@value
class ExecLimits(Arguments):
    """How long to wait (seconds; None: for ever), and how many hosts at once (None: all).

    connect: one host's name, TCP, key exchange, login and start of the command.
    command: from that start to its end. total: the whole command. grace: from a
    signal to the next, harder one. fanout: hosts being connected. serial:
    hosts being connected or running. stop_after: failed hosts after which no
    further one is started.
    """

    renamed: ClassVar[Mapping[str, str]] = {"fan_out": "fanout"}

    connect: float = 10.0
    command: float | None = None
    total: float | None = None
    grace: float = 5.0
    fanout: int = 64
    serial: int | None = None
    stop_after: int | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            least = 1 if name in ("fanout", "serial", "stop_after") else 0
            if limit is not None and not (
                least <= limit < LONGEST and (limit > 0 or name == "grace")
            ):
                raise UsageError(f"{name}: {limit} is not a sensible limit")


#: the name that programs may still use
ErrandLimits = ExecLimits


@value
class ExecPlan(Value):
    """``words`` (an argv, never empty) once on each of ``hosts``.

    stdin: each command reads a copy of our standard input; otherwise it has none.
    tails: words for each host alone, behind the common ones. sudo: the user that
    sudo makes it there. terminal: (columns, rows) of the terminal it gets there.
    one_pipe: nobody is to tell standard error from standard output, so both come in one pipe,
    in the order in which they were written; of two, sshd tells no order.
    """

    hosts: tuple[Host, ...]
    words: tuple[str, ...]
    stdin: bool = False
    limits: ExecLimits = ExecLimits()
    tails: tuple[tuple[str, ...], ...] = ()
    sudo: str | None = None
    terminal: tuple[int, int] | None = None
    one_pipe: bool = False

    def __post_init__(self) -> None:
        if not self.words or not self.words[0]:
            raise MissingArgument("no command given")
        for word in (*self.words, *(word for tail in self.tails for word in tail)):
            if "\0" in word:
                raise UsageError("a NUL byte in the command: no program can be given one")

    @property
    def names(self) -> list[str]:
        """A name per host for labels: with its port where only that tells two hosts apart."""
        counts = Counter(host.name for host in self.hosts)
        return [
            f"{host.name}:{host.port}" if counts[host.name] > 1 else host.name
            for host in self.hosts
        ]

    def words_for(self, node: int) -> tuple[str, ...]:
        """The argv of host ``node``."""
        return self.words + self.tails[node] if self.tails else self.words

    def environment(self, node: int) -> tuple[tuple[str, str], ...]:
        """What the command on host ``node`` can know about its place."""
        return (
            ("DISPATCH_HOST", self.hosts[node].name),
            ("DISPATCH_INDEX", str(node)),
            ("DISPATCH_COUNT", str(len(self.hosts))),
        )


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

    user, port: hold for hosts that name none of their own. option: what excludes, and hint
    what to do about it.
    Raises: PlanError when no host is left.
    """
    first: dict[tuple[str, int | None], Host] = {}
    for hostlist in lists:
        for host in hostlist.hosts:
            first.setdefault(host.place, host)
    gone = frozenset(excluded)
    left = [host for host in first.values() if host.name not in gone]
    if not left:
        raise NoHosts(f"no host is left after {option}" if gone else "no hosts", hint=hint)
    return tuple(replace(host, user=host.user or user, port=host.port or port) for host in left)
