"""Which hosts, and how they are reached: the options that all commands for many hosts share.

``-H`` takes a hostfile of any dialect, a list, or ``-``; ``-w`` lists only, as pdsh and clush
do, and adds to it. ``-x`` takes hosts away, as theirs does, but in a run it exports a variable,
as mpirun's does; whoever confuses the two is told (``run_options``, and ``_excluded`` here).

Hosts on the command line are the only ones: those of a ``dispatch.toml`` are for when
none are named. What a file takes away (``exclude``) is gone either way: who keeps a
broken host out wants it kept out of ``-w 'n[1-9]'`` too, and fewer hosts do less harm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dispatcher.cli.help import section
from dispatcher.cli.options.option_classes import (
    HostOptions,
    LoginOptions,
    WhereOptions,
    count,
    replace,
)
from dispatcher.cli.options.option_defaults import WITHOUT, origin, said_by, setting_of, typed
from dispatcher.model.errors import UsageError

if TYPE_CHECKING:
    from dispatcher.model.host import Host, Hostlist

Function = TypeVar("Function", bound=Callable[..., Any])
H = TypeVar("H", bound=HostOptions)

#: of the options that choose hosts: what a file calls them
NAMES = {"hostfile": "hostfile", "lists": "hosts", "excluded": "exclude"}
#: the commands that take hosts in this way, as ``hosts`` shows them
TAKERS = ("exec", "put", "get", "shell", "connect", "check", "sweep")

#: for whoever shows many lines of notes
verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Show every step on standard error."
)
fanout_option = click.option(
    "--fanout-tree", metavar="[=K]",
    help="Reach hosts through other hosts: each connects to at most K more by its own ssh [the "
    "least K for two levels].",
)  # fmt: skip
keep_option = click.option(
    "--keep", metavar="[=S]",
    help="Keep the connections open until they have been idle for S seconds [600]; see dispatch "
    "connect.",
)  # fmt: skip

#: -H, -w: which hosts
host_options = section(
    "Hosts",
    click.option(
        "-H", "--hostfile", "hostfile", metavar="FILE|LIST|-",
        help="A hostfile in any dialect, a list of hosts, or - for standard input [default: the "
        "hosts of the batch job we are in].",
    ),
    click.option(
        "-w", "--hosts", "lists", multiple=True, metavar="LIST",
        help="A list of hosts: n1,n2 or 'n[01-16]' or @group or 'n[1-9]!n5'; may be repeated.",
    ),
)  # fmt: skip
_exclude_option = section(
    "Hosts",
    click.option(
        "-x", "--exclude", "excluded", multiple=True, metavar="LIST|^FILE",
        help="Leave these hosts out; may be repeated. (In dispatch run, -x exports a variable, as "
        "mpirun's does.)",
    ),
)  # fmt: skip
#: how hosts are reached, for a run as well
way_options = section(
    "Connections",
    click.option(
        "-F", "--ssh-config", metavar="FILE", envvar="DISPATCH_SSH_CONFIG",
        help="Read FILE instead of ~/.ssh/config and /etc/ssh/ssh_config.",
    ),
    click.option(
        "--transport", type=click.Choice(["auto", "paramiko", "ssh", "slurm"]),
        help="auto: SSH in this process, and no SSH for localhost. paramiko: SSH for localhost "
        "too. ssh: the system's ssh. slurm: one srun step per host.",
    ),
    click.option(
        "--rsh", metavar="CMD",
        help="Reach hosts with a command of your own: 'kubectl exec -i {host} --', "
        "'ssh -J gate {host}'.",
    ),
    click.option(
        "--host-keys", type=click.Choice(["strict", "accept-new"]),
        help="Refuse unknown host keys, or add them to known_hosts [default: as ssh_config says, "
        "else strict].",
    ),
)  # fmt: skip
_login_options = section(
    "Connections",
    click.option("-l", "--user", metavar="NAME", help="Log in as NAME on hosts without a user."),
    click.option("-p", "--ssh-port", metavar="PORT", help="Port of sshd on hosts without a port."),
)
#: limits in time and number
time_options = section(
    "Limits",
    click.option("-t", "--connect-timeout", metavar="S", help="Seconds to reach a host [10]."),
    click.option(
        "-u", "--command-timeout", metavar="S", help="Seconds a command may run [no limit]."
    ),
    click.option("--deadline", metavar="S", help="Seconds for everything together [no limit]."),
    click.option(
        "--grace", metavar="S", help="Seconds between one signal and the next, harder one [5]."
    ),
    click.option(
        "--server-alive-interval", metavar="S",
        help="Ask a host that was silent for S seconds whether it is alive; after three questions "
        "without an answer it is lost [as ServerAliveInterval, else 15; 0: never ask].",
    ),
    click.option("-f", "--fanout", metavar="N", help="Connect to at most N hosts at once [64]."),
    click.option(
        "--serial", metavar="N", help="Rolling execution: run on at most N hosts at once [all]."
    ),
    click.option("--stop-after", metavar="K", help="Start no more hosts after K have failed."),
)  # fmt: skip
#: as whom a command runs
sudo_options = section(
    "Command",
    click.option("--sudo", metavar="[=USER]", help="Run it with sudo; asks for one password."),
    click.option(
        "--ask-sudo-password", is_flag=True,
        help="Ask for the password at once, not when a host wants it.",
    ),
)  # fmt: skip
#: what ``put`` and ``get`` share
copy_options = section(
    "Files",
    click.option(
        "--checksum", is_flag=True,
        help="Compare files by SHA-256, not by size and time.",
    ),
    click.option(
        "--no-resume", is_flag=True,
        help="Do not go on with an interrupted copy, and keep nothing for a later one.",
    ),
)  # fmt: skip


def where_options(function: Function) -> Function:
    """Add ``-H -w -x``."""
    return host_options(_exclude_option(function))


def how_options(function: Function) -> Function:
    """Add the options of login and transport."""
    return _login_options(way_options(function))


def hosts_typed() -> bool:
    """Whether ``-H`` or ``-w`` stood on the command line, be it with nothing in it."""
    return typed("hostfile") or typed("lists")


def only_typed(options: H, *, elsewhere: bool = False) -> H:
    """``options`` less the hosts of a file if the command line names any: -H, -w or elsewhere."""
    if not elsewhere and not hosts_typed():
        return options
    if not typed("hostfile"):
        options = replace(options, hostfile=None)
    return options if typed("lists") else replace(options, lists=())


def find_hosts(
    options: WhereOptions,
    say: Callable[[str], None],
    more: tuple[Hostlist, ...] = (),
    *,
    slots: bool = False,
) -> tuple[Host, ...]:
    """The hosts that the options name, each once, in written order.

    more: those that the command line names without -H and -w. slots: whether it
    matters how many each has.

    Raises: UsageError when they name none, or a text is wrong.
    """
    from dispatcher.plan.exec_plan import target_hosts

    options = only_typed(options, elsewhere=bool(more))
    lists = [*named_hosts(options, slots=slots), *more]
    if not lists and not hosts_typed():
        lists += _allocated()
    if not lists:
        raise UsageError("no hosts given", hint="-H hostfile, or -w 'n[01-16]', or -w localhost")
    for notice in dict.fromkeys(notice for one in lists for notice in one.notices):
        say(f"note: {notice}")
    reached = options if isinstance(options, LoginOptions) else LoginOptions()
    hosts = target_hosts(
        lists, _excluded(options.excluded), *login(reached),
        option=said_by("excluded", "-x"), hint=WITHOUT if origin("excluded") else None,
    )  # fmt: skip
    if isinstance(options, LoginOptions):
        from dispatcher.cli.options.connect_options import judge

        judge(options, hosts)
    return hosts


def named_hosts(options: HostOptions, *, slots: bool) -> list[Hostlist]:
    """What ``-H`` and each ``-w`` name. slots: whether it matters how many a host has.

    Raises: UsageError for a file that cannot be read, HostfileError for a text that is wrong.
    """
    from dispatcher.cli.options import config_trust
    from dispatcher.plan.hosts.hostfile import parse_inline, read_hosts

    lists: list[Hostlist] = []
    if options.hostfile:
        said = said_by("hostfile", "-H")
        named = read_hosts(options.hostfile, sys.stdin.buffer.read, option=said, slots=slots)
        lists.append(config_trust.hosts(named, setting_of("hostfile")))
    said = said_by("lists", "-w")
    lists += [
        config_trust.hosts(parse_inline(text, said, slots=slots), setting_of("lists"))
        for text in options.lists
    ]
    return lists


def _allocated() -> list[Hostlist]:
    from dispatcher.api.request import allocated

    found = allocated()
    return [] if found is None else [found]


def login(options: LoginOptions) -> tuple[str | None, int | None]:
    """User and port for hosts that name none of their own. Raises: UsageError."""
    user, port = options.user, options.ssh_port
    if user is not None:
        from dispatcher.model.names import BadName, check_user

        try:
            check_user(user)
        except BadName as bad:
            raise UsageError(f"--user: {bad.message}", hint=bad.hint) from None
    return user, count(port, "--ssh-port", None, 65535)


def _excluded(texts: tuple[str, ...]) -> list[str]:
    if not texts:
        return []
    from dispatcher.model import hostset
    from dispatcher.model.names import BadName
    from dispatcher.plan.hosts.hostfile import read_hostfile

    names: list[str] = []
    said = said_by("excluded", "-x")
    for text in texts:
        if text.startswith("^"):
            names += [host.name for host in read_hostfile(text[1:], said, slots=False).hosts]
            continue
        try:
            names += hostset.expand(text)
        except BadName as bad:
            variable = "a variable goes before the command: -- env NAME=VALUE COMMAND"
            hint = variable if "=" in text else bad.hint
            raise UsageError(f"{said}: {bad.message}", hint=hint) from None
    return names
