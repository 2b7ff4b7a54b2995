"""``dispatch exec``: one command once on every host, each for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dispatcher.cli.door import CONTEXT, enter
from dispatcher.cli.targets import how_options, where_options

EPILOG = """\b
Examples:
  dispatch exec -H hostfile -- nvidia-smi -L
  dispatch exec -w 'n[01-16]' -x n07 --shell 'dmesg | grep -i xid | tail -1'
  dispatch exec -w @gpu --serial 4 --stop-after 1 -- systemctl restart munge
Exit code: 0 when every command exited 0; 1 a command failed; 2 usage; 124 a time limit;
125 a host failed; 130 Ctrl-C. With -S the largest exit code of all hosts.
"""


@click.command("exec", context_settings=CONTEXT, epilog=EPILOG)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGS]...")
@where_options
@click.option("--shell", metavar="TEXT", help="Run TEXT by /bin/sh there, instead of COMMAND.")
@click.option("-I", "--stdin", is_flag=True, help="Give every command a copy of standard input.")
@click.option("-n", "--no-stdin", is_flag=True, help="Leave standard input alone [the default].")
@click.option("-t", "--connect-timeout", metavar="S", help="Seconds to reach a host [10].")
@click.option("-u", "--command-timeout", metavar="S", help="Seconds a command may run [no limit].")
@click.option("--deadline", metavar="S", help="Seconds for all of it [no limit].")
@click.option("--grace", metavar="S", help="Seconds from one signal to the next, harder one [5].")
@click.option("-f", "--fan-out", metavar="N", help="Hosts connecting at once [64].")
@click.option("--serial", metavar="N", help="Hosts at work at once: a rolling errand [all].")
@click.option("--stop-after", metavar="K", help="Start no further host once K have failed.")
@click.option("-S", "--max-code", is_flag=True, help="Exit with the largest exit code of all.")
@click.option("-N", "--no-label", is_flag=True, help="Do not label lines.")
@click.option("-v", "--verbose", is_flag=True, help="Say every step on standard error.")
@how_options
def command(**flags: Any) -> int:
    """Run COMMAND once on every host, exactly as given, and show its lines labelled.

    No Python is needed there. Ctrl-C, a time limit or the end of dispatch end it on all hosts.
    """
    from dispatcher.cli.errand import run

    return run(flags)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch exec`` with ``words``; the exit code."""
    return enter(command, words, "dispatch exec")
