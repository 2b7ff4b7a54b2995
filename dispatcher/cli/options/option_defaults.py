"""The origins of defaults: ``dispatch.toml`` of the user and of this folder.

Read in this order: ``~/.config/dispatch/dispatch.toml`` (or below ``XDG_CONFIG_HOME``), then
``./dispatch.toml``. ``DISPATCH_CONFIG`` names one file to read instead; empty, it means none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    parse,
    settings_chosen,
)
from dispatcher.cli.options.removed import removed
from dispatcher.model.errors import BadConfig, UsageError

NAME = "dispatch.toml"
#: the way to ignore a file
WITHOUT = "DISPATCH_CONFIG= dispatch ... goes without the file"


def profile_option() -> click.Option:
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
    values = file_settings(context.command, profile)
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


def file_settings(command: click.Command, profile: str | None) -> dict[str, Setting]:
    """The files' values for ``command`` by parameter, as click wants them. Raises: UsageError."""
    files = read()
    _check_profile(files, profile)
    own = None if os.environ.get("DISPATCH_CONFIG") else _place()
    options = _options(command)
    found: list[Setting] = []
    for setting in (one for file in files for one in file.entries(command.name or "", profile)):
        if setting.option in options:
            found.append(config_file.judged(setting, options[setting.option], own))
        elif setting.table.rpartition(".")[2] != EVERY:
            raise _no_such_option(command, setting)
        elif gone := removed(setting.name):
            say(f"note: {setting.origin}: {gone}")
        # else another command has it
    by_variable = HOSTS if os.environ.get("DISPATCH_HOSTFILE") else ()
    return {
        options[name].name or "": setting
        for name, setting in settings_chosen(found).items()
        if name not in by_variable
    }


def _options(command: click.Command) -> dict[str, click.Option]:
    """Long name, without dashes -> option, of all that a file may set, if it is trusted."""
    options = [one for one in command.params if isinstance(one, click.Option) and one.expose_value]
    return {name[2:]: one for one in options for name in one.opts if name[:2] == "--"}


def _check_profile(files: Sequence[Defaults], profile: str | None) -> None:
    """Check that one of ``files`` has ``profile``. Raises: UsageError."""
    names = sorted({name for file in files for name in file.profiles})
    if profile is None or profile in names:
        return
    if not files:
        raise BadConfig(f"--profile {profile}: there is no {NAME}", hint=_place())
    from dispatcher.model.names import nearest

    near = nearest(profile, names)
    known = f"there are: {', '.join(names)}" if names else "dispatch config --help"
    hint = f"--profile {near}  # did you mean this?" if near else known
    raise BadConfig(f"--profile {profile}: no such profile", hint=hint)


def _no_such_option(command: click.Command, setting: Setting) -> UsageError:
    from dispatcher.model.names import nearest

    if gone := removed(setting.name):
        return BadConfig(f"{setting.origin}: {gone}")
    near = nearest(setting.option, _options(command))
    return BadConfig(
        f"{setting.origin}: {setting.option}: {command.name} has no such option",
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
