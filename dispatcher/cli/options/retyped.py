"""The command line as it was typed, for hints that give it back mended and can be pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

import click

from dispatcher.plan.variables import HIDDEN, is_secret

#: ``-x NAME=``, in one word or two
_VARIABLE = re.compile(r"(?:-x|--export=)?([A-Za-z_][A-Za-z0-9_]*)=")


def options() -> list[str]:
    """The words that stand before the program, of a command whose options all do."""
    context = click.get_current_context()
    typed = list(context.obj)
    before = typed[: len(typed) - len(context.params["words"])]
    return before[:-1] if before[-1:] == ["--"] else before


def line(words: Iterable[str]) -> str:
    """This command with ``words``; secrets hidden, as hints are kept in reports."""
    name = click.get_current_context().info_name or "dispatch"
    return shlex.join([*name.split(), *map(_hidden, words)])


def _hidden(word: str) -> str:
    found = _VARIABLE.match(word)
    return f"{found[0]}{HIDDEN}" if found and is_secret(found[1]) else word


def respelled(old: str, new: str) -> str:
    """The line with the value ``old`` of an option written ``new``."""
    return line(spelled(click.get_current_context().obj, old, new))


def as_file(listed: str) -> str | None:
    """The line in which the list ``listed`` of ``-w`` is a file of ``-H``."""
    words = list(click.get_current_context().obj)
    for at, word in enumerate(words):
        if word == listed and at and words[at - 1] in ("-w", "--hosts"):
            return line([*words[: at - 1], "-H", *words[at:]])
    return None


def spelled(words: Iterable[str], old: str, new: str) -> list[str]:
    """``words`` where the first one that is ``old``, or ``--option=old``, has ``new`` for it."""
    found = list(words)
    for at, word in enumerate(found):
        flag, equals, value = word.partition("=")
        if word == old or (word.startswith("-") and equals and value == old):
            found[at] = f"{flag}={new}" if word != old else new
            break
    return found
