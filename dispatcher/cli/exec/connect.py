"""``dispatch connect``: connections that later commands find open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from dispatcher.cli.entry import MIXED, enter
from dispatcher.cli.options.host_options import how_options, time_options, where_options
from dispatcher.model.errors import DispatchError, UsageError

EPILOG = """\b
Examples:
  dispatch connect -H hostfile          # then all commands are quick, for ten idle minutes
  dispatch connect --list
  dispatch connect --close [-w n07]
One process of yours in the background has them; it ends when they do. Keys with a
passphrase must be in an SSH agent.
"""


@click.command("connect", context_settings=MIXED, epilog=EPILOG)
@where_options
@click.option("--keep", metavar="S", default="600", help="Idle seconds until they close [600].")
@click.option("--list", "listing", is_flag=True, help="Say to which hosts there are connections.")
@click.option("--close", "closing", is_flag=True, help="Close them, or those to -H and -w.")
@time_options
@click.option("-v", "--verbose", is_flag=True, help="Say every step on standard error.")
@how_options
def command(**flags: Any) -> int:
    """Connect to all hosts, and keep the connections for the commands to come."""
    if flags["listing"] or flags["closing"]:
        return _ask(flags)
    from dispatcher.api.request import allow_open_files
    from dispatcher.cli.exec.run_exec import carry_out, limits
    from dispatcher.cli.exec.shell import UNASKED
    from dispatcher.cli.options.connect_options import Reach
    from dispatcher.cli.options.host_options import find_hosts
    from dispatcher.cli.say import say
    from dispatcher.plan.exec_plan import ExecPlan

    hosts = find_hosts(flags, say)
    allow_open_files(len(hosts))
    flags = {**UNASKED, "sudo": None, "ask_sudo_password": False, "gather": True, **flags}
    with Reach(flags) as reach:
        return carry_out(ExecPlan(hosts, ("true",), limits=limits(flags)), flags, reach)


def _ask(flags: dict[str, Any]) -> int:
    """List, or close; prints the hosts to which connections are open."""
    from dispatcher.cli.options.host_options import find_hosts, hosts_typed
    from dispatcher.cli.say import say
    from dispatcher.model.hostset import fold
    from dispatcher.remote.protocol.mux import Malformed
    from dispatcher.transport.pool.daemon_socket import DROP, LIST, ask

    if flags["listing"] and flags["closing"]:
        raise UsageError("--list and --close exclude each other")
    hosts = None
    if flags["closing"] and hosts_typed():
        hosts = [host.name for host in find_hosts(flags, say)]
    try:
        said = ask(DROP, hosts=hosts) if flags["closing"] else ask(LIST)
    except (OSError, Malformed) as error:
        raise DispatchError(f"the process that holds connections: {error}") from None
    names = sorted(map(str, said["hosts"])) if said is not None else []
    if said is None or (flags["listing"] and not names):
        say("note: no connection is kept")
    elif flags["listing"]:
        print(f"{fold(names)} ({len(names)}), for {said['idle']:g} idle seconds")
    return os.EX_OK


def main(words: Sequence[str]) -> int:
    """Run ``dispatch connect`` with ``words``; the exit code."""
    return enter(command, words, "dispatch connect")
