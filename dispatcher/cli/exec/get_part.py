"""``dispatch get``: files and trees from every host, each host's into a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dispatcher.cli.entry import CONTEXT, enter
from dispatcher.cli.options.host_options import (
    copy_options,
    how_options,
    keep_option,
    time_options,
    where_options,
)

EPILOG = """\b
Examples:
  dispatch get -H hostfile /var/log/syslog logs      logs/n01/syslog, logs/n02/syslog ...
  dispatch get -w 'n[01-16]' '/data/{host}/out' .
  dispatch get -w 'n[01-16]' '~/out' outs            quoted, it is the home of each host
  dispatch get -H hostfile '/out/{rank}.log' 'logs/rank-{rank}'
Exit code: as dispatch exec.
"""


@click.command("get", context_settings={**CONTEXT, "allow_interspersed_args": True}, epilog=EPILOG)
@click.argument("paths", nargs=-1, metavar="REMOTE... DIR")
@where_options
@time_options
@copy_options
@click.option("--max-size", default="16G", metavar="N[K|M|G]", help="Most bytes of one host [16G].")
@keep_option
@how_options
def command(**flags: Any) -> int:
    """Copy files and trees REMOTE of every host to DIR/HOST/.

    Names are exact; nothing is expanded there but ~ at the start, the home folder. What a
    host sends cannot leave its folder. A file whose size and time are equal here is not
    fetched; an interrupted copy goes on where it stopped.

    {host} in a name is the host's, {rank} each rank of the host in turn, as slots in the
    hostfile give them. Where DIR has one of them it is the whole name of the folder.
    """
    from dispatcher.cli.exec.get import get

    return get(flags)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch get`` with ``words``; the exit code."""
    return enter(command, words, "dispatch get", {"--keep": "600"})
