"""The words of a command line before click reads them: values left out, mpirun's ``-np``.

* ``--max_restarts`` is ``--max-restarts``.
* A bare ``--sudo`` gets its value here: click would take the next word, the program, for it.
* ``-np`` is ``--np`` for commands that have that. Other words of mpirun after one dash are not
  options: click would read ``-ppn`` as ``-p`` with the value ``pn``.

Words after the program are the program's and are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import click

#: mpirun's name for ``--np``, which many users type: else it would be ``-n`` with the value ``p``
_MPIRUNS = "-np"


#: name of an option in pdsh, clush and mpirun -> its name here
_PEERS = {
    "debug": "verbose", "dshbak": "gather", "errdir": "error-dir", "machinefile": "hostfile",
    "maxrc": "max-code", "nostdin": "no-stdin", "outdir": "output-dir",
}  # fmt: skip


def current(name: str) -> str:
    """``name``, an option without its ``--``, as it is called here, with dashes for underscores."""
    name = name.replace("_", "-")
    return _PEERS.get(name, name)


def respelled(
    command: click.Command, words: Sequence[str], shown_name: str = "dispatch"
) -> list[str]:
    """``words`` with the names of our options as click knows them. Raises: click.NoSuchOption."""
    if command.name == "dsx":  # options may stand behind the files of a copy, as with clush
        names = (name for one in _options(command) if one.is_flag for name in one.opts)
        flags = "".join(name[1] for name in names if len(name) == 2)
        copies = re.compile(f"--r?copy|-[{flags}]*c.*")
        own = own_options(command, words, bare_of(command))
        if any(copies.fullmatch(words[at]) for at, _ in own):
            command.context_settings["allow_interspersed_args"] = True
    found = list(words)
    has_np = any("--np" in option.opts for option in _options(command))
    for at, _ in own_options(command, words, bare_of(command)):
        name = words[at].partition("=")[0]
        if name == _MPIRUNS and has_np:
            found[at] = "--np"
        elif command.name == "run" and _is_mpiruns(name):
            context = click.Context(command, info_name=shown_name, obj=tuple(words))
            raise click.NoSuchOption(name, ctx=context)
        if name.startswith("--"):
            found[at] = "--" + current(name[2:]) + words[at][len(name) :]
    return found


def filled(command: click.Command, words: Sequence[str]) -> list[str]:
    """``words`` with the values that were left out, each after ``=``."""
    bare, found = bare_of(command), list(words)
    for at, _ in own_options(command, words, bare):
        name = words[at].replace("_", "-")
        if name in bare:
            found[at] = f"{name}={bare[name]}"
    return found


def bare_of(command: click.Command) -> dict[str, str]:
    """Options whose value may be left out -> the value that they then have."""
    values = ((option.opts[-1], getattr(option, "bare", None)) for option in command.params)
    return {name: bare for name, bare in values if bare is not None}


def own_options(
    command: click.Command, words: Sequence[str], bare: Mapping[str, str]
) -> Iterator[tuple[int, bool]]:
    """The places of our options in ``words``, and whether the next word is the value of each."""
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
    """Whether mpirun has an option ``name`` of several letters after one dash."""
    if name.startswith("--") or not name[1:4].isalpha() or len(name) < 3:
        return False
    from dispatcher.plan import compat_flags  # few lines have such a word

    return name in compat_flags.MPIRUN


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
