"""Command lines that cannot be meant as they stand: refused before any host is touched.

Only what is certain is refused. A script need not be on this machine, so a name that is not is
no mistake by itself; what hosts say about it later is ``cli.hints``'s to explain.

Hints give the line back as it was typed, mended, so that it can be pasted.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from dispatcher.api.request import cwd_of, is_program
from dispatcher.model.errors import NotAScript, UnknownCommand, UsageError
from dispatcher.model.names import nearest, shown
from dispatcher.plan.variables import HIDDEN, is_secret

if TYPE_CHECKING:
    from dispatcher.cli.options.host_options import HostOptions
    from dispatcher.cli.run.run import RunOptions

#: launchers of batch systems, which are not translated: dispatch reads their allocation itself
_STEPS = ("aprun", "jsrun", "prun", "srun")
_HOSTS = ("-H", "--hostfile", "-w", "--hosts")
_PYTHON = re.compile(r"python[0-9.]*\Z")
#: what means something to a shell, and stands in the name of no program
_SHELL = frozenset(" \t\n;|&*$<>`")
#: what a shell takes for more than itself (POSIX.1-2017, XCU 2.2), though a name may have it
_QUOTED = _SHELL | frozenset("()\\\"'?[~")
_NUMBER = re.compile(r"[0-9]+")
#: what other tools call commands of ours, where no program of this machine has the name
_ELSEWHERE = {
    "cancel": "stop", "copy": "put", "disconnect": "connect --close", "download": "get",
    "fetch": "get", "list": "jobs", "log": "logs", "nodes": "hosts", "pull": "get", "push": "put",
    "queue": "jobs", "scancel": "stop", "squeue": "jobs", "ssh": "exec", "start": "run",
    "status": "jobs", "submit": "run", "upload": "put", "validate": "check",
}  # fmt: skip


def script(words: Sequence[str], run: RunOptions) -> None:
    """Refuse ``words``, a script of Python and its arguments, if the first is surely none."""
    name, folder = words[0], cwd_of(run.chdir)
    here = os.path.lexists(os.path.join(folder, name))
    usual = run.python is None and run.chdir is None
    if here and not (usual and is_program(name)):
        return
    _launcher(words, run)
    exports, rest = _exports(words)
    if exports and not here:
        raise _no_shell(name, _bare(rest, exports))
    if _PYTHON.match(os.path.basename(name)):
        why = "not a script: dispatch itself starts scripts with Python"
        raise NotAScript(f"{shown(name)}: {why}", hint=_bare(words))
    _neighbours(words, last_list(run))
    first, *rest = _split(name)
    path = os.path.join(folder, first)
    if rest and not here and (os.path.isfile(path) or _ends_in_arguments(name, first)):
        hint = line([*options(), first, *rest, *words[1:]])
        raise _one_word(name, "script", hint)
    if here or ("/" not in name and usual and _is_on_path(name)):
        raise NotAScript(
            f"{shown(name)}: a program, not a Python script",
            hint=line([*options(), "--no-python", *words]),
        )
    near = None if {"/", "."} & set(name) or _name() != "dispatch" else near_command(words)
    if near is not None:
        hint = f"{near}  # or, if the hosts have such a script: dispatch run {name}"
        raise UnknownCommand(f"{shown(name)}: no such command, and no such script here", hint=hint)


def module(words: Sequence[str]) -> None:
    """Refuse ``words``, a module and its arguments, if the name holds arguments as well."""
    if _SHELL.intersection(words[0]):
        hint = line([*options(), *_split(words[0]), *words[1:]])
        raise _one_word(words[0], "module", hint)


def command(words: Sequence[str]) -> None:
    """Refuse ``words``, a program and its arguments, if the first is text for a shell."""
    if is_shell_text(words[0]):
        raise _one_word(words[0], "program", apart(words))
    exports, rest = _exports(words)
    if exports and not os.path.lexists(words[0]):
        raise _no_shell(words[0], line([*options(), *exports, *rest]))


def exec_words(words: Sequence[str]) -> None:
    """Refuse ``words``, a program and its arguments, if the first is text for a shell."""
    if is_shell_text(words[0]):
        raise _one_word(words[0], "program", as_shell_text(words))


def apart(words: Sequence[str]) -> str:
    """The line of a run whose program ``words`` begin with text for a shell."""
    plain = not _SHELL.intersection(words[0]).difference(" ") and "=" not in words[0]
    better = [*_split(words[0]), *words[1:]] if plain else ["sh", "-c", " ".join(words)]
    return line([*options(), *better])


def as_shell_text(words: Sequence[str]) -> str:
    """The line of ``exec`` with ``words`` as pdsh, clush and ssh would take them."""
    text = " ".join(words)
    return line([*options(), *(() if is_quoted(text) else ("--shell",)), text])


def is_quoted(word: str) -> bool:
    """Whether ``word``, the only one that hosts are to run, is text for their shells."""
    return bool(word.strip() and _QUOTED.intersection(word))


def is_shell_text(word: str, *, surely: bool = True) -> bool:
    """Whether ``word`` is no name of a program, but what a shell reads.

    surely: a path may hold anything, so what starts as one is left to the hosts.
    """
    return bool(word.strip() and _SHELL.intersection(word)) and not (
        surely and "/" in _split(word)[0]
    )


def no_hosts(words: Sequence[str]) -> UsageError | None:
    """What is wrong with ``words`` where nothing says which hosts; None: that alone."""
    if not words and not click.get_current_context().obj:
        return UsageError(
            "no hosts given, and no program", hint="dispatch -h  # examples, and what else there is"
        )
    near = near_command(words)
    if near is not None:
        return UnknownCommand(
            f"{shown(words[0])}: no such command, and no such script here", hint=near
        )
    for at, word in enumerate(words[:-1]):
        if at and word in _HOSTS:
            moved = [*options(), word, words[at + 1], *words[:at], *words[at + 2 :]]
            why = f"no hosts: {word} stands behind the program, and so is the program's own"
            return NotAScript(why, hint=line(moved))
    return None


def check_command(name: str) -> None:
    """Nothing, if ``name`` is a command. Raises: UsageError."""
    from dispatcher.cli import COMMANDS

    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = respelled(name, near) if near else f"known: {', '.join(COMMANDS)}"
        raise UnknownCommand(f"{shown(name)}: no such command", hint=hint)


def near_command(words: Sequence[str]) -> str | None:
    """The line with the command of ours that the first of ``words`` may be meant for."""
    if not words or options() or os.path.lexists(words[0]):
        return None
    from dispatcher.cli import COMMANDS

    near = _ELSEWHERE.get(words[0]) or nearest(words[0], COMMANDS)
    return shlex.join(["dispatch", *near.split(), *map(_hidden, words[1:])]) if near else None


def last_list(options: HostOptions) -> str | None:
    """The text that names hosts, the one that stands last if there are several."""
    return options.lists[-1] if options.lists else options.hostfile


def neighbours(words: Sequence[str], listed: str | None) -> list[str]:
    """The first ``words`` that go on with the hosts ``listed``: a blank for a comma."""
    typed = options()
    if not listed or spelled(typed, listed, "") == typed or os.path.lexists(listed):
        return []  # no hosts, those of a default, or of a file
    series = {_shape(host) for host in re.split(r",(?![^\[]*\])", listed)} - {""}
    found: list[str] = []
    for word in words:
        if _shape(word.strip(",")) not in series or os.path.lexists(word):
            break
        found.append(word.strip(","))
    return found


def with_neighbours(words: Sequence[str], more: Sequence[str], listed: str) -> str:
    """The line in which ``more``, the first of ``words``, are hosts beside those ``listed``."""
    typed = spelled(options(), listed, ",".join([listed.strip(","), *more]))
    return line([*typed, *words[len(more) :]])


def _shape(word: str) -> str:
    """What names of one series have in common: ``n0-0`` for ``n07-1``; "" without a number."""
    return _NUMBER.sub("0", word) if _NUMBER.search(word) else ""


def _neighbours(words: Sequence[str], listed: str | None) -> None:
    more = neighbours(words, listed)
    if more and listed is not None:
        why = "a host, not a script: put commas between the hosts of a list"
        whole = words if len(more) < len(words) else [*words, "train.py"]
        raise NotAScript(f"{shown(words[0])}: {why}", hint=with_neighbours(whole, more, listed))


def _launcher(words: Sequence[str], run: RunOptions) -> None:
    from dispatcher.plan import compat

    step = os.path.basename(words[0]) in _STEPS
    if not step and not compat.is_known(words):
        return
    name = shown(words[0])
    if run.per_node:
        hint = line([*options(), "--no-python", *words])
        raise NotAScript(f"{name}: a program, not a Python script", hint=hint)
    if step:
        hint = _bare(_behind(words)) + "  # --transport slurm has srun start it"
    else:
        named = last_list(run)
        hosts = ["-H", named] if named else []
        hint = shlex.join(["dispatch", "import", *hosts, "--", *words])
        hint += "  # prints the line for dispatch"
    raise NotAScript(f"{name}: a launcher, and so is dispatch", hint=hint)


def _exports(words: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """``-x`` for what ``words`` set as before a command of a shell, and the program; else none."""
    from dispatcher.plan.compat import assigned

    told, rest = assigned(words)
    if not rest or words[0] == "env" or any(map(_SHELL.intersection, told)):
        return [], words
    return [word for one in told for word in ("-x", one)], rest


def _no_shell(word: str, hint: str) -> UsageError:
    return NotAScript(f"{shown(_hidden(word))}: a variable for a shell, and no program", hint=hint)


def _behind(words: Sequence[str]) -> Sequence[str]:
    """The program among the words of a batch system's launcher, whose options we do not know."""
    for at, word in enumerate(words[1:], 1):
        if _PYTHON.match(os.path.basename(word)) or word.endswith(".py") or os.path.isfile(word):
            return words[at:]
    return ["train.py"]


def _bare(words: Sequence[str], more: Sequence[str] = ()) -> str:
    """The line with ``words``, but for the Python that they may start with. more: options."""
    from dispatcher.plan.compat import program

    before, rest = ([], list(words)) if words[0].endswith(".py") else program(words, words[0])
    if before[:1] == ["--python"] and before[1] in ("python", "python3"):
        before = before[2:]  # the one that the user's shell finds is the one we take
    return line([*options(), *more, *before, *rest])


def _ends_in_arguments(word: str, first: str) -> bool:
    return first.endswith(".py") and not word.endswith(".py")


def _is_on_path(name: str) -> bool:
    import shutil  # which takes its time, and few command lines come here

    return shutil.which(name) is not None


def _one_word(word: str, what: str, hint: str) -> UsageError:
    return NotAScript(f"{shown(word)}: a single word, taken as the name of a {what}", hint=hint)


def _split(word: str) -> list[str]:
    """The words that a shell would see in ``word``."""
    try:
        return shlex.split(word) or [word]
    except ValueError:
        return word.split() or [word]


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
    return shlex.join([*_name().split(), *map(_hidden, words)])


def _name() -> str:
    """What the line begins with, as it was typed."""
    return click.get_current_context().info_name or "dispatch"


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
