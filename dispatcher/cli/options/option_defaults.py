"""The origins of defaults: ``dispatch.toml`` of the user and of this folder.

Read in this order: ``~/.config/dispatch/dispatch.toml`` (or below ``XDG_CONFIG_HOME``), then
``./dispatch.toml``. ``DISPATCH_CONFIG`` names one file to read instead; empty, it means none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from dispatcher.cli import say
from dispatcher.cli.options import config_file
from dispatcher.cli.options.config_file import (
    EVERY,
    HOSTS,
    Defaults,
    Setting,
    chosen,
    parameter_of,
    parse,
)
from dispatcher.cli.options.removed import removed
from dispatcher.model.errors import BadConfig, UsageError

NAME = "dispatch.toml"
#: the way to ignore a file
WITHOUT = "DISPATCH_CONFIG= dispatch ... goes without the file"


def option() -> click.Option:
    """``--profile``, which fills in the defaults before the other options are read."""
    return click.Option(
        ["--profile"],
        metavar="NAME",
        envvar="DISPATCH_PROFILE",
        is_eager=True,
        expose_value=False,
        callback=_fill,
        shell_complete=_profiles,
        help="Take the defaults of this name in dispatch.toml. See dispatch config --help.",
    )


def _profiles(_: click.Context, option: click.Parameter, typed: str) -> list[str]:
    """Profiles of the files that exist, for the Tab key."""
    try:
        names = {name for file in read() for name in file.profiles}
    except UsageError:
        return []
    return sorted(name for name in names if name.startswith(typed))


def _fill(context: click.Context, _: click.Parameter, profile: str | None) -> None:
    values = settings(context.command, profile)
    context.default_map = {name: setting.value for name, setting in values.items()}
    context.meta[__name__] = values


def typed(name: str) -> bool:
    """Whether the parameter ``name`` of the running command was on the command line."""
    return _source(name) is ParameterSource.COMMANDLINE


def origin(name: str) -> str | None:
    """The place in a file that has the value of the parameter ``name``, as
    ``dispatch.toml [exec]: hostfile``; None: no file has.
    """
    setting = setting_of(name)
    return None if setting is None else f"{setting.origin}: {setting.name}"


def setting_of(name: str) -> Setting | None:
    """The setting in a file for the parameter ``name``, if that is its value."""
    if _source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        return None
    return _filled().get(name)


def untyped(name: str, usual: Any) -> Any:
    """The parameter ``name`` as if it was not typed: the file's value, else ``usual``."""
    setting, parameter = _filled().get(name), _parameter_called(name)
    if setting is None:
        return usual
    return parameter.type_cast_value(click.get_current_context(), setting.value)


def value_origin(name: str, option: str) -> str:
    """The origin of the parameter ``name``: a file, a variable, or else ``option``."""
    if named := click.get_current_context().meta.get(f"{__name__}.{name}"):
        return str(named)
    if _source(name) is ParameterSource.ENVIRONMENT:
        return str(_parameter_called(name).envvar)
    return origin(name) or option


def set_typed(name: str, option: str) -> None:
    """Mark the parameter ``name`` as typed, by another ``option`` that errors will name."""
    context = click.get_current_context()
    context.set_parameter_source(name, ParameterSource.COMMANDLINE)
    context.meta[f"{__name__}.{name}"] = option


def _source(name: str) -> ParameterSource | None:
    _parameter_called(name)
    return click.get_current_context().get_parameter_source(name)


def _parameter_called(name: str) -> click.Parameter:
    command = click.get_current_context().command
    found = next((one for one in command.params if one.name == name), None)
    assert found is not None, f"{command.name} has no option {name!r}"
    return found


def _filled() -> dict[str, Setting]:
    """The files' settings for the running command."""
    filled: dict[str, Setting] = click.get_current_context().meta[__name__]
    return filled


def _chosen(files: Sequence[Defaults], command: str, profile: str | None) -> dict[str, Setting]:
    """The settings of ``files`` for ``command``; no hosts where the variable for these has some."""
    found = chosen(files, command, profile)
    if os.environ.get("DISPATCH_HOSTFILE"):
        found = {name: setting for name, setting in found.items() if name not in HOSTS}
    return found


def settings(command: click.Command, profile: str | None) -> dict[str, Setting]:
    """The files' values for ``command`` by parameter, as click wants them. Raises: UsageError."""
    files = read()
    if not files:
        if profile is not None:
            raise BadConfig(f"--profile {profile}: there is no {NAME}", hint=_place())
        return {}
    if not os.environ.get("DISPATCH_CONFIG"):
        for file in files:
            config_file.check(file, command, profile, _place())
    found: dict[str, Setting] = {}
    for name, setting in _chosen(files, command.name or "", profile).items():
        parameter = parameter_of(command, name)
        if parameter is None:
            if setting.origin.endswith(f"{EVERY}]"):
                if gone := removed(name):
                    say(f"note: {setting.origin}: {gone}")
                continue  # else another command has it
            raise _no_such_option(command, name, setting)
        value = _fitted(parameter, name, setting)
        found[parameter.name or ""] = replace(setting, value=value)
    return found


def _no_such_option(command: click.Command, name: str, setting: Setting) -> UsageError:
    from dispatcher.model.names import nearest

    if gone := removed(name):
        return BadConfig(f"{setting.origin}: {gone}")
    names = [name[2:] for param in command.params for name in param.opts if name[:2] == "--"]
    near = nearest(name, names)
    return BadConfig(
        f"{setting.origin}: {name}: {command.name} has no such option",
        hint=f"did you mean {near}?" if near else f"dispatch {command.name} --help",
    )


def read() -> Sequence[Defaults]:
    """The files that exist, the narrowest last."""
    from dispatcher.cli import COMMANDS

    named = os.environ.get("DISPATCH_CONFIG")
    if named is not None:
        paths = [named] if named else []
    else:
        own = _place()
        paths = [own] if _is_same(own, NAME) else [own, NAME]
    found = []
    for path in paths:
        text = _text(path, must_be=named is not None)
        if text is not None:
            found.append(parse(text, path, COMMANDS, loose=path == NAME and named is None))
    return found


def _place() -> str:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # as its specification has it
        base = os.path.expanduser("~/.config")
    return os.path.join(base, "dispatch", NAME)


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _text(path: str, *, must_be: bool) -> str | None:
    try:
        text = config_file.read(path, must_be=must_be)
        return None if text is None else text.decode()
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path}: not UTF-8 at byte {error.start}") from None
    except UsageError as error:
        raise type(error)(
            f"DISPATCH_CONFIG: {error.message}" if must_be else error.message
        ) from None


def _fitted(parameter: click.Option, name: str, setting: Setting) -> Any:
    """The value in the form that the option has on the command line."""
    value = setting.value
    if parameter.is_flag:
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    elif parameter.multiple:
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return value
        if isinstance(value, str):
            return [value]
        wanted = "a text or a list of texts"
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    else:
        wanted = "a text or a number"
    raise BadConfig(f"{setting.origin}: {name}: must be {wanted}, not {value!r}"[:300])
