"""Reads one line of a hostfile, in any launcher's dialect, into its hosts::

    line   = [ hosts *( blank option ) ] [ comment ]          comment: # or // at a word's start
    hosts  = item *( "," item )  /  set algebra (see hostset)
    item   = [ user "@" ] ( name / range / "@" group / IPv6 / "[" IPv6 "]" ) [ ":" number ]
    option = key "=" value  /  "spare"       blanks around "=" allowed, quotes as in a shell

``:number`` after ``user@`` or ``[address]`` is a port, as for ssh; else a count of slots, as for
MPICH. Options hold for all hosts of the line; ``hostfile`` compares lines with each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from dispatcher.model import hostset
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Host, parse_gpus
from dispatcher.model.names import (
    LONGEST_LINE,
    BadName,
    check_host,
    check_user,
    digits,
    nearest,
    offset_by,
    plural,
    quoted,
)
from dispatcher.plan.variables import check_value, check_variable

MOST_SLOTS = 4096
MOST_MISTAKES = 10  # shown for one line
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)[ \t]*=[ \t]*")
_COUNTS = ("slots", "count", "cpu", "cpus")
_MEANING = {
    **dict.fromkeys(_COUNTS, "slots"),
    **{f"max{dash}{key}": "max_slots" for key in _COUNTS for dash in "_-"},
    **{f"{key}{dash}max": "max_slots" for key in _COUNTS for dash in "_-"},
    **dict.fromkeys(("user", "username", "user_name", "user-name"), "user"),
    **{key: key for key in ("port", "python", "env", "gpus")},
}
_NOT_TEXT = re.compile("[\0-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


class Line:
    """The contents of a line: hosts, their columns, mistakes, notices.

    slots: whether they matter to the command, and so are worth a notice.
    """

    def __init__(self, slots: bool) -> None:
        self.slots = slots
        self.hosts: list[Host] = []
        self.offsets: list[int] = []
        self.mistakes: list[BadName] = []
        self.notices: list[str] = []


@value
class _Item(Value):
    """One item of the host list: expression with its offset, and the number behind it."""

    expression: str
    offset: int
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    is_address: bool = False


def parse_line(
    text: str,
    limit: int,
    resolve: hostset.Resolve | None = None,
    *,
    slots: bool = True,
    origin: str = "-H",
) -> Line:
    """Read ``text``; mistakes are returned, not raised, so that all can be shown.

    limit: the most hosts the line may name. slots: False leaves their numbers out.
    origin: of its hosts.
    """
    line = Line(slots)
    try:
        _parse(text, limit, resolve, line, origin)
    except BadName as bad:
        line.mistakes.append(bad)
    line.mistakes.sort(key=lambda bad: bad.offset)
    return line


def _parse(text: str, limit: int, resolve: hostset.Resolve | None, line: Line, origin: str) -> None:
    if len(text) > LONGEST_LINE:
        raise BadName(f"a line of {len(text)} characters (at most {LONGEST_LINE})")
    bad_char = _NOT_TEXT.search(text)
    if bad_char:
        raise BadName(_not_text(bad_char[0]), bad_char.start())
    start = _skip(text, 0)
    if _ends(text, start):
        return
    end = _end_of_hosts(text, start)
    options = _options(text, end, line)
    for item in _items(text[start:end], start, line):
        with offset_by(item.offset):
            left = limit - len(line.hosts)
            names = (
                [check_host(item.expression)]
                if item.is_address
                else hostset.expand(item.expression, left, resolve)
            )
        if not names:
            continue
        host = Host(names[0], slots=item.slots, user=item.user, port=item.port, origin=origin)
        host = _with(host, options)
        if not line.slots:
            host = replace(host, slots=None, max_slots=None, gpus=None)
        line.hosts += (host, *(replace(host, name=name) for name in names[1:]))
        line.offsets += [item.offset] * len(names)


def _not_text(char: str) -> str:
    """Why a control character or an undecodable byte is refused."""
    if char == "\0":
        return "a NUL byte: not a text file"
    if "\udc80" <= char <= "\udcff":
        return f"byte 0x{ord(char) - 0xDC00:02x} is not UTF-8"
    return f"a control character: {quoted(char)}"


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _ends(text: str, at: int) -> bool:
    """Whether the line is over at this word's start."""
    return at >= len(text) or text[at] == "#" or text.startswith("//", at)


def _end_of_hosts(text: str, start: int) -> int:
    """Where the host list ends: the first blank outside brackets that no comma touches."""
    at, depth = start, 0
    while at < len(text):
        char = text[at]
        depth += (char == "[") - (char == "]")
        if char in " \t" and depth <= 0:
            after = _skip(text, at)
            if text[at - 1] != "," and text[after : after + 1] != ",":
                return at
            at = after
            continue
        at += 1
    return at


def _items(text: str, start: int, line: Line) -> list[_Item]:
    """The items of the host list; it decides whether ``:number`` is a port or slots."""
    text = text.replace("\t", " ")
    with offset_by(start):
        if hostset.has_algebra(text):
            return [_Item(text, start)]
        split = hostset.split_list(text)
    return [_item(item, start + offset, line) for item, offset in split]


def _item(text: str, offset: int, line: Line) -> _Item:
    user, rest, at = None, text, offset
    if "@" in text[1:]:
        user, _, rest = text.partition("@")
        with offset_by(offset):
            check_user(user)
        at = offset + len(user) + 1
    if not rest:
        raise BadName("a host is missing after '@'", at - 1)
    inside, bracket, tail = rest[1:].partition("]")
    is_address = ":" in inside or ("." in inside and tail.startswith(":"))
    if rest.startswith("[") and bracket and is_address:
        try:
            check_host(inside)
        except BadName as bad:
            hint = "an address goes in brackets; a range is written n[1-3]"
            raise BadName(bad.message, at + 1, hint) from None
        behind = at + len(inside) + 2
        if tail and not tail.startswith(":"):
            raise BadName("text after the bracketed address", behind)
        port = None
        if tail:
            with offset_by(behind + 1):
                port = _port(tail[1:])
        return _Item(inside, at, user, port, is_address=True)
    bare = re.sub(r"\[[^\]]*\]", lambda match: "0" * len(match[0]), rest)
    if rest.startswith("@") or bare.count(":") != 1:
        return _Item(rest, at, user)
    colon = bare.index(":")
    name, number = rest[:colon], rest[colon + 1 :]
    if not name:
        raise BadName("a host is missing before ':'", at)
    with offset_by(at + colon + 1):
        if user is not None:
            port = _port(number)
            if port <= 16 and line.slots:
                line.notices.append(
                    f"{quoted(text)}: read as port {port}, because of user@;"
                    f" for slots write: {name} user={user} slots={port}"
                )
            return _Item(name, at, user, port)
        slots = _slots(number, "slots")
    if slots in (22, 2222) or slots > 256:
        meaning = f"read as {slots} slots" if line.slots else f"{slots} is not read as a port"
        line.notices.append(f"{quoted(text)}: {meaning}; for a port write: {name} port={slots}")
    return _Item(name, at, slots=slots)


def _options(text: str, at: int, line: Line) -> dict[str, tuple[int, object]]:
    """Values and offsets by meaning (``slots``, ``env`` ...); mistakes go to ``line``."""
    found: dict[str, tuple[int, object]] = {}
    while not _ends(text, at := _skip(text, at)) and len(line.mistakes) < MOST_MISTAKES:
        start, key = at, _KEY.match(text, at)
        try:
            if key:
                value, at = _value(text, key.end())
                _add(found, key[1], start, value, key.end(), line)
                continue
        except BadName as bad:
            line.mistakes.append(bad)
            if at == start:  # the end of the value is unknown
                break
            continue
        bare = text[start:].split(" ", 1)[0].split("\t", 1)[0]
        at += len(bare)
        if bare == "spare" and "spare" not in found:
            found["spare"] = start, True
        else:
            message = f"a second word without '=': {quoted(bare)}"
            line.mistakes.append(BadName(message, start, _bare_hint(bare)))
    return found


def _bare_hint(word: str) -> str:
    if word.isdigit():
        return f"for a count write slots={word}; for a port, port={word}"
    if re.match(r"[A-Za-z0-9_.-]+\Z", word):
        return f"for a login name write user={word}; several hosts are separated by commas"
    return "options are written key=value"


def _value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at ``at``, quotes removed, and the offset behind it."""
    parts, start = [], at
    while at < len(text) and text[at] not in " \t":
        quote = text[at]
        if quote not in "\"'":
            parts.append(quote)
            at += 1
            continue
        opened, at = at, at + 1
        while at < len(text) and text[at] != quote:
            if quote == '"' and text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\"):
                at += 1
            parts.append(text[at])
            at += 1
        if at >= len(text):
            raise BadName(f"the quote {quote} is never closed", opened)
        at += 1
    if at == start:
        raise BadName("a value is missing after '='", max(0, start - 1))
    return "".join(parts), at


def _add(
    found: dict[str, tuple[int, object]], key: str, key_at: int, text: str, text_at: int, line: Line
) -> None:
    """Put one option into ``found`` under its meaning."""
    meaning = _MEANING.get(key)
    if meaning is None:
        near = nearest(key, _MEANING)
        raise BadName(
            f"unknown key {quoted(key)}",
            key_at,
            f"did you mean {near}=?"
            if near
            else "known keys: slots max_slots user port python gpus env; or the word spare",
        )
    if meaning in found and meaning != "env":
        raise BadName(f"{key} is given twice", key_at)
    with offset_by(text_at):
        value = _READERS[meaning](text, key)
    if meaning == "env":
        key_at, before = found.get("env", (key_at, ()))
        value = (*cast("tuple[object, ...]", before), value)
    elif meaning == "gpus" and text.isdigit() and text != "0" and line.slots:
        line.notices.append(
            f"gpus={text}: read as the GPU with number {text}; for a count write slots={text}"
        )
    found[meaning] = key_at, value


def _slots(text: str, key: str) -> int:
    if not text:
        raise BadName("a number is missing after ':'", -1)
    if not text.strip("0"):
        raise BadName(f"{key}=0: a host without slots takes no rank", hint="remove the host")
    hint = "a comment needs a blank before its '#'" if "#" in text else None
    return digits(text, key, 1, MOST_SLOTS, hint)


def _port(text: str, key: str = "port") -> int:
    return digits(text, key, 1, 65535)


def _python(text: str, key: str) -> str:
    if not text or text.startswith("-"):
        raise BadName(f"{key}: not a program: {quoted(text)}")
    if text.startswith("~"):
        raise BadName(f"{key}: '~' is not expanded", hint="write the whole path")
    return text


def _variable(text: str, key: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadName(f"{key}: no value for {quoted(name)}", hint="write env=NAME=VALUE")
    return check_variable(name), check_value(name, value)


#: meaning of an option -> what reads its text, which raises BadName
_READERS: dict[str, Callable[[str, str], object]] = {
    "slots": _slots, "max_slots": _slots, "port": _port, "python": _python, "env": _variable,
    "user": lambda text, _: check_user(text), "gpus": lambda text, _: parse_gpus(text, MOST_SLOTS),
}  # fmt: skip


def _with(host: Host, options: dict[str, tuple[int, object]]) -> Host:
    """``host`` with the line's options; refuses what contradicts itself."""
    for key in ("slots", "port", "user"):
        if key in options and getattr(host, key) is not None:
            raise BadName(f"{key} is given twice: before the blank and as {key}=", options[key][0])
    values: dict[str, Any] = {key: value for key, (_, value) in options.items()}
    host = replace(host, **values)
    gpus = host.gpus
    if gpus is not None:
        if host.slots is None:
            host = replace(host, slots=len(gpus))
        elif host.slots != len(gpus):
            message = f"{plural(host.slots, 'slot')} but {plural(len(gpus), 'gpu')}"
            raise BadName(message, options["gpus"][0], "leave slots out: gpus says how many")
    if host.max_slots is not None and host.slots is not None and host.max_slots < host.slots:
        message = f"max_slots={host.max_slots} is less than slots={host.slots}"
        raise BadName(message, options["max_slots"][0])
    return host
