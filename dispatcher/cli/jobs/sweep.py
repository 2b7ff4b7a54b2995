"""``dispatch sweep`` and ``kill``: what runs have left on hosts, found by run id: listed, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

import click

from dispatcher.api.find_processes import Look, look_by, summary
from dispatcher.cli import say
from dispatcher.cli.options.connect_options import TransportPool
from dispatcher.cli.options.declaration import Options, argument, option
from dispatcher.cli.options.host_options import LoginOptions, WhereOptions, find_hosts
from dispatcher.jobs import registry
from dispatcher.model import paths
from dispatcher.model.errors import AmbiguousJob, DispatchError, NoSuchJob
from dispatcher.model.host import Host
from dispatcher.model.hostset import fold

#: seconds that a launcher gets to end by itself, once its ranks are dead
LAUNCHER = 10.0


def look(hosts: Sequence[Host], run_ids: Sequence[str], reach: LoginOptions, *, kill: bool) -> Look:
    """Find (``kill``: and end) what is left of ``run_ids`` on ``hosts``; [] for any run's."""
    # under a rank we would carry its run id to what we start here
    os.environ.pop("DISPATCH_RUN_ID", None)
    with TransportPool(reach) as transports:
        return look_by(transports.transport_for, hosts, run_ids, kill=kill)


def tell(seen: Look, say: Callable[[str], None]) -> int:
    """Say what a killing look ended and could not; 0, 1 if something is left, 125 for hosts."""
    lines = summary(seen.found, "killed", "removed")
    left = summary(seen.found, "left", "kept")
    for line in [*lines, *left, *seen.failures]:
        say(line)
    if not (lines or left or seen.failures):
        say(f"{fold(seen.found)}: nothing found")
    return 125 if seen.failures else int(bool(left))


class SweepOptions(WhereOptions, LoginOptions, section="Leftovers"):
    """List what runs of yours have left on the hosts, if their launcher is gone.

    Processes are found by the run id in their environment, never by a name, and an agent's private
    folder in /tmp by the run id in its name. Only your own are looked at. What a run that was
    started on another machine has left is listed, but killed only if you give its RUN_ID.
    """

    examples = (
        ("dispatch sweep -H hostfile", "list, and touch nothing"),
        ("dispatch sweep -w 'n[01-16]' --kill", "end it and remove it"),
        ("dispatch sweep 20260131-142501-k3f9x2 -H hostfile --kill", "what one run has left"),
    )

    run_id: str | None = argument(metavar="[RUN_ID]")
    kills: bool = option("--kill", help="Kill and remove what is left over.")


def sweep(options: SweepOptions) -> int:
    """List, or end, what is left over; the exit code. Raises: UsageError."""
    run_id = options.run_id
    if run_id is not None and not paths.is_run_id(run_id):
        raise NoSuchJob(f"not a run id: {run_id!r}", hint="dispatch sweep lists them")
    hosts = find_hosts(options, say)
    seen = look(hosts, [run_id] if run_id else [], options, kill=False)
    states = {job.run_id: job.state for job in registry.jobs()}
    ids = sorted({one.run_id for tagged in seen.found.values() for one in tagged})
    left = []
    for found in ids:
        state = states.get(found, "unknown")
        if state in (registry.ENDED, registry.DEAD) or (
            found == run_id and state != registry.RUNNING
        ):
            left.append(found)
            click.echo(f"{found}: left over")
        elif state == registry.RUNNING:
            click.echo(f"{found}: its launcher lives")
        else:
            click.echo(f"{found}: its launcher is not known here; not touched without its id")
        own = {host: [one for one in all_ if one.run_id == found]
               for host, all_ in seen.found.items()}  # fmt: skip
        for line in summary(own, "found"):
            click.echo(f"  {line}")
    for line in seen.failures:
        say(line)
    if not left:
        if not ids and not seen.failures:
            click.echo("nothing left over")
        return 125 if seen.failures else 0
    if not options.kills:
        say("note: --kill kills what is left over")
        return 125 if seen.failures else 0
    names = {name for name, tagged in seen.found.items() if any(t.run_id in left for t in tagged)}
    where = [host for host, name in zip(hosts, seen.found, strict=True) if name in names]
    killed: Look = look(where, left, options, kill=True)
    return max(tell(killed, click.echo), 125 if seen.failures else 0)


class KillOptions(Options):
    """Kill every process of a job on all its hosts, and its launcher if that stays.

    It works for a job whose launcher was killed, and removes what the agents left in /tmp.
    Processes are found by the job's run id in their environment, never by a name, and only your
    own are touched. dispatch stop is gentler.

    JOB is the beginning of an id that dispatch jobs lists, or latest.
    """

    examples = (
        ("dispatch kill k3f9x2", "the job whose id has this part"),
        ("dispatch kill --all", "all that run here, and dead ones"),
    )

    job: str | None = argument()
    everything: bool = option("--all", help="Kill all jobs that run here, and dead ones.")


def kill(options: KillOptions) -> int:
    """End what the jobs have on their hosts; the exit code. Raises: UsageError."""
    if options.everything == (options.job is not None):
        raise AmbiguousJob("kill wants one JOB, or --all", hint="dispatch jobs")
    jobs = registry.jobs() if options.job is None else [registry.find(options.job)]
    if options.everything:
        jobs = [one for one in jobs if one.state in (registry.RUNNING, registry.DEAD)]
    codes = [_kill(one) for one in jobs]
    if not jobs:
        click.echo("no jobs", err=True)
    return max(codes, default=0)


def _kill(job: registry.Job) -> int:
    from dispatcher.jobs.job_socket import JobConnection

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
