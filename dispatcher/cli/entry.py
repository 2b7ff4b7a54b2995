"""The one way into a command: runs it, prints its errors in one form, gives the exit code."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Sequence
from typing import Any

import click

from dispatcher.cli import COMMANDS, not_shown, object_at, print_error, say
from dispatcher.cli.options import option_defaults
from dispatcher.cli.options.declaration import Command, Option, Options, declared
from dispatcher.cli.options.removed import removed_command
from dispatcher.cli.options.spelling import current
from dispatcher.model import errors
from dispatcher.model.errors import DispatchError

#: why standard output takes no more; the writer of a named file reports its own errors
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def load_command(name: str) -> Command:
    """The command ``name`` of ``COMMANDS``, with the options that all have."""
    kind, function = object_at(COMMANDS[name][0]), COMMANDS[name][1]
    assert issubclass(kind, Options)
    fields = declared(kind)

    def call(**given: Any) -> Any:
        return object_at(function)(kind(**given))

    parameters = [one.parameter(field) for field, one in fields.items()]
    if "profile" not in fields:
        parameters.append(option_defaults.profile_option())
    parameters += _help_options()
    command = Command(
        name,
        params=parameters,
        callback=call,
        help=inspect.cleandoc(kind.__doc__ or ""),
        epilog=inspect.cleandoc(kind.epilog),
        add_help_option=False,
        context_settings={
            # words after the program are the program's
            "allow_interspersed_args": not any(one.is_last for one in fields.values()),
            "token_normalize_func": current,
        },
    )
    command.kind = kind
    return command


def _help_options() -> list[click.Parameter]:
    told = (
        ("-h", "Show the most used options and exit."),
        ("--help", "Show all options and exit."),
    )
    return [
        Option([name], is_flag=True, is_eager=True, expose_value=False, callback=_help, help=text)
        for name, text in told
    ]


def _help(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(object_at("help:page")(context, brief=option.opts == ["-h"]))
        context.exit()


def shown_name(name: str) -> str:
    """The words before the options of the command ``name``, in help and hints."""
    return name if name == "dsx" else f"dispatch {name}".rstrip()


def enter(name: str, words: Sequence[str]) -> int:
    """Run the command ``name`` ("": ``run``, left out) with ``words``; the exit code.

    ``obj`` of click's context has the words as the user typed them.
    """
    shown = shown_name(name)
    try:
        if not name and words and (gone := removed_command(words[0])):
            raise errors.UnknownCommand(gone)
        command = load_command(name or "run")
        # not click's ``main``, which ends the process with 1 when its reader has gone
        with command.make_context(shown, list(words), obj=tuple(words)) as context:
            code = command.invoke(context)
    except click.exceptions.Exit as left:
        return left.exit_code
    except (EOFError, KeyboardInterrupt):
        say("")  # the terminal shows ^C in the line
        return errors.SIGNAL_BASE + 2
    except click.exceptions.Abort:
        return errors.SIGNAL_BASE + 2
    except click.ClickException as error:
        return print_error(object_at("mistakes:explained")(error, shown))
    except DispatchError as error:
        return print_error(error)
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and error.errno not in _NO_ROOM:
            raise
        return not_shown(error)
    return code if isinstance(code, int) else 0
