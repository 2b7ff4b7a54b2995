"""``dispatch config``: the values of options and their origins; runs nothing."""

from __future__ import annotations

import json
from typing import Any

import click

from dispatcher.cli import COMMANDS, aligned, mistakes, object_at, print_json, print_lines
from dispatcher.cli.entry import load_command
from dispatcher.cli.options.declaration import (
    Options,
    argument,
    json_option,
    names_of,
    option,
    preset,
    replace,
)
from dispatcher.cli.options.option_defaults import file_settings, typed
from dispatcher.model.frozen import Document, value
from dispatcher.plan.variables import HIDDEN, is_secret


@value
class Default(Document):
    """An element of ``dispatch config --json``. origin: the file, or the variable."""

    schema = "setting/1"
    option: str
    value: Any
    origin: str


class ConfigOptions(Options):
    """Show the defaults of COMMAND that dispatch.toml sets, and the source of each.

    Without COMMAND it is dispatch run. The files are ~/.config/dispatch/dispatch.toml, then
    ./dispatch.toml; DISPATCH_CONFIG=FILE is read instead of both. Names are long options:

    \b
      [all]                      # every command that has such an option
      user = "ml"
      [run]
      hostfile = "hosts"
      export = ["NCCL_DEBUG=INFO"]
      [profile.night.run]        # with --profile night, or DISPATCH_PROFILE=night
      log-dir = "/data/logs"

    The command line wins, then variables DISPATCH_*, then profiles, then the other tables. Hosts
    on the command line replace the files' hosts; hosts that a file excludes stay out.
    ./dispatch.toml may not set programs, trusted keys, or files to write.
    """

    examples = (
        ("dispatch config", "the files' defaults for dispatch run"),
        ("dispatch config exec --all", "for dispatch exec, with built-in defaults"),
        ("dispatch config --profile night", "with the defaults of a profile"),
    )
    epilog = "Exit code: 0; 2 if a file is wrong, or the command line."

    name: str = argument(default="run", metavar="[COMMAND]")
    profile: str | None = preset(
        metavar="NAME",
        envvar="DISPATCH_PROFILE",
        help="Take the defaults of this name in dispatch.toml.",
    )
    everything: bool = option("-a", "--all", help="Also show built-in defaults.")
    as_json: bool = json_option("the list")


def config(options: ConfigOptions) -> int:
    """Print option, value and origin of each; the exit code. Raises: UsageError."""
    mistakes.check_command(options.name)
    own = file_settings(click.get_current_context().command, options.profile)
    given = {name: one.value for name, one in own.items() if not typed(name)}
    options = replace(options, **given)
    about = load_command(options.name)
    found = file_settings(about, options.profile)
    usual = names_of(object_at(COMMANDS[options.name][0]))
    listed: list[Default] = []
    for parameter in about.params:
        if not isinstance(parameter, click.Option) or not parameter.expose_value:
            continue
        shown = max(parameter.opts, key=len)
        context = click.Context(about)
        by_variable = parameter.value_from_envvar(context)
        if by_variable is not None:
            listed.append(Default(shown, _open(by_variable), f"variable {parameter.envvar}"))
        elif parameter.name in found:
            setting = found[parameter.name]
            listed.append(Default(shown, _open(setting.value), setting.origin))
        elif options.everything:
            listed.append(Default(shown, _open(usual[parameter.name or ""]), "built in"))
    if options.as_json:
        print_json(listed)
        return 0
    rows = [(one.option, _words(one.value), one.origin) for one in listed]
    print_lines(aligned(rows) if rows else [f"no dispatch.toml sets defaults for {options.name}"])
    return 0


def _open(value: Any) -> Any:
    """The value, with texts that look like a secret hidden."""
    if isinstance(value, (list, tuple)):
        return [_open(one) for one in value]
    if isinstance(value, str):
        name, equals, _ = value.partition("=")
        return f"{name}={HIDDEN}" if equals and is_secret(name) else value
    return value


def _words(value: Any) -> str:
    return "none" if value is None else json.dumps(value)
