"""Carries out one run of a plan, from the first connection to its ``Report``, with its files.

The command line and programs both use ``RunSession``.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from dispatcher.api.find_processes import FinalCleanup
from dispatcher.api.report import Fold, Report, write_json
from dispatcher.core.events.monitor_events import NcclNetwork, RunBegan, RunClosed, placed
from dispatcher.core.events.run_events import Entry, Event, HostExcluded, Sink
from dispatcher.core.events.verdicts import Cause, Verdict
from dispatcher.model.errors import FileUnusable, reason
from dispatcher.model.host import Host
from dispatcher.model.paths import Rotation, RunPaths
from dispatcher.output.monitor.nccl_listener import NcclListener
from dispatcher.output.run_state import RunState
from dispatcher.output.text.fold import Advise, no_advice
from dispatcher.output.text.story import Tail, errors_of
from dispatcher.output.text.verdict_text import advice_on, last_words
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.reassignment import Exclusion
from dispatcher.runner.run.run_loop import Runner
from dispatcher.transport.base import Transport

if TYPE_CHECKING:
    pass


Overflow = Literal["block", "drop"]


def open_files(
    plan: JobPlan,
    paths: RunPaths,
    say: Callable[[str], None],
    *,
    merge: bool = False,
    overflow: Overflow = "block",
    rotation: Rotation | None = None,
) -> list[Sink]:
    """Write the plan, and return the sinks that write the run's other files.

    say: writes a line to the user. merge: one file for all ranks. overflow: block the ranks or drop
    output when the disk is slower. Raises: UsageError.
    """
    rotation = rotation or Rotation()

    def warn(text: str) -> None:
        say(f"note: {text}")

    try:
        from dispatcher.output.files.journal import Journal  # a run without files needs neither
        from dispatcher.plan.job.rank_environment import describe_plan

        write_json(paths.plan, describe_plan(plan))
        found = [Journal(paths.journal, warn), _output(paths, warn, merge, overflow, rotation)]
    except OSError as error:
        raise FileUnusable(f"--log-dir {paths.folder.parent}: {reason(error)}") from None
    if plan.limits.hang_timeout:
        from dispatcher.output.text.stacks_text import StackFiles

        hosts = [node.host.name for node in (*plan.nodes, *plan.spares)]
        found.append(StackFiles(hosts, paths.folder, lambda *_: None, say))
    return found


def _output(
    paths: RunPaths, say: Callable[[str], None], merge: bool, overflow: Overflow, rotation: Rotation
) -> Sink:
    from dispatcher.output.files.rank_logs import MergedLog, RankFiles

    files: Sink = (
        MergedLog(paths.merged, say, rotation) if merge else RankFiles(paths.folder, say, rotation)
    )
    if overflow == "block":
        return files
    from dispatcher.output.buffered import BufferedSink

    return BufferedSink(files, "files")


class RunSession:
    """The run of ``plan``; ``run`` carries it out, once.

    transport_for: host -> its transport. sinks: get events and output; ``add`` gives it more. say:
    writes a line to the user. paths: of the run's files, for the report. excluded: hosts left out
    of the plan because they did not pass the checks. rdma: host -> its ACTIVE ports as text, as far
    as a check has seen them. advise: see ``describe``. If ranks run in a container, ``outside_for``
    gives the transport to the host itself. The others, ``home``, ``host_of`` and ``restart`` are as
    in ``Runner``. state: the run now, for sinks. closed: its last event, at the end.
    """

    def __init__(
        self,
        plan: JobPlan,
        transport_for: Callable[[Host], Transport],
        sinks: Sequence[Sink] = (),
        *,
        say: Callable[[str], None],
        paths: RunPaths | None = None,
        excluded: Sequence[Exclusion] = (),
        check: bool = True,
        agent_python: str | None = None,
        sample_every: float | None = None,
        looks: bool = False,
        sink_failed: Callable[[Sink, Exception], None] | None = None,
        rdma: Mapping[str, str] = MappingProxyType({}),
        resend: Callable[[], None] | None = None,
        advise: Advise = no_advice,
        outside_for: Callable[[Host], Transport] | None = None,
    ) -> None:
        places = (*plan.nodes, *plan.spares)
        self._hosts = [node.host.name for node in places]
        self.closed: RunClosed | None = None
        self._say = say
        self._paths = paths
        self._excluded = excluded
        self._advise = advise
        self._tail, self._fold = Tail(), Fold(None if paths is None else paths.folder, self._hosts)
        self.state: RunState = self._fold
        settings = [{**dict(plan.exports), **dict(node.host.env)} for node in places]
        seen = {at: rdma[name] for at, name in enumerate(self._hosts) if rdma.get(name)}
        self._nccl = NcclListener(self.state, settings, self.tell, seen)
        hosts = [node.host for node in places]
        self._cleanup = FinalCleanup(hosts, plan.run_id, outside_for or transport_for, self.tell)
        self._runner = Runner(
            plan,
            transport_for,
            [self._fold, self._tail, self._cleanup, self._nccl, *sinks],
            check_orphans=self._cleanup.check_orphans,
            check=check,
            resend=resend,
            agent_python=agent_python,
            sample_every=sample_every,
            looks=looks,
            sink_failed=sink_failed or self._warn_about,
            reached=self.state.progressed,
        )
        self.home, self.host_of = self._runner.home, self._runner.host_of
        self.program_of = self.state.program_of
        self.restart, self.add = self._runner.restart, self._runner.add

    @property
    def plan(self) -> JobPlan:
        """The present plan: closed once the hosts' GPUs were counted."""
        return self._runner.plan

    def error_of(self, cause: Cause) -> str:
        """The error that the rank of ``cause`` wrote, in a line; "" where that is not known."""
        return self._tail.told(cause)

    @property
    def reached(self) -> str:
        """The latest match of ``--progress-line`` in the ranks' output; "" for none yet."""
        return self.state.reached

    def tell(self, event: Event) -> None:
        """Send the run ``event``; from any thread or signal handler."""
        self._runner.tell(event)

    def run(self, handled: Sequence[signal.Signals], verdict: Verdict | None = None) -> Report:
        """Run to the end and return the report. handled: signals for the run, () for none.

        verdict: if given, nothing is run, and the sinks get this verdict. Raises: UsageError for a
        transport that this machine does not have.
        """
        at = time.monotonic()
        began = RunBegan(
            self.plan.run_id, time.time(), tuple(self._hosts), tuple(self._excluded),
            job_name=self.plan.name,
        )  # fmt: skip
        left_out = [] if verdict else self._excluded
        known = [began, *(HostExcluded(one.host, one.why, one.by) for one in left_out)]
        verdict = self._runner.run(verdict, handled, known)
        cleaned = self._cleanup.clean(handled)
        last = self._close(verdict, cleaned, time.monotonic() - at)
        self._fold.event(last)
        report, paths = self._fold.report(), self._paths
        if paths is not None:  # the report itself is worth more than the files
            from dispatcher.output.files.journal import append_entry

            self._write(paths.journal, lambda: append_entry(paths.journal, last))
            self._write(paths.report, lambda: write_json(paths.report, report.plain()))
        return report

    def _close(self, verdict: Verdict, cleaned: Sequence[str], seconds: float) -> Entry:
        """Make the journal's last event. cleaned: lines about leftovers."""
        errors = () if verdict.ok else errors_of(verdict, self._tail.error)
        closed = RunClosed(
            verdict,
            seconds,
            placed(self.plan),
            tuple(self._tail.written()),
            last_words(verdict, self._tail.last, errors),
            advice_on(verdict, self._advise),
            (*cleaned, *self._nccl.lines(self._hosts)),
            {
                node: NcclNetwork(one.net, one.devices, one.version)
                for node, one in self._nccl.networks().items()
            },
            errors,
            dict(self._tail.errors),
        )
        self.closed = closed
        return Entry(self._fold.seq + 1, round(seconds, 6), closed)

    def _write(self, path: Path, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._say(f"note: {path}: cannot be written: {reason(error)}")

    def _warn_about(self, sink: Sink, error: Exception) -> None:
        self._say(f"error: {type(sink).__name__}: {error}")
