"""``-H`` to hosts: a hostfile in any dialect, a list on the command line, or standard input.

A list is a hostfile of one line; the grammar of a line is in ``hostfile_line``. Hosts that are
repeated without a slot count have one slot a line (as PBS and Open MPI have it); a host with a
slot count stands once. Two ports of one name are two hosts. With ``slots=False`` (one command a
host) repeated hosts are one. All mistakes of a text are reported together.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dispatcher.model import hostset
from dispatcher.model.errors import FileUnusable, HostfileError, Problem, UsageError
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host, Hostlist
from dispatcher.model.hostset import LIMIT, Resolve, fold
from dispatcher.model.names import (
    MOST_PROBLEMS,
    BadName,
    decoded,
    line_problem,
    numbered_lines,
    printable,
    quoted,
    size,
)
from dispatcher.plan.hosts.hostfile_line import parse_line

__all__ = ["Host", "Hostlist", "parse_hostfile", "parse_inline", "read_hostfile", "read_hosts"]

MOST_BYTES = 16 << 20
#: files that one may include, all together, and the line that does
MOST_INCLUDED = 100
_INCLUDE = re.compile(r"#include[ \t]+(\S+)\s*\Z")
_FILE_ENDINGS = (".txt", ".hosts", ".hostfile", ".lst", ".list", ".conf", ".cfg", ".nodes", ".csv")
_FILE_NAMES = ("hostfile", "hosts", "machinefile", "nodefile", "hostlist", "hostfiles")


@value
class _Mention(Value):
    """One host on one line, with its position for messages."""

    host: Host
    line: int
    column: int
    text: str


def parse_hostfile(
    text: bytes | str,
    source: str,
    resolve: Resolve | None = None,
    *,
    slots: bool = True,
    typed: bool = False,
    follow: bool = False,
) -> Hostlist:
    """Hosts of a hostfile's text, in written order, each place once.

    source names the text in messages (``hostfile:3:1: ...``); resolve answers for ``@group``
    (default: ClusterShell); slots: whether slots are needed. typed: one line, without number.
    follow: ``#include FILE`` names another, from the folder of ``source``. Raises: HostfileError
    with every mistake, also when there is no host at all.
    """
    problems, notices, mentions = _read(text, source, resolve, slots, typed, follow)
    hosts = _merged(mentions, source, problems, notices, slots)
    if problems:
        problems.sort(key=lambda one: (one.line, one.column))
        raise HostfileError(problems[:MOST_PROBLEMS])
    if not hosts:
        why = "no host in it" if decoded(text).strip() else "empty"
        hint = "one host a line: n1 slots=8"
        raise HostfileError([Problem(source, 0 if typed else 1, 1, "", why, hint)])
    return Hostlist(tuple(hosts), tuple(dict.fromkeys(notices)))


def parse_inline(
    text: str, source: str = "-H", resolve: Resolve | None = None, *, slots: bool = True
) -> Hostlist:
    """Hosts of ``-H 'n[001-004]:2,login'``; the same grammar as a line of a hostfile.

    source: the option, as it is called in messages; "" where the text says enough itself. Raises:
    HostfileError with every mistake.
    """
    return parse_hostfile(text, source, resolve, slots=slots, typed="\n" not in text.strip())


def read_hosts(
    spec: str,
    stdin: Callable[[], bytes],
    resolve: Resolve | None = None,
    *,
    option: str = "-H",
    slots: bool = True,
) -> Hostlist:
    """Hosts named by the value of ``-H``: ``-`` (standard input), a file, or a list.

    An existing file is read as a hostfile. A text that can only be a path is an error if there is
    no such file: a mistyped name must not become a host. option: the option with the value.
    Raises: UsageError for a file that cannot be read; HostfileError for a wrong text.
    """
    if spec == "-":
        text = _bounded(stdin(), f"{option}: standard input")
        return parse_hostfile(text, "<stdin>", resolve, slots=slots, follow=True)
    if "\0" in spec:
        raise UsageError(f"{option}: a NUL byte in the value")
    if os.path.isdir(spec):
        raise FileUnusable(
            f"{option}: {quoted(spec)} is a directory",
            hint=f"name the file in it; to mean a host of that name, write {spec}:SLOTS",
        )
    if os.path.lexists(spec) or looks_like_path(spec):
        return read_hostfile(spec, option, resolve, slots=slots)
    return parse_inline(spec, option, resolve, slots=slots)


def read_hostfile(
    path: str, option: str, resolve: Resolve | None = None, *, slots: bool = True
) -> Hostlist:
    """Hosts of the file at ``path``. option: the option that names it.

    Raises: UsageError when it cannot be read; HostfileError when its text is wrong.
    """
    if not os.path.lexists(path):
        folder = shlex.quote(os.path.dirname(path) or ".")
        hint = f"look in its folder: ls {folder}" if len(path) < 200 else None
        raise FileUnusable(f"{option}: {quoted(path)}: no such file", hint=hint)
    text = _contents(path, f"{option}: {quoted(path)}")
    return parse_hostfile(text, os.fsdecode(os.fsencode(path)), resolve, slots=slots, follow=True)


def _contents(path: str, where: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return _bounded(file.read(MOST_BYTES + 1), where)
    except OSError as error:
        raise FileUnusable(f"{where}: {error.strerror or error}") from error


def items(text: str) -> list[str]:
    """``text``, split at its commas if only pdsh has an item: ``-n2``, ``/REGEX/``, ``^FILE``."""
    special = re.search(r"(?:^|,)(?:-.|/|\^)", text)
    if not special or (text.startswith("^") and os.path.lexists(text[1:])):
        return [text]
    return [item for item, _ in hostset.split_list(text)]


def names_of(texts: Sequence[str], lists: Iterable[Hostlist], option: str) -> list[str]:
    """The names of ``texts``, of ``lists`` those that a /REGEX/ matches. Raises: UsageError."""
    names: list[str] = []
    for text in (item for whole in texts for item in items(whole)):
        try:
            if text.startswith("^"):
                names += [host.name for host in read_hostfile(text[1:], option, slots=False).hosts]
            elif text[0] == "/" and option[0] == "-":  # typed; one of a file could take for ever
                regex = re.compile(text[1:].removesuffix("/"))
                found = (host.name for one in lists for host in one.hosts)
                names += filter(regex.search, found)
            else:
                names += hostset.expand(text)
        except BadName as bad:
            variable = "a variable goes before the command: -- env NAME=VALUE COMMAND"
            hint = variable if "=" in text else bad.hint
            raise UsageError(f"{option}: {bad.message}", hint=hint) from None
        except re.error as error:
            raise UsageError(f"{option}: {error}: {text!r}") from None
    return names


def narrowed(
    lists: Sequence[Hostlist], less: Sequence[str], only: Sequence[str], option: str
) -> list[Hostlist]:
    """``lists`` without the hosts of ``less``, and those that any of ``only`` does not match."""
    names = {host.name for one in lists for host in one.hosts}
    names = names.intersection(*(names_of([text], lists, option) for text in only))
    names -= set(names_of(less, lists, option))
    pairs = [(tuple(host for host in one.hosts if host.name in names), one) for one in lists]
    return [replace(one, hosts=hosts) for hosts, one in pairs if hosts]


def _bounded(found: bytes, where: str) -> bytes:
    if len(found) > MOST_BYTES:
        raise FileUnusable(f"{where}: more than {size(MOST_BYTES)}, not a hostfile")
    return found


def looks_like_path(spec: str) -> bool:
    """Whether the text can only be a path; a ``/`` in brackets is a step, ``n[0-14/2]``."""
    if spec.startswith("-"):
        return False
    spec = re.sub(r"\[[^\]]*\]?", "", spec)
    is_named_so = spec.lower().endswith(_FILE_ENDINGS) or spec.lower() in _FILE_NAMES
    return "/" in spec or spec.startswith((".", "~")) or is_named_so


def _lines(text: bytes | str, file: str, seen: list[str] | None) -> Iterator[tuple[str, int, str]]:
    """(file, number, line) of ``text`` and the files it includes. seen: these; None: it may not."""
    for number, line in numbered_lines(decoded(text)):
        included = _INCLUDE.match(line)
        if included is None or seen is None:
            yield file, number, line
            continue
        path = os.path.join(os.path.dirname(file), included[1])
        where, real = f"{file}:{number}: {quoted(included[1])}", os.path.realpath(path)
        if real in seen or len(seen) > MOST_INCLUDED:
            raise FileUnusable(f"{where}: included twice, or behind {MOST_INCLUDED} others")
        seen.append(real)
        yield from _lines(_contents(path, where), path, seen)


def _read(
    text: bytes | str, source: str, resolve: Resolve | None, slots: bool, typed: bool, follow: bool
) -> tuple[list[Problem], list[str], list[_Mention]]:
    """Read each line, with its mistakes; lines are not compared yet."""
    problems: list[Problem] = []
    notices: list[str] = []
    mentions: list[_Mention] = []
    if isinstance(text, bytes) and text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        hint = "save it as UTF-8"
        return [Problem(source, 1, 1, "", "the text is UTF-16", hint)], notices, mentions
    for file, number, line in _lines(text, source, [os.path.realpath(source)] if follow else None):
        number = 0 if typed else number
        where = source if typed else f"{file}:{number}"
        left = LIMIT - len(mentions)
        found = parse_line(line, left, resolve, slots=slots, origin=where)
        for bad in found.mistakes:
            problems.append(line_problem(file, number, line, bad))
        if len(problems) >= MOST_PROBLEMS:
            message = f"more than {MOST_PROBLEMS} mistakes: stopped reading here"
            problems[MOST_PROBLEMS - 1 :] = [Problem(file, number, 1, printable(line), message)]
            break
        notices += [f"{where}: {notice}" if where else notice for notice in found.notices]
        for host, offset in zip(found.hosts, found.offsets, strict=True):
            mentions.append(_Mention(host, number, offset + 1, line))
    return problems, notices, mentions


def _merged(
    mentions: list[_Mention], source: str, problems: list[Problem], notices: list[str], slots: bool
) -> list[Host]:
    """One host per place; contradictions are added to ``problems``."""
    by_place: dict[tuple[str, int | None], list[_Mention]] = {}
    for mention in mentions:
        by_place.setdefault(mention.host.place, []).append(mention)
    pairs = [(group[0], again) for group in by_place.values() for again in group[1:]]
    clashes = [(again, clash) for first, again in pairs if (clash := _contradiction(first, again))]
    clashes.sort(key=lambda one: (one[0].line, one[0].column))
    for again, clash in clashes[:MOST_PROBLEMS]:  # each shows its line, which may be long
        file = again.host.origin.rpartition(":")[0] or source
        problems.append(line_problem(file, again.line, again.text, clash, len(again.host.name)))
    if len(clashes) == len(pairs) or not slots:
        return [group[0].host for group in by_place.values()]
    many = [group[0].host.name for group in by_place.values() if len(group) > 1]
    notices.append(f"{source}: hosts are repeated, so each line counts one slot: {fold(many)}")
    return [
        replace(group[0].host, slots=len(group)) if group[0].host.slots is None else group[0].host
        for group in by_place.values()
    ]


def _contradiction(first: _Mention, again: _Mention) -> BadName | None:
    """Why two mentions of one place cannot both hold, or None."""
    name = first.host.name
    there = f"on line {first.line}" if first.line else "in the list"
    if first.host.origin.rpartition(":")[0] != again.host.origin.rpartition(":")[0]:
        there = f"in {first.host.origin}"
    if first.host.slots is not None or again.host.slots is not None:
        message = f"{name} is already {there}, and one of them has a slot count"
        hint = f"keep one line; the other reads: {printable(first.text, 80).strip()}"
    elif replace(first.host, origin="") != replace(again.host, origin=""):
        message = f"{name} is already {there}, with other options"
        hint = f"make them equal; the other reads: {printable(first.text, 80).strip()}"
    else:
        return None
    return BadName(message, again.column - 1, hint)
