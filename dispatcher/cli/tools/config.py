"""``dispatch config``: which options have their values from where; runs nothing."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from dispatcher.cli.command_table import COMMANDS
from dispatcher.cli.entry import MIXED, enter
from dispatcher.cli.options.option_defaults import settings
from dispatcher.model.errors import UsageError
from dispatcher.plan.variables import HIDDEN, is_secret

EPILOG = """\b
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


@click.command("config", context_settings=MIXED, epilog=EPILOG)
@click.argument("name", metavar="[COMMAND]", default="run")
@click.option("--profile", metavar="NAME", envvar="DISPATCH_PROFILE", help="With these defaults.")
@click.option("-a", "--all", "everything", is_flag=True, help="Also what has its built-in default.")
def command(name: str, profile: str | None, everything: bool) -> int:
    """Show the values of COMMAND's options [run], and where each comes from."""
    if name not in COMMANDS:
        raise UsageError(f"no such command: {name}", hint=f"known: {', '.join(COMMANDS)}")
    about: click.Command = importlib.import_module(f"dispatcher.cli.{COMMANDS[name]}").command
    found = settings(about, profile)
    rows = []
    for parameter in about.params:
        if not isinstance(parameter, click.Option) or not parameter.expose_value:
            continue
        shown = max(parameter.opts, key=len)
        context = click.Context(about)
        by_variable = parameter.value_from_envvar(context)
        if by_variable is not None:
            rows.append((shown, _told(by_variable), f"variable {parameter.envvar}"))
        elif parameter.name in found:
            setting = found[parameter.name]
            rows.append((shown, _told(setting.value), setting.origin))
        elif everything:
            rows.append((shown, _told(parameter.get_default(context)), "built in"))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    for row in rows:
        sys.stdout.write(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}\n")
    if not rows:
        sys.stdout.write(f"no file says anything of {name}\n")
    return 0


def _told(value: Any) -> str:
    """A value for eyes; what looks like a secret is hidden."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_told(one) for one in value) + "]"
    if isinstance(value, str):
        name, equals, _ = value.partition("=")
        return json.dumps(f"{name}={HIDDEN}" if equals and is_secret(name) else value)
    return "none" if value is None else json.dumps(value, default=str)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch config`` with ``words``; the exit code."""
    return enter(command, words, "dispatch config")
