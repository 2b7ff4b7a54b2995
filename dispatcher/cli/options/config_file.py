"""Defaults of options from ``dispatch.toml``: the text to values, and which of them it may set.

``dispatch config --help`` shows one. A ``hostfile`` is a path from the file's folder, unless that
is the current one: there it is a value as for ``-H``. The narrower wins: a command's table over
``[all]``, a profile over both, a later file over an earlier one.

``git clone``, ``cd`` and ``dispatch exec`` must run nothing of the clone's, on no machine. So
``./dispatch.toml`` may not choose the program, its user, whom to trust or a file to write:
only an option that is declared as a ``preset`` may be set there. A file that another user could
have written is not read (``read``).
"""

# ruff: noqa: SIM905 - word lists read better as paragraphs
from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli import say
from dispatcher.cli.options.spelling import current
from dispatcher.model.errors import BadConfig, ConfigNotTrusted, reason
from dispatcher.model.names import BadName, nearest, size
from dispatcher.plan.variables import check_folders_variable

if TYPE_CHECKING:
    from dispatcher.model.host import Hostlist

EVERY = "all"
PROFILE = "profile"
#: two ways to name the hosts: those of one table add up, of several the narrowest wins
HOSTS = ("hostfile", "hosts")
#: command -> others whose tables are its own as well
_BESIDE = {"dsx": ("exec",)}
#: characters of a line: tomllib takes a key of many parts in time that grows with their square
LONGEST_LINE = 8192


@dataclass(frozen=True)
class Setting:
    """A value in a ``table`` of a ``file``, ``run`` or ``profile.NAME.run``, and its name there."""

    value: Any
    name: str
    table: str
    file: Defaults

    @property
    def option(self) -> str:
        """The long name of its option, without the dashes."""
        return current(self.name)

    @property
    def origin(self) -> str:
        """``dispatch.toml [run]``, for messages."""
        return f"{self.file.source} [{self.table}]"


@dataclass(frozen=True)
class Defaults:
    """One file: tables by name of the command, or ``profile.NAME.command``.

    loose: the file is merely in the current folder.
    """

    source: str
    tables: Mapping[str, Mapping[str, Any]]
    profiles: Mapping[str, Mapping[str, Mapping[str, Any]]]
    text: str = ""
    loose: bool = False

    def entries(self, command: str, profile: str | None) -> Iterator[Setting]:
        """All its entries for ``command``, the narrower ones later."""
        for tables, where in (
            (self.tables, ""),
            ({} if profile is None else self.profiles.get(profile, {}), f"{PROFILE}.{profile}."),
        ):
            for table in (EVERY, *_BESIDE.get(command, ()), command):
                for name, value in tables.get(table, {}).items():
                    if current(name) == "hostfile" and not self.loose:
                        value = _beside(self.source, value)
                    yield Setting(value, name, where + table, self)

    def place(self, table: str, name: str) -> str:
        """``file:line`` of a name, or the file and the table if it is written unusually.

        table: "" for names outside any.
        """
        header, whole = "", _plain(f"{table}.{name}.".lstrip("."))
        for number, line in enumerate(self.text.split("\n"), 1):
            key, equals, _ = line.partition("=")
            if not equals and line.lstrip().startswith("["):
                header = _plain(line.partition("]")[0]) + "."
            elif equals and whole.startswith(f"{header}{_plain(key)}."):
                return f"{self.source}:{number}"
        return f"{self.source}: [{table}]" if table else self.source


def _plain(key: str) -> str:
    return re.sub(r"[\s\"'\[]", "", key).replace("_", "-")


def parse(text: str, source: str, commands: Iterable[str], *, loose: bool = False) -> Defaults:
    """The tables of a file; ``loose`` as in ``Setting``. Raises: UsageError."""
    if sys.version_info >= (3, 11):  # loaded only where there is a file
        import tomllib
    else:  # pragma: no cover
        import tomli as tomllib

    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            raise BadConfig(f"{source}:{number}: a line of more than {LONGEST_LINE} characters")
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{source}: {str(error)[:200].lower()}") from None
    except RecursionError:
        raise BadConfig(f"{source}: brackets nested too deep") from None
    except ValueError:  # Python's own limit, of 4,300 digits
        raise BadConfig(f"{source}: a number with too many digits") from None
    profiles = found.pop(PROFILE, {})
    if not isinstance(profiles, dict):
        raise BadConfig(f"{source}: {PROFILE} is not a table", hint="[profile.NAME.run]")
    known = (EVERY, *commands)
    for tables, where in ((found, ""), *((t, f"profile.{n}.") for n, t in profiles.items())):
        if not isinstance(tables, dict):
            raise BadConfig(f"{source}: {where[:-1]} is not a table", hint="[profile.NAME.run]")
        for name, table in tables.items():
            if not isinstance(table, dict):
                place = Defaults(source, {}, {}, text).place(where[:-1], name)
                raise BadConfig(
                    f"{place}: {where}{name} is outside any command's table",
                    hint=f"put it under [{where}run], or [{where}{EVERY}]",
                )
            if name not in known:
                near = nearest(name, known)
                raise BadConfig(
                    f"{source}: [{where}{name}]: no such command",
                    hint=f"[{where}{near}]" if near else f"known: {', '.join(known)}",
                )
    return Defaults(source, found, profiles, text, loose)


def settings_chosen(settings: Iterable[Setting]) -> dict[str, Setting]:
    """The setting that counts for each option. settings: the narrower ones of each file later."""
    found: dict[str, Setting] = {}
    for setting in sorted(settings, key=lambda one: one.table.startswith(f"{PROFILE}.")):
        for name in HOSTS if setting.option in HOSTS else ():
            if name in found and found[name].origin != setting.origin:
                del found[name]
        found[setting.option] = setting
    return found


def _beside(source: str, value: Any) -> Any:
    """``value`` as a path from the folder of the file ``source``: the same in every folder."""
    if isinstance(value, list):
        return [_beside(source, one) for one in value]
    if not isinstance(value, str) or value == "-":
        return value
    folder = os.path.dirname(os.path.abspath(source))
    return os.path.join(folder, os.path.expanduser(value))


MOST_BYTES = 1 << 20
_MAY_NOT = "a folder's file may not"

#: option -> the effect that the file may not have, in the words of the refusal
REFUSED = {
    **dict.fromkeys(
        "agent-python app launcher local-rank-arg python rsh script shell site-checks".split(),
        "choose what runs",
    ),
    **dict.fromkeys(
        "ask-pass ask-sudo-password host-keys master-addr ssh-config sudo transport".split(),
        "choose which hosts to trust or which user to run as",
    ),
    **dict.fromkeys("mode owner".split(), "set the owner or the mode of files"),
    "env": "set variables of commands",
    "env-file": "name a file of variables",
    "pty": "give a host your terminal",
    "plain": "let commands run on",
    "speed": "let the GPUs of hosts work",
    **dict.fromkeys(
        "apply copy dest error-dir events failed-to metrics output output-dir rcopy retry-failed "
        "svg trace".split(),
        "name a file to write",
    ),
    **dict.fromkeys("all close kill now stop-on-interrupt".split(), "choose what to end"),
}

#: of the user's own file: options whose value would be another file in every folder
_FILES = ("ssh-config", "env-file")


def read(path: str, *, must_be: bool = False) -> bytes | None:
    """The file's bytes; None, with a note, if another user could have written it.

    None also where there is no such file, unless it must be: then it may be a pipe, too.
    Raises: UsageError if it cannot be read or has more than ``MOST_BYTES``.
    """
    try:
        # without a wait for the other end of a pipe
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        about = os.fstat(descriptor)
        why = _why_not(about)
        if not stat.S_ISREG(about.st_mode) and not must_be:
            why = "it is not a file"
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
        raise BadConfig(f"{path}: {reason(error)}") from None
    if len(text) > MOST_BYTES:
        raise BadConfig(f"{path}: more than {size(MOST_BYTES)}")
    return text


def _why_not(about: os.stat_result) -> str:
    if about.st_uid not in (0, os.geteuid()):
        return f"another user could have written it: it is of user {about.st_uid}"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "another user could have written it: chmod go-w"
    return ""


def judged(setting: Setting, parameter: click.Option, own: str | None) -> Setting:
    """``setting`` with its value in the form that ``parameter`` has on the command line.

    own: the user's own file; None: the user named the file, which may then set anything.
    Raises: UsageError for a value that the file may not set, or of another type.
    """
    option, value = setting.option, setting.value
    is_loose = setting.file.loose
    why = _why_refused(option, value, parameter) if is_loose else _why_relative(option, value)
    if why and own is not None:
        typed = f"put it into [{setting.table}] of {own}, or type it: --{option}"
        place = setting.file.place(setting.table, setting.name)
        hint = typed if is_loose else "write the path from /"
        raise ConfigNotTrusted(f"{place}: {option}: {why}", hint=hint)
    if parameter.is_flag:
        fits, wanted = isinstance(value, bool), "true or false"
    elif parameter.multiple:
        value = [value] if isinstance(value, str) else value
        fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        wanted = "a text or a list of texts"
    else:
        fits = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        value, wanted = str(value) if fits else value, "a text or a number"
    if not fits:
        raise BadConfig(f"{setting.origin}: {option}: must be {wanted}, not {value!r}"[:300])
    return replace(setting, value=value)


def _why_refused(option: str, value: Any, parameter: click.Option) -> str:
    if not getattr(parameter, "in_folder", False):
        return f"{_MAY_NOT} {REFUSED.get(option, 'set that')}"
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


def hosts_named(found: Hostlist, setting: Setting | None) -> Hostlist:
    """Check ``found``. Raises: UsageError if a file that is not trusted names a Python in it."""
    if setting is None or not (setting.file.loose or _is_here(setting)):
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


def _is_here(setting: Setting) -> bool:
    """Whether the user's own file names a path that is another file in every folder."""
    values = [setting.value] if isinstance(setting.value, str) else setting.value
    if setting.option != "hostfile":  # a list
        values = [one[1:] for one in values if one.startswith("^")]
    return any(not name.startswith("/") and os.path.lexists(name) for name in values)
