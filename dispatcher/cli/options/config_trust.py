"""What a file may say that merely lies in the current folder: nothing about what runs, or as whom.

``git clone``, ``cd`` and ``dispatch exec`` must run nothing of the clone's, on no machine. So
``./dispatch.toml`` may say how many, how long and how it looks; what names a program, whom to
trust, or a file to write has to be typed, or stand in the user's own file. Each option of each
command is in one of the tables below (a test says so); one that is in none is refused.

``read`` is for all files of that kind: what somebody else could have written is not read at all.
"""

# ruff: noqa: SIM905 - word lists read better as paragraphs
from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli import say
from dispatcher.cli.options.spelling import current
from dispatcher.model.errors import BadConfig, ConfigNotTrusted
from dispatcher.model.names import BadName, size
from dispatcher.plan.variables import check_folders_variable

if TYPE_CHECKING:
    from dispatcher.cli.options.config_file import Defaults, Setting
    from dispatcher.model.host import Hostlist

MOST_BYTES = 1 << 20
_MAY_NOT = "a folder's file may not"

#: option -> what it would do
REFUSED = {
    **dict.fromkeys(
        "agent-python app launcher local-rank-arg python rsh script shell site-checks".split(),
        "say what is run",
    ),
    **dict.fromkeys(
        "ask-pass ask-sudo-password host-keys master-addr ssh-config sudo transport".split(),
        "say whom to trust or as whom to run",
    ),
    **dict.fromkeys("mode owner".split(), "say whose files are, and who may read them"),
    "env-file": "name a file of variables",
    **dict.fromkeys(
        "apply copy dest error-dir events failed-to metrics output output-dir rcopy retry-failed "
        "svg trace".split(),
        "name a file to write",
    ),
    **dict.fromkeys("all close kill now stop-on-interrupt".split(), "say what is ended"),
}

ALLOWED = frozenset(
    # which hosts, and as which account: strangers among them are refused by their keys
    "hostfile hosts exclude group exclude-group include intersect user ssh-port spares nnodes np "
    "nproc-per-node min-nodes map-by rank-by rankfile oversubscribe per-node iface master-port "
    "bind-to mem-bind report-bindings near-hca "
    # what the program of the command line gets; variables are looked at one by one
    "chdir sync export devices omp module no-python stdin no-stdin mpi pmi-port pty "
    # how long, how many, how often
    "boot-timeout check-timeout command-timeout connect-timeout deadline delay fanout fanout-tree "
    "grace hang-timeout heartbeat keep lease max-fail max-host-failures max-missed-heartbeats "
    "max-restarts max-size mpi-stall-warning partial-after restart-delay rounds sample serial "
    "server-alive-interval signal slow stall-after stop-signal time-limit window detach "
    # what is looked at
    "allow-different-code check checksum exclude-unhealthy full ignore nccl no-resume "
    "backend pairs progress-file progress-line step-line xid-table "
    # what is shown, and kept in a new folder of its own
    "count diff dry-run fold fold-numbers follow from-start gather gather-all grep json label "
    "line-mode list log-dir log-keep log-merge log-overflow log-size max-code no-gather no-label "
    "numbers only-ranks percent profile quiet rank rank0 screen-overflow separator "
    "sort timestamps verbose".split()
)

#: of the user's own file: options whose value would be another file in every folder
_FILES = ("ssh-config", "env-file")


def read(path: str, *, must_be: bool = False) -> bytes | None:
    """The file's bytes; None, which is said, if somebody else could have written it.

    None also where there is no such file, unless it must be: then it may be a pipe, too.
    Raises: UsageError if it cannot be read or has more than ``MOST_BYTES``.
    """
    try:
        # not to wait for the other end of what may be no file at all
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        about = os.fstat(descriptor)
        why = _why_not(about)
        if not stat.S_ISREG(about.st_mode) and not must_be:
            why = "it is no file"
        if why:
            os.close(descriptor)
            say(f"note: {path} is not read: {why}")
            return None
        os.set_blocking(descriptor, True)
        with open(descriptor, "rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        if must_be:
            raise BadConfig(f"{path}: no such file") from None
        return None
    except OSError as error:
        raise BadConfig(f"{path}: {(error.strerror or '').lower()}") from None
    if len(text) > MOST_BYTES:
        raise BadConfig(f"{path}: more than {size(MOST_BYTES)}")
    return text


def _why_not(about: os.stat_result) -> str:
    if about.st_uid not in (0, os.geteuid()):
        return f"somebody else could have written it: it is of user {about.st_uid}"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "somebody else could have written it: chmod go-w"
    return ""


def check(file: Defaults, command: click.Command, profile: str | None, own: str) -> None:
    """Nothing, if ``file`` may say what it says for ``command``. own: the user's own file.

    Raises: UsageError for the first option that it may not say.
    """
    known = {name for parameter in command.params for name in parameter.opts}
    for table, name, value in file.entries(command.name or "", profile):
        option = current(name)
        if f"--{option}" not in known:
            continue
        why = _why_refused(option, value) if file.loose else _why_relative(option, value)
        if why:
            hint = f"put it into [{table}] of {own}, or type it: --{option}"
            raise ConfigNotTrusted(
                f"{file.place(table, name)}: {option}: {why}",
                hint=hint if file.loose else "write the path from /",
            )


def _why_refused(option: str, value: Any) -> str:
    if option not in ALLOWED:
        return f"{_MAY_NOT} {REFUSED.get(option, 'say that')}"
    if option == "sync" and value != ".":
        return f"{_MAY_NOT} name a folder to write to"
    if option == "export":
        for item in value if isinstance(value, list) else [value]:
            try:
                check_folders_variable(str(item).partition("=")[0])
            except BadName as bad:
                return bad.message
    return ""


def _why_relative(option: str, value: Any) -> str:
    for text in value if isinstance(value, list) else [value]:
        path = str(text)
        if option == "rsh":
            path = (path.split() or [""])[0]
            path = path if "/" in path else ""
        elif option not in _FILES:
            path = ""
        if path and path != "none" and not path.startswith("/"):
            return f"{path} would be another file in every folder"
    return ""


def hosts(found: Hostlist, setting: Setting | None) -> Hostlist:
    """``found``, where ``setting``, if any file, names them: that of a folder says no program.

    Raises: UsageError for a python or a variable that loads code.
    """
    if setting is None or not (setting.loose or _is_here(setting.value)):
        return found
    for host in found.hosts:
        why = f"python: {_MAY_NOT} {REFUSED['python']}" if host.python else ""
        for name, _ in host.env:
            try:
                check_folders_variable(name)
            except BadName as bad:
                why = f"env: {bad.message}"
        if why:
            hint = f"{setting.origin} names it; if you trust it, name it yourself: -H FILE"
            raise ConfigNotTrusted(f"{host.origin}: {why}", hint=hint)
    return found


def _is_here(value: Any) -> bool:
    """Whether the user's own file names one that is another in every folder."""
    return isinstance(value, str) and not value.startswith("/") and os.path.lexists(value)
