"""``dispatch connect``: connections that later commands find open."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from dispatcher.cli import entry
from dispatcher.cli.entry import MIXED, enter
from dispatcher.cli.help import section
from dispatcher.cli.options.host_options import (
    how_options,
    time_options,
    verbose_option,
    where_options,
)
from dispatcher.cli.options.option_classes import ConnectOptions, replace
from dispatcher.model.errors import DispatchError, UsageError

EPILOG = """\b
Examples:
  dispatch connect -H hostfile          # then all commands are quick, for ten idle minutes
  dispatch connect --list
  dispatch connect --close [-w n07]
One process of yours in the background has them; it ends when they do. Keys with a
passphrase must be in an SSH agent.
"""


@entry.command("connect", ConnectOptions, context_settings=MIXED, epilog=EPILOG)
@where_options
@section(
    "Connections",
    click.option("--keep", metavar="S", help="Close them after S idle seconds [600]."),
    click.option("--list", "listing", is_flag=True, help="List the hosts that are connected."),
    click.option(
        "--close", "closing", is_flag=True,
        help="Close all connections, or only those to the hosts of -H and -w.",
    ),
    verbose_option,
)  # fmt: skip
@time_options
@how_options
def command(options: ConnectOptions) -> int:
    """Connect to all hosts, and keep the connections for the commands to come."""
    if options.listing or options.closing:
        return _ask(options)
    from dispatcher.api.transports import allow_open_files
    from dispatcher.cli.exec.run_exec import carry_out, limits
    from dispatcher.cli.options.connect_options import TransportPool
    from dispatcher.cli.options.host_options import find_hosts
    from dispatcher.cli.say import say
    from dispatcher.plan.exec_plan import ExecPlan

    hosts = find_hosts(options, say)
    allow_open_files(len(hosts))
    options = replace(options, gather=True)
    with TransportPool(options) as reach:
        return carry_out(ExecPlan(hosts, ("true",), limits=limits(options)), options, reach)


def _ask(options: ConnectOptions) -> int:
    """List, or close; prints the hosts to which connections are open."""
    from dispatcher.cli.options.host_options import find_hosts, hosts_typed
    from dispatcher.cli.say import say
    from dispatcher.model.hostset import fold
    from dispatcher.remote.protocol.mux import Malformed
    from dispatcher.transport.pool.daemon_socket import DROP, LIST, ask

    if options.listing and options.closing:
        raise UsageError("--list and --close exclude each other")
    hosts = None
    if options.closing and hosts_typed():
        hosts = [host.name for host in find_hosts(options, say)]
    try:
        said = ask(DROP, hosts=hosts) if options.closing else ask(LIST)
    except (OSError, Malformed) as error:
        raise DispatchError(f"the process that holds connections: {error}") from None
    names = sorted(map(str, said["hosts"])) if said is not None else []
    if said is None or (options.listing and not names):
        say("note: no connections are kept")
    elif options.listing:
        print(f"{fold(names)} ({len(names)}), for {said['idle']:g} idle seconds")
    return os.EX_OK


def main(words: Sequence[str]) -> int:
    """Run ``dispatch connect`` with ``words``; the exit code."""
    return enter(command, words, "dispatch connect")
