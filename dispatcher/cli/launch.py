"""From flags to an exit code: plan, settings, transports, sinks, runner, verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dispatcher.cli.asked import request
from dispatcher.cli.door import say
from dispatcher.cli.reach import Reach, judge
from dispatcher.errors import UsageError
from dispatcher.plan.job import JobPlan, plan_job

if TYPE_CHECKING:
    from dispatcher.cli.detach import Word
    from dispatcher.cli.showing import Showing
    from dispatcher.paths import RunPaths

#: descriptors that one host may take (--transport ssh: three pipes and a process)
FILES_PER_HOST = 4


def launch(flags: Mapping[str, Any]) -> int:
    """Plan and run what the flags say; the exit code.

    Raises: UsageError before any host is touched.
    """
    plan = plan_job(request(flags), _run_id())
    judge(flags, [node.host for node in (*plan.nodes, *plan.spares)])
    for notice in plan.notices:
        say(f"note: {notice}")
    if flags["dry_run"]:
        from dispatcher.cli.dryrun import show

        show(plan, as_json=flags["as_json"])
        return 0
    if flags["as_json"]:
        raise UsageError("--json goes with --dry-run")
    from dispatcher import bootstrap
    from dispatcher.cli.preflight import wants
    from dispatcher.cli.showing import settings
    from dispatcher.paths import RunPaths

    wants(flags)
    allow_open_files(len(plan.nodes) + len(plan.spares))
    if flags["agent_python"] is not None:
        bootstrap.command(first=[flags["agent_python"]])  # judge it while no host is touched
    if flags["watch"]:
        from dispatcher.cli.overview import check

        check(flags)
    if flags["detach"]:
        from dispatcher.cli.detach import detach

        return detach(plan, flags, _run)
    showing = settings(flags, None if plan.is_open else plan.world_size)
    paths = RunPaths.create(flags["log_dir"], plan.run_id) if flags["log_dir"] else None
    return _run(plan, flags, showing, paths)


def _run_id() -> str:
    from dispatcher.paths import new_run_id

    return new_run_id()


def _run(
    plan: JobPlan,
    flags: Mapping[str, Any],
    showing: Showing,
    paths: RunPaths | None,
    word: Word | None = None,
) -> int:
    """Carry out the plan; the exit code. word: to the foreground, if we are in the background."""
    import signal

    from dispatcher.cli import sinks as told
    from dispatcher.cli.aftermath import Aftermath
    from dispatcher.cli.enrolled import Enrolled
    from dispatcher.cli.labels import RankLabels
    from dispatcher.cli.preflight import preflight
    from dispatcher.cli.seen import Seen
    from dispatcher.core.events import SignalReceived
    from dispatcher.runner.loop import Runner
    from dispatcher.sinks.attempts import history
    from dispatcher.sinks.base import Sink
    from dispatcher.sinks.notes import Notes
    from dispatcher.sinks.report import Pids, report, write_json
    from dispatcher.sinks.tail import Tail
    from dispatcher.sinks.verdict import describe

    decision = preflight(plan, flags)
    plan = decision.plan
    for text in () if showing.quiet else decision.notes:
        say(text)
    tail, pids = Tail(), Pids()
    hosts = [node.host.name for node in (*plan.nodes, *plan.spares)]

    def nobody_reads() -> None:
        if paths is None:  # with files the run is worth going on
            runner.tell(SignalReceived(signal.SIGPIPE))

    seen = Seen(plan, showing, hosts)
    screen, progress = told.open_screen(
        showing, RankLabels(showing.label, lambda: runner), hosts, on_broken=nobody_reads,
        files_keep_all=told.files_keep_all(showing, paths), over=seen.over,
    )  # fmt: skip
    aftermath = Aftermath([node.host for node in (*plan.nodes, *plan.spares)])
    sinks: list[Sink] = [tail, pids, aftermath, *seen.sinks]
    if progress is not None:
        sinks.append(progress)
    if showing.stall_after is not None:
        from dispatcher.sinks.progress import Silence

        sinks.append(Silence(showing.stall_after, lambda event: runner.tell(event), time.monotonic))
    if paths is not None:
        try:
            write_json(paths.plan, plan.describe())
            sinks += told.open_files(showing, paths, screen.say)
        except OSError as error:
            raise UsageError(f"--log-dir {flags['log_dir']}: {error.strerror}") from None
        if not showing.quiet:
            say(f"note: logs in {paths.folder}")
    if flags["trace"] is not None:
        from dispatcher.sinks.trace import Trace

        try:
            sinks.append(Trace(flags["trace"], hosts, _age(), screen.say))
        except OSError as error:
            raise UsageError(f"--trace {flags['trace']}: {error.strerror}") from None
    sinks += seen.metrics(screen.say)
    # from here on nothing is wrong with what the user typed: the run is worth a record
    enrolled = Enrolled(plan, flags, paths, word, lambda event: runner.tell(event))
    if not showing.quiet:
        sinks.append(Notes(hosts, enrolled.also_told(screen.say), verbose=showing.verbose))
    sinks += [screen, *enrolled.sinks]

    began = time.monotonic()
    with enrolled, seen, Reach(flags, None if word is None else word.ask) as reach:
        runner = Runner(
            plan,
            reach.transport_for,
            sinks,
            check=flags["check"] != "none",
            agent_python=flags["agent_python"],
            known=decision.events,
            sample_every=showing.sample,
            lent=seen.lent,
            sink_failed=lambda sink, error: (say if sink is screen else screen.say)(
                f"error: {type(sink).__name__}: {error}"
            ),
        )
        # whoever presses Ctrl-C again while the verdict is being told wants no traceback
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_IGN)
        verdict = runner.run(decision.verdict)
        cleaned = aftermath.clean(plan.run_id, reach.transport_for)
    told_of = describe(verdict, runner.plan, pids.by_rank, tail.last)
    lines = decision.lines + history(verdict) + told_of + cleaned
    if paths is not None:
        seconds = time.monotonic() - began
        try:
            ended = report(verdict, runner.plan, lines, seconds, pids, tail.last, hosts)
            write_json(paths.report, {**ended, **decision.record})
        except OSError as error:  # the exit code is worth more than the file
            say(f"error: {paths.report}: {(error.strerror or '').lower()}")
    enrolled.conclude(verdict.exit_code, lines)
    if progress is not None:
        told.close_on_terminal(lines, verdict, plan, time.monotonic() - began)
        return verdict.exit_code
    for line in lines:
        say(line)
    return verdict.exit_code


def _age() -> float:
    """Seconds since this process started, to a hundredth: what loading and planning took."""
    with open("/proc/self/stat") as file:
        # the command name in parentheses may itself hold spaces and parentheses: proc(5)
        started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def allow_open_files(n_hosts: int) -> None:
    """Make room for the descriptors of ``n_hosts`` links, if the soft limit is too low.

    Only then: the limit is inherited, and programs that use select(2) rely on
    the usual one. Raises: UsageError if the hard limit is too low as well.
    """
    import resource

    needed = FILES_PER_HOST * n_hosts + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(
            f"{n_hosts} hosts need {needed} open files, at most {hard} are allowed",
            hint=f"ulimit -n {needed}  # or ask who set the limit",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
