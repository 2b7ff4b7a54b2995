"""What may follow on a command line: commands, options, values, names of hosts, groups and jobs.

Everything is asked of the declarations that run, too: a choice has its words, a metavar the words
in it (``none|N|all``) or whether a file is wanted, and the few options that take hosts are
``HOSTS``. No host is touched and no line is judged; a line that is wrong has nothing to follow.

Names that this machine knows are for suggestions as well. Hosts come from ssh's own files, read as
plain text: names that are hashed there, or patterns, are nobody's to know. What cannot be read is
not known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import click

from dispatcher.cli import COMMANDS
from dispatcher.cli.entry import load
from dispatcher.cli.help import PURPOSES
from dispatcher.cli.options.declaration import Command
from dispatcher.cli.options.spelling import bare_of, current, own_options
from dispatcher.model.errors import UsageError

#: fields whose values are lists of hosts, and what stands between two
HOSTS = {
    "hostfile": ",!&^", "lists": ",!&^", "excluded": ",!&^", "common": ",!&^", "include": "@",
    "exclude": "@",
}  # fmt: skip
#: launchers that ``dispatch import`` knows
_LAUNCHERS = ("accelerate", "deepspeed", "mpiexec", "mpirun", "torchrun")
#: words of a metavar that are typed as they stand
_LITERAL = re.compile(r"(?<![^|])[a-z][a-z0-9]*(?![^|])")


class Item(NamedTuple):
    """What may follow. kind: ``plain``; ``file`` or ``dir`` for what the shell itself knows."""

    value: str
    kind: str = "plain"
    told: str = ""


def following(words: Sequence[str], typed: str) -> list[Item]:
    """What may stand for the last word of a line. words: before it, less ``dispatch``."""
    if not words and not typed.startswith("-"):
        helping = Item("help", told="Show all commands, or all about one.")
        return [Item(typed, "file"), *_begun([*_commands(), helping], typed)]
    if words[:1] == ["help"]:
        return _begun(_commands(), typed) if len(words) == 1 else []
    name = words[0] if words and words[0] in COMMANDS else ""
    return _Line(load(name or "run"), words[bool(name) :]).following(typed)


class _Line:
    """The ``words`` of ``command`` that are there already."""

    def __init__(self, command: Command, words: Sequence[str]) -> None:
        self._command = command
        self._words = words
        own = list(own_options(command, words, bare_of(command)))
        taken = {at for at, _ in own} | {at + 1 for at, valued in own if valued}
        rest = [word for at, word in enumerate(words) if at not in taken]
        mixed = command.context_settings["allow_interspersed_args"]
        self._over = "--" in rest or (bool(rest) and not mixed)
        self._rest = [word for word in rest if word != "--"]
        self._open = own[-1] == (len(words) - 1, True) if own else False
        self._given = [self._option(words[at].partition("=")[0]) for at, _ in own]

    def following(self, typed: str) -> list[Item]:
        """What may follow for the word that begins ``typed``."""
        if self._open:
            option = self._given[-1]
            return [] if option is None else self._values(option, typed)
        if self._over or not typed.startswith("-"):
            return self._argument(typed)
        name, equals, value = typed.partition("=")
        if not equals:
            return self._options(typed)
        option = self._option(name)
        if option is None or option.is_flag:
            return []
        return [one._replace(value=f"{name}={one.value}") for one in self._values(option, value)]

    def _option(self, word: str) -> click.Option | None:
        """The option that ``word`` names; of letters together, the last."""
        name = f"--{current(word[2:])}" if word.startswith("--") else f"-{word[-1]}"
        for option in self._command.params:
            if isinstance(option, click.Option) and name in option.opts:
                return option
        return None

    def _options(self, typed: str) -> list[Item]:
        once = [one for one in self._given if one is not None and not one.multiple]
        start = typed.replace("_", "-")
        found = []
        for option in self._command.params:
            if isinstance(option, click.Option) and option not in once:
                names = [name for name in option.opts if name.startswith(start)]
                found += [Item(name, told=option.help or "") for name in names[-1:]]
        return found

    def _values(self, option: click.Option, typed: str) -> list[Item]:
        name, metavar = option.name or "", option.metavar or ""
        if isinstance(option.type, click.Choice):
            words = (word for word in option.type.choices if word.islower())  # no ppr:N:WHAT
            return _begun(map(Item, words), typed)
        if name in HOSTS:
            files = [Item(typed, "file")] if name == "hostfile" else []
            return [*files, *self._hosts(typed, HOSTS[name])]
        if name == "profile":
            return _begun(map(Item, profiles()), typed)
        kind = "dir" if "DIR" in metavar else "file"
        wanted = [Item(typed, kind)] if re.search("FILE|PATH|DIR|TEXT", metavar) else []
        return [*wanted, *_begun(map(Item, _LITERAL.findall(metavar)), typed)]

    def _hosts(self, typed: str, between: str) -> list[Item]:
        """Hosts and groups whose names go on from what was typed, after the last of ``between``."""
        end = max(typed.rfind(sign) for sign in between) + 1
        before, last = typed[:end], typed[end:]
        if last.startswith("@"):
            names = groups(last)
        else:
            names = known_hosts(self._value("-F"))
            hostfile = self._value("-H")
            if hostfile is not None:
                names = list(dict.fromkeys([*hosts_of(hostfile), *names]))
        there = re.split(f"[{re.escape(between)}]", before)
        return [
            Item(before + name) for name in names if name.startswith(last) and name not in there
        ]

    def _value(self, short: str) -> str | None:
        """The value of an option that was given by its short name, or by its long one and ``=``."""
        wanted = self._option(short)
        for at, word in enumerate(self._words):
            name, equals, value = word.partition("=")
            if wanted is not None and word.startswith("-") and self._option(name) is wanted:
                return value if equals else "".join(self._words[at + 1 : at + 2])
        return None

    def _argument(self, typed: str) -> list[Item]:
        arguments = [one for one in self._command.params if type(one) is click.Argument]
        taken = int(bool(arguments and arguments[0].nargs == 1 and (self._rest or self._over)))
        argument = next(iter(arguments[taken:]), None)
        if argument is None:
            return []
        if isinstance(argument.type, click.Choice):
            return _begun(map(Item, argument.type.choices), typed)
        files = [Item(typed, "file")]
        own = _ARGUMENTS.get(argument.name or "")
        if own is not None:
            return [*(files if self._command.name == "report" else []), *_begun(own(), typed)]
        if self._command.name == "hosts":
            return self._hosts(typed, HOSTS["lists"])
        if self._command.name == "explain":
            return [] if self._rest else _begun(_codes(), typed)
        if self._command.name == "import" and not self._rest:
            return [*files, *_begun(map(Item, _LAUNCHERS), typed)]
        return files


def _commands() -> list[Item]:
    return [
        Item(name, told=said) for commands in PURPOSES.values() for name, said in commands.items()
    ]


def _jobs() -> list[Item]:
    latest = Item("latest", told="The job that was started last.")
    return [
        *(Item(run_id.rpartition("-")[2], told=told) for run_id, told in jobs()),
        latest,
    ]


def _codes() -> list[Item]:
    from dispatcher.model.messages import MESSAGES

    return [Item(one.code, told=one.what) for one in MESSAGES.values()]


def _run_ids() -> list[Item]:
    return [Item(run_id, told=told) for run_id, told in jobs()]


#: the argument of some commands -> what may stand for it
_ARGUMENTS: dict[str, Callable[[], list[Item]]] = {
    "job": _jobs,
    "run_id": _run_ids,
    "name": _commands,
}


def _begun(items: Iterable[Item], typed: str) -> list[Item]:
    return [one for one in items if one.value.startswith(typed)]


_MOST_BYTES = 4 << 20
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_ADDRESS = re.compile(r"[0-9.]+\Z")
#: of a line of a hostfile, in any dialect, its first word
_FIRST = re.compile(r"\s*(?:[\w.-]+@)?([A-Za-z0-9][\w.-]*)")


def known_hosts(config: str | None = None) -> list[str]:
    """Names of hosts in known_hosts and ssh_config, sorted. config: the file of ``-F``."""
    folder = os.path.expanduser("~/.ssh")
    config = config or os.environ.get("DISPATCH_SSH_CONFIG")
    files = (
        (_of_known_hosts, "/etc/ssh/ssh_known_hosts"),
        (_of_known_hosts, os.path.join(folder, "known_hosts")),
        (_of_config, "/etc/ssh/ssh_config"),
        (_of_config, config or os.path.join(folder, "config")),
    )
    names: dict[str, None] = {}
    for reader, path in files:
        names |= dict.fromkeys(name for name in reader(_lines(path)) if _PLAIN.match(name))
    return sorted(names)


def hosts_of(hostfile: str) -> list[str]:
    """The first word of each line of ``hostfile``, where that may be a host."""
    found = (_FIRST.match(line.partition("#")[0]) for line in _lines(hostfile))
    return [match[1] for match in found if match]


def groups(typed: str = "@") -> list[str]:
    """Groups of ClusterShell's files, as ``@name``; with a source if ``typed`` begins with one."""
    from dispatcher.model.hostset import group_names

    return group_names(typed)


def jobs() -> list[tuple[str, str]]:
    """(run id, state and program) of each job on record, the newest first."""
    from dispatcher.jobs import registry
    from dispatcher.output.text.sanitize import sanitize_text

    return [
        (job.run_id, f"{job.phase}: {sanitize_text(' '.join(job.program))}")
        for job in reversed(registry.jobs())
    ]


def profiles() -> list[str]:
    """Profiles of the files that there are."""
    from dispatcher.cli.options.option_defaults import read

    try:
        return sorted({name for file in read() for name in file.profiles})
    except UsageError:
        return []


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES).splitlines()
    except (OSError, ValueError):
        return []


def _of_known_hosts(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        words = line.split()
        if words and words[0].startswith("@"):
            words = words[1:]
        if words and not words[0].startswith(("#", "|")):
            for name in words[0].split(","):
                yield name.partition("]")[0].lstrip("[")


def _of_config(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        words = re.split(r"[\s=]+", line.strip())
        if words[0].lower() == "host":
            yield from words[1:]
