"""Texts the user wrote, taken apart into lines and made fit to be quoted back.

Shared by the hostfile and the environment file. Does not know what a line means.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.model.errors import Problem
from dispatcher.model.names import BadName

MOST_PROBLEMS = 100  # reported of one file; nobody reads more
LONGEST_LINE = 1 << 17  # characters; also the longest argument Linux passes to a program


def decoded(text: bytes | str) -> str:
    """``text`` as str without a byte order mark; bytes that are not UTF-8 become surrogates."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    return text.removeprefix("\ufeff")


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line; only ``\\n`` and ``\\r\\n`` end a line."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, line.removesuffix("\r")


def display(line: str, limit: int = 400) -> str:
    """``line`` with each control or undecodable character replaced by one mark, and bounded.

    One for one, so that a caret below still points at the right place; a
    terminal must not act on what a file holds.
    """
    cut = line if len(line) <= limit else line[:limit] + "..."
    return "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in cut)


class _FarProblem(Problem):
    """A mistake far to the right: shown by its surroundings, the caret under the right place."""

    def __str__(self) -> str:
        start = self.column - 1 - _BEFORE
        near = Problem("", 0, _BEFORE + 4, "..." + self.text[start:], "")
        shown = str(near).split("\n", 1)[1]
        return "\n".join(
            [self.where + self.message, shown, *([f"  hint: {self.hint}"] if self.hint else [])]
        )


_BEFORE, _AFTER = 60, 40


def problem(source: str, number: int, line: str, bad: BadName, width: int = 1) -> Problem:
    """The mistake ``bad`` of line ``number``, fit to be printed whatever the line holds."""
    text = display(line, bad.offset + _AFTER)
    kind = Problem if bad.offset < 2 * _BEFORE else _FarProblem
    return kind(source, number, bad.offset + 1, text, bad.message, bad.hint, width)
