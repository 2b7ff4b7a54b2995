"""The checks before a run: ``--check full``, ``--exclude-unhealthy``, ``--if-busy`` and others.

The first two are ``dispatch check`` on the hosts of the run. A spare takes the place of a host that
is not fit. Without a spare nothing is started, or with ``--exclude-unhealthy`` the run does without
the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dispatcher.cli import say
from dispatcher.core.events import verdicts
from dispatcher.model import errors
from dispatcher.model.errors import ConflictingOptions, UsageError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Value, value
from dispatcher.model.hostset import fold
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.output.text.verdict_text import left_out
from dispatcher.plan.job.job_plan import JobPlan

if TYPE_CHECKING:
    from dispatcher.api.transports import Ask
    from dispatcher.checks.report import CheckReport
    from dispatcher.cli.options.connect_options import LoginTransports
    from dispatcher.cli.run.run import RunOptions
    from dispatcher.core.events.run_events import SignalReceived
    from dispatcher.jobs.host_history import FailedHost
    from dispatcher.plan.job.reassignment import Exclusion, Fitness
    from dispatcher.plan.job.request import Request
    from dispatcher.transport.ssh_auth.passwords import Passwords

#: for --if-busy: seconds between two looks, at first and at most; for the answer of a host
PAUSE, MOST_PAUSE, ANSWER = 2.0, 30.0, 15.0
#: checks that fail for the program's sake
_OF_PROGRAM = ("python", "script", "cwd", "torch", "nccl", "disk")


@value
class Decision(Value):
    """plan: the plan to run. verdict: why nothing runs, else None. report: None without a check."""

    plan: JobPlan
    excluded: tuple[Exclusion, ...] = ()
    verdict: verdicts.Verdict | None = None
    report: CheckReport | None = None

    @property
    def rdma(self) -> dict[str, str]:
        """Host -> its ACTIVE RDMA ports as text, from a full check."""
        found = {} if self.report is None else self.report.hosts
        return {
            name: host.checks["rdma"].value for name, host in found.items() if "rdma" in host.checks
        }

    @property
    def unfit(self) -> dict[str, str]:
        """Host -> the code of why it is not fit, without faults of the program."""
        from dispatcher.jobs.host_history import BROKEN

        found = {}
        for name, host in ({} if self.report is None else self.report.hosts).items():
            what = host.why.partition(":")[0]  # a check, or the kind of a failure
            if host.problem and what in BROKEN:
                found[name] = Kind(what).code
            elif not (host.problem or host.level.fit or what in _OF_PROGRAM):
                found[name] = f"{what.replace(' ', '-')}-check-failed"
        return found

    @property
    def notes(self) -> list[str]:
        """Lines for the start: hosts that are left out, and warnings about the others."""
        if self.report is None:
            return []
        from dispatcher.checks.check import Level

        lines = left_out(self.excluded) if self.verdict is None else []
        return lines + [
            f"note: {fold(hosts)}: {check}: {sanitize_text(one.text)}"
            for level, check, one, hosts in self.report.sections
            if level == Level.WARN
        ]


def without_failing(plan: JobPlan, asked: Request, least: int) -> JobPlan:
    """``plan``, which was made for ``asked``, on hosts that failed less than ``least`` times.

    A host that no other can replace stays. A note names each of them.
    """
    from dispatcher.jobs import registry
    from dispatcher.jobs.host_history import failing, failures_text

    spares = {spare.host.name for spare in plan.spares}
    names = spares.union(node.host.name for node in plan.nodes)
    out: list[FailedHost] = []
    needed: list[FailedHost] = []
    found = failing(registry.jobs(), names, least)
    for one in sorted(found, key=lambda one: one.host not in spares):  # else one takes a place
        other = _without(plan, asked, {one.host, *(each.host for each in out)})
        (needed if other is None else out).append(one)
        plan = other or plan
    for what, hosts in (("left out", out), ("no other host can take the place of", needed)):
        if hosts:
            say(f"note: --avoid-failures {least}: {what}: {failures_text(hosts)}")
    return plan


def _without(plan: JobPlan, asked: Request, gone: set[str]) -> JobPlan | None:
    """A plan of the size of ``plan`` without the hosts ``gone``; None if that cannot be."""
    from dispatcher.plan.job.job_plan import plan_job
    from dispatcher.plan.job.reassignment import without_hosts

    hosts = tuple(host for host in asked.hosts.hosts if host.name not in gone)
    try:
        other = plan_job(replace(asked, hosts=replace(asked.hosts, hosts=hosts)), plan.run_id)
    except UsageError:
        other = None  # too few are left, or an option names one of them
    if other is not None and len(other.spares) == len(plan.spares):
        same_nodes = len(other.nodes) == len(plan.nodes) or not plan.is_open
        if same_nodes and other.world_size == plan.world_size:
            return other
    unfit = {node.index: "" for node in (*plan.nodes, *plan.spares) if node.host.name in gone}
    fitness = without_hosts(plan, unfit, shrink=False)
    return None if fitness.vacant else fitness.plan


def wants(options: RunOptions) -> bool:
    """Whether the options need their own check. Raises: UsageError if they contradict."""
    if options.exclude_unhealthy and options.check == "none":
        raise ConflictingOptions("--exclude-unhealthy needs a check, and --check none does none")
    if options.check_timeout is not None and not asks(options):
        raise ConflictingOptions("--check-timeout needs --check full or --exclude-unhealthy")
    return asks(options)


def asks(options: RunOptions) -> bool:
    """Whether the options want hosts checked before the run: otherwise this costs nothing."""
    return options.check == "full" or bool(options.exclude_unhealthy)


def preflight(
    plan: JobPlan, options: RunOptions, ask: Ask | None = None, passwords: Passwords | None = None
) -> Decision:
    """Check the hosts of ``plan``, if the options want it, and decide. Raises: UsageError.

    ask, passwords: as for ``LoginTransports``, which connects next.
    """
    if not asks(options):
        return Decision(plan)
    from dispatcher.plan.job.reassignment import without_hosts

    report = _examined(plan, options, ask, passwords)
    places = (*plan.nodes, *plan.spares)
    unfit = {
        place.index: host.why
        for place, host in zip(places, report.hosts.values(), strict=True)
        if not host.level.fit
    }
    fitness = without_hosts(plan, unfit, shrink=bool(options.exclude_unhealthy))
    verdict = _rejected(plan, fitness, report) if fitness.vacant else None
    return Decision(fitness.plan, fitness.excluded, verdict, report)


def _examined(
    plan: JobPlan, options: RunOptions, ask: Ask | None, passwords: Passwords | None
) -> CheckReport:
    from dispatcher.checks.check import Asked
    from dispatcher.cli.checks import run_check as health

    full = options.check == "full"
    alone = plan.program.kind == "script" and not plan.parts
    script = plan.program.argv[0] if alone else ""
    seconds = health.limit(options.check_timeout, full=full)
    hosts = tuple(place.host for place in (*plan.nodes, *plan.spares))
    want = health.wanted(
        hosts, Asked(plan.cwd, script, plan.iface), plan.python, seconds, full=full
    )
    chosen = health.checks(full=full)
    if all(part.program.kind == "command" for part in plan.every_part):  # Python is in none
        chosen = tuple(c for c in chosen if c.name not in ("python", "torch", "nccl"))
    return health.examined(hosts, want, chosen, options, seconds, plan.master_port, ask, passwords)


def _rejected(plan: JobPlan, fitness: Fitness, report: CheckReport) -> verdicts.Verdict:
    """The verdict on a run that cannot be started."""
    hosts = list(report.hosts.values())
    failures = {}
    for node in fitness.vacant:
        worst = max(hosts[node].checks.values(), key=lambda one: one.level, default=None)
        hint = worst.remedy if worst is not None else None
        failures[node] = Failure(Kind.CHECK, hosts[node].why, hint)
    return verdicts.Verdict(
        verdicts.Rejected(failures, errors.CLUSTER), errors.CLUSTER, plan.world_size
    )


def gate(
    plan: JobPlan,
    reach: LoginTransports,
    orders: list[SignalReceived],
    waits: Callable[[str], None] | None,
) -> verdicts.Verdict | None:
    """Wait until the hosts of ``plan`` are free; the verdict if it cannot start, or was ended.

    waits: gets the reason for the wait whenever it changes; None: do not wait. orders: gets more
    when another shell ends the run.
    """
    import signal

    from dispatcher.core.events.run_events import SignalReceived
    from dispatcher.runner.loop import signals_to
    from dispatcher.runner.surveys import Stopped

    said, pause = "", PAUSE
    ends = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT

    def ended(signum: int) -> None:
        if signum in ends:  # others are for ranks
            orders.append(SignalReceived(signum))

    with signals_to(ended, (*ends, signal.SIGUSR1, signal.SIGUSR2)):
        while True:
            try:
                whys, text = _in_use(plan, reach)
            except Stopped as stopped:
                orders.append(SignalReceived(stopped.exit_code - errors.SIGNAL_BASE))
            if orders:
                cause = verdicts.Interrupted(orders[0].signum, orders[0].by)
                return verdicts.Verdict(cause, cause.exit_code, plan.world_size)
            if not whys:
                return None
            if waits is None:
                hint = "--if-busy wait, or --if-busy warn to start nevertheless"
                failures = {at: Failure(Kind.IN_USE, why, hint) for at, why in whys.items()}
                rejected = verdicts.Rejected(failures)
                return verdicts.Verdict(rejected, errors.CLUSTER, plan.world_size)
            if text != said:
                said, pause = text, PAUSE
                waits(text)
            until = time.monotonic() + pause
            while not orders and time.monotonic() < until:
                time.sleep(0.1)
            pause = min(MOST_PAUSE, 1.5 * pause)


def _in_use(plan: JobPlan, reach: LoginTransports) -> tuple[Mapping[int, str], str]:
    """Node -> its other users as text, and all of them in one line. Raises: Stopped."""
    from dispatcher.api import transports
    from dispatcher.checks.check import Seen, Unread
    from dispatcher.checks.hardware.gpu_users import SCRIPT, users, users_text
    from dispatcher.jobs import registry
    from dispatcher.jobs.host_history import jobs_text, neighbours
    from dispatcher.plan.job.devices import chosen
    from dispatcher.runner.surveys import survey

    names = [node.host.name for node in plan.nodes]
    near = neighbours(registry.jobs(running=True), plan.run_id)
    if near:
        whys = {at: jobs_text({name: near[name]}) for at, name in enumerate(names) if name in near}
        return {at: _unnamed(names[at], why) for at, why in whys.items()}, jobs_text(near)
    readings = [
        ["users", "run", [b"/bin/sh", b"-c", SCRIPT.encode()], ANSWER - 1, 64 << 10],
        ["machine", "call", ["identity"], ANSWER - 1, 4096],
    ]
    answers = survey(
        [node.host for node in plan.nodes], readings,
        lambda host: transports.TransportPool.outside_for(reach, host),  # not by a tree
        seconds=ANSWER, connect=plan.limits.connect_timeout,
    )  # fmt: skip
    found, left, texts = {}, registry.left(), {}
    for node, answer in zip(plan.nodes, answers, strict=True):
        seen = Seen(node.host.name, answer.readings)
        try:
            said, machine = seen.reading("users").output, str(seen.value("machine"))
        except Unread:
            continue  # the start says why
        if here := users(said, chosen(node, plan.devices, plan.exports)):
            found[node.host.name] = here
            texts[node.index] = users_text({node.host.name: here})
        elif machine in left:
            texts[node.index] = f"{node.host.name}: ranks of a job that lost it may still run"
    rest = [text for at, text in texts.items() if names[at] not in found]
    whys = {at: _unnamed(names[at], text) for at, text in texts.items()}
    return whys, sanitize_text("; ".join(filter(None, (users_text(found), *rest))))


def _unnamed(name: str, text: str) -> str:
    return sanitize_text(text).replace(f"{name}: ", "")
