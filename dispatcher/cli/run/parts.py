"""Several programs in one job: ``a : b`` on the command line, or a line each of ``--app FILE``.

The options in ``OWN`` apply to the program that they precede; all others apply to the job and come
before the first program. If only options come before the first ``:``, or with ``--app``, they are
for all programs. After ``--`` a ``:`` is a plain word.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.options.declaration import Command, Option, declared, names_of, replace
from dispatcher.cli.options.host_options import named_hosts
from dispatcher.cli.options.option_defaults import typed, untyped
from dispatcher.cli.options.spelling import current
from dispatcher.cli.run.run import RunOptions
from dispatcher.model.errors import (
    ConflictingOptions,
    DispatchError,
    FileUnusable,
    MissingArgument,
    UnexpectedArgument,
)

if TYPE_CHECKING:
    from dispatcher.model.host import Host, Hostlist

#: between two programs, as for mpirun and Hydra
BETWEEN = ":"
#: the options that one program of several may have
OWN = (
    "hostfile", "lists", "np", "nproc_per_node", "module", "no_python", "python", "chdir",
    "exports", "env_files",
)  # fmt: skip
_EXAMPLE = "dispatch -H hostfile --np 1 actor.py : --np 7 learner.py"
MOST_FILE = 1 << 20


@dataclass(frozen=True)
class PartLine:
    """One program as typed. options: all that apply to it; own: those that it has itself.

    hosts: its own; None: all of the job's, or those before the first program.
    """

    options: RunOptions
    own: Mapping[str, Any]
    hosts: tuple[Host, ...] | None


#: refuses words that cannot be a program; raises UsageError
Check = Callable[[RunOptions], object]


def split(options: RunOptions, check: Check) -> tuple[RunOptions, tuple[PartLine, ...]]:
    """The job's options, and the programs if there are several, or a file has them.
    Raises: UsageError.
    """
    if options.app is not None:
        return options, _of_file(options, check)
    words = options.words
    if BETWEEN not in words or _is_escaped(words):
        return options, ()
    first, rest = _cut(words)
    if not first:  # the options before it are for all of them
        return options, _several(options, rest, check)
    own = {name: getattr(options, name) for name in OWN if typed(name)}
    usual = names_of(RunOptions)
    job = replace(options, **{name: untyped(name, usual[name]) for name in own})
    job = replace(job, hostfile=options.hostfile, lists=options.lists)
    lines = _several(job, rest, check)
    options = replace(options, words=first)
    check(options)
    return job, (PartLine(options, own, None), *lines)


def _is_escaped(words: Sequence[str]) -> bool:
    """Whether ``--`` comes before ``words``, the last words that the user typed."""
    context = click.get_current_context()
    before = list(context.obj)[: len(context.obj) - len(words)]
    return before[-1:] == ["--"]


def _cut(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words before the first ``:``, and after it."""
    at = list(words).index(BETWEEN) if BETWEEN in words else len(words)
    return tuple(words[:at]), tuple(words[at + 1 :])


def _several(job: RunOptions, words: Sequence[str], check: Check) -> tuple[PartLine, ...]:
    """The programs of ``words``, with ``:`` between them. Raises: UsageError."""
    found = []
    rest: tuple[str, ...] | None = tuple(words)
    while rest is not None:
        line, rest = _one(job, rest, check)
        found.append(line)
    return tuple(found)


def _one(
    job: RunOptions, words: Sequence[str], check: Check
) -> tuple[PartLine, tuple[str, ...] | None]:
    """The first program of ``words``, and the words after its ``:``; None: there are none."""
    shown = f"dispatch ... {BETWEEN}"
    try:
        context = _command().make_context(
            shown, list(words), parent=click.get_current_context(), obj=tuple(words)
        )
    except click.NoSuchOption as error:
        raise _not_its_own(error) from None
    except click.ClickException as error:
        from dispatcher.cli import object_at

        raise object_at("mistakes:explained")(error, "dispatch") from None
    with context:
        own = {name: context.params[name] for name in OWN if typed(name)}
        program, behind = tuple(context.params["words"]), None
        if BETWEEN in program and not _is_escaped(program):
            program, behind = _cut(program)
        if not program:
            side = "before" if behind is not None else "after"
            raise MissingArgument(f"'{BETWEEN}': no program {side} it", hint=_EXAMPLE)
        options = replace(job, **own, words=program)
        lists = named_hosts(
            replace(options, hostfile=own.get("hostfile", ()), lists=own.get("lists", ())),
            slots=True,
        )
        hosts = tuple(host for one in lists for host in one.hosts) if lists else None
        check(options)
    return PartLine(options, own, hosts), behind


def _command() -> click.Command:
    """The options of one program, as a command that does nothing."""
    known = declared(RunOptions)
    parameters: list[click.Parameter] = []
    for name in (*OWN, "words"):
        parameter = known[name].parameter(name)
        parameter.envvar = None  # it is for the job
        parameters.append(parameter)
    settings = {"allow_interspersed_args": False, "token_normalize_func": current}
    return Command("run", params=parameters, add_help_option=False, context_settings=settings)


def _not_its_own(error: click.NoSuchOption) -> DispatchError:
    name = error.option_name
    job = click.get_current_context().find_root().command
    known = {one for param in job.params for one in param.opts}
    if name in known:
        return UnexpectedArgument(
            f"{name}: applies to the whole job; put it before the first program",
            hint=f"dispatch {name} ... --np 1 actor.py : --np 7 learner.py",
        )
    own = ", ".join(param.opts[-1] for param in _command().params if isinstance(param, Option))
    return UnexpectedArgument(f"{name}: not an option of one program of several", hint=own)


def _of_file(options: RunOptions, check: Check) -> tuple[PartLine, ...]:
    """The programs of ``--app``. Raises: UsageError, which names the wrong line."""
    from dispatcher.cli import named_files

    path = options.app or ""
    if options.words:
        raise ConflictingOptions(
            f"--app {path} lists the programs; remove {options.words[0]}",
            hint=f"a line more in {path}, or --np 1 actor.py : --np 7 learner.py without --app",
        )
    text = named_files.read(f"--app {path}", path, MOST_FILE).decode("utf-8", "surrogateescape")
    found: list[PartLine] = []
    for number, line in app_lines(text):
        where = f"--app {path}:{number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise FileUnusable(f"{where}: {str(error).lower()}") from None
        if not words:
            continue
        try:
            found += _several(options, words, check)
        except DispatchError as error:
            raise type(error)(f"{where}: {error.message}", hint=error.hint) from None
    if not found:
        raise FileUnusable(f"--app {path}: no program in it", hint="--np 1 actor.py")
    return tuple(found)


def app_lines(text: str) -> list[tuple[int, str]]:
    r"""(number, text) of each line of an app file; one that ends in ``\`` continues in the next."""
    found: list[tuple[int, str]] = []
    begun: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        at, before = begun or (number, "")
        if line.endswith("\\"):
            begun = at, f"{before}{line[:-1]} "
            continue
        begun = None
        found.append((at, before + line))
    return found if begun is None else [*found, begun]


def with_hosts(hosts: Hostlist, lines: Sequence[PartLine]) -> tuple[Hostlist, tuple[PartLine, ...]]:
    """All hosts, and the programs. Those before the first are its own if another names hosts.

    Slots of one host add up, as for mpirun: ``-w n1:2 a : -w n1:6 b`` are eight.
    """
    from dataclasses import replace as changed

    first, *others = lines
    named = [line.hosts for line in lines if line.hosts is not None]
    of_first = (
        bool(named) and first.hosts is None and not {"hostfile", "lists"}.isdisjoint(first.own)
    )
    if of_first:
        first = changed(first, hosts=hosts.hosts)
    found = {host.place: host for host in hosts.hosts}
    adds_up = {
        place for place, host in found.items() if of_first and host.slots and host.origin[0] == "-"
    }
    for host in (host for own in named for host in own):
        if host.place not in found:
            found[host.place] = host
            adds_up |= {host.place} if host.slots else set()
        elif host.place in adds_up and host.slots:
            before = found[host.place]
            found[host.place] = changed(before, slots=(before.slots or 0) + host.slots)
    return changed(hosts, hosts=tuple(found.values())), (first, *others)
