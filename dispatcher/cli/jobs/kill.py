"""``dispatch kill``: end every process of a job on its hosts, found by its run id."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

import click

from dispatcher.cli.entry import MIXED, enter
from dispatcher.jobs import registry
from dispatcher.model.errors import DispatchError, UsageError

#: seconds that a launcher gets to end by itself, once its ranks are dead
LAUNCHER = 10.0


EPILOG = """\b
Examples:
  dispatch kill k3f9x2
  dispatch kill --all
"""


@click.command("kill", context_settings=MIXED, epilog=EPILOG)
@click.argument("job", required=False)
@click.option("--all", "everything", is_flag=True, help="All jobs that run here, and dead ones.")
def command(job: str | None, everything: bool) -> int:
    """Kill every process of a job on all its hosts, and its launcher if that stays.

    Works for a job whose launcher was killed, and removes what its agents left in /tmp. Processes
    are found by the job's run id in their environment, never by a name; only your own are
    touched. dispatch stop is gentler.
    """
    if everything == (job is not None):
        raise UsageError("kill wants one JOB, or --all", hint="dispatch jobs")
    jobs = [registry.find(job)] if job is not None else registry.jobs()
    if everything:
        jobs = [one for one in jobs if one.state in (registry.RUNNING, registry.DEAD)]
    codes = [_kill(one) for one in jobs]
    if not jobs:
        click.echo("no jobs", err=True)
    return max(codes, default=0)


def _kill(job: registry.Job) -> int:
    from dispatcher.cli.jobs.sweep import look, tell
    from dispatcher.cli.options.option_classes import LoginOptions
    from dispatcher.jobs.job_socket import JobConnection
    from dispatcher.model.host import Host

    if job.state == registry.ELSEWHERE:
        raise registry.not_running(job)
    with contextlib.suppress(DispatchError, OSError):  # it may be dead, or hang
        if job.state == registry.RUNNING and job.detached:
            with JobConnection(job) as call:
                call.order("stop", now=True)  # so that it starts nothing again
    hosts = [Host(name, user=user, port=port) for name, user, port in job.hosts]
    way = LoginOptions(**job.reach)
    code = tell(look(hosts, [job.run_id], way, kill=True), click.echo)
    end = time.monotonic() + LAUNCHER
    while job.launcher.lives:
        if time.monotonic() > end:
            os.kill(job.launcher.pid, signal.SIGKILL)
            click.echo(f"launcher: killed pid {job.launcher.pid}, which did not end by itself")
            break
        time.sleep(0.05)
    return code


def main(words: Sequence[str]) -> int:
    """Run ``dispatch kill`` with ``words``; the exit code."""
    return enter(command, words, "dispatch kill")
