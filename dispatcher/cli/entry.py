"""The one way into a command: runs it, tells its errors in one form, gives the exit code."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from dispatcher.cli import COMMANDS, complain, named
from dispatcher.cli.options import option_defaults
from dispatcher.cli.options.declaration import Option, Options, declared
from dispatcher.cli.options.spelling import filled, respelled
from dispatcher.model import errors
from dispatcher.model.errors import DispatchError, UsageError

#: what a section is called that stands alone
_ALONE = "Options"


class SectionedCommand(click.Command):
    """A command whose ``--help`` shows its options by sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections. formatter: of click's."""
        for title, rows in sections(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)


def load(name: str) -> click.Command:
    """The command ``name`` of ``COMMANDS``, with the option that all have, ``--profile``."""
    kind, function = named(COMMANDS[name][0]), COMMANDS[name][1]
    assert issubclass(kind, Options)
    fields = declared(kind)

    def call(**given: Any) -> Any:
        return named(function)(kind(**given))

    parameters = [one.parameter(field) for field, one in fields.items()]
    if "profile" not in fields:
        parameters.append(option_defaults.option())
    return SectionedCommand(
        name,
        params=parameters,
        callback=call,
        help=inspect.cleandoc(kind.__doc__ or ""),
        epilog=inspect.cleandoc(kind.epilog),
        context_settings={
            # what follows the program is the program's
            "allow_interspersed_args": not any(one.is_last for one in fields.values()),
            # options may be spelled with dashes or underscores
            "token_normalize_func": lambda word: word.replace("_", "-"),
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
        },
    )


def shown_name(name: str) -> str:
    """What the command ``name`` is called in its help: ``dispatch`` is the main one."""
    return "dispatch" if name == "run" else f"dispatch {name}"


def sections(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Title -> (names, help) of each option that is shown, as ``--help`` shows them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            found.setdefault(getattr(parameter, "section", Option.section), []).append(record)
    other = found.pop(Option.section, [])
    return {**found, Option.section if found else _ALONE: other}


def enter(name: str, words: Sequence[str]) -> int:
    """Run the command ``name`` with ``words``; the exit code.

    The words as they were typed, but for old names of options, are the ``obj`` of click's context;
    see ``mistakes``.
    """
    shown = shown_name(name)
    try:
        command = load(name)
        typed = respelled(command, words)
        args = filled(command, typed)
        code = command.main(args=args, prog_name=shown, standalone_mode=False, obj=tuple(typed))
    except click.exceptions.Abort:
        return errors.SIGNAL_BASE + 2
    except click.ClickException as error:
        return complain(UsageError(_lower(error.format_message()), hint=f"{shown} --help"))
    except DispatchError as error:
        return complain(error)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - nobody reads; keep the exit quiet
        return errors.SIGNAL_BASE + 13
    return code if isinstance(code, int) else 0


def _lower(message: str) -> str:
    text = message.rstrip(".")
    return text[:1].lower() + text[1:]
