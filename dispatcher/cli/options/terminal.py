"""``--pty``, and options whose value may be left out.

``--pty``: of what size, and whether it is the user's own.

One host, and a terminal on both our standard input and output: then its bytes pass
unchanged, as with ``ssh -t``. Else nothing is typed, and what the terminals show comes
as labelled lines, made harmless, as from pipes.

Options whose value may be left out: ``--sudo`` or ``--sudo=USER``.

click would take the next word for the value, and with it the program. So a bare
one is given its value here, before click sees it, among our own options only.

And a short one gets its long name: click looks for ``-w`` among the long ones first, and loads
difflib and the user's language for an error that nobody sees: 3 ms of every start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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


def filled(command: click.Command, words: Sequence[str], defaults: Mapping[str, str]) -> list[str]:
    """``words`` where each bare option of ``defaults`` has its value behind ``=``.

    Short options that are words of their own are the long ones; see above.
    """
    options = [param for param in command.params if isinstance(param, click.Option)]
    long = {
        short: option.opts[-1]
        for option in options
        for short in option.opts[:-1]
        if len(short) == 2
    }
    takes = {
        name.replace("_", "-")
        for param in options
        if not param.is_flag and not param.count
        for name in param.opts
    }
    done: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name = word.replace("_", "-")
        if word == "--" or not word.startswith("-") or word == "-":
            return [*done, word, *left]
        if name in defaults:
            done.append(f"{name}={defaults[name]}")
            continue
        more = _wants_more(name, takes)
        done.append(long.get(word, word) if left or not more else word)
        if more and left:
            done.append(left.pop(0))
    return done


def _wants_more(word: str, takes: set[str]) -> bool:
    """Whether the value of the option ``word`` is the next word."""
    if word.startswith("--"):
        return word in takes
    for at in range(1, len(word)):
        if "-" + word[at] in takes:
            return at == len(word) - 1  # else the rest is the value
    return False
