"""``dispatch import``: another launcher's command line as dispatch's, and why; runs nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import click

from dispatcher.cli.entry import CONTEXT, enter
from dispatcher.plan.compat import translate

EPILOG = """\b
Examples:
  dispatch import -- torchrun --nnodes 4 --nproc-per-node 8 train.py --lr 1
  dispatch import -- deepspeed --hostfile hosts --include a@b:0,1 train.py
  dispatch import -- mpirun -np 16 --hostfile hosts python train.py
  dispatch import -- accelerate launch --num_processes 16 train.py
The command goes to standard output, the reasons to standard error.
Exit code: 0; 2 when a flag is not known or cannot be met.
"""


@click.command("import", context_settings=CONTEXT, epilog=EPILOG)
@click.option("-H", "--hostfile", metavar="FILE|LIST", help="The hosts, where the line names none.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- LAUNCHER [ARGS]...")
def command(hostfile: str | None, words: tuple[str, ...]) -> int:
    """Print the dispatch command that does what another launcher's command does."""
    line = translate(words)
    named = hostfile is None or "-H" in line.options
    full = line.words if named else ("dispatch", "-H", hostfile or "", *line.words[1:])
    sys.stdout.write(shlex.join(full) + "\n")
    for reason in line.reasons:
        became = shlex.join(reason.words) if reason.words else "(not needed)"
        why = f"  # {reason.why}" if reason.why else ""
        sys.stderr.write(f"  {shlex.join(reason.written) or '(default)'}  ->  {became}{why}\n")
    if "-H" not in full:
        sys.stderr.write("note: it names no hosts: add -H hostfile, or run it inside a batch job\n")
    return 0


def main(words: Sequence[str]) -> int:
    """Run ``dispatch import`` with ``words``; the exit code."""
    return enter(command, words, "dispatch import")
