"""The one way into a click command: runs it, tells its errors in one form, gives the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from types import MappingProxyType
from typing import Any, TypeVar

import click

from dispatcher.cli.help import SectionedCommand
from dispatcher.cli.options.option_classes import Options
from dispatcher.cli.options.spelling import filled, respelled
from dispatcher.cli.say import complain
from dispatcher.model import errors
from dispatcher.model.errors import DispatchError, UsageError

#: options may be spelled with dashes or underscores
CONTEXT = {
    "allow_interspersed_args": False,  # what follows the program is the program's
    "token_normalize_func": lambda word: word.replace("_", "-"),
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
#: for commands that run nobody's program: options may come after the words, too
MIXED = {**CONTEXT, "allow_interspersed_args": True}

Taken = TypeVar("Taken", bound=Options)


def command(
    name: str, kind: type[Taken], **settings: Any
) -> Callable[[Callable[[Taken], int]], click.Command]:
    """As ``click.command``, for a function that takes its options as one ``kind``.

    Every option has a field of its name there, and its default from it. settings: click's own.
    """

    def made(function: Callable[[Taken], int]) -> click.Command:
        def call(**given: Any) -> int:
            return function(kind(**given))

        make = click.command(name, SectionedCommand, **settings)
        found = make(update_wrapper(call, function))
        for parameter in found.params:
            default = getattr(kind, parameter.name or "") if parameter.expose_value else None
            if default:
                parameter.default = default
        return found

    return made


def enter(
    command: click.Command,
    words: Sequence[str],
    name: str,
    bare: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run ``command``, called ``name`` in its help, with ``words``; the exit code.

    bare: options whose value may be left out, and what it is then. The words as they were typed,
    but for old names of options, are the ``obj`` of click's context; see ``mistakes``.
    """
    try:
        known = profiled(command)
        typed = respelled(known, words, bare)
        args = filled(known, typed, bare)
        code = known.main(args=args, prog_name=name, standalone_mode=False, obj=tuple(typed))
    except click.exceptions.Abort:
        return errors.SIGNAL_BASE + 2
    except click.ClickException as error:
        return complain(UsageError(_lower(error.format_message()), hint=f"{name} --help"))
    except DispatchError as error:
        return complain(error)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - nobody reads; keep the exit quiet
        return errors.SIGNAL_BASE + 13
    return code if isinstance(code, int) else 0


def profiled(command: click.Command) -> click.Command:
    """``command`` with the option that all have, ``--profile``."""
    from dispatcher.cli.options.option_defaults import option

    if not any(parameter.name == "profile" for parameter in command.params):
        command.params.append(option())
    return command


def _lower(message: str) -> str:
    text = message.rstrip(".")
    return text[:1].lower() + text[1:]
