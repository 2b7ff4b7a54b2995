"""The text of an ``ssh_config`` file as lines of keyword and words.

OpenSSH's own reading, followed to the letter because a config read a little
differently sends somebody to another host: a keyword ends at white space, a
quote or one ``=``; words may be quoted with either quote; a backslash escapes
quotes, itself and a space; ``#`` starts a comment only at the start of a word.

What the words mean is no business of this file.
"""

from __future__ import annotations

from dataclasses import dataclass

_SPACE = " \t\r\n"


class ConfigProblem(Exception):
    """A config that cannot be followed; the text is ``file:line: why``."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.hint = hint


@dataclass(frozen=True)
class Line:
    """One directive: its keyword in lower case, the rest as text and as words."""

    place: str  # "file:line"
    keyword: str
    rest: str
    words: tuple[str, ...]


def parse(text: str, name: str) -> tuple[Line, ...]:
    """The directives of a file, in order.

    Raises: ConfigProblem for a keyword without a value, an open quote and a NUL.
    """
    lines = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = _parse_line(raw, f"{name}:{number}")
        if line is not None:
            lines.append(line)
    return tuple(lines)


def _parse_line(raw: str, place: str) -> Line | None:
    text = raw.rstrip(_SPACE + "\f").lstrip(_SPACE)
    if not text or text.startswith("#"):
        return None
    if "\0" in text:  # ssh takes half of the line, and no file or user has such a name
        raise ConfigProblem(f"{place}: a NUL byte")
    keyword, rest = _split_keyword(text, place)
    if not keyword:
        return None
    if not rest:
        raise ConfigProblem(f"{place}: {keyword}: no value")
    return Line(place, keyword.lower(), rest, split_words(rest, place))


def _split_keyword(text: str, place: str) -> tuple[str, str]:
    for index, char in enumerate(text):
        if char == '"':
            quoted, found, after = text[index + 1 :].partition('"')
            if not found:
                raise ConfigProblem(f"{place}: no closing quote")
            return text[:index] + quoted, after.lstrip(_SPACE)
        if char in _SPACE or char == "=":
            rest = text[index:].lstrip(_SPACE)
            return text[:index], rest[1:].lstrip(_SPACE) if rest.startswith("=") else rest
    return text, ""


def split_words(text: str, place: str) -> tuple[str, ...]:
    """The words of a value, quotes removed, up to a comment.

    Raises: ConfigProblem when a quote is not closed.
    """
    words: list[str] = []
    index = 0
    while index < len(text):
        if text[index] in " \t":
            index += 1
            continue
        if text[index] == "#":
            break
        word, index = _read_word(text, index, place)
        words.append(word)
    return tuple(words)


def _read_word(text: str, index: int, place: str) -> tuple[str, int]:
    word: list[str] = []
    quote = ""
    while index < len(text):
        char = text[index]
        following = text[index + 1 : index + 2]
        escapes = following in ("'", '"', "\\") or (following == " " and not quote)
        if char == "\\" and following and escapes:
            index += 1
            word.append(following)
        elif not quote and char in " \t":
            break
        elif not quote and char in "'\"":
            quote = char
        elif char == quote:
            quote = ""
        else:
            word.append(char)
        index += 1
    if quote:
        raise ConfigProblem(f"{place}: no closing quote")
    return "".join(word), index
