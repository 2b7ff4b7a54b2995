"""``--pty``: of what size, and whether it is the user's own.

One host, and a terminal on both our standard input and output: then its bytes pass
unchanged, as with ``ssh -t``. Else nothing is typed, and what the terminals show comes
as labelled lines, sanitized, as from pipes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from dispatcher.model.errors import UsageError

if TYPE_CHECKING:
    from dispatcher.cli.options.option_classes import ExecOptions
    from dispatcher.plan.exec_plan import ExecPlan

USUAL = (80, 24)


def size(options: ExecOptions) -> tuple[int, int] | None:
    """(columns, rows) of the terminal that each command gets; None without ``--pty``.

    Raises: UsageError.
    """
    if not options.pty:
        return None
    if options.stdin:
        raise UsageError("-I and --pty: a terminal is no pipe, it would change the bytes")
    for fd in (1, 0, 2):
        try:
            found = os.get_terminal_size(fd)
        except OSError:
            continue
        if found.columns > 0 and found.lines > 0:
            return found.columns, found.lines
    return USUAL


def is_ours(options: ExecOptions, exec_plan: ExecPlan) -> bool:
    """Whether the command's terminal is to be the user's own: unless lines are wanted."""
    lines = (
        options.gather, options.gather_all, options.diff, options.as_json, options.timestamps,
        options.output_dir, options.error_dir, options.no_stdin,
    )  # fmt: skip
    return (
        exec_plan.terminal is not None
        and len(exec_plan.hosts) == 1
        and os.isatty(0)
        and os.isatty(1)
        and not any(lines)
    )


fanout_option = click.option(
    "--fanout-tree",
    metavar="[=K]",
    help="Reach hosts through hosts: each opens K others at most, by its own ssh [=K for two "
    "levels].",
)
