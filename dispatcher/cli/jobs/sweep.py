"""``dispatch sweep``: what runs have left whose launcher is gone; listed, or ended.

``dispatch kill`` looks at the hosts in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import click

from dispatcher.api.find_processes import Look, look_by, summary
from dispatcher.cli import entry
from dispatcher.cli.entry import MIXED, enter
from dispatcher.cli.options.connect_options import TransportPool
from dispatcher.cli.options.host_options import find_hosts, how_options, where_options
from dispatcher.cli.options.option_classes import LoginOptions, SweepOptions
from dispatcher.cli.say import say
from dispatcher.jobs import registry
from dispatcher.model import paths
from dispatcher.model.errors import UsageError
from dispatcher.model.host import Host
from dispatcher.model.hostset import fold


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


EPILOG = """\b
Examples:
  dispatch sweep -H hostfile
  dispatch sweep -w 'n[01-16]' --kill
  dispatch sweep 20260131-142501-k3f9x2 -H hostfile --kill
"""


@entry.command("sweep", SweepOptions, context_settings=MIXED, epilog=EPILOG)
@click.argument("run_id", required=False, metavar="[RUN_ID]")
@where_options
@click.option("--kill", "kills", is_flag=True, help="Kill and remove what is listed as left over.")
@how_options
def command(options: SweepOptions) -> int:
    """List what is left on the hosts of your runs whose launcher is gone.

    Processes are found by the run id in their environment, never by a name; an agent's private
    folder in /tmp by the run id in its name. Only your own are looked at. What runs that were
    started on another machine left is listed, but killed only if you give its RUN_ID.
    """
    run_id = options.run_id
    if run_id is not None and not paths.is_run_id(run_id):
        raise UsageError(f"not a run id: {run_id!r}", hint="dispatch sweep lists them")
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


def main(words: Sequence[str]) -> int:
    """Run ``dispatch sweep`` with ``words``; the exit code."""
    return enter(command, words, "dispatch sweep")
