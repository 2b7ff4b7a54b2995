"""Which hosts, and how they are reached: the options that all commands for many hosts share.

Hosts on the command line are the only ones. Where none are named, the first of these counts:
``DISPATCH_HOSTFILE``, ``dispatch.toml``, the batch job, and for commands (not for runs) pdsh's
``WCOLL``. Hosts that a file excludes stay out in any case: fewer hosts do less harm. ``-x`` takes
hosts away as in pdsh and clush, but in a run it exports a variable, as in mpirun.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dispatcher.cli.options.declaration import (
    Options,
    Share,
    carried,
    dry_run_option,
    option,
    preset,
    replace,
)
from dispatcher.cli.options.option_defaults import WITHOUT, origin, setting_of, typed, value_origin
from dispatcher.model.errors import ConflictingOptions, NoHosts, NoPassword, UsageError
from dispatcher.model.names import quoted

if TYPE_CHECKING:
    from dispatcher.api.transports import Ways
    from dispatcher.model.host import Host, Hostlist

H = TypeVar("H", bound="HostOptions")

#: names that are compared with those of the hosts
_MOST_NOTED = 20


def verbose_option() -> Any:
    """``-v``, for commands that can show every step."""
    return preset("-v", help="Show every step on standard error.")


class HostOptions(Options, section="Hosts"):
    """Which hosts."""

    hostfile: tuple[str, ...] = preset(
        "-H",
        metavar="FILE|LIST|-",
        envvar="DISPATCH_HOSTFILE",
        help="Take the hosts from FILE. It may be a hostfile of any launcher or a list of hosts, "
        "and - is standard input. May be repeated. The variable DISPATCH_HOSTFILE names one.",
        usual="the batch job's hosts",
    )
    lists: tuple[str, ...] = preset(
        "-w",
        "--hosts",
        metavar="LIST|^FILE|-",
        help="Take these hosts: n1,n2 or 'n[01-16]' or @group or 'n[1-9]!n5'; ^FILE is a "
        "hostfile, - is standard input. May be repeated. As with pdsh, -HOST in a list leaves a "
        "host out, and /REGEX/ keeps only the hosts that match.",
    )


class WhereOptions(HostOptions, section="Hosts"):
    """Which hosts, less some."""

    excluded: tuple[str, ...] = preset(
        "-x",
        "--exclude",
        metavar="LIST|^FILE",
        help="Leave these hosts out. May be repeated. (In dispatch run, -x exports a variable, as "
        "it does in mpirun.)",
    )


class LoginOptions(Options, section="Connections"):
    """How a host is reached."""

    user: str | None = preset(
        "-l", metavar="NAME", help="Log in as NAME on hosts without a user name."
    )
    ssh_port: int | None = preset(
        "-p",
        most=65535,
        metavar="PORT",
        help="Log in at this port on hosts without a port.",
    )
    ssh_config: str | None = option(
        "-F",
        metavar="FILE",
        envvar="DISPATCH_SSH_CONFIG",
        help="Read FILE instead of ~/.ssh/config and /etc/ssh/ssh_config. The variable "
        "DISPATCH_SSH_CONFIG does the same.",
    )
    transport: Literal["auto", "paramiko", "ssh", "slurm"] = option(
        default="auto",
        help="Choose how hosts are reached. auto: by SSH in this process, and localhost without "
        "SSH; paramiko: by SSH in this process, localhost too; ssh: by the ssh command of this "
        "machine; slurm: by one srun step per host.",
    )
    rsh: str | None = option(
        metavar="COMMAND",
        help="Reach hosts with your own command, such as 'kubectl exec -i {host} --' or 'ssh -J "
        "gate {host}'.",
    )
    host_keys: Literal["strict", "accept-new"] | None = option(
        help="Refuse hosts whose key is not in known_hosts (strict), or add their keys to it "
        "(accept-new).",
        usual="as in ssh_config, else strict",
    )
    ask_pass: bool = option(
        "-k",
        help="Ask on the terminal for one password for all hosts, and show their other "
        "questions, such as one-time codes.",
    )
    dry_run: bool = dry_run_option()


class KeepOptions(Options, section="Connections"):
    """For commands that use and leave open connections."""

    keep: str | None = preset(
        metavar="[=SECONDS]",
        bare="600",
        help="Keep the connections for later commands until they have been idle for SECONDS, 600 "
        "if you give no number. See dispatch connect.",
    )


class ContainerOptions(Options, section="Container"):
    """In which container a command runs."""

    container_image: str | None = option(
        metavar="IMAGE",
        help="Run in a container of IMAGE, one per host. The host must have the image: nothing is "
        "pulled. The container has the host's network, GPUs, RDMA devices and your user, and this "
        "folder at the same path; an entrypoint of the image is not run.",
        usual="no container",
    )
    container_engine: Literal["auto", "docker", "podman", "nerdctl", "apptainer", "enroot"] = (
        option(
            default="auto",
            help="Start the container with this program. auto: the first on the host that has the "
            "image; apptainer for a .sif file or a folder, enroot for a .sqsh file.",
        )
    )
    mounts: tuple[str, ...] = option(
        "--mount",
        metavar="SRC:DST[:ro]",
        help="Mount the host's SRC at DST in the container, to be read only with :ro. May be "
        "repeated.",
    )
    container_args: tuple[str, ...] = option(
        "--container-arg",
        metavar="ARG",
        help="Pass ARG to the engine, before the image: --container-arg=--shm-size=64g. May be "
        "repeated.",
    )

    @property
    def has_any(self) -> bool:
        """Whether one of these options was given."""
        given = (self.container_image, self.mounts, self.container_args)
        return any(given) or self.container_engine != "auto"


class TreeOptions(Options, section="Connections"):
    """For commands that reach hosts through others."""

    agent_python: str | None = None
    fanout_tree: str | None = preset(
        metavar="[=K]",
        bare="auto",
        help="Reach hosts through other hosts: each connects to at most K more by its own ssh. "
        "Without K the tree has two levels, and fewer than 32 hosts need no tree: dispatch "
        "connects to all of them itself, which is faster.",
    )


class LimitOptions(Options, section="Limits"):
    """How long a command may take on a host, and on how many at once."""

    connect_timeout: float | None = preset(
        "-t",
        metavar="SECONDS",
        positive=True,
        help="Give up on a host not reached within SECONDS, login included.",
        usual="10, login 120 more",
    )
    command_timeout: float | None = preset(
        "-u",
        metavar="SECONDS",
        positive=True,
        help="End the command on a host after SECONDS.",
        usual="no limit",
    )
    deadline: float | None = preset(
        metavar="SECONDS", positive=True, help="End everything after SECONDS.", usual="no limit"
    )
    grace: float | None = preset(
        metavar="SECONDS",
        help="Wait SECONDS after a signal before the next, harder signal.",
        usual="5",
    )
    server_alive_interval: float | None = preset(
        metavar="SECONDS",
        help="Test a host that was silent for SECONDS; after three tests without an answer it is "
        "lost. 0: never.",
        usual="ServerAliveInterval of ssh_config, else 15",
    )
    fanout: int | None = preset(
        "-f", metavar="N", help="Connect to at most N hosts at once.", usual="64"
    )
    serial: str | None = preset(
        metavar="N|P%[,...]",
        help="Run on at most N hosts at once, or P% of them: a rolling execution. With 1,10%,50% "
        "it makes batches: one host, then a tenth of all, then half of them at a time. A batch "
        "begins when the previous batch is done, unless all hosts of that batch failed (with "
        "--max-fail, this rule is only for batches before the last number).",
        usual="all hosts",
        type=Share(several=True),
    )
    delay: float | None = preset(
        metavar="SECONDS",
        help="Wait SECONDS between the batches of --serial. With it, --serial 4 means batches of "
        "4; without it, the next host begins as soon as one is done.",
        usual="0",
    )
    max_fail: str | None = preset(
        metavar="K|P%",
        help="Start no more hosts once K of them have failed, or P% of all.",
        usual="never",
        type=Share(),
    )


class SudoOptions(Options, section="Command"):
    """As whom a command runs."""

    user: str | None = None
    sudo: str | None = option(
        metavar="[=USER]",
        bare="root",
        help="Run the command with sudo as USER, or as root. You type one password, for all hosts.",
    )
    ask_sudo_password: bool = option(
        help="Ask for sudo's password at the start, not when the first host needs it."
    )


class VariableOptions(Options, section="Command"):
    """Variables in the environment of a command."""

    env: tuple[str, ...] = option(
        metavar="NAME[=VALUE]",
        help="Give the command this variable; without VALUE, its local value. May be repeated. "
        "It needs no AcceptEnv, and ps does not show it. (-x leaves hosts out; in dispatch run "
        "-x exports.)",
    )


#: variables with places, which an image has elsewhere than this machine
OWN_PLACES = frozenset(
    ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH")
    + ("CONDA_PREFIX", "CONDA_EXE", "CONDA_PYTHON_EXE", "CONDA_DEFAULT_ENV", "CONDA_SHLVL")
)


def image_environ(exports: Iterable[str]) -> dict[str, str]:
    """This machine's environment, less ``OWN_PLACES`` that ``exports`` does not name."""
    gone = OWN_PLACES - frozenset(exports)
    return {name: text for name, text in os.environ.items() if name not in gone}


_VARIABLE = re.compile(r"(?!DISPATCH_)[A-Za-z_][A-Za-z0-9_]*")
#: variables that a shell keeps to itself
_SHELLS = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})


def env_variables(options: VariableOptions) -> tuple[tuple[str, str], ...]:
    """The names and values of ``--env``. Raises: UsageError."""
    found = {}
    for item in options.env:
        name, equals, text = item.partition("=")
        if not _VARIABLE.fullmatch(name) or name in _SHELLS or "\0" in text:
            why = f"--env: {quoted(name)} is nothing that can be set for a command"
            raise UsageError(why, hint="--env NAME=VALUE")
        if not equals and name not in os.environ:
            raise UsageError(f"--env {name}: not set here", hint=f"--env {name}=VALUE")
        found[name] = text if equals else os.environ[name]
    return tuple(found.items())


class SendOptions(Options, section="Files"):
    """Which files are sent, and whose they become."""

    owner: str | None = option(
        metavar="USER[:GROUP]",
        help="Give the sent files to USER and GROUP, as chown does; :GROUP changes only the group.",
        usual="the user that writes them",
    )
    mode: str | None = option(
        metavar="MODE",
        help="Give files this mode, such as 640. Folders get the same, with x wherever it has r.",
        usual="their local mode",
    )
    ignore: tuple[str, ...] = preset(
        metavar="PATTERN",
        help="Leave out files that match PATTERN, as a line of a .gitignore in DEST would. May "
        "be repeated; the last match decides.",
    )


def hosts_typed() -> bool:
    """Whether the command line has ``-H`` or ``-w``, even with an empty value."""
    return typed("hostfile") or typed("lists")


def only_typed(options: H, *, elsewhere: bool = False) -> H:
    """``options`` less the hosts of a file if the command line names any: -H, -w or elsewhere."""
    if not elsewhere and not hosts_typed():
        return options
    if not typed("hostfile"):
        options = replace(options, hostfile=())
    return options if typed("lists") else replace(options, lists=())


def find_hosts(
    options: WhereOptions,
    say: Callable[[str], None],
    more: tuple[Hostlist, ...] = (),
    *,
    slots: bool = False,
) -> tuple[Host, ...]:
    """The hosts that the options name, each once, in written order. Raises: UsageError.

    more: hosts that the command line names in another way. slots: their number matters.
    """
    from dispatcher.plan.exec_plan import target_hosts
    from dispatcher.plan.hosts.hostfile import names_of

    options = only_typed(options, elsewhere=bool(more))
    lists = [*named_hosts(options, slots=slots), *more]
    if not lists and not hosts_typed():
        lists += _allocated() or _wcoll()
    if not lists:
        raise NoHosts("no hosts given", hint="-H hostfile, or -w 'n[01-16]', or -w localhost")
    for notice in dict.fromkeys(notice for one in lists for notice in one.notices):
        say(f"note: {notice}")
    reached = options if isinstance(options, LoginOptions) else LoginOptions()
    excluded = names_of(options.excluded, lists, value_origin("excluded", "-x"))
    if typed("excluded"):
        _note_misspelt(excluded, lists, say)
    hosts = target_hosts(
        lists, excluded, *login_defaults(reached),
        option=value_origin("excluded", "-x"), hint=WITHOUT if origin("excluded") else None,
    )  # fmt: skip
    if isinstance(options, LoginOptions):
        check_reachable(options, hosts)
    return hosts


def login_ways(options: LoginOptions) -> Ways:
    """How to reach the hosts, by the options. Raises: UsageError."""
    from dispatcher.api.transports import Ways

    return Ways(**carried(options, Ways))


def check_reachable(options: LoginOptions, hosts: Iterable[Host]) -> None:
    """Nothing, if the options can reach ``hosts`` as these want it. Raises: UsageError."""
    from dispatcher.api import transports

    transports.check_reachable(login_ways(options), hosts)


def named_hosts(options: HostOptions, *, slots: bool) -> list[Hostlist]:
    """The hosts of ``-H`` and each ``-w``. Raises: UsageError, HostfileError."""
    from dispatcher.cli.options import config_file
    from dispatcher.model.host import Hostlist
    from dispatcher.plan.hosts import hostfile

    lists: list[Hostlist] = []
    option = value_origin("hostfile", "-H")
    for text in options.hostfile:
        found = hostfile.read_hosts(text, lambda: _standard_input("-H"), option=option, slots=slots)
        lists.append(config_file.hosts_named(found, setting_of("hostfile")))
    option = value_origin("lists", "-w")
    less: list[str] = []
    only: list[str] = []
    for text in (item for whole in options.lists for item in hostfile.items(whole)):
        if text == "-":
            given = partial(_standard_input, "-w")
            found = hostfile.read_hosts(text, given, option=option, slots=slots)
        elif text[:1] == "-" or (text[:1] == "/" and not os.path.lexists(text)):
            (less if text[0] == "-" else only).append(text.removeprefix("-"))
            continue
        elif text.startswith("^"):
            found = hostfile.read_hostfile(text[1:], option, slots=slots)
        else:
            found = hostfile.parse_inline(text, option, slots=slots)
        if os.path.lexists(text) and text[-1:].isdigit() and typed("lists"):
            why = f"{option} {text}: a file here has this name; quote lists, as in 'n[1-3]'"
            found = Hostlist(found.hosts, (*found.notices, why))
        lists.append(config_file.hosts_named(found, setting_of("lists")))
    return hostfile.narrowed(lists, less, only, option) if less or only else lists


def _standard_input(option: str) -> bytes:
    if sys.stdin is None:  # <&-
        raise UsageError(f"{option} -: standard input is closed", hint="-H FILE")
    return sys.stdin.buffer.read()


def _allocated() -> list[Hostlist]:
    from dispatcher.api.request import allocated

    found = allocated()
    return [] if found is None else [found]


def _wcoll() -> list[Hostlist]:
    from dispatcher.plan.hosts.hostfile import read_hostfile

    path = os.environ.get("WCOLL")
    return [read_hostfile(path, "WCOLL", slots=False)] if path else []


def usual_source(options: HostOptions) -> str:
    """The file or variable that names the hosts, if no option does; "" for a batch job."""
    if options.hostfile or options.lists:
        name = "hostfile" if options.hostfile else "lists"
        return value_origin(name, name)
    return "" if _allocated() else "WCOLL"


def login_defaults(options: LoginOptions) -> tuple[str | None, int | None]:
    """User and port for hosts that name none of their own. Raises: UsageError."""
    user = options.user
    if user is not None:
        from dispatcher.model.names import BadName, check_user

        try:
            check_user(user)
        except BadName as bad:
            raise UsageError(f"--user: {bad.message}", hint=bad.hint) from None
    return user, options.ssh_port


def _note_misspelt(
    excluded: Sequence[str], lists: Iterable[Hostlist], say: Callable[[str], None]
) -> None:
    """Say which of ``excluded`` is none of the hosts, but much like one that would stay in."""
    names = {host.name for one in lists for host in one.hosts}
    unknown = [name for name in excluded if name not in names]
    if unknown:
        from dispatcher.model.names import nearest

        for name in unknown[:_MOST_NOTED]:
            near = nearest(name, sorted(names))
            if near is not None:
                say(f"note: -x {name}: none of the hosts; did you mean {near}?")


AT_A_TERMINAL = "run it at a terminal, or let sudoers grant it with NOPASSWD"


def sudo_user(options: SudoOptions) -> str | None:
    """The user that sudo is to make of us; None without ``--sudo``. Raises: UsageError."""
    name: str | None = options.sudo
    if name is None:
        if options.ask_sudo_password:
            raise ConflictingOptions(
                "--ask-sudo-password needs --sudo", hint="--sudo, or --sudo=USER"
            )
        return None
    from dispatcher.model.names import BadName, check_user

    try:
        check_user(name)
    except BadName as bad:
        raise UsageError(f"--sudo={name}: {bad.message}", hint=bad.hint) from None
    return name


@contextmanager
def sudo_password(options: SudoOptions) -> Iterator[Callable[[bool], bytes | None]]:
    """Give what asks for the password (again: it was wrong). Raises: NoPassword."""
    if options.sudo is None:
        yield lambda again: None
        return
    import getpass  # for what few ask for

    from dispatcher.output.terminal.asking import Asking

    prompt = f"password of {options.user or getpass.getuser()} for sudo: "
    asking = Asking()

    def ask(again: bool) -> bytes | None:
        typed = asking.ask(f"wrong, try again: {prompt}" if again else prompt)
        return typed.encode("utf-8", "surrogateescape") if typed else None

    try:
        if not options.ask_sudo_password:
            yield ask
            return
        known = ask(False)
        if known is None:
            raise NoPassword("--ask-sudo-password: no password was given", hint=AT_A_TERMINAL)
        yield lambda again: ask(True) if again else known
    finally:
        asking.close()
