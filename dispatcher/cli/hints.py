"""What this machine knows about what hosts complain of, as a hint to paste: asked at the end.

``Advice`` answers for a trouble as the verdict names it: a kind of failure (``name not found``),
what an agent's look found (``no script``), or a fan-out command's end (``exit code 127``).
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from dispatcher.api.request import cwd_of
from dispatcher.cli import mistakes
from dispatcher.cli.options.host_options import only_typed
from dispatcher.model.failure import Kind
from dispatcher.model.names import nearest
from dispatcher.output.exec.exec_notes import NOT_STARTED

if TYPE_CHECKING:
    from dispatcher.cli.exec.exec import ExecOptions
    from dispatcher.cli.options.host_options import HostOptions
    from dispatcher.cli.run.run import RunOptions

_BARE = re.compile(r"[A-Za-z0-9][\w.-]*\Z")
#: of a name that was meant for another: ``difflib``'s measure
_NEAR = 0.7
#: commands that only a shell has
_BUILTINS = frozenset({
    ".", "alias", "bg", "cd", "eval", "exec", "exit", "export", "fg", "hash", "jobs", "read", "set",
    "shift", "source", "trap", "type", "ulimit", "umask", "unalias", "unset", "wait",
})  # fmt: skip


class Advice:
    """Hints for the command line whose options are ``options``."""

    def __init__(self, options: HostOptions) -> None:
        self._options = options

    def __call__(self, trouble: str) -> str | None:
        """What to do about ``trouble``; None: nothing is known here."""
        if trouble == Kind.DNS.value:
            return self._no_such_host()
        from dispatcher.cli.exec.exec import ExecOptions
        from dispatcher.cli.run.run import RunOptions

        options = self._options
        if isinstance(options, RunOptions):
            if trouble in ("no script", "cwd"):
                return _not_there(options, trouble == "cwd")
            return _no_program(options) if trouble == "missing" else None
        if isinstance(options, ExecOptions) and trouble == "exit code 127":
            return _not_found(options)
        if isinstance(options, ExecOptions) and trouble == NOT_STARTED:
            file = options.failed_to or options.retry_failed
            if file:
                option = f"--retry-failed {shlex.quote(file)}"
                return f"{option}  # in place of the hosts: goes on with these"
        return None

    # -- hosts ---------------------------------------------------------------------------

    def _no_such_host(self) -> str | None:
        """A name that may have been meant for a file of hosts."""
        options = only_typed(self._options)
        named, lists = options.hostfile, options.lists
        if not named and len(lists) == 1 and os.path.isfile(lists[0]):
            line = mistakes.as_file(lists[0])
            return f"{line}  # it is a file here, and -w takes lists" if line else None
        is_name = named is not None and _BARE.match(named) and not os.path.lexists(named)
        if named and is_name and (near := _near(named, ".", os.path.isfile)):
            line = mistakes.respelled(named, near)
            return f"{line}  # there is no such file here; did you mean this?"
        if known := _known_host(options):
            return known
        return f"getent hosts {named}  # and there is no such file here" if is_name else None


def _known_host(options: HostOptions) -> str | None:
    """The line in which a host is called as ssh's files have it."""
    from dispatcher.cli.tools.completion import known_hosts

    known = known_hosts(getattr(options, "ssh_config", None))
    for text in filter(None, (options.hostfile, *options.lists)):
        names = text.split(",")
        for at, name in enumerate(names):
            near = nearest(name, known) if _BARE.match(name) and name not in known else None
            if near is not None:
                line = mistakes.respelled(text, ",".join([*names[:at], near, *names[at + 1 :]]))
                return f"{line}  # ssh knows this name; did you mean it?"
    return None


def _programs(options: RunOptions) -> list[RunOptions]:
    """What holds for each program of the line."""
    from dispatcher.cli.run.parts import split

    _, several = split(options, lambda program: None)
    return [one.options for one in several] or [options]


def _not_there(options: RunOptions, folder_missing: bool) -> str | None:
    """A script, or the folder of all, that hosts do not have."""
    programs, path, folder = _programs(options), "", ""
    for one in programs:
        folder = cwd_of(one.chdir)
        path = os.path.join(folder, one.words[0])
        if not os.path.isdir(folder):
            return "--chdir DIR  # there is no such folder here either"
        if not (one.module or one.no_python or os.path.lexists(path)):
            return _absent(one.words, path, alone=one is options)
    return _sent(options, folder if folder_missing else path)


def _absent(words: tuple[str, ...], path: str, *, alone: bool) -> str:
    """A script that is not here either. alone: no other program is on the line, or in a file."""
    absent = "no such script here either"
    near = _near(os.path.basename(path), os.path.dirname(path), os.path.isfile)
    if not alone:
        meant = "" if near is None else f"; did you mean {near}?"
        return f"ls {shlex.quote(os.path.dirname(path))}  # {absent}: {words[0]}{meant}"
    if near is not None:
        found = os.path.join(os.path.dirname(words[0]), near)
        line = mistakes.line([*mistakes.options(), found, *words[1:]])
        return f"{line}  # {absent}; did you mean this?"
    if command := mistakes.near_command(words):
        return f"{command}  # {absent}; did you mean this?"
    if "/" not in words[0] and not words[0].endswith(".py"):
        line = mistakes.line([*mistakes.options(), "--no-python", *words])
        return f"{line}  # {absent}; if it is a program"
    return f"ls {shlex.quote(os.path.dirname(path))}  # {absent}"


def _sent(options: RunOptions, path: str) -> str:
    """The line that sends ``path`` to where it is here: with the folder it is in, or alone."""
    path, here = os.path.normpath(path), cwd_of(None)
    whole = (os.path.expanduser("~"), "/")
    if path in whole or "{" in path:
        return "--chdir DIR  # a folder that every host has"
    if here not in whole and os.path.commonpath([path, here]) == here and options.sync is None:
        line = mistakes.line([*mistakes.options(), "--sync", *options.words])
        return f"{line}  # or a folder that every host has: --chdir DIR"
    reached = [
        word
        for option, value in (
            ("--user", options.user),
            ("--ssh-port", None if options.ssh_port is None else str(options.ssh_port)),
            ("-F", options.ssh_config),
            ("--transport", options.transport),
            ("--rsh", options.rsh),
            ("--host-keys", options.host_keys),
        )
        if value is not None and value != "auto"
        for word in (option, value)
    ]
    hosts = [word for one in options.lists for word in ("-w", one)]
    if options.hostfile:
        hosts[:0] = ["-H", "hostfile" if options.hostfile == "-" else options.hostfile]
    words = ["dispatch", "put", *hosts, *reached, path]
    line = shlex.join([*words, os.path.join(os.path.dirname(path), "")])
    return f"{line}  # or a folder that every host has: --chdir DIR"


def _no_program(options: RunOptions) -> str | None:
    """A program that no host has, when its name cannot be one."""
    words = options.words
    if not options.no_python or _programs(options)[0] is not options:
        return None
    if not mistakes.is_shell_text(words[0], surely=False):
        return None
    return mistakes.apart(words)


def _not_found(options: ExecOptions) -> str | None:
    """A command of ``exec`` that no host has, when it was meant otherwise."""
    words = options.words
    quoted = len(words) == 1 and mistakes.is_quoted(words[0])
    if not words or quoted or options.script is not None:
        return None  # --shell, words that are not the user's, or a shell that has said what
    if mistakes.is_shell_text(words[0], surely=False) or words[0] in _BUILTINS or "=" in words[0]:
        return mistakes.as_shell_text(words)
    listed = mistakes.last_list(options)
    more = mistakes.neighbours(words, listed)
    if listed is not None and more and len(more) < len(words):
        return mistakes.with_neighbours(words, more, listed)
    return None


def _near(name: str, folder: str, fits: Any) -> str | None:
    """The name in ``folder`` that ``name`` may have been meant for."""
    try:
        there = [one for one in os.listdir(folder or ".") if abs(len(one) - len(name)) <= 3]
    except OSError:
        return None
    from difflib import get_close_matches  # for mistakes only

    close = get_close_matches(name, there, 3, _NEAR)
    return next((one for one in close if fits(os.path.join(folder, one))), None)
