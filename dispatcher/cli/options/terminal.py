"""``--pty``: of what size, and whether it is the user's own.

One host, and a terminal on both our standard input and output: then its bytes pass
unchanged, as with ``ssh -t``. Else nothing is typed, and what the terminals show comes
as labelled lines, made harmless, as from pipes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from dispatcher.model.errors import UsageError
from dispatcher.plan.exec_plan import ExecPlan

#: flags that say how lines are shown: with one of these, lines are wanted
_OF_LINES = (
    "gather",
    "gather_all",
    "diff",
    "as_json",
    "timestamps",
    "output_dir",
    "error_dir",
    "no_stdin",
)
USUAL = (80, 24)


def size(flags: Mapping[str, Any]) -> tuple[int, int] | None:
    """(columns, rows) of the terminal that each command gets; None without ``--pty``.

    Raises: UsageError.
    """
    if not flags["pty"]:
        return None
    if flags["stdin"]:
        raise UsageError("-I and --pty: a terminal is no pipe, it would change the bytes")
    for fd in (1, 0, 2):
        try:
            found = os.get_terminal_size(fd)
        except OSError:
            continue
        if found.columns > 0 and found.lines > 0:
            return found.columns, found.lines
    return USUAL


def is_ours(flags: Mapping[str, Any], exec_plan: ExecPlan) -> bool:
    """Whether the command's terminal is to be the user's own."""
    return (
        exec_plan.terminal is not None
        and len(exec_plan.hosts) == 1
        and os.isatty(0)
        and os.isatty(1)
        and not any(flags[name] for name in _OF_LINES)
    )


fanout_option = click.option(
    "--fanout-tree",
    metavar="[=K]",
    help="Reach hosts through hosts: each opens K others at most, by its own ssh [=K for two "
    "levels].",
)
