"""Options whose value may be left out: ``--sudo`` or ``--sudo=USER``.

click would take the next word for the value, and with it the program. So a bare
one is given its value here, before click sees it, among our own options only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

fanout_option = click.option(
    "--fanout-tree",
    metavar="[=K]",
    help="Reach hosts through hosts: each opens K others at most, by its own ssh [=K for two "
    "levels].",
)


def filled(command: click.Command, words: Sequence[str], defaults: Mapping[str, str]) -> list[str]:
    """``words`` where each bare option of ``defaults`` has its value behind ``=``."""
    takes = {
        name.replace("_", "-")
        for param in command.params
        if isinstance(param, click.Option) and not param.is_flag and not param.count
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
        done.append(word)
        if _wants_more(name, takes) and left:
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
