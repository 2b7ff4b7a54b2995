r"""Whole lines out of chunks; pure.

A line ends at LF or CR LF. What stands before a lone CR is overwritten by what
follows, as on a terminal: of ``10%\r20%\r30%\n`` the line is ``30%``, and until
its end comes ``20%`` is its *state*, as progress bars want it. A line longer than
the limit comes in pieces, each but the last with ``CONTINUED`` behind it, so memory
stays bounded. Files get the bytes elsewhere, exactly.
"""

from __future__ import annotations

LINE_LIMIT = 64 << 10
CONTINUED = " \N{LEFTWARDS ARROW WITH HOOK}".encode()


class LineAssembler:
    """The lines of one stream of one rank. All results are whole lines, each ended by LF."""

    def __init__(self) -> None:
        self._rest = b""
        #: whether the unfinished line is one that rewrites itself
        self.is_bar = False

    @property
    def rest(self) -> bytes:
        """The unfinished line, or the state of a bar; b"" if there is none."""
        return self._rest.removesuffix(b"\r")

    def feed(self, data: bytes) -> bytes:
        """The lines that ``data`` completes, b"" if none."""
        end = data.rfind(b"\n") + 1
        if not end:
            return self._keep(self._rest + data)
        block = b"".join((self._rest, memoryview(data)[:end]))
        self.is_bar = False
        if b"\r" in block:
            block = _overwritten(block)
        if _has_long(block):
            block = _split(block)
        return block + self._keep(data[end:])

    def flush(self) -> bytes:
        """The unfinished line as it stands, marked; what comes later is a line of its own."""
        edge = character_edge(self._rest, len(self._rest))
        text, self._rest = self._rest[:edge], self._rest[edge:]
        return text + CONTINUED + b"\n" if text else b""

    def finish(self) -> bytes:
        """The last line, when the stream ended without a line end."""
        text, self._rest = self.rest, b""
        if self.is_bar and not text.strip():
            return b""  # a bar that wiped itself out
        return text + b"\n" if text else b""

    def _keep(self, text: bytes) -> bytes:
        """Hold the unfinished line ``text``; what of it must leave because it is too long."""
        if b"\r" in text:
            # a CR at the very end waits: an LF may follow and belong to it
            state = text.rstrip(b"\r")
            start = state.rfind(b"\r") + 1
            self.is_bar = True
            text = state[start:] + (b"\r" if len(state) < len(text) else b"")
        pieces = b""
        while len(text) > LINE_LIMIT:
            edge = character_edge(text, LINE_LIMIT)
            pieces += text[:edge] + CONTINUED + b"\n"
            text = text[edge:]
        self._rest = text
        return pieces


def _overwritten(block: bytes) -> bytes:
    """``block`` with only the last state of each line that holds a lone CR."""
    block = block.replace(b"\r\n", b"\n")
    if b"\r" not in block:
        return block
    lines = block.split(b"\n")
    for at, line in enumerate(lines):
        if b"\r" in line:
            state = next((part for part in reversed(line.split(b"\r")) if part), b"")
            lines[at] = state if state.strip() else b""
    return b"\n".join(lines)


def _has_long(block: bytes) -> bool:
    """Whether a line of ``block`` is longer than the limit; looks at few of its bytes."""
    at = 0
    while len(block) - at > LINE_LIMIT:
        end = block.rfind(b"\n", at, at + LINE_LIMIT + 1)
        if end < 0:
            return True
        at = end + 1
    return False


def _split(block: bytes) -> bytes:
    """``block`` with its overlong lines in marked pieces."""
    lines = block.split(b"\n")
    for at, line in enumerate(lines):
        pieces = []
        while len(line) > LINE_LIMIT:
            edge = character_edge(line, LINE_LIMIT)
            pieces.append(line[:edge] + CONTINUED)
            line = line[edge:]
        if pieces:
            lines[at] = b"\n".join([*pieces, line])
    return b"\n".join(lines)


def character_edge(text: bytes, at: int) -> int:
    """``at``, or up to three bytes less, so that no UTF-8 character is cut there."""
    for back in range(1, min(4, at + 1)):
        byte = text[at - back]
        if byte & 0xC0 == 0x80:
            continue  # inside of a character
        size = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return at - back if size > back else at
    return at
