"""``Course``: one run of a plan, from the first connection to its ``Report``.

The one path: the command line takes it with the sinks of its screen, ``dispatcher.run`` with
those of a program. Whoever takes it says how hosts are reached, who is told, and which
signals are the run's.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

from dispatcher.api.endings import Endings
from dispatcher.api.find_processes import Aftermath
from dispatcher.api.report import Report, report, write_json
from dispatcher.core.events.exclusion import HostExcluded
from dispatcher.core.events.run_events import Event
from dispatcher.core.events.sink import Sink
from dispatcher.core.run.policy import Verdict
from dispatcher.model.host_part import Host
from dispatcher.model.paths_part import RunPaths
from dispatcher.output.monitor.nccl_listener import NcclWords
from dispatcher.output.text.attempts import history, left_out
from dispatcher.output.text.blame import blamed, words
from dispatcher.output.text.failures import Advise, no_advice
from dispatcher.output.text.tail import Tail
from dispatcher.output.text.verdict_text import describe
from dispatcher.plan.job.fitness import Exclusion
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.runner.run.run_loop import Runner
from dispatcher.transport.base import Transport


class Course:
    """The run of ``plan``; ``run`` carries it out, once.

    transport_for: host -> the way to reach it. sinks: who is told. say: writes a line to the
    user. paths: of the run's files, for the report. elsewhere: hosts where others started ranks
    of this run; after a failure they are looked at, too. excluded: hosts left out of the plan since
    they are not fit. verdict: with one given nothing is run, and the sinks are told that.
    above: hosts, and by the index of each those it is reached through, nearest first; None: all
    are reached from here. rdma: host -> its ACTIVE ports in words, as far as a check has seen
    them. advise: see ``describe``. The others are as ``Runner`` has them.
    """

    def __init__(
        self,
        plan: JobPlan,
        transport_for: Callable[[Host], Transport],
        sinks: Sequence[Sink],
        *,
        say: Callable[[str], None],
        paths: RunPaths | None = None,
        elsewhere: Sequence[Host] = (),
        excluded: Sequence[Exclusion] = (),
        verdict: Verdict | None = None,
        check: bool = True,
        agent_python: str | None = None,
        sample_every: float | None = None,
        lent: Callable[[], AbstractContextManager[None]] = nullcontext,
        sink_failed: Callable[[Sink, Exception], None] | None = None,
        above: Callable[[Sequence[Host]], Mapping[int, Sequence[int]]] | None = None,
        rdma: Mapping[str, str] = MappingProxyType({}),
        advise: Advise = no_advice,
    ) -> None:
        places = (*plan.nodes, *plan.spares)
        self._hosts = [node.host.name for node in places]
        self._say = say
        self._paths = paths
        self._elsewhere = elsewhere
        self._excluded = excluded
        self._verdict = verdict
        self._above = above
        self._advise = advise
        self._tail, self._endings = Tail(), Endings()
        settings = [{**dict(plan.exports), **dict(node.host.env)} for node in places]
        seen = {at: rdma[name] for at, name in enumerate(self._hosts) if rdma.get(name)}
        self._nccl = NcclWords(settings, self.tell, time.monotonic, seen)
        hosts = [node.host for node in places]
        self._aftermath = Aftermath(hosts, plan.run_id, transport_for, self.tell)
        self._runner = Runner(
            plan,
            transport_for,
            # ranks that others have started speak through one, and their hosts are not known
            [
                self._tail,
                self._endings,
                self._aftermath,
                *(() if elsewhere else [self._nccl]),
                *sinks,
            ],
            look_again=self._aftermath.look_again,
            check=check,
            agent_python=agent_python,
            known=[] if verdict else [HostExcluded(e.host, e.why, e.by) for e in excluded],
            sample_every=sample_every,
            lent=lent,
            sink_failed=sink_failed or self._told_of,
        )

    @property
    def plan(self) -> JobPlan:
        """The plan as it stands: closed once the hosts' GPUs were counted."""
        return self._runner.plan

    def home(self, rank: int) -> tuple[int, int]:
        """Number of the host where ``rank`` runs or ran, and its number there."""
        return self._runner.home(rank)

    def host_of(self, rank: int) -> str:
        """The name of that host."""
        return self._runner.host_of(rank)

    def tell(self, event: Event) -> None:
        """Let the run know of ``event``; from any thread or signal handler."""
        self._runner.tell(event)

    def run(self, handled: Sequence[signal.Signals]) -> Report:
        """Run to the end; how it ended. handled: signals that are the run's, () for none.

        Raises: UsageError for ways to the hosts that this machine does not have.
        """
        began, at = time.time(), time.monotonic()
        verdict = self._runner.run(self._verdict, handled)
        plan, last = self.plan, self._tail.last
        cleaned = self._aftermath.clean(handled, () if verdict.ok else self._elsewhere)
        behind: list[str] = []
        if self._above is not None:
            hosts = [node.host for node in plan.nodes]
            verdict, lost = blamed(verdict, self._above(hosts))
            behind = words(verdict, [host.name for host in hosts], lost)
        lines = [] if self._verdict else left_out(self._excluded)
        lines += history(verdict)
        lines += describe(verdict, plan, self._endings.pids, last, self._advise)
        lines += behind + cleaned + self._nccl.lines(self._hosts)
        ended = report(
            verdict, plan, lines, began, time.monotonic() - at, self._endings, last,
            self._hosts, self._excluded, None if self._paths is None else self._paths.folder,
            self._nccl.said(),
        )  # fmt: skip
        if self._paths is not None:
            try:
                write_json(self._paths.report, ended.plain())
            except OSError as error:  # the report itself is worth more than the file
                self._say(f"error: {self._paths.report}: {(error.strerror or '').lower()}")
        return ended

    def _told_of(self, sink: Sink, error: Exception) -> None:
        self._say(f"error: {type(sink).__name__}: {error}")
