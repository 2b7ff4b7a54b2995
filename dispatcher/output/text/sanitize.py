r"""Makes bytes from a host safe for a terminal. Pure.

Everything that comes from a host (output, its name, a banner, an error's text) is data. Colour and
weight (SGR, ``ESC [ ... m``) pass. Every other control character, escape sequence, bidirectional
control and invalid byte becomes visible text: ESC ``\x1b``, a bad byte ``\xff``. The result is
idempotent and bounded. Each call is independent, so splitting a sequence cannot hide it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

RESET = b"\x1b[0m"

#: bytes that every terminal only shows
_PLAIN = bytes([0x09, 0x0A, *range(0x20, 0x7F)])

#: bytes of an SGR sequence that may be unfinished
_LONGEST = 67

_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
_UNSAFE = re.compile(
    _COLOUR.pattern  # SGR, kept
    + r"|[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without TAB and LF, DEL, C1
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    r"\u2028\u2029\ufeff\udc80-\udcff]"  # other line ends, a byte order mark, bytes not UTF-8
)

#: halves of surrogate pairs without a byte, which JSON can contain
_HALVES = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")


def sanitize_lines(block: bytes) -> bytes:
    """``block``, any number of lines, without the control sequences of terminals, except colour.

    A line that set a colour gets a reset at its end.
    """
    shown = _visible(block)
    if shown is not block and b"\x1b" in shown:
        shown = b"\n".join(_reset(line) for line in shown.split(b"\n"))
    return shown


def sanitize_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """``sanitize_lines`` for one line that is too long to be held, which comes in any pieces."""
    rest = b""
    coloured = False
    for piece in pieces:
        text = rest + piece
        edge = character_edge(text, len(text))
        escape = text.rfind(b"\x1b", max(0, edge - _LONGEST))
        edge = edge if escape < 0 else escape
        rest, text = text[edge:], _visible(text[:edge])
        coloured = coloured or b"\x1b" in text
        yield text
    text = _visible(rest)
    yield text
    if (coloured or b"\x1b" in text) and not text.endswith(RESET):
        yield RESET


def sanitize(line: bytes) -> bytes:
    """``sanitize_lines`` for text that must stay one line: its line ends are shown as well."""
    return sanitize_lines(line.replace(b"\n", b"\\x0a"))


def sanitize_text(text: str) -> str:
    """``sanitize`` for any text from a host; shows half a surrogate pair, too."""
    return sanitize(_bytes(text)).decode("utf-8")


def cell(text: str, most: int) -> str:
    """``sanitize_text`` for a table: one line without colour, cut to ``most`` characters."""
    shown = _COLOUR.sub("", sanitize_text(text)).replace("\n", " ")
    return shown if len(shown) <= most else shown[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def sanitize_paragraph(text: str) -> str:
    """``sanitize_lines`` for any text of several lines."""
    return sanitize_lines(_bytes(text)).decode("utf-8")


def character_edge(text: bytes, at: int) -> int:
    """``at``, or up to three bytes less, to cut between two UTF-8 characters."""
    for back in range(1, min(4, at + 1)):
        byte = text[at - back]
        if byte & 0xC0 == 0x80:
            continue  # inside of a character
        size = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return at - back if size > back else at
    return at


def _bytes(text: str) -> bytes:
    return _HALVES.sub(_show, text).encode("utf-8", "surrogateescape")


def _visible(block: bytes) -> bytes:
    """``sanitize_lines``, but a colour may last beyond its line."""
    if not block.translate(None, _PLAIN):
        return block
    shown = _UNSAFE.sub(_show, block.decode("utf-8", "surrogateescape"))
    return shown.encode("utf-8", "surrogateescape")


def _reset(line: bytes) -> bytes:
    return line + RESET if b"\x1b" in line and not line.endswith(RESET) else line


def _show(match: re.Match[str]) -> str:
    found = match.group()
    if len(found) > 1:
        return found  # SGR
    code = ord(found)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, through surrogateescape
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
