"""``dispatch connect``: connections that later commands find open."""

from __future__ import annotations

import os

from dispatcher.cli import print_json, say
from dispatcher.cli.options.declaration import converted, json_option, option, preset
from dispatcher.cli.options.host_options import (
    KeepOptions,
    LimitOptions,
    LoginOptions,
    WhereOptions,
    verbose_option,
)
from dispatcher.model.errors import ConflictingOptions, NoConnectionDaemon
from dispatcher.model.frozen import Document, value


@value
class Connections(Document):
    """``dispatch connect --list --json``: hosts to which connections are open.

    idle: seconds after which an unused connection is closed; null if there are no connections.
    """

    schema = "connections/1"
    hosts: list[str]
    idle: float | None


class KeptOptions(KeepOptions, section="Connections"):
    keep: str | None = preset(
        default="600", metavar="SECONDS", help="Close a connection that has been idle for SECONDS."
    )
    listing: bool = preset("--list", help="List the hosts that are connected.")
    as_json: bool = json_option("that list, or the result of each host")
    closing: bool = option(
        "--close", help="Close all connections, or only the connections to the hosts of -H and -w."
    )
    verbose: bool = verbose_option()


class ConnectOptions(WhereOptions, KeptOptions, LimitOptions, LoginOptions):
    """Connect to all hosts, and keep the connections for the next commands.

    Your own background process keeps them, and ends when they are closed. It keeps no password:
    dispatch asks for it on this terminal. Keys with a passphrase must be in an SSH agent.
    """

    examples = (
        ("dispatch connect -H hostfile", "later commands are quick, until ten idle minutes"),
        ("dispatch connect --list", "the hosts that are connected"),
        ("dispatch connect --close -w n07", "close one; without -w: all"),
    )
    brief = ("hostfile", "lists", "excluded", "keep", "listing", "closing", "connect_timeout",
             "fanout", "user")  # fmt: skip


def connect(options: ConnectOptions) -> int:
    """Run ``true`` on all hosts over connections that stay, or list or close these; the exit code.

    Raises: UsageError.
    """
    if options.listing or options.closing:
        return _ask(options)
    from dispatcher.api.transports import allow_open_files
    from dispatcher.cli.exec.exec import ExecOptions
    from dispatcher.cli.exec.run_exec import carry_out, limits
    from dispatcher.cli.options.connect_options import LoginTransports, show_only
    from dispatcher.cli.options.host_options import find_hosts
    from dispatcher.plan.exec_plan import ExecPlan

    hosts = find_hosts(options, say)
    does = f"connect, and stay connected until {options.keep} idle seconds have passed"
    deeds = ((host, does) for host in hosts)
    if show_only(options, "connect", deeds, limits=limits(options)):
        return 0
    allow_open_files(len(hosts))
    _check_daemon()
    shown = converted(options, ExecOptions, gather=not options.as_json)
    with LoginTransports(options, alone=len(hosts) == 1) as reach:
        return carry_out(ExecPlan(hosts, ("true",), limits=limits(options)), shown, reach)[0]


def _check_daemon() -> None:
    """Start the process that holds connections. Raises: NoConnectionDaemon if it is silent."""
    from dispatcher.transport.pool import daemon_socket

    with daemon_socket.dial_or_start() as link:
        if (silent := daemon_socket.why_silent(link)) is not None:
            raise NoConnectionDaemon(silent, hint="dispatch connect --close")


def _ask(options: ConnectOptions) -> int:
    """List, or close; prints the hosts to which connections are open."""
    from dispatcher.cli.options.host_options import find_hosts, hosts_typed
    from dispatcher.model.hostset import fold
    from dispatcher.remote.protocol.mux import Malformed
    from dispatcher.transport.pool.daemon_socket import DROP, LIST, ask_daemon, kill_daemon

    if options.listing and options.closing:
        raise ConflictingOptions("--list and --close exclude each other")
    if options.dry_run:
        raise ConflictingOptions("--dry-run is for connecting: --list and --close touch no host")
    hosts = None
    if options.closing and hosts_typed():
        hosts = [host.name for host in find_hosts(options, say)]
    try:
        answer = ask_daemon(DROP, hosts=hosts) if options.closing else ask_daemon(LIST)
    except NoConnectionDaemon as silent:
        if not options.closing or hosts is not None or not kill_daemon():
            raise
        say(f"note: {silent}: it was killed, and its connections are closed")
        return os.EX_OK
    except (OSError, Malformed) as error:
        raise NoConnectionDaemon(f"the process that holds connections: {error}") from None
    names = sorted(map(str, answer["hosts"])) if answer is not None else []
    if options.as_json:
        print_json(Connections(names, None if answer is None else float(answer["idle"])))
    elif answer is None or (options.listing and not names):
        say("note: no connections are kept")
    elif options.listing:
        print(f"{fold(names)} ({len(names)}), for {answer['idle']:g} idle seconds")
    return os.EX_OK
