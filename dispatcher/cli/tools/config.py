"""``dispatch config``: which options have their values from where; runs nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from dispatcher.cli import COMMANDS, mistakes, named
from dispatcher.cli.entry import load
from dispatcher.cli.options.declaration import Options, argument, names_of, option
from dispatcher.cli.options.option_defaults import settings
from dispatcher.plan.variables import HIDDEN, is_secret


class ConfigOptions(Options):
    """Show the defaults of COMMAND that dispatch.toml sets, and where each comes from.

    COMMAND is run if you name none. The files are ~/.config/dispatch/dispatch.toml, then
    ./dispatch.toml; with DISPATCH_CONFIG=FILE it is that one instead. Names are long options:

    \b
      [all]                      # every command that has such an option
      user = "ml"
      [run]
      hostfile = "hosts"
      export = ["NCCL_DEBUG=INFO"]
      [profile.night.run]        # with --profile night, or DISPATCH_PROFILE=night
      log-dir = "/data/logs"

    The command line wins, then variables DISPATCH_*, then profiles, then the other tables. Hosts on
    the command line are the only ones; what a file excludes stays out. ./dispatch.toml may not say
    what is run, whom to trust, or where to write.
    """

    examples = (
        ("dispatch config", "what the files say to dispatch run"),
        ("dispatch config exec --all", "of dispatch exec, and what is built in"),
        ("dispatch config --profile night", "with the defaults of a profile"),
    )
    epilog = "Exit code: 0; 2 if a file is wrong, or the command line."

    name: str = argument(default="run", metavar="[COMMAND]")
    profile: str | None = option(
        metavar="NAME",
        envvar="DISPATCH_PROFILE",
        help="Take the defaults of this name in dispatch.toml.",
    )
    everything: bool = option("-a", "--all", help="Show what has its built-in default, too.")


def config(options: ConfigOptions) -> int:
    """Print option, value and origin of each; the exit code. Raises: UsageError."""
    mistakes.check_command(options.name)
    about = load(options.name)
    found = settings(about, options.profile)
    usual = names_of(named(COMMANDS[options.name][0]))
    rows = []
    for parameter in about.params:
        if not isinstance(parameter, click.Option) or not parameter.expose_value:
            continue
        shown = max(parameter.opts, key=len)
        context = click.Context(about)
        by_variable = parameter.value_from_envvar(context)
        if by_variable is not None:
            rows.append((shown, _value(by_variable), f"variable {parameter.envvar}"))
        elif parameter.name in found:
            setting = found[parameter.name]
            rows.append((shown, _value(setting.value), setting.origin))
        elif options.everything:
            rows.append((shown, _value(usual[parameter.name or ""]), "built in"))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    for row in rows:
        sys.stdout.write(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}\n")
    if not rows:
        sys.stdout.write(f"no file says anything of {options.name}\n")
    return 0


def _value(value: Any) -> str:
    """A value for eyes; what looks like a secret is hidden."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, str):
        name, equals, _ = value.partition("=")
        return json.dumps(f"{name}={HIDDEN}" if equals and is_secret(name) else value)
    return "none" if value is None else json.dumps(value)
