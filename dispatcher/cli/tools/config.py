"""``dispatch config``: which options have their values from where; runs nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from dispatcher.cli import COMMANDS, named
from dispatcher.cli.entry import load
from dispatcher.cli.options.declaration import Options, argument, names_of, option
from dispatcher.cli.options.option_defaults import settings
from dispatcher.model.errors import UsageError
from dispatcher.plan.variables import HIDDEN, is_secret


class ConfigOptions(Options):
    """Show the values of COMMAND's options [run], and where each comes from."""

    epilog = """\b
    Files: ~/.config/dispatch/dispatch.toml, then ./dispatch.toml; DISPATCH_CONFIG=FILE instead.
      [all]                      # every command that has such an option
      user = "ml"
      [run]
      hostfile = "hosts"
      export = ["NCCL_DEBUG=INFO"]
      [profile.night.run]        # with --profile night, or DISPATCH_PROFILE=night
      log-dir = "/data/logs"
    Keys are long options. The command line wins, then DISPATCH_* variables, then profiles.
    ./dispatch.toml may not say what is run, whom to trust, or where to write.
    Hosts on the command line are the only ones; what a file excludes stays out.
    Exit code: 0; 2 usage, or a file is wrong.
    """

    name: str = argument(default="run", metavar="[COMMAND]")
    profile: str | None = option(
        metavar="NAME", envvar="DISPATCH_PROFILE", help="With these defaults."
    )
    everything: bool = option("-a", "--all", help="Also what has its built-in default.")


def config(options: ConfigOptions) -> int:
    """Print option, value and origin of each; the exit code. Raises: UsageError."""
    if options.name not in COMMANDS:
        raise UsageError(f"no such command: {options.name}", hint=f"known: {', '.join(COMMANDS)}")
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
    return "none" if value is None else json.dumps(value, default=str)
