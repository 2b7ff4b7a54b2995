"""Texts the user wrote, taken apart into lines and made fit to be quoted back.

Shared by the hostfile and the environment file. Does not know what a line means.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST_PROBLEMS = 100  # reported of one file; nobody reads more


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
