"""Rules for our command lines that click's parser lacks: other tools' names, values left out.

* ``--max_restarts`` is ``--max-restarts``, and ``--machinefile`` is ``--hostfile``.
* A bare ``--sudo`` gets its value here: click would take the next word, the program, for it.
* ``-np`` is ``--np`` for commands that have that. Other words of mpirun after one dash are not
  options: click would read ``-ppn`` as ``-p`` with the value ``pn``.
* After ``dsx --copy`` options may follow the files, as with clush.

Words after the program are the program's and are left alone.
"""

from __future__ import annotations

from typing import Any

import click

#: name of an option in pdsh, clush and mpirun -> its name here
_PEERS = {
    "debug": "verbose", "dshbak": "gather", "errdir": "error-dir", "machinefile": "hostfile",
    "maxrc": "max-code", "nostdin": "no-stdin", "outdir": "output-dir",
}  # fmt: skip


def current(name: str) -> str:
    """``name``, an option without its ``--``, as it is called here, with dashes for underscores."""
    name = name.replace("_", "-")
    return _PEERS.get(name, name)


def bare_of(command: click.Command) -> dict[str, str]:
    """Options whose value may be left out -> the value that they then have."""
    values = ((option.opts[-1], getattr(option, "bare", None)) for option in command.params)
    return {name: bare for name, bare in values if bare is not None}


def teach_parser(parser: Any, command: click.Command) -> None:
    """Have click's ``parser`` of ``command`` read a line as the module describes."""
    match_long, match_short = parser._match_long_opt, parser._match_short_opt
    bare = bare_of(command)

    def long(name: str, value: str | None, state: Any) -> None:
        if name == "-np" and "--np" in parser._long_opt:
            name = "--np"
        if not name.startswith("--") and name not in parser._long_opt:
            # click's own error looks for like names, 2 ms, and then reads the word as letters
            raise click.NoSuchOption(name, "", ctx=parser.ctx)
        match_long(name, bare.get(name) if value is None else value, state)

    def short(word: str, state: Any) -> None:
        name = word.partition("=")[0]
        if command.name == "run" and _is_mpiruns(name):
            raise click.NoSuchOption(name, ctx=parser.ctx)
        match_short(word, state)

    parser._match_long_opt, parser._match_short_opt = long, short
    for name in {"--copy", "--rcopy"} & parser._long_opt.keys():
        option = parser._long_opt[name]
        option.process = _mixing(parser, option.process)


def _mixing(parser: Any, process: Any) -> Any:
    """``process`` of an option, after which options may follow other words."""

    def mixing(value: Any, state: Any) -> None:
        parser.allow_interspersed_args = True
        process(value, state)

    return mixing


def _is_mpiruns(name: str) -> bool:
    """Whether mpirun has an option ``name`` of several letters after one dash."""
    if name.startswith("--") or not name[1:4].isalpha() or len(name) < 3:
        return False
    from dispatcher.plan import compat_flags  # few lines have such a word

    return name in compat_flags.MPIRUN
