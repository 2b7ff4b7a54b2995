"""``exec``: run one command once on every host, and return the hosts' answers.

As with ``dispatch exec``, hosts need no Python, and the commands end when this process does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from dispatcher.api import transports
from dispatcher.api.request import Hosts, check_words, hosts_of
from dispatcher.api.run_session import BackgroundRun
from dispatcher.core.events.exec_events import Exited, Outcome, exit_code, is_good, own_code
from dispatcher.model.arguments import check_types
from dispatcher.output.exec.exec_notes import describe, outcome_text
from dispatcher.output.exec.host_blocks import HostOutput
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan, target_hosts
from dispatcher.remote.protocol.frames import STDERR, STDOUT
from dispatcher.runner.exec.exec_loop import ExecRunner
from dispatcher.transport.base import ALIVE_INTERVAL, Keepalive


@dataclass(frozen=True)
class Answer:
    """One host's answer; code: its command's exit code, None if it did not exit by itself.

    words: its outcome as text. stdout, stderr: the first 4 MiB; dropped: bytes beyond.
    seconds: from the start of the whole command to this host's end.
    """

    host: str
    ok: bool
    code: int | None
    words: str
    stdout: bytes
    stderr: bytes
    dropped: int
    seconds: float

    @property
    def text(self) -> str:
        """Its standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True)
class Answers:
    """One answer a host, in the hosts' order.

    exit_code, verdict: as ``dispatch exec`` has them; largest_code: as with ``-S``.
    """

    hosts: tuple[Answer, ...]
    exit_code: int
    largest_code: int
    verdict: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0 on every host."""
        return all(answer.ok for answer in self.hosts)


class _Settings(TypedDict, total=False):
    limits: ExecLimits
    ways: transports.Ways


def exec(
    hosts: Hosts,
    argv: Sequence[str],
    *,
    limits: ExecLimits | None = None,
    ways: transports.Ways | None = None,
    ask: transports.Ask = transports.nobody,
) -> Answers:
    """Run ``argv`` on each of ``hosts``. Ctrl-C ends it on all hosts and is raised.

    ways: how hosts are reached. ask: asks for a passphrase; by default none is asked for.
    Raises: UsageError (HostfileError, PlanError) before any host is touched.
    """
    check_words(argv)
    given = {name: item for name, item in (("limits", limits), ("ways", ways)) if item is not None}
    check_types("exec", _Settings, given)
    ways = ways or transports.Ways()
    places = target_hosts([hosts_of(hosts)], ())
    exec_plan = ExecPlan(places, tuple(argv), limits=limits or ExecLimits())
    transports.check_reachable(ways, places)
    transports.allow_open_files(len(places))
    kept = HostOutput(frozenset({STDOUT, STDERR}))
    reach = transports.TransportPool(ways, ask, Keepalive(otherwise=ALIVE_INTERVAL))
    runner = ExecRunner(exec_plan, reach.transport_for, [kept])
    reach.typing = runner.typing

    def work() -> tuple[Outcome, ...]:
        with reach:
            return runner.run(())

    background: BackgroundRun[tuple[Outcome, ...], None] = BackgroundRun(work, runner.tell)
    with background:
        outcomes = background.start().wait()
    return Answers(
        tuple(
            Answer(
                name,
                is_good(outcome),
                outcome.code if isinstance(outcome, Exited) else None,
                outcome_text(outcome),
                kept.block(node, STDOUT),
                kept.block(node, STDERR),
                kept.dropped(node, STDOUT) + kept.dropped(node, STDERR),
                kept.seconds.get(node, 0.0),
            )
            for node, (name, outcome) in enumerate(zip(exec_plan.names, outcomes, strict=True))
        ),
        exit_code(outcomes),
        max(map(own_code, outcomes)),
        tuple(describe(outcomes, exec_plan.names)),
    )
