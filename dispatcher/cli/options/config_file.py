"""Defaults of options from ``dispatch.toml``: the text to values, each with its origin.

    [all]                      # every command that has such an option
    user = "ml"
    [run]
    hostfile = "hosts"
    export = ["NCCL_DEBUG=INFO"]
    [profile.night.run]        # only with --profile night
    log-dir = "/data/logs"

Keys are the options' long names, with dashes or underscores. A ``hostfile`` is a path from the
file's folder, unless that is the current one: there it is what ``-H`` takes. What is narrower
wins: a command's table over ``[all]``, a profile over both, a later file over an
earlier one. Whether an option exists, takes such a value and may be said by such a
file is judged where the options are known.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.cli.options.spelling import current
from dispatcher.model.errors import BadConfig
from dispatcher.model.names import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

EVERY = "all"
PROFILE = "profile"
#: two ways to name the hosts: those of one table add up, of several the narrowest holds
HOSTS = ("hostfile", "hosts")
#: command -> others whose tables are its own as well
_BESIDE = {"dsx": ("exec",)}
#: characters of a line: tomllib takes a key of many parts in time that grows with their square
LONGEST_LINE = 8192


@dataclass(frozen=True)
class Setting:
    """A value, the place that said so, ``dispatch.toml [run]``, and the name it has there.

    loose: the file merely lies in the current folder.
    """

    value: Any
    origin: str
    name: str
    loose: bool = False


@dataclass(frozen=True)
class Defaults:
    """One file: tables by name of the command, or ``profile.NAME.command``; see ``Setting``."""

    source: str
    tables: Mapping[str, Mapping[str, Any]]
    profiles: Mapping[str, Mapping[str, Mapping[str, Any]]]
    text: str = ""
    loose: bool = False

    def entries(self, command: str, profile: str | None) -> Iterator[tuple[str, str, Any]]:
        """Table, name and value of all it says for ``command``, the narrower ones later."""
        for tables, where in (
            (self.tables, ""),
            ({} if profile is None else self.profiles.get(profile, {}), f"{PROFILE}.{profile}."),
        ):
            for name in (EVERY, *_BESIDE.get(command, ()), command):
                for option, value in tables.get(name, {}).items():
                    yield where + name, option, value

    def place(self, table: str, name: str) -> str:
        """``file:line`` of a name, or the file and the table if it is written unusually.

        table: "" for what stands outside any.
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
    """The tables of a file; ``loose`` as in ``Setting``.

    Raises: UsageError for bad TOML, an unknown table, a key outside, too long a line.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            raise BadConfig(f"{source}:{number}: a line of more than {LONGEST_LINE} characters")
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{source}: {str(error)[:200].lower()}") from None
    except RecursionError:
        raise BadConfig(f"{source}: brackets within brackets, too deep") from None
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


def chosen(files: Iterable[Defaults], command: str, profile: str | None) -> dict[str, Setting]:
    """The settings for ``command``, by their names with dashes; later files win.

    Raises: UsageError when no file has the profile.
    """
    found: dict[str, Setting] = {}
    named: dict[str, Setting] = {}
    names: set[str] = set()
    for file in files:
        names |= set(file.profiles)
        for table, name, value in file.entries(command, profile):
            into = named if table.startswith(f"{PROFILE}.") else found
            if current(name) == "hostfile" and not file.loose:
                value = _beside(file.source, value)
            setting = Setting(value, f"{file.source} [{table}]", name, file.loose)
            into[current(name)] = setting
            _less_wider_hosts(into, setting)
    if profile is not None and profile not in names:
        known = f"there are: {', '.join(sorted(names))}" if names else "dispatch config --help"
        near = nearest(profile, sorted(names))
        hint = f"--profile {near}  # did you mean this?" if near else known
        raise BadConfig(f"--profile {profile}: no such profile", hint=hint)
    for setting in named.values():
        _less_wider_hosts(found, setting)
    return {**found, **named}


def _less_wider_hosts(found: dict[str, Setting], setting: Setting) -> None:
    """Take from ``found`` the hosts that another table names, if ``setting`` names hosts."""
    if current(setting.name) in HOSTS:
        for name in HOSTS:
            if name in found and found[name].origin != setting.origin:
                del found[name]


def _beside(source: str, value: Any) -> Any:
    """``value`` as a path from the folder of the file ``source``: the same in every folder."""
    if not isinstance(value, str) or value == "-":
        return value
    folder = os.path.dirname(os.path.abspath(source))
    return os.path.join(folder, os.path.expanduser(value))
