"""Defaults of options from ``dispatch.toml``: the text to values, each with its origin.

    [all]                      # every command that has such an option
    user = "ml"
    [run]
    hostfile = "hosts"
    export = ["NCCL_DEBUG=INFO"]
    [profile.night.run]        # only with --profile night
    log-dir = "/data/logs"

Keys are the options' long names, with dashes or underscores. What is narrower
wins: a command's table over ``[all]``, a profile over both, a later file over an
earlier one. Whether an option exists and takes such a value is judged where the
options are known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

EVERY = "all"
PROFILE = "profile"


@dataclass(frozen=True)
class Setting:
    """A value, the place that said so, ``dispatch.toml [run]``, and the name it has there."""

    value: Any
    origin: str
    name: str


@dataclass(frozen=True)
class Defaults:
    """One file: tables by name of the command, or ``profile.NAME.command``."""

    source: str
    tables: Mapping[str, Mapping[str, Any]]
    profiles: Mapping[str, Mapping[str, Mapping[str, Any]]]


def parse(text: str, source: str, commands: Iterable[str]) -> Defaults:
    """The tables of a file. Raises: UsageError for bad TOML, an unknown table, a key outside."""
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{source}: {str(error)[:200].lower()}") from None
    profiles = found.pop(PROFILE, {})
    if not isinstance(profiles, dict):
        raise UsageError(f"{source}: {PROFILE} is not a table", hint="[profile.NAME.run]")
    known = (EVERY, *commands)
    for tables, where in ((found, ""), *((t, f"profile.{n}.") for n, t in profiles.items())):
        if not isinstance(tables, dict):
            raise UsageError(f"{source}: {where[:-1]} is not a table", hint="[profile.NAME.run]")
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise UsageError(
                    f"{source}: {where}{name} stands outside of any command's table",
                    hint=f"put it under [{where}run], or [{where}{EVERY}]",
                )
            if name not in known:
                raise UsageError(
                    f"{source}: [{where}{name}]: no such command", hint=f"known: {', '.join(known)}"
                )
    return Defaults(source, found, profiles)


def chosen(files: Iterable[Defaults], command: str, profile: str | None) -> dict[str, Setting]:
    """The settings for ``command``, by their names with dashes; later files win.

    Raises: UsageError when no file has the profile.
    """
    found: dict[str, Setting] = {}
    named: dict[str, Setting] = {}
    has_profile = profile is None
    names: set[str] = set()
    for file in files:
        _take(found, file.tables, file.source, "", command)
        names |= set(file.profiles)
        if profile is not None and profile in file.profiles:
            has_profile = True
            _take(named, file.profiles[profile], file.source, f"profile.{profile}.", command)
    if not has_profile:
        known = f"there are: {', '.join(sorted(names))}" if names else "dispatch config --help"
        raise UsageError(f"--profile {profile}: there is none of that name", hint=known)
    return {**found, **named}


def _take(
    found: dict[str, Setting],
    tables: Mapping[str, Mapping[str, Any]],
    source: str,
    where: str,
    command: str,
) -> None:
    for table in (EVERY, command):
        for name, value in tables.get(table, {}).items():
            found[name.replace("_", "-")] = Setting(value, f"{source} [{where}{table}]", name)
