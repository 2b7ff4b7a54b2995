"""The check before a run: ``--check full`` and ``--exclude-unhealthy``.

It is ``dispatch check`` on the hosts of the run. A spare takes the place of a host that is not fit.
Without a spare nothing is started, or with ``--exclude-unhealthy`` the run does without the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.core.events import verdicts
from dispatcher.model import errors
from dispatcher.model.errors import ConflictingOptions
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.frozen import Value, value
from dispatcher.model.hostset import fold
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.output.text.verdict_text import left_out
from dispatcher.plan.job.job_plan import JobPlan

if TYPE_CHECKING:
    from dispatcher.api.transports import Ask
    from dispatcher.checks.report import CheckReport
    from dispatcher.cli.run.run import RunOptions
    from dispatcher.plan.job.reassignment import Exclusion, Fitness
    from dispatcher.transport.ssh_auth.passwords import Passwords


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
