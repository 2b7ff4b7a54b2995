"""The words of a command line before click reads them: old names, values left out, short names.

Only our own options are touched; what follows the program is the program's.

* An option that has a new name is taken by its old one, and a note says so (``RENAMED``; keys of
  dispatch.toml likewise). Help, manual and completion know the new name alone.
* ``--sudo`` may stand for ``--sudo=USER``: click would take the next word for the value, and with
  it the program. So a bare one is given its value here.
* ``-np``, as every mpirun has it, is ``--np``, for commands that have that. ``-ppn`` and other
  words of mpirun behind one dash are no options: click would read ``-p`` with the value ``pn``.
* A short option gets its long name: click looks for ``-w`` among the long ones first, and loads
  difflib and the user's language for an error that nobody sees: 3 ms of every start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import click

from dispatcher.cli import say

#: old name -> the name it has now, in all commands that have the option
RENAMED = {
    "alive": "server-alive-interval",
    "beats-lost": "max-missed-heartbeats",
    "fan-out": "fanout",
    "host-faults": "max-host-failures",
    "live": "no-gather",
    "mpi-patience": "mpi-stall-warning",
    "over": "backend",
    "stop-after": "max-fail",
    "tree": "fanout-tree",
}

#: what mpirun calls ``--np``, and everybody types: else it would be ``-n`` with the value ``p``
_MPIRUNS = "-np"


def current(name: str) -> str:
    """The name that the option ``name``, with dashes or underscores, has now; without ``--``."""
    dashed = name.replace("_", "-")
    return RENAMED.get(dashed, dashed)


def renamed(old: str, new: str, where: str = "") -> None:
    """Tell the user that ``old`` is called ``new``. where: ``file [table]: `` of an old key."""
    say(f"note: {where}{old} is now {new}")


def is_hostfile(value: str) -> bool:
    """Whether a value of ``--hosts`` is what ``--hostfile`` takes: a file, or standard input.

    ``dispatch run`` took both by either name; a list is all that ``--hosts`` means now.
    """
    from dispatcher.plan.hosts.hostfile import looks_like_path

    return value == "-" or os.path.lexists(value) or looks_like_path(value)


def respelled(
    command: click.Command, words: Sequence[str], shown_name: str = "dispatch"
) -> list[str]:
    """``words`` with today's names of our options; a note tells each that had an older one.

    shown_name: what the line begins with. Raises: click.NoSuchOption for one of mpirun's in a run.
    """
    found = list(words)
    has_np = any("--np" in option.opts for option in _options(command))
    for at, valued in own_options(command, words, bare_of(command)):
        name, equals, value = words[at].partition("=")
        if name == _MPIRUNS and has_np:
            found[at] = "--np"
        if command.name == "run" and _is_mpiruns(name):
            context = click.Context(command, info_name=shown_name, obj=tuple(words))
            raise click.NoSuchOption(name, ctx=context)
        if not name.startswith("--"):
            continue
        new = "--" + current(name[2:])
        if command.name == "run" and new == "--hosts":
            value = value if equals else "".join(words[at + 1 : at + 1 + valued])
            if is_hostfile(value):
                new = "--hostfile"
                renamed(f"{name} {value}", f"{new} {value}")
        elif new != name.replace("_", "-"):
            renamed(name, new)
        if new != name:
            found[at] = new + words[at][len(name) :]
    return found


def filled(command: click.Command, words: Sequence[str]) -> list[str]:
    """``words`` with long names of options, and behind ``=`` the values that were left out."""
    bare = bare_of(command)
    long = {
        short: option.opts[-1]
        for option in _options(command)
        for short in option.opts[:-1]
        if len(short) == 2
    }
    found = list(words)
    for at, valued in own_options(command, words, bare):
        word = words[at]
        name = word.replace("_", "-")
        if name in bare:
            found[at] = f"{name}={bare[name]}"
        elif at + 1 < len(words) or not valued:
            found[at] = long.get(word, word)
    return found


def bare_of(command: click.Command) -> dict[str, str]:
    """Options whose value may be left out -> what it is then."""
    values = ((option.opts[-1], getattr(option, "bare", None)) for option in command.params)
    return {name: bare for name, bare in values if bare is not None}


def own_options(
    command: click.Command, words: Sequence[str], bare: Mapping[str, str]
) -> Iterator[tuple[int, bool]]:
    """Where our own options stand in ``words``, and whether the next word is the value of each.

    bare: options that never take the next word.
    """
    mixed = command.context_settings.get("allow_interspersed_args", True)
    takes = {
        name
        for option in _options(command)
        if not option.is_flag and not option.count
        for name in option.opts
    }
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return
        if word.startswith("-") and word != "-":
            valued = "--" + current(word[2:]) not in bare and _wants_more(word, takes)
            yield at, valued
            at += valued
        elif not mixed:
            return
        at += 1


def _is_mpiruns(name: str) -> bool:
    """Whether mpirun has an option ``name`` of several letters behind one dash."""
    if name.startswith("--") or not name[1:4].isalpha() or len(name) < 4:
        return False
    from dispatcher.plan import compat  # few lines have such a word

    return name in compat.MPIRUN


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option)]


def _wants_more(word: str, takes: set[str]) -> bool:
    """Whether the value of the option ``word`` is the next word."""
    if word.startswith("--"):
        return "--" + current(word[2:]) in takes
    if word == _MPIRUNS and "--np" in takes:
        return True
    for at in range(1, len(word)):
        if "-" + word[at] in takes:
            return at == len(word) - 1  # else the rest is the value
    return False
