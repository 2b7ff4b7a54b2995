"""What click finds wrong in a command line, in our words, and the line that may be meant instead.

An option that there is not may be misspelt, be another launcher's name for one of ours
(``FOREIGN``, and what ``plan.compat`` makes of it), ask for what is done anyway (``NEEDLESS``), be
the short name that another command gives to it, or belong to another command. A value that is none
of an option's words may be misspelt. The hint is the line as it was typed, mended, to be pasted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from dispatcher.cli import COMMANDS, mistakes, named
from dispatcher.cli.options import option_defaults
from dispatcher.cli.options.declaration import NotAChoice, declared
from dispatcher.cli.options.removed import removed
from dispatcher.model.errors import (
    MissingArgument,
    UnexpectedArgument,
    UnknownOption,
    UsageError,
)
from dispatcher.model.names import nearest, shown

#: what torchrun, deepspeed, mpirun, srun and accelerate call what we have
FOREIGN = {
    "gpus": "nproc-per-node",
    "gpus-per-node": "nproc-per-node",
    "host": "hosts",
    "machinefile": "hostfile",
    "main-process-ip": "master-addr",
    "main-process-port": "master-port",
    "nodelist": "hosts",
    "nodes": "nnodes",
    "npernode": "nproc-per-node",
    "nproc": "nproc-per-node",
    "ntasks": "np",
    "ntasks-per-node": "nproc-per-node",
    "num-gpus": "nproc-per-node",
    "num-machines": "nnodes",
    "num-nodes": "nnodes",
    "num-processes": "np",
    "output-filename": "log-dir",
    "ppn": "nproc-per-node",
    "slots": "nproc-per-node",
    "timestamp-output": "timestamps",
    "wdir": "chdir",
}
#: what scp, pdcp and rsync have to be told, and ``put`` and ``get`` do without being told
NEEDLESS = {
    "-a": "folders are copied whole, with modes and times, anyway",
    "-r": "folders are copied whole anyway",
    "--archive": "folders are copied whole, with modes and times, anyway",
    "--recursive": "folders are copied whole anyway",
}
#: click's errors as ours; the first that fits counts
_KINDS: dict[type[click.ClickException], type[UsageError]] = {
    click.MissingParameter: MissingArgument,
    click.BadParameter: UsageError,
    click.UsageError: UnexpectedArgument,
}
#: what stands behind a line that is only guessed
MEANT = "  # did you mean this?"


def explained(error: click.ClickException, shown_name: str) -> UsageError:
    """``error`` as ``who: what: why`` with a hint. shown_name: what the line begins with."""
    help_line = f"{shown_name} --help"
    match error:
        case click.NoSuchOption(ctx=click.Context() as context):
            with context.scope():
                return _no_such_option(error.option_name, context, help_line)
        case NotAChoice(ctx=click.Context() as context, param=click.Parameter() as parameter):
            with context.scope():
                return _not_a_choice(error, parameter, help_line)
        case click.BadOptionUsage():
            what = "takes no value" if "does not take" in error.message else "needs a value"
            return UsageError(f"{error.option_name}: {what}", hint=help_line)
    text = error.format_message().rstrip(".")
    kind = next((ours for theirs, ours in _KINDS.items() if isinstance(error, theirs)), UsageError)
    return kind(text[:1].lower() + text[1:], hint=help_line)


#: command -> the one that does the same on hosts that are named
AKIN = {"kill": "sweep", "stop": "sweep"}


def _no_such_option(name: str, context: click.Context, help_line: str) -> UsageError:
    if gone := removed(name):
        return UnknownOption(gone)
    ours = _names(context.command)
    if context.command.name in ("get", "put") and name in NEEDLESS:
        why = f"{name}: no such option: {NEEDLESS[name]}"
        return UnknownOption(why, hint=_without(name, context.obj or ()) or help_line)
    takers = []
    if name.startswith("--"):
        meant = FOREIGN.get(name[2:].replace("_", "-"))
        near = f"--{meant}" if f"--{meant}" in ours else None
        if near is None and (hint := _translated(name, context)):
            return UnknownOption(f"{name}: no such option", hint=hint)
        if near is None:
            takers = [taker for taker, names in _elsewhere(context) if name in names]
            near = None if takers else nearest(name, [one for one in ours if one[:2] == "--"])
    elif hint := _translated(name, context):
        return UnknownOption(f"{name}: no such option", hint=hint)
    else:
        fields = {names[name]: taker for taker, names in _elsewhere(context) if name in names}
        long = [one for one, field in ours.items() if field in fields and one[:2] == "--"]
        near = long[0] if long else None
        takers = [taker for taker, names in _elsewhere(context) if name in names]
    if near is not None:
        hint = _mended(name, near, context.obj or ())
        return UnknownOption(f"{name}: no such option", hint=f"{hint}{MEANT}")
    if takers:
        if (akin := AKIN.get(context.command.name or "")) in takers:
            takers = [akin]
        others = " and ".join(f"dispatch {taker}" for taker in takers[:2])
        have = "has" if len(takers) == 1 else "have"
        return UnknownOption(f"{name}: no such option here; {others} {have} it", hint=help_line)
    return UnknownOption(f"{name}: no such option", hint=help_line)


def _names(command: click.Command) -> dict[str, str]:
    """Name -> field of all options of ``command``."""
    return {
        name: param.name or ""
        for param in command.params
        if isinstance(param, click.Option)
        for name in param.opts
    }


def _elsewhere(context: click.Context) -> Iterator[tuple[str, dict[str, str]]]:
    """Every other command, and the name -> field of its options."""
    for command, (kind, _) in COMMANDS.items():
        if command not in (context.command.name, "dsx"):  # which has those of exec
            options = [one.parameter(field) for field, one in declared(named(kind)).items()]
            yield command, _names(click.Command(command, params=options))


def _mended(name: str, new: str, words: Sequence[str]) -> str:
    """The line in which the option ``name`` is called ``new``; ``new`` alone if it is not found."""
    for at, word in enumerate(words):
        typed, equals, value = word.partition("=")
        if typed.replace("_", "-") == name:
            return mistakes.line([*words[:at], f"{new}{equals}{value}", *words[at + 1 :]])
        if len(name) == 2 and word.startswith(name):  # -lroot
            return mistakes.line([*words[:at], new, word[2:], *words[at + 1 :]])
    return new


def _without(name: str, words: Sequence[str]) -> str | None:
    """The line without the option ``name``, which has no value; None if it is not found."""
    for at, word in enumerate(words):
        if word == name or (len(name) == 2 and word.startswith(name)):
            rest = [f"-{word[2:]}"] if len(name) == 2 and word[2:] else []  # -rw n1
            return mistakes.line([*words[:at], *rest, *words[at + 1 :]])
    return None


def _translated(name: str, context: click.Context) -> str | None:
    """The line of ``run`` with what becomes of another launcher's option ``name``; None: of none.

    A single letter means something else to each of them.
    """
    words = list(context.obj or ())
    typed = [word.partition("=")[0].replace("_", "-") for word in words]
    if context.command.name != "run" or len(name) == 2 or name not in typed:
        return None
    from dispatcher.plan import compat  # for mistakes only

    at = typed.index(name)
    try:
        found = compat.of_launcher(words[at:])
    except UsageError as error:
        return error.hint
    if found is None:
        return None
    line = mistakes.line([*words[:at], *found.words, *words[at + len(found.written) :]])
    return f"{line}  # {found.why}" if found.why else f"{line}{MEANT}"


def _not_a_choice(error: NotAChoice, parameter: click.Parameter, help_line: str) -> UsageError:
    if gone := removed(parameter.opts[-1], error.value):
        return UnknownOption(gone)
    near = nearest(error.value, error.choices)
    who = parameter.opts[-1]
    if isinstance(parameter, click.Argument):
        who = help_line.split()[1]
    elif place := option_defaults.origin(parameter.name or ""):
        who = place
    why = f"{who}: {shown(error.value)} is not one of: {', '.join(error.choices)}"
    if near is None:
        return UsageError(why, hint=help_line)
    return UsageError(why, hint=f"{_with_value(error, parameter, near)}{MEANT}")


def _with_value(error: NotAChoice, parameter: click.Parameter, near: str) -> str:
    """The line with the value ``near``; that alone, if the value was not typed."""
    words = list(click.get_current_context().obj or ())
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") not in parameter.opts:
            continue
        if equals and value == error.value:
            return mistakes.line([*words[:at], f"{name}={near}", *words[at + 1 :]])
        if words[at + 1 : at + 2] == [error.value]:
            return mistakes.line([*words[: at + 1], near, *words[at + 2 :]])
    if isinstance(parameter, click.Argument) and error.value in words:
        return mistakes.line(mistakes.spelled(words, error.value, near))
    return near
