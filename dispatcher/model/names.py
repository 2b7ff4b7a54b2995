"""Which texts may stand for a host, a user, a port; and texts and numbers as messages show them.

A name ends up in an ``ssh`` argument list, in a DNS query and in file names. So the rule is an
allow-list, stricter than OpenSSH's own ``valid_hostname`` and ``valid_ruser`` (ssh.c). Whether a
name resolves is not asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from dispatcher.model.errors import Problem, UsageError

LONGEST_HOST = 253  # RFC 1035 3.1: 255 octets on the wire, 253 in text
LONGEST_USER = 64

#: how similar two names must be for one to be a typing error of the other, as ``difflib`` measures;
#: and how many are compared
_ALIKE = 0.65
_MOST_ALIKE = 1000

_HOST = re.compile(r"[A-Za-z0-9_.-]+\Z")
_ZONE = re.compile(r"[A-Za-z0-9_.-]+\Z")
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")
#: a word for a job that is no name of one: the newest, or what begins as a run id does
_OTHER_JOB = re.compile(r"latest\Z|[0-9]{8}-[0-9]{6}")
_USER_REFUSED = frozenset("'`\"$\\;&<>|(){},@:/#[]*?!~^=%")


class BadName(ValueError):
    """A text that cannot be a name; ``offset`` counts characters from 0 to the culprit."""

    def __init__(self, message: str, offset: int = 0, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.hint = hint


@contextmanager
def offset_by(offset: int) -> Iterator[None]:
    """Move the position of a BadName in this context by ``offset`` characters."""
    try:
        yield
    except BadName as bad:
        raise BadName(bad.message, offset + bad.offset, bad.hint) from None


def quoted(text: str, limit: int = 60) -> str:
    """``text`` quoted for a message: one line, ASCII, no control characters, bounded."""
    cut = text if len(text) <= limit else text[:limit] + "..."
    return ascii(cut)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that ``word`` may be meant for, if any: much like it, or begun like it.

    Case, ``_`` for ``-`` and an option's dashes do not count. Names whose numbers differ in value
    are names of different things: ``n2`` is not meant where ``n1`` stands, but ``n01`` may be.
    """
    import difflib  # for a mistake only

    plain = {name.lower().replace("_", "-").lstrip("-"): name for name in known}
    typed = word.lower().replace("_", "-").lstrip("-")
    numbers = _values(typed)
    alike = [name for name in plain if _values(name) == numbers][:_MOST_ALIKE]
    near = difflib.get_close_matches(typed, alike, 1, _ALIKE)
    if not near and len(typed) > 1 and not typed[-1].isdigit():
        begun = [name for name in plain if name.startswith(typed)]
        near = begun if len(begun) == 1 else []
    return plain[near[0]] if near else None


def _values(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]{1,18}", name)]


def is_ipv6(text: str) -> bool:
    """Whether ``text`` is an IPv6 address, with or without a ``%zone``."""
    address, percent, zone = text.partition("%")
    if percent and not _ZONE.match(zone):
        return False
    import ipaddress  # which takes its time, and few names ask for

    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def check_host(name: str) -> str:
    """``name`` itself, fit to be a host: a DNS name, an ssh alias, an address. Raises: BadName."""
    if not name:
        raise BadName("empty host name")
    if len(name.rstrip(".")) > LONGEST_HOST:
        raise BadName(f"host name of {len(name)} characters (at most {LONGEST_HOST})")
    if name.startswith("-"):
        raise BadName(
            f"host name starts with '-': {quoted(name)}",
            hint="a host name starts with a letter or a digit; ssh options go elsewhere",
        )
    if ":" in name:
        if is_ipv6(name):
            return name
        raise BadName(
            f"not an IPv6 address, and ':' has no place in a host name: {quoted(name)}",
            name.index(":"),
        )
    if not _HOST.match(name):
        offset = next(i for i, char in enumerate(name) if not _HOST.match(char))
        raise BadName(
            f"{quoted(name[offset])} has no place in a host name: {quoted(name)}",
            offset,
            _hint_for(name[offset]),
        )
    if not any(char.isalnum() for char in name) or ".." in name or name.startswith("."):
        raise BadName(f"not a host name: {quoted(name)}")
    return name


def _hint_for(char: str) -> str | None:
    if char.isspace():
        return None if char == " " else "a special blank; type a plain blank"
    if not char.isascii():
        return "write the name in ASCII, an international name in its xn-- form"
    return {
        "{": "ranges are written n[1-3]",
        "*": "patterns are not expanded; write a range, n[1-3]",
        "?": "patterns are not expanded; write a range, n[1-3]",
        "#": "a comment needs a blank before its '#'",
        "=": "the host comes first, then its options: n1 slots=8",
        ";": "separate hosts by commas or lines",
    }.get(char)


def check_job(name: str) -> str:
    """``name`` itself, fit to be the name of a job. Raises: BadName."""
    if not _JOB.match(name):
        raise BadName(
            f"not the name of a job: {quoted(name)}",
            hint="letters, digits and -_. (not first: - and .), at most 64",
        )
    if _OTHER_JOB.match(name):
        raise BadName(f"{quoted(name)} already means another job", hint="begin with a word")
    return name


def check_user(name: str) -> str:
    """``name`` itself, fit to be a login name, on which no shell or ssh acts. Raises: BadName."""
    if not name:
        raise BadName("empty user name", hint="write user@host")
    if len(name) > LONGEST_USER:
        raise BadName(f"user name of {len(name)} characters (at most {LONGEST_USER})")
    if name.startswith("-"):
        raise BadName(f"user name starts with '-': {quoted(name)}")
    for offset, char in enumerate(name):
        if not " " < char < "\x7f" or char in _USER_REFUSED:
            raise BadName(f"{quoted(char)} has no place in a user name: {quoted(name)}", offset)
    return name


def check_interface(name: str) -> str:
    """``name`` itself, fit to be a network interface: up to 15 characters (IFNAMSIZ).

    Raises: BadName, also for lists and patterns: only some libraries take these.
    """
    if not 0 < len(name) < 16:
        raise BadName(f"interface name of {len(name)} characters (1 to 15): {quoted(name)}")
    for offset, char in enumerate(name):
        if not "!" <= char <= "~" or char in "/,=^*'\"\\":
            raise BadName(
                f"{quoted(char)} has no place in an interface name: {quoted(name)}", offset
            )
    return name


def digits(text: str, what: str, low: int, high: int, hint: str | None = None) -> int:
    """The number written in ``text``, plain ASCII digits, ``low`` to ``high`` inclusive.

    Raises: BadName naming ``what``; a long text first, as ``int`` of many digits is slow.
    """
    if not text.isascii() or not text.isdigit():
        raise BadName(f"{what}: not a whole number: {quoted(text)}", hint=hint)
    if len(text) > 18:
        raise BadName(f"{what}: a number of {len(text)} digits (at most {high})")
    value = int(text)
    if not low <= value <= high:
        raise BadName(f"{what}: {value} is not between {low} and {high}", hint=hint)
    return value


MOST_RANKS = 1_000_000
MOST_PROBLEMS = 100  # reported of one file; a reader needs no more
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
LONGEST_LINE = 1 << 17  # characters; also the longest argument Linux passes to a program


def plural(count: int, noun: str, many: str | None = None) -> str:
    """``1 host``, ``2 hosts``; many: the plural, where that is not made with an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def size(nbytes: float) -> str:
    """A number of bytes as text: ``17 B``, ``64 KiB``, ``1.5 MiB``."""
    unit = 0
    while nbytes >= 1024 and unit < len(_UNITS) - 1:
        nbytes /= 1024
        unit += 1
    return f"{nbytes:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def fold_numbers(numbers: Iterable[int], name: Callable[[int], str] = str) -> str:
    """``0-3,7`` for any order of 0, 1, 2, 3 and 7; ``name`` writes one number."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(name(a) if a == b else f"{name(a)}-{name(b)}" for a, b in runs)


def clock(seconds: float) -> str:
    """``0:12:34``."""
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def duration(seconds: float) -> str:
    """``5 s``, ``3 min``, ``2 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds < 1 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def decoded(text: bytes | str) -> str:
    """``text`` as str without a byte order mark; bytes that are not UTF-8 become surrogates."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    return text.removeprefix("\ufeff")


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line; only ``\\n`` and ``\\r\\n`` end a line."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, line.removesuffix("\r")


def printable(line: str, limit: int = 400) -> str:
    """``line`` with each control or undecodable character replaced by one mark, and bounded.

    One for one, so that a caret below points right; a terminal must not act on what a file holds.
    """
    cut = line if len(line) <= limit else line[:limit] + "..."
    return "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in cut)


def line_problem(source: str, number: int, line: str, bad: BadName, width: int = 1) -> Problem:
    """The mistake ``bad`` of line ``number``, fit to be printed whatever the line holds."""
    text = printable(line, bad.offset + 40)
    return Problem(source, number, bad.offset + 1, text, bad.message, bad.hint, width)


def parse_count(text: str, flag: str, high: int = MOST_RANKS) -> int:
    """The whole number >= 1 written in ``text``. Raises: UsageError naming ``flag``."""
    try:
        return digits(text, flag, 1, high)
    except BadName as bad:
        raise UsageError(bad.message, hint=f"{flag} takes a whole number from 1") from None
