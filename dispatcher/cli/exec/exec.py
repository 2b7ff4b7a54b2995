"""``dispatch exec``: one command once on every host, each for itself."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dispatcher.cli import entry
from dispatcher.cli.entry import CONTEXT, enter
from dispatcher.cli.help import section
from dispatcher.cli.options.host_options import (
    fanout_option,
    how_options,
    keep_option,
    sudo_options,
    time_options,
    verbose_option,
    where_options,
)
from dispatcher.cli.options.option_classes import ExecOptions

EPILOG = """\b
Examples:
  dispatch exec -H hostfile -- nvidia-smi -L
  dispatch exec -w 'n[01-16]' -x n07 --shell 'dmesg | grep -i xid | tail -1'
  dispatch exec -w @gpu --serial 4 --stop-after 1 -- systemctl restart munge
Exit code: 0 when every command exited 0; 1 a command failed; 2 usage; 124 a time limit;
125 a host failed; 130 Ctrl-C. With -S the largest exit code of all hosts.
"""


@entry.command("exec", ExecOptions, context_settings=CONTEXT, epilog=EPILOG)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGS]...")
@where_options
@section(
    "Command",
    click.option("--shell", metavar="TEXT", help="Run TEXT with /bin/sh, instead of COMMAND."),
    click.option(
        "-I", "--stdin", is_flag=True, help="Give every command a copy of standard input."
    ),
    click.option(
        "-n", "--no-stdin", is_flag=True, help="Leave standard input alone [the default]."
    ),
    click.option(
        "--pty", is_flag=True, help="Run it on a terminal; on a single host, on your own."
    ),
)
@sudo_options
@time_options
@section(
    "Output",
    click.option("-N", "--no-label", is_flag=True, help="Do not label lines."),
    click.option(
        "-b", "--gather", is_flag=True, help="Show equal output once, with the hosts folded."
    ),
    click.option(
        "-B", "--gather-all", is_flag=True, help="Like -b, and the same for standard error."
    ),
    click.option("--diff", is_flag=True, help="Show how output differs from that of most hosts."),
    click.option(
        "--json", "as_json", is_flag=True, help="One JSON object per host, when it has ended."
    ),
    click.option("-T", "--timestamps", is_flag=True, help="Put the time before every line."),
    click.option("-o", "--output-dir", metavar="DIR", help="Keep each host's output in DIR/HOST."),
    click.option(
        "-e", "--error-dir", metavar="DIR", help="Keep each host's standard error in DIR/HOST."
    ),
    click.option(
        "--screen-overflow",
        type=click.Choice(["auto", "drop", "block"]),
        help="When the reader is paused: leave output out and count it (drop), or block the "
        "commands [auto: drop if stdout is a terminal or -o and -e keep everything].",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress on a terminal."),
    verbose_option,
)
@section(
    "Results",
    click.option(
        "-S", "--max-code", is_flag=True, help="Exit with the largest exit code of all hosts."
    ),
    click.option(
        "--events", metavar="FILE", help="Write every event to a new FILE, as JSON lines."
    ),
    click.option("--failed-to", metavar="FILE", help="Write the failed hosts, as a hostfile."),
    click.option(
        "--retry-failed", metavar="FILE", help="Run only on the hosts in FILE, and update it."
    ),
)
@section("Connections", fanout_option, keep_option)
@how_options
def command(options: ExecOptions) -> int:
    """Run COMMAND once on every host, exactly as given, and show its lines labelled.

    No Python is needed there. Ctrl-C, a time limit or the end of dispatch end it on all hosts.
    """
    from dispatcher.cli.exec.run_exec import run

    return run(options)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch exec`` with ``words``; the exit code."""
    bare = {"--sudo": "root", "--keep": "600", "--fanout-tree": "auto"}
    return enter(command, words, "dispatch exec", bare)
