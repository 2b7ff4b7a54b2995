"""Whole lines out of chunks, made harmless for a terminal; pure.

A line ends at LF, CR LF or a lone CR (progress bars rewrite their line with
it); the last line of a stream may end at nothing. A line longer than the limit
comes in pieces, each but the last with ``CONTINUED`` behind it, so memory
stays bounded; files get the bytes elsewhere, exactly.
"""

from __future__ import annotations

import re

LINE_LIMIT = 64 << 10
CONTINUED = " \N{LEFTWARDS ARROW WITH HOOK}".encode()

_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")


class LineAssembler:
    """The lines of one stream of one rank, without their ends."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes."""
        # a CR at the very end waits: an LF may follow and belong to it
        *lines, rest = _END.split(self._rest + data)
        while len(rest) > LINE_LIMIT:
            lines.append(rest[:LINE_LIMIT] + CONTINUED)
            rest = rest[LINE_LIMIT:]
        self._rest = rest
        return lines

    def finish(self) -> list[bytes]:
        """The last line, when the stream ended without a line end."""
        rest, self._rest = self._rest, b""
        return [rest.removesuffix(b"\r")] if rest else []


#: SGR (colours, bold) may pass; every other escape sequence and control byte becomes text
_PLAIN = re.compile(rb"[\t\x20-\x7e]*")
_SGR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
_UNSAFE = re.compile(
    r"\x1b\[[0-9;:]{0,64}m|[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udcff]"
)


def harmless(line: bytes) -> bytes:
    r"""``line`` with everything a terminal could obey, but colour, shown as text.

    ESC becomes ``\x1b``, invalid UTF-8 ``\xff``, bidi controls ``\u202e``. A line
    that set a colour gets a reset at its end. Idempotent.
    """
    if _PLAIN.fullmatch(line):
        return line
    text = line.decode("utf-8", "surrogateescape")
    shown = _UNSAFE.sub(_show, text)
    if _SGR.search(shown) and not shown.endswith("\x1b[0m"):
        shown += "\x1b[0m"
    return shown.encode("utf-8", "surrogateescape")


def _show(match: re.Match[str]) -> str:
    found = match.group()
    if len(found) > 1:
        return found  # SGR
    code = ord(found)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, through surrogateescape
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def harmless_text(text: str) -> str:
    """``harmless`` for a text that came from a host; line ends are shown too."""
    return harmless(text.encode("utf-8", "surrogateescape")).decode("utf-8")
