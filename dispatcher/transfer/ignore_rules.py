"""Rules of ignore files, as of gitignore(5), to the letter of git's ``dir.c`` and ``wildmatch.c``.

Names are bytes; ``*`` and ``[...]`` match no slash, ``**`` between slashes does. The last rule that
matches decides, of the deepest file that has one; all files in an ignored folder are ignored. Each
rule becomes a regular expression, and neighbouring rules of one kind are asked as one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

#: characters that end the literal beginning of a pattern
_SPECIAL = b"*?[\\"
_NEVER = b"(?!)"
_CLASSES = {
    b"alnum": b"0-9A-Za-z", b"alpha": b"A-Za-z", b"blank": b" \\t", b"cntrl": b"\\x00-\\x1f\\x7f",
    b"digit": b"0-9", b"graph": b"!-~", b"lower": b"a-z", b"print": b" -~",
    b"punct": b"!-/:-@\\[-`{-~", b"space": b" \\t-\\r", b"upper": b"A-Z", b"xdigit": b"0-9A-Fa-f",
}  # fmt: skip


class _Rule:
    """One line. path: it is about a path, not a name alone. folders: about folders only."""

    __slots__ = ("again", "folders", "path", "regex")

    def __init__(self, line: bytes) -> None:
        self.again = line.startswith(b"!")
        pattern = line[1:] if self.again else line
        self.folders = pattern.endswith(b"/")
        if self.folders:
            pattern = pattern[:-1]
        self.path = b"/" in pattern
        if self.path and pattern.startswith(b"/"):
            pattern = pattern[1:]
        literal = next((at for at, c in enumerate(pattern) if c in _SPECIAL), len(pattern))
        # git reads the characters beside ** only after the literal beginning
        self.regex = re.escape(pattern[:literal]) + translate(pattern[literal:], paths=self.path)


class Rules:
    """The rules of one folder's file, or files in their order. texts: of the files."""

    def __init__(self, *texts: bytes) -> None:
        rules = [_Rule(line) for text in texts for line in _lines(text)]
        self._runs: list[tuple[bool, list[_Rule]]] = []  # the last one first
        for rule in rules:
            if not self._runs or self._runs[-1][0] != rule.again:
                self._runs.append((rule.again, []))
            self._runs[-1][1].append(rule)
        self._runs.reverse()
        self._compiled: dict[bool, list[tuple[bool, _Match, _Match]]] = {}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def ignored(self, path: bytes, *, folder: bool) -> bool | None:
        """Whether ``path``, relative to the rules' folder, is ignored; None: no rule matches.

        folder: whether it is a folder, not a link to one.
        """
        if folder not in self._compiled:
            self._compiled[folder] = [
                (again, *_both([rule for rule in run if folder or not rule.folders]))
                for again, run in self._runs
            ]
        name = path[path.rfind(b"/") + 1 :]
        for again, of_name, of_path in self._compiled[folder]:
            if (of_name is not None and of_name.fullmatch(name)) or (
                of_path is not None and of_path.fullmatch(path)
            ):
                return not again
        return None


_Match = re.Pattern[bytes] | None


def _both(run: Sequence[_Rule]) -> tuple[_Match, _Match]:
    """The expression for names, and the one for paths, of all rules of ``run``."""
    found: list[_Match] = []
    for path in (False, True):
        regexes = [rule.regex for rule in run if rule.path == path]
        whole = b"|".join(b"(?:%s)" % regex for regex in regexes)
        found.append(re.compile(whole, re.DOTALL) if regexes else None)
    return found[0], found[1]


def _lines(text: bytes) -> list[bytes]:
    """The lines that are rules."""
    found = []
    for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line.startswith(b"#"):
            continue
        line = _trimmed(line.removesuffix(b"\r").partition(b"\0")[0])
        if line:
            found.append(line)
    return found


def _trimmed(line: bytes) -> bytes:
    """``line`` without spaces at its end, unless a backslash keeps them."""
    at = end = 0
    while at < len(line):
        if line[at : at + 1] == b"\\":
            if at + 1 == len(line):
                return line
            at += 1
            end = at + 1
        elif line[at : at + 1] != b" ":
            end = at + 1
        at += 1
    return line[:end]


#: tokens of a pattern beside texts that match themselves: any bytes of one name, ``**/``,
#: and ``**`` at the end of a path
_STAR, _DEEP, _ALL = b"*", b"**/", b"**"
#: numbers of groups: one for each star, as rules are joined to one expression
_GROUPS = itertools.count()


def translate(pattern: bytes, *, paths: bool) -> bytes:
    """``pattern`` as a regular expression for a whole match. paths: a slash is not just a byte.

    It matches in time that is at most the square of the path's length, whatever the pattern.
    """
    tokens = _tokens(pattern, paths=paths)
    if tokens is None:
        return _NEVER
    some = b"[^/]*" if paths else b".*"
    *before, last = _split(tokens, (_DEEP, _ALL))
    return b"".join(
        [*(_found_first(lead, _section(inner, some)) for lead, inner in before),
         _LEADS[last[0]] + _section(last[1], some, is_last=True)]
    )  # fmt: skip


#: expressions for the text before the part of a path that follows a ``**``
_LEADS = {b"": b"", _DEEP: b"(?:.*?/)??", _ALL: b".*?"}


def _split(tokens: list[bytes], at: tuple[bytes, ...]) -> list[tuple[bytes, list[bytes]]]:
    """``tokens`` cut at those of ``at``: each piece with the token before it, "" at first."""
    pieces: list[tuple[bytes, list[bytes]]] = [(b"", [])]
    for token in tokens:
        if token in at:
            pieces.append((token, []))
        else:
            pieces[-1][1].append(token)
    return pieces


def _section(tokens: list[bytes], some: bytes, *, is_last: bool = False) -> bytes:
    """The expression for the tokens between two ``**``."""
    (_, first), *rest = _split(tokens, (_STAR,))
    found = [b"".join(first)]
    for at, (_, part) in enumerate(rest, 1):
        text = b"".join(part)
        ends = is_last and at == len(rest)
        found.append(some + text if ends else _found_first(b"", text, some + b"?"))
    return b"".join(found)


def _found_first(lead: bytes, text: bytes, some: bytes = b"") -> bytes:
    """``text`` where it is first found after a lead or ``some``, and tried nowhere else.

    The first place is as good as any, since the rest may begin anywhere after it. A lookahead
    does not go back, so that no pattern makes a match slow.
    """
    if not (before := some or _LEADS[lead]):
        return text
    group = b"g%d" % next(_GROUPS)
    return b"(?=(?P<%s>%s%s))(?P=%s)" % (group, before, text, group)


def _tokens(pattern: bytes, *, paths: bool) -> list[bytes] | None:
    """The tokens of ``pattern``; None if it matches nothing."""
    out: list[bytes] = []
    at = 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        if char == b"\\":
            if at + 1 == len(pattern):
                return None
            out.append(re.escape(pattern[at + 1 : at + 2]))
            at += 2
        elif char == b"?":
            out.append(b"[^/]" if paths else b".")
            at += 1
        elif char == b"*":
            end = at
            while pattern[end : end + 1] == b"*":
                end += 1
            begins = at == 0 or pattern[at - 1 : at] == b"/"
            if end - at > 1 and paths and begins and pattern[end : end + 1] == b"/":
                out.append(_DEEP)
                end += 1
            elif end - at > 1 and paths and begins and pattern[end : end + 2] in (b"", b"\\/"):
                out.append(_ALL)
            else:
                out.append(_STAR)
            at = end
        elif char == b"[":
            inner, at = _bracket(pattern, at + 1)
            out.append((b"(?!/)" if paths else b"") + inner)
        else:
            out.append(re.escape(char))
            at += 1
    return out


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The regular expression of a bracket, and where it ends. at: after ``[``."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members: list[bytes] = []
    before = -1  # the byte that a range could begin with
    first = True
    while first or pattern[at : at + 1] != b"]":
        first = False
        char = pattern[at : at + 1]
        if char == b"\\":
            at += 1
            char = pattern[at : at + 1]
            if not char:
                return _NEVER, len(pattern)
            members.append(_byte(char[0]))
            before = char[0]
        elif char == b"-" and before >= 0 and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            if pattern[at : at + 1] == b"\\":
                at += 1
            char = pattern[at : at + 1]
            if not char:
                return _NEVER, len(pattern)
            if before <= char[0]:
                members.append(_byte(before) + b"-" + _byte(char[0]))
            before = -1
        elif char == b"[" and pattern[at + 1 : at + 2] == b":":
            close = pattern.find(b"]", at + 2)
            if close < 0:
                return _NEVER, len(pattern)
            if close > at + 2 and pattern[close - 1 : close] == b":":
                known = _CLASSES.get(pattern[at + 2 : close - 1])
                if known is None:
                    return _NEVER, len(pattern)
                members.append(known)
                before, at = -1, close
            else:
                members.append(b"\\[")
                before = char[0]
        elif not char:
            return _NEVER, len(pattern)
        else:
            members.append(_byte(char[0]))
            before = char[0]
        at += 1
    if not members:
        return (b"." if negated else _NEVER), at + 1
    return b"[" + (b"^" if negated else b"") + b"".join(members) + b"]", at + 1


def _byte(value: int) -> bytes:
    return b"\\x%02x" % value
