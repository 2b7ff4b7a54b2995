"""From options to an exit code: plan, settings, transports, sinks, runner, verdict.

``--dry-run`` ends after the plan: a table for people, or JSON for programs.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

from dispatcher.api.transports import allow_open_files
from dispatcher.cli import aligned, print_json, print_lines, say
from dispatcher.cli.options.connect_options import LoginTransports, fanout_tree
from dispatcher.cli.options.host_options import check_reachable
from dispatcher.cli.run.request import request
from dispatcher.model.errors import ConflictingOptions
from dispatcher.model.names import fold_numbers
from dispatcher.plan.job.binding import binding_rule
from dispatcher.plan.job.job_plan import JobPlan, NodePlan, plan_job, with_compared
from dispatcher.plan.job.node_launchers import LAUNCHERS, check_even

if TYPE_CHECKING:
    from dispatcher.cli.options.connect_options import Fanout
    from dispatcher.cli.options.output_options import OutputSettings
    from dispatcher.cli.run.detach import ForegroundLink
    from dispatcher.cli.run.run import RunOptions
    from dispatcher.jobs.registry import Typed
    from dispatcher.model.paths import RunPaths
    from dispatcher.plan.job.parts import Program
    from dispatcher.transport.container.engines import Container


def show(
    plan: JobPlan,
    tree: Fanout | None = None,
    container: Container | None = None,
    *,
    as_json: bool,
) -> None:
    """Print the plan on standard output, secrets hidden. tree: which host opens which."""
    from dispatcher.plan.job.rank_environment import describe_plan

    described = describe_plan(plan)
    if as_json:
        if tree is not None:
            described["parents"] = tree.parents()
        print_json(described)
        return
    rows = [["node", "host", "user", "port", "slots", "ranks"]]
    for node in (*plan.nodes, *plan.spares):
        host, is_spare = node.host, node in plan.spares
        ranks = "spare" if is_spare else fold_numbers(node.ranks) or _not_yet(plan, node)
        slots = ",".join(node.slots) or ("" if is_spare else "counted at the start")
        index = "" if is_spare else str(node.index)
        rows.append([index, host.name, host.user or "", str(host.port or ""), slots, ranks])
    lines = [" ".join(filter(None, ("run", plan.name, plan.run_id))), *aligned(rows, right=(0, 3))]
    lines.append(f"world size  {plan.world_size or plan.np or 'counted at the start'}")
    lines += tree.lines() if tree is not None else ()
    lines.append(f"folder      {plan.cwd}")
    if container is not None:
        lines.append(f"container   {container.image} by {' or '.join(container.candidates)}")
    memory = ", for memory too" if plan.mem_bind == "local" else ""
    by_file = "the CPUs that the rankfile names"
    bound = by_file if plan.names_cpus else binding_rule(plan.bind_to, plan.mapping)
    lines.append(f"bound to    {bound}{memory}")

    def variables(title: str, of: Mapping[str, str]) -> None:
        for name, value in sorted(of.items()):
            lines.append(f"{title:<12}{name}={value}")
            title = ""

    for part in plan.parts:
        which = f" on ranks {fold_numbers(range(part.first, part.first + part.size))}"
        place = f" in {part.cwd}" if part.cwd != plan.cwd else ""
        words = f"{shlex.join(part.program.argv)}{which if part.size else ''}{place}"
        lines.append(f"{part.name:<11} {words}")
    for ranks, _, command in (wrap.partition(":") for wrap in plan.wraps):
        lines.append(f"wrapped     ranks {ranks}, by {command}")
    variables("all ranks", described["exports"])
    if plan.ranks:
        lines.append(f"rank 0      {shlex.join(plan.argv(0))}")
        variables("", described["ranks"][0]["environment"])
    print_lines(lines)


def _not_yet(plan: JobPlan, node: NodePlan) -> str:
    """The ranks of ``node`` as text, while other hosts are still to be counted."""
    if plan.mapping.each is not None:
        return f"{plan.mapping.each} per {plan.mapping.within}"
    if node.slots and plan.nproc_per_node != "gpu":
        return "one per slot"
    return "one per GPU, else 1"


def launch(options: RunOptions) -> int:
    """Plan and run; the exit code. Raises: UsageError before any host is touched."""
    from dispatcher.model.paths import RunPaths, new_run_id

    asked = request(options)
    plan = plan_job(asked, new_run_id())
    check_reachable(options, [node.host for node in (*plan.nodes, *plan.spares)])
    container = None
    if options.has_any:
        from dispatcher.cli.options.container_options import container_of

        container = container_of(options, plan.run_id)
    tree = fanout_tree(options, [node.host for node in plan.nodes])
    if options.launcher in LAUNCHERS:
        check_even(options.launcher, plan.nodes)
    for notice in plan.notices:
        say(f"note: {notice}")
    if options.avoid_failures is not None:
        from dispatcher.cli.run.preflight import without_failing

        plan = without_failing(plan, asked, options.avoid_failures)
    if options.dry_run:
        show(plan, tree, container, as_json=options.as_json)
        if options.sync is not None:
            from dispatcher.cli.run import sync

            say(f"note: --sync: would send {sync.describe(options, plan)}")
        return 0
    if options.as_json:
        raise ConflictingOptions("--json needs --dry-run")
    from dispatcher.bootstrap import payload
    from dispatcher.cli.options.output_options import settings
    from dispatcher.cli.run.preflight import wants

    wants(options)
    allow_open_files(len(plan.nodes) + len(plan.spares))
    if options.agent_python is not None:
        payload.command(first=[options.agent_python])  # judge it while no host is touched
    if options.detach:
        from dispatcher.cli.run.detach import detach

        return detach(plan, options, _run)
    output = settings(options, None if plan.is_open else plan.world_size)
    paths = RunPaths.create(options.log_dir, plan.run_id) if options.log_dir else None
    return _run(plan, options, output, paths)


def _run(
    plan: JobPlan,
    options: RunOptions,
    output: OutputSettings,
    paths: RunPaths | None,
    word: ForegroundLink | None = None,
) -> int:
    """Carry out the plan; the exit code. word: to the foreground, if we are in the background."""
    import signal

    from dispatcher.api.registration import JobRecord
    from dispatcher.api.run_session import RunSession, open_files
    from dispatcher.cli.mistakes import Advice
    from dispatcher.cli.run import run_sinks
    from dispatcher.cli.run.preflight import preflight
    from dispatcher.cli.run.run_sinks import Monitoring, RankLabels, TraceFile
    from dispatcher.core.events.run_events import Event, SignalReceived
    from dispatcher.output.terminal.notes import Notes
    from dispatcher.runner.loop import pass_over
    from dispatcher.runner.run.run_loop import HANDLED
    from dispatcher.transport.ssh_auth.passwords import Passwords

    folder = None
    if options.sync is not None:
        from dispatcher.cli.run import sync

        folder = sync.working_folder(options)
    ask, passwords = None if word is None else word.ask, Passwords()
    decision = preflight(plan, options, ask, passwords)
    plan = decision.plan
    here, entries = ("", ()) if folder is None else (folder.source, folder.entries)
    plan = with_compared(plan, here, {one.path[2:] for one in entries if one.kind == "f"})
    for text in () if output.quiet else decision.notes:
        say(text)
    hosts = [node.host.name for node in (*plan.nodes, *plan.spares)]

    unwritten: list[bool] = []
    orders: list[SignalReceived] = []

    def heard(line: str) -> None:
        if not output.quiet:
            show(line)

    tree = fanout_tree(options, [node.host for node in plan.nodes], plan.run_id)
    reach = LoginTransports(
        options, ask, keep=folder is not None or options.if_busy != "warn", tree=tree, say=heard,
        alone=len(plan.nodes) == 1, passwords=passwords, run_id=plan.run_id,
        folders=[plan.cwd, *(part.cwd for part in plan.every_part)],
    )  # fmt: skip
    session = RunSession(
        plan,
        reach.transport_for,
        say=say,
        outside_for=reach.outside_for,
        paths=paths,
        excluded=decision.excluded,
        rdma=decision.rdma,
        resend=None if folder is None else lambda: send_again(),
        check=options.check != "none",
        agent_python=options.agent_python,
        sample_every=output.sample,
        looks=options.if_busy == "warn",
        advise=Advice(options),
        sink_failed=lambda sink, error: (say if sink is screen else screen.say)(
            f"error: {type(sink).__name__}: {error}"
        ),
    )
    if folder is not None:
        send_again = sync.SendAgain(options, plan, reach, session.tell, len(hosts))

    def nobody_reads() -> None:
        if paths is None:  # with files the run is worth going on
            session.tell(SignalReceived(signal.SIGPIPE))

    def ordered(event: Event) -> None:
        """Pass on the event of another shell, maybe before the run begins."""
        if isinstance(event, SignalReceived):
            orders.append(event)
        session.tell(event)

    monitoring = Monitoring(plan, output, session.state, session.tell)
    screen, footer = run_sinks.open_screen(
        output, RankLabels(output.label, session), session.state, on_broken=nobody_reads,
        on_full=lambda: unwritten.append(True),
        files_keep_all=run_sinks.files_keep_all(output, paths),
    )  # fmt: skip
    show = screen.say
    session.add(*monitoring.sinks)
    if paths is not None:
        session.add(*open_files(
            plan, paths, screen.say, merge=output.log_merge, overflow=output.log_overflow,
            rotation=output.rotation,
        ))  # fmt: skip
        if not output.quiet:
            say(f"note: logs in {paths.folder}")
    trace = TraceFile(options.trace, paths, _age(), screen.say)
    session.add(*trace.sinks, *monitoring.metrics(screen.say))

    def waits(text: str) -> None:
        heard(f"note: waiting for {text}")
        if word is not None:
            word.tell(waiting=text)

    if options.if_busy == "wait":
        session.state.phase = "waiting"
    # from here on the user's options are known to be right: the run is worth a record
    reach_flags = {
        "transport": options.transport,
        "rsh": options.rsh,
        "ssh_config": options.ssh_config,
        "host_keys": options.host_keys,
    }
    record = JobRecord(
        session, reach_flags, paths, heard, tell=ordered, slow=monitoring.slow,
        program_of=lambda words: other_program(plan, options, words),
        started=None if word is None else word.started, typed=typed_line(plan, options),
    )  # fmt: skip
    if not output.quiet:
        session.add(
            Notes(
                hosts,
                record.shown_to_clients(screen.say),
                verbose=output.verbose,
                error_of=session.error_of,
                reached=lambda: session.reached,
            )
        )
    session.add(screen, record)
    on_end = None
    if options.on_end:
        from dispatcher.cli.run.on_end import OnEnd

        on_end = OnEnd(options.on_end, plan, paths, session.error_of, heard)
        session.add(on_end)

    with on_end or nullcontext(), record, trace, reach:
        record.answer()
        verdict = decision.verdict
        if verdict is None and options.if_busy != "warn":
            from dispatcher.cli.run.preflight import gate

            verdict = gate(plan, reach, orders, waits if options.if_busy == "wait" else None)
            record.goes_on()
        if folder is not None and verdict is None:
            verdict = sync.send(folder, plan, reach, heard, orders, footer=footer)
        # ignore a second Ctrl-C while the result is printed, so that no traceback appears
        pass_over((signal.SIGINT, signal.SIGTERM, signal.SIGQUIT))
        report = session.run(HANDLED, verdict)
    show = say  # the screen is closed
    for words in () if output.quiet else monitoring.slow():
        say(f"note: {words}")
    record.conclude(report.exit_code, report.verdict, report.may_run_on, decision.unfit)
    code = report.exit_code or int(bool(unwritten))
    verdict_lines = run_sinks.on_screen(report.verdict)
    if footer is not None:
        run_sinks.close_panel(
            verdict_lines, code, len(plan.nodes), report.world_size, report.seconds
        )
    else:
        for line in verdict_lines:
            say(line)
    if on_end is not None:
        on_end.end(code, report)
    return code


def typed_line(plan: JobPlan, options: RunOptions) -> Typed | None:
    """The command line as typed, for the record: values of ``-x`` are left out."""
    import click

    from dispatcher.api.request import cwd_of
    from dispatcher.jobs.registry import Typed

    context = click.get_current_context(silent=True)
    typed: tuple[str, ...] = options.words if context is None else context.obj
    given = [item for item in options.exports if "=" in item]
    if plan.parts:  # the options of each part are among the words
        given += [f"{name}={value}" for part in plan.parts for name, value in part.exports]
    withheld: dict[str, None] = {}

    def masked(word: str) -> str:
        for item in given:
            before, name = word.removesuffix(item), item.partition("=")[0]
            if before != word and re.fullmatch(r"(-\w*x|--export=)?", before):
                withheld[name] = None
                return before + name
        return word

    at = len(typed) - len(options.words)
    ours = tuple(map(masked, typed[:at]))
    words = tuple(map(masked, options.words)) if plan.parts else options.words
    if any("\0" in word for word in typed):
        return None  # of a program that calls us: no line could be typed so
    return Typed(ours, words, cwd_of(None), tuple(withheld))


def other_program(plan: JobPlan, options: RunOptions, words: tuple[str, ...]) -> Program:
    """The program of a restart with other ``words`` than those of ``options``.

    Raises: DispatchError.
    """
    from dispatcher.api.registration import check_script
    from dispatcher.api.request import cwd_of
    from dispatcher.cli.options.declaration import replace
    from dispatcher.cli.run.request import program_of

    folder = cwd_of(options.chdir if options.sync is None else None)
    check_script(plan, options.words[0], words, folder)
    return program_of(replace(options, words=words), is_typed=False)


def _age() -> float:
    """Seconds since this process started, to a hundredth: the time to load and plan."""
    with open("/proc/self/stat") as file:
        # the command name in parentheses may itself hold spaces and parentheses: proc(5)
        started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
