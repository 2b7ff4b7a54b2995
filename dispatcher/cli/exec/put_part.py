"""``dispatch put``: files and trees to every host."""

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
  dispatch put -H hostfile train.py conf /opt/job/
  dispatch put -w 'n[01-16]' node.conf /etc/site.conf
  dispatch put -w 'n[01-16]' shard.tar '/data/{host}/'
  dispatch put -H hostfile 'shard-{rank}.bin' /data/       each rank's, on its own host
Exit code: as dispatch exec.
"""


@click.command("put", context_settings={**CONTEXT, "allow_interspersed_args": True}, epilog=EPILOG)
@click.argument("paths", nargs=-1, metavar="SRC... DEST")
@where_options
@time_options
@copy_options
@click.option(
    "--tree", is_flag=False, flag_value="", default=None, metavar="[K]",
    help="Let hosts pass the files on, in K branches [8]; by itself from 64 hosts and 8 GiB on.",
)  # fmt: skip
@keep_option
@how_options
def command(**flags: Any) -> int:
    """Copy files and trees SRC to DEST on every host.

    DEST is a folder if it ends in /, is one there, or there are several SRC; ~ at its start
    is the home folder there, if quoted. A file
    is renamed into its place when all of it is there and compared by SHA-256; modes and
    times are kept. A file whose size and time are equal there is not sent. An
    interrupted copy goes on where it stopped; what it left is removed after a week.

    {host} in a name is the host's; {rank} is each rank of the host in turn, as slots in the
    hostfile give them: in SRC that many files, in DEST a place for each rank's.
    """
    from dispatcher.cli.exec.put import put

    return put(flags)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch put`` with ``words``; the exit code."""
    # its number is optional, so what follows it after a blank is not the number
    words = ["--tree=" if word == "--tree" else word for word in words]
    return enter(command, words, "dispatch put", {"--keep": "600"})
