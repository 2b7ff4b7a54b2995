"""``dispatch sweep`` and ``kill``: list, or end, the leftovers of runs on hosts, by run id."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence

import click

from dispatcher.api.find_processes import Look, look_by, summary
from dispatcher.bootstrap.shell import SweptProcess
from dispatcher.cli import print_json, say
from dispatcher.cli.options.connect_options import LoginTransports, show_only
from dispatcher.cli.options.declaration import (
    Options,
    argument,
    dry_run_option,
    json_option,
    option,
)
from dispatcher.cli.options.host_options import LoginOptions, WhereOptions, find_hosts
from dispatcher.jobs import registry
from dispatcher.model import errors, paths
from dispatcher.model.errors import AmbiguousJob, DispatchError, NoSuchJob
from dispatcher.model.frozen import Document, Value, value
from dispatcher.model.host import Host
from dispatcher.model.hostset import fold

#: seconds that a launcher gets to end by itself, once its ranks are dead
LAUNCHER = 10.0
#: the verdict of a job whose launcher is gone, once nothing is left of it
VERDICT = "error: its launcher was killed; dispatch kill ended what was left [launcher-killed]"


def look(hosts: Sequence[Host], run_ids: Sequence[str], reach: LoginOptions, *, kill: bool) -> Look:
    """Find (``kill``: and end) leftovers of ``run_ids`` on ``hosts``; [] for any run's."""
    # under a rank our own children would inherit its run id
    os.environ.pop("DISPATCH_RUN_ID", None)
    with LoginTransports(reach) as transports:
        return look_by(transports.transport_for, hosts, run_ids, kill=kill)


def ended(seen: Look, say: Callable[[str], None]) -> int:
    """Print the result of a killing look; 0, 1 if something is left, 125 for hosts,
    128+n if signal n ended it.
    """
    lines = summary(seen.found, "killed", "removed")
    left = summary(seen.found, "left", "kept")
    for line in [*lines, *left, *seen.failures]:
        say(line)
    if not (lines or left or seen.failures):
        say(f"{fold(seen.found)}: nothing found")
    return seen.interrupted or (125 if seen.failures else int(bool(left)))


@value
class SweptRun(Value):
    """A run with leftovers. state: as dispatch jobs has it, or unknown.

    left_over: whether its launcher is gone.
    """

    run_id: str
    state: str
    left_over: bool


@value
class Swept(Document):
    """``dispatch sweep --json`` and ``kill --json``.

    failures: hosts that did not answer, as text.
    """

    schema = "swept/1"
    runs: list[SweptRun]
    found: list[SweptProcess]
    failures: list[str]


def swept(states: Mapping[str, str], left: Sequence[str], looks: Sequence[Look]) -> Swept:
    """The findings and their results, for programs. states: of runs; left: leftover runs."""
    return Swept(
        [SweptRun(one, state, one in left) for one, state in states.items()],
        [one for seen in looks for tagged in seen.found.values() for one in tagged],
        [line for seen in looks for line in seen.failures],
    )


class SweepOptions(WhereOptions, LoginOptions, section="Leftovers"):
    """List leftovers of your runs on the hosts, if their launcher is gone.

    It finds processes by the run id in their environment, never by a name, and an agent's private
    folder in /tmp by the run id in its name. It checks only your own. It lists leftovers of a run
    that another machine started, but kills them only if you give its RUN_ID.
    """

    examples = (
        ("dispatch sweep -H hostfile", "list, and touch nothing"),
        ("dispatch sweep -w 'n[01-16]' --kill", "kill and remove them"),
        ("dispatch sweep 20260131-142501-k3f9x2 -H hostfile --kill", "leftovers of one run"),
    )

    run_id: str | None = argument(metavar="[RUN_ID]")
    kills: bool = option("--kill", help="Kill and remove leftovers.")
    as_json: bool = json_option("the findings")


def sweep(options: SweepOptions) -> int:
    """List, or end, the leftovers; the exit code. Raises: UsageError."""
    run_id = options.run_id
    if run_id is not None and not paths.is_run_id(run_id):
        raise NoSuchJob(f"not a run id: {run_id!r}", hint="dispatch sweep lists them")
    hosts = find_hosts(options, say)
    does = f"look for leftovers of {run_id or 'any run of yours'}"
    if options.kills:
        does += ", then kill and remove them"
    if show_only(options, "sweep", ((host, does) for host in hosts)):
        return 0
    out = (lambda line: None) if options.as_json else click.echo
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
            out(f"{found}: left over")
        elif state == registry.RUNNING:
            out(f"{found}: still running")
        else:
            out(f"{found}: its launcher is not known on this machine; give its id to kill it")
        own = {host: [one for one in all_ if one.run_id == found]
               for host, all_ in seen.found.items()}  # fmt: skip
        for line in summary(own, "found"):
            out(f"  {line}")
    for line in seen.failures:
        say(line)
    code, looks = seen.interrupted or (125 if seen.failures else 0), [seen]
    if not ids and not seen.failures:
        out("nothing left over")
    elif left and options.kills and not seen.interrupted:
        names = {n for n, tagged in seen.found.items() if any(t.run_id in left for t in tagged)}
        where = [host for host, name in zip(hosts, seen.found, strict=True) if name in names]
        looks.append(look(where, left, options, kill=True))
        code = max(ended(looks[1], out), code)
    elif left and not options.kills:
        say("note: --kill kills and removes the leftovers")
    if options.as_json:
        print_json(swept({one: states.get(one, "unknown") for one in ids}, left, looks))
    return code


class KillOptions(Options):
    """Kill every process of a job on all its hosts, and its launcher if it does not end.

    It also works if the launcher was killed, and removes the agents' leftovers in /tmp. It finds
    processes by the job's run id in their environment, never by a name, and touches only your own.
    dispatch stop is gentler.

    JOB is a job's name (--name), or the beginning of an id that dispatch jobs lists, or latest.
    """

    examples = (
        ("dispatch kill k3f9x2", "the job whose id has this part"),
        ("dispatch kill --all", "all jobs of this machine, running or dead"),
    )

    job: str | None = argument()
    everything: bool = option("--all", help="Kill all jobs of this machine, running or dead.")
    as_json: bool = json_option("the killed processes")
    dry_run: bool = dry_run_option()


def kill(options: KillOptions) -> int:
    """End the processes of the jobs on their hosts; the exit code. Raises: UsageError."""
    if options.everything == (options.job is not None):
        raise AmbiguousJob("kill needs one JOB, or --all", hint="dispatch jobs")
    jobs = registry.jobs() if options.job is None else [registry.find(options.job)]
    if options.everything:
        jobs = [one for one in jobs if one.state in (registry.RUNNING, registry.DEAD)]
        # dead jobs last: their hosts may be down, and connecting takes until the timeout
        jobs.sort(key=lambda one: one.state == registry.DEAD)
    if not jobs:
        say("no jobs")
    deeds = [(host, f"kill all processes of {job.run_id}") for job in jobs for host in job.targets]
    if show_only(options, "kill", deeds):
        return 0
    states = {job.run_id: job.state for job in jobs}
    out = (lambda line: None) if options.as_json else click.echo
    looks: list[Look] = []
    code = 0
    for one in jobs:
        code = max(code, _kill(one, looks, out))
        if looks[-1].interrupted:
            break
    if options.as_json:
        print_json(swept(states, list(states), looks))
    return code


def _kill(job: registry.Job, looks: list[Look], out: Callable[[str], None]) -> int:
    """End the processes of ``job`` on its hosts; the exit code. looks: gets the findings."""
    from dispatcher.jobs.job_socket import JobConnection

    if job.state == registry.ELSEWHERE:
        raise registry.not_running(job)
    with contextlib.suppress(DispatchError, OSError):  # it may be dead, or hang
        if job.state == registry.RUNNING:
            with JobConnection(job, stops=True) as call:
                call.order("stop", now=True)  # so that it starts nothing again
    looks.append(look(job.targets, [job.run_id], LoginOptions(**job.reach), kill=True))
    code = ended(looks[-1], out)
    if looks[-1].interrupted:
        return code
    if job.by_program and job.launcher.lives:  # it has other work, and ends when that is done
        return code
    job.launcher.wait(LAUNCHER)
    if job.launcher.lives:
        os.kill(job.launcher.pid, signal.SIGKILL)
        out(f"launcher: killed pid {job.launcher.pid}, which did not end by itself")
        job.launcher.wait(registry.DYING)
    if code == 0 and job.state == registry.DEAD:
        with contextlib.suppress(OSError):  # with a full disk the record is lost, not the kill
            registry.conclude(job.folder, errors.CLUSTER, [VERDICT])
    return code
