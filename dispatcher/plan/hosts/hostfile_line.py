"""One line of a hostfile, in any launcher's dialect, to what it says about its hosts.

::

    line   = [ hosts *( blank option ) ] [ comment ]
    hosts  = item *( "," item )  /  set algebra (see hostset)
    item   = [ user "@" ] ( name / range / "@" group / IPv6 / "[" IPv6 "]" ) [ ":" number ]
    option = key "=" value             blanks around "=" allowed, quotes as in a shell
           / "spare"                   these hosts wait until others are lost

What ``:number`` means, stated once: **after** ``user@`` or ``[address]`` it is a
port (as ssh and pssh write it), else a count of slots (as MPICH and mpirun
``--host`` write it). A number that looks like the other one gets a notice.

Options: ``slots`` ``max_slots`` (and Open MPI's other spellings), ``user``,
``port``, ``python``, ``gpus=0,1`` (or UUIDs, or MIG names), ``env=NAME=VALUE``
(repeatable). They hold for every host of the line. Comments begin with ``#`` or
``//`` at a word's start.

Does not compare lines with each other: repeated hosts are ``hostfile``'s matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from dispatcher.model import hostset
from dispatcher.model.host import Host, parse_gpus
from dispatcher.model.names import LONGEST_LINE, BadName, check_host, check_user, digits, shown
from dispatcher.plan.variables import check_value, check_variable

MOST_SLOTS = 4096
MOST_MISTAKES = 10  # shown of one line
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_COUNTS = ("slots", "count", "cpu", "cpus")
_MEANING = {
    **dict.fromkeys(_COUNTS, "slots"),
    **{f"max{dash}{key}": "max_slots" for key in _COUNTS for dash in "_-"},
    **{f"{key}{dash}max": "max_slots" for key in _COUNTS for dash in "_-"},
    **dict.fromkeys(("user", "username", "user_name", "user-name"), "user"),
    "port": "port",
    "python": "python",
    "env": "env",
    "gpus": "gpus",
}
_NOT_TEXT = re.compile("[\0-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


@dataclass
class Line:
    """What a line says: hosts (origin not yet set), their columns, mistakes, notices.

    slots: whether they matter to who reads it, and so are worth a notice.
    """

    slots: bool = True
    hosts: list[Host] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    mistakes: list[BadName] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Item:
    """One item of the host list: expression with its offset, and the number behind it."""

    expression: str
    offset: int
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    is_address: bool = False


def parse_line(
    text: str, room: int, resolve: hostset.Resolve | None = None, *, slots: bool = True
) -> Line:
    """What ``text`` says; mistakes are returned, not raised, so that all can be shown.

    room: the most hosts the line may name. slots: False leaves their numbers out.
    """
    line = Line(slots=slots)
    if len(text) > LONGEST_LINE:
        line.mistakes.append(BadName(f"a line of {len(text)} characters (at most {LONGEST_LINE})"))
        return line
    bad_char = _NOT_TEXT.search(text)
    if bad_char:
        line.mistakes.append(BadName(_not_text(bad_char[0]), bad_char.start()))
        return line
    start = _skip(text, 0)
    if _ends(text, start):
        return line
    end = _end_of_hosts(text, start)
    options = _options(text, end, line)
    try:
        for item in _items(text[start:end], start, line):
            names = _names(item, room - len(line.hosts), resolve)
            for name in names:
                host = Host(name, slots=item.slots, user=item.user, port=item.port)
                host = _with(host, options)
                if not slots:
                    host = replace(host, slots=None, max_slots=None, gpus=None)
                line.hosts.append(host)
                line.offsets.append(item.offset)
    except BadName as bad:
        line.mistakes.append(bad)
    line.mistakes.sort(key=lambda bad: bad.offset)
    return line


def _names(item: _Item, room: int, resolve: hostset.Resolve | None) -> list[str]:
    try:
        if item.is_address:
            return [check_host(item.expression)]
        return hostset.expand(item.expression, room, resolve)
    except BadName as bad:
        raise _moved(bad, item.offset) from None


def _not_text(char: str) -> str:
    """Why a control character or an undecodable byte is refused."""
    if char == "\0":
        return "a NUL byte: not a text file"
    if "\udc80" <= char <= "\udcff":
        return f"byte 0x{ord(char) - 0xDC00:02x} is not UTF-8"
    return f"a control character: {shown(char)}"


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
    """The items of the host list; what ``:number`` means is decided here."""
    text = text.replace("\t", " ")
    try:
        if hostset.has_algebra(text):
            return [_Item(text, start)]
        split = hostset.split_list(text)
    except BadName as bad:
        raise _moved(bad, start) from None
    return [_item(item, start + offset, line) for item, offset in split]


def _item(text: str, offset: int, line: Line) -> _Item:
    user, rest, at = None, text, offset
    if "@" in text[1:]:
        user, _, rest = text.partition("@")
        try:
            check_user(user)
        except BadName as bad:
            raise _moved(bad, offset) from None
        at = offset + len(user) + 1
    if not rest:
        raise BadName("a host is missing after '@'", at - 1)
    inside, bracket, tail = rest[1:].partition("]")
    if rest.startswith("[") and bracket and ":" in inside:
        try:
            check_host(inside)
        except BadName as bad:
            hint = "an address goes in brackets; a range is written n[1-3]"
            raise BadName(bad.message, at + 1, hint) from None
        if tail and not tail.startswith(":"):
            raise BadName("text after the bracketed address", at + len(inside) + 2)
        port = _port(tail[1:], at + len(inside) + 3) if tail else None
        return _Item(inside, at, user, port, is_address=True)
    bare = re.sub(r"\[[^\]]*\]", lambda match: "0" * len(match[0]), rest)
    if rest.startswith("@") or bare.count(":") != 1:
        return _Item(rest, at, user)
    colon = bare.index(":")
    name, number, number_at = rest[:colon], rest[colon + 1 :], at + colon + 1
    if not name:
        raise BadName("a host is missing before ':'", at)
    if user is not None:
        port = _port(number, number_at)
        if port <= 16 and line.slots:
            line.notices.append(
                f"{shown(text)}: read as port {port}, because of user@;"
                f" for slots write: {name} user={user} slots={port}"
            )
        return _Item(name, at, user, port)
    slots = _slots(number, number_at, "slots")
    if slots in (22, 2222) or slots > 256:
        meaning = f"read as {slots} slots" if line.slots else f"{slots} is no port here"
        line.notices.append(f"{shown(text)}: {meaning}; for a port write: {name} port={slots}")
    return _Item(name, at, slots=slots)


def _options(text: str, at: int, line: Line) -> dict[str, tuple[int, object]]:
    """Values and offsets by meaning (``slots``, ``env`` ...); mistakes go to ``line``."""
    found: dict[str, tuple[int, object]] = {}
    while not _ends(text, at := _skip(text, at)) and len(line.mistakes) < MOST_MISTAKES:
        word = _KEY.match(text, at)
        equals = _skip(text, word.end()) if word else at
        if not word or text[equals : equals + 1] != "=":
            end = _end_of_word(text, at)
            bare = text[at:end]
            if bare == "spare" and "spare" not in found:
                found["spare"] = at, True
                at = end
                continue
            line.mistakes.append(
                BadName(f"a second word without '=': {shown(bare)}", at, _bare_hint(bare))
            )
            at = end
            continue
        key, key_at = word[0], at
        try:
            value_at = _skip(text, equals + 1)
            value, at = _value(text, value_at)
        except BadName as bad:
            line.mistakes.append(bad)
            return found
        try:
            _add(found, key, key_at, value, value_at, line)
        except BadName as bad:
            line.mistakes.append(bad)
    return found


def _end_of_word(text: str, at: int) -> int:
    while at < len(text) and text[at] not in " \t":
        at += 1
    return at


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
    found: dict[str, tuple[int, object]],
    key: str,
    key_at: int,
    value: str,
    value_at: int,
    line: Line,
) -> None:
    """Put one option into ``found`` under its meaning."""
    meaning = _MEANING.get(key)
    if meaning is None:
        import difflib  # for a mistake only

        near = difflib.get_close_matches(key.lower(), _MEANING, n=1)
        raise BadName(
            f"unknown key {shown(key)}",
            key_at,
            f"did you mean {near[0]}=?"
            if near
            else "known keys: slots max_slots user port python gpus env; or the word spare",
        )
    if meaning in found and meaning != "env":
        raise BadName(f"{key} is given twice", key_at)
    if meaning in ("slots", "max_slots"):
        found[meaning] = key_at, _slots(value, value_at, key)
    elif meaning == "port":
        found[meaning] = key_at, _port(value, value_at)
    elif meaning == "user":
        try:
            found[meaning] = key_at, check_user(value)
        except BadName as bad:
            raise _moved(bad, value_at) from None
    elif meaning == "python":
        found[meaning] = key_at, _python(value, value_at)
    elif meaning == "gpus":
        gpus = _gpus(value, value_at)
        if len(gpus) == 1 and value.isdigit() and value != "0" and line.slots:
            line.notices.append(
                f"gpus={value}: read as the one GPU number {value}; for a count write slots={value}"
            )
        found[meaning] = key_at, gpus
    else:
        _, given = found.setdefault(meaning, (key_at, []))
        assert isinstance(given, list)
        given.append(_variable(value, value_at))


def _slots(text: str, at: int, what: str) -> int:
    if not text:
        raise BadName("a number is missing after ':'", at - 1)
    if text.isascii() and text.isdigit() and not text.strip("0"):
        raise BadName(f"{what}=0: a host without slots takes no rank", at, "remove the host")
    try:
        hint = "a comment needs a blank before its '#'" if "#" in text else None
        return digits(text, what, 1, MOST_SLOTS, hint)
    except BadName as bad:
        raise _moved(bad, at) from None


def _port(text: str, at: int) -> int:
    try:
        return digits(text, "port", 1, 65535)
    except BadName as bad:
        raise _moved(bad, at) from None


def _python(value: str, at: int) -> str:
    if not value or value.startswith("-"):
        raise BadName(f"python: not a program: {shown(value)}", at)
    if value.startswith("~"):
        raise BadName("python: '~' is not expanded", at, "write the whole path")
    return value


def _gpus(value: str, at: int) -> tuple[str, ...]:
    try:
        return parse_gpus(value, MOST_SLOTS)
    except BadName as bad:
        raise _moved(bad, at) from None


def _variable(text: str, at: int) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadName(f"env: no value for {shown(name)}", at, "write env=NAME=VALUE")
    try:
        return check_variable(name), check_value(name, value)
    except BadName as bad:
        raise _moved(bad, at) from None


def _with(host: Host, options: dict[str, tuple[int, object]]) -> Host:
    """``host`` with the line's options; refuses what contradicts itself."""
    for key in ("slots", "port", "user"):
        if key in options and getattr(host, key) is not None:
            raise BadName(f"{key} is given twice: before the blank and as {key}=", options[key][0])
    values: dict[str, Any] = {key: value for key, (_, value) in options.items()}
    values["env"] = tuple(values.get("env", ()))
    host = replace(host, **values)
    gpus = host.gpus
    if gpus is not None:
        if host.slots is None:
            host = replace(host, slots=len(gpus))
        elif host.slots != len(gpus):
            message = f"{host.slots} slots but {len(gpus)} gpus"
            raise BadName(message, options["gpus"][0], "leave slots out: gpus says how many")
    if host.max_slots is not None and host.slots is not None and host.max_slots < host.slots:
        message = f"max_slots={host.max_slots} is less than slots={host.slots}"
        raise BadName(message, options["max_slots"][0])
    return host


def _moved(bad: BadName, by: int) -> BadName:
    return BadName(bad.message, bad.offset + by, bad.hint)
