"""``dispatch shell``: a prompt for many hosts, whose connections stay open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dispatcher.cli.entry import CONTEXT, enter
from dispatcher.cli.options.host_options import (
    how_options,
    keep_option,
    sudo_options,
    time_options,
    where_options,
)

EPILOG = """\b
At the prompt:
  uptime            a command for the hosts, as shell text; Ctrl-C ends it, not the shell
  !ls               a command of this machine
  +n05  -n07        more hosts, fewer hosts
  @gpu  =n[1-4]     only these; =all those of the start
  ?  :live  :gather  quit
"""


@click.command("shell", context_settings=CONTEXT, epilog=EPILOG)
@where_options
@sudo_options
@time_options
@click.option("--live", is_flag=True, help="Show lines as they come [default: equal output once].")
@click.option("-v", "--verbose", is_flag=True, help="Say every step on standard error.")
@keep_option
@how_options
def command(**flags: Any) -> int:
    """Run commands on all hosts, one after the other; the first connects, the next need not.

    The exit code is that of the last command.
    """
    from dispatcher.cli.exec.shell import run

    return run(flags)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch shell`` with ``words``; the exit code."""
    return enter(command, words, "dispatch shell", {"--sudo": "root", "--keep": "600"})
