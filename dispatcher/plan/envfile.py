"""Environment files (``--env-file``, DeepSpeed's ``.deepspeed_env``) to names and values.

A line is ``NAME=VALUE``, ``export NAME=VALUE``, blank, or a ``#`` comment. The
value is everything after the first ``=``::

    A=b=c                  b=c
    A=                     (empty)
    A="x # y"              x # y         \\" and \\\\ are the only escapes
    A='x "y"'              x "y"
    A=x   # why            x             a comment needs a blank before its #
    A={"a": "b"}           {"a": "b"}    quotes matter only as the first character

Nothing is expanded: ``$HOME`` stays ``$HOME``. A name given twice has its last
value. Bytes that are not UTF-8 survive (surrogateescape).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dispatcher.model.errors import Problem, UsageError
from dispatcher.model.names import BadName
from dispatcher.model.text import MOST_PROBLEMS, decoded, lines, problem
from dispatcher.plan.variables import check_value, check_variable

_EXPORT = re.compile(r"export[ \t]+")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
_SINGLE = re.compile(r"'([^']*)'")
_COMMENT = re.compile(r"(?:^|[ \t])#")


class EnvFileError(UsageError):
    """All mistakes of an environment file at once, in line order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def parse_env_file(
    text: bytes | str, source: str, check: Callable[[str], str] = check_variable
) -> dict[str, str]:
    """Names and values of the file, in its order.

    check: raises BadName for a name that it may not set.
    Raises: EnvFileError with every bad line: no ``=``, a bad or reserved name, an
    open quote, text after a closing quote, a NUL.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for number, line in lines(decoded(text)):
        try:
            pair = _pair(line, check)
        except BadName as bad:
            problems.append(problem(source, number, line, bad))
            if len(problems) >= MOST_PROBLEMS:
                break
            continue
        if pair:
            found[pair[0]] = pair[1]
    if problems:
        raise EnvFileError(problems)
    return found


def _pair(line: str, check: Callable[[str], str]) -> tuple[str, str] | None:
    start = len(line) - len(line.lstrip(" \t"))
    if start == len(line) or line[start] == "#":
        return None
    export = _EXPORT.match(line, start)
    if export:
        start = export.end()
    equals = line.find("=", start)
    if equals < 0:
        raise BadName("no '=' in the line", start, "write NAME=VALUE")
    name = line[start:equals]
    try:
        check(name)
    except BadName as bad:
        raise BadName(bad.message, start + bad.offset, bad.hint) from None
    value, at = _value(line, equals + 1)
    try:
        return name, check_value(name, value)
    except BadName as bad:
        raise BadName(bad.message, at + bad.offset, bad.hint) from None


def _value(line: str, start: int) -> tuple[str, int]:
    """The value that begins at ``start``, and the offset where its text begins."""
    if line[start : start + 1] not in ('"', "'"):
        comment = _COMMENT.search(line, start)
        end = comment.start() if comment else len(line)
        value = line[start:end].strip(" \t")
        return value, start
    quoted = (_DOUBLE if line[start] == '"' else _SINGLE).match(line, start)
    if not quoted:
        raise BadName(f"the quote {line[start]} is never closed", start)
    rest = line[quoted.end() :].strip(" \t")
    if rest and not (rest.startswith("#") and line[quoted.end()] in " \t"):
        raise BadName("text after the closing quote", quoted.end(), "quote the whole value")
    value = quoted[1]
    if line[start] == '"':
        value = re.sub(r'\\(["\\])', r"\1", value)
    return value, start + 1
