r"""Whole lines out of chunks, of any length, within bounded memory.

A line ends at LF or CR LF; a program gets the CR, too. Text before a lone CR is overwritten by the
text after it, as on a terminal: of ``10%\r20%\r30%\n`` the line is ``30%``; until its end comes,
``20%`` is its *state*. Lines that a program goes back to and redraws are states as well
(``bar_block``).
For a person, on a terminal, a line longer than the limit comes in pieces, each but the last with
``CONTINUED`` after it. For a program it stays whole: its beginning waits in ``Spill``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import chain

from dispatcher.model.errors import reason
from dispatcher.model.names import size
from dispatcher.model.paths import write_all
from dispatcher.output.text.bar_block import BarBlock, block_start
from dispatcher.output.text.sanitize import character_edge

#: bytes that ``Spill`` takes at most
LIMIT = 4 << 30


BLOCK = 64 << 10


class Spill:
    """A temporary file for long lines, made at the first use, for one thread.

    broken: lines that had to be shown in pieces; lost: bytes that could not be read back.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._fd: int | None = None
        self._free: list[int] = []
        self._blocks = 0  # in the file
        self._why = ""
        self.broken = 0
        self.lost = 0

    def put(self, data: bytes) -> list[int] | None:
        """Keep whole blocks; return their numbers, or None if there is no room for all of them."""
        numbers: list[int] = []
        try:
            if self._fd is None:
                self._open()
            for at in range(0, len(data), BLOCK):
                numbers.append(self._take())
                self._write(numbers[-1], data[at : at + BLOCK])
        except OSError as error:
            self._why = reason(error)
            self.free(numbers)
            return None
        return numbers

    def read(self, number: int) -> bytes:
        """The block ``number``; a text about lost bytes if the disk fails."""
        assert self._fd is not None
        with contextlib.suppress(OSError):
            data = os.pread(self._fd, BLOCK, number * BLOCK)
            if len(data) == BLOCK:
                return data
        self.lost += BLOCK
        return f"[dispatch: {BLOCK:,} bytes lost here]".encode()

    def free(self, numbers: list[int]) -> None:
        """Free the blocks ``numbers``."""
        self._free += numbers
        if self._fd is not None and len(self._free) == self._blocks:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            self._blocks = 0
            self._free.clear()

    def close(self) -> None:
        """Drop all blocks and the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def words(self) -> list[str]:
        """The notes, at the end, about lines that are not whole."""
        found = []
        if self.broken:
            from tempfile import gettempdir  # slow to load, and rarely needed

            lines = "1 line" if self.broken == 1 else f"{self.broken:,} lines"
            found.append(
                f"{lines} of more than {size(BLOCK)} came in pieces, as marked: "
                f"no room in {gettempdir()}: {self._why}"
            )
        if self.lost:
            found.append(f"{self.lost:,} bytes of long lines were lost, as marked")
        return found

    def _open(self) -> None:
        import tempfile

        with tempfile.TemporaryFile(prefix="dispatch-", buffering=0) as file:
            self._fd = os.dup(file.fileno())
        free = os.fstatvfs(self._fd)
        self._limit = min(self._limit, free.f_bavail * free.f_frsize // 2)

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        if (self._blocks + 1) * BLOCK > self._limit:
            raise OSError(f"it may take {size(self._limit)} at most")
        self._blocks += 1
        return self._blocks - 1

    def _write(self, number: int, data: bytes) -> None:
        assert self._fd is not None
        os.lseek(self._fd, number * BLOCK, os.SEEK_SET)
        write_all(self._fd, data)


class LongLine:
    """The beginning of a line, in ``spill``; the caller has the rest."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers) * BLOCK

    def take(self, text: bytes) -> bytes | None:
        """Add whole blocks of ``text``; return the rest, or None if there is no room."""
        end = len(text) // BLOCK * BLOCK
        numbers = self._spill.put(text[:end])
        if numbers is None:
            return None
        self._numbers += numbers
        return text[end:]

    def pieces(self) -> Iterator[bytes]:
        """The blocks of the line so far."""
        return map(self._spill.read, self._numbers)

    def drop(self) -> None:
        """Free the blocks of the line."""
        self._spill.free(self._numbers)
        self._numbers = []


LINE_LIMIT = 64 << 10
CONTINUED = " \N{LEFTWARDS ARROW WITH HOOK}".encode()

#: takes a line longer than the limit: its pieces, and the text after them
Long = Callable[[Iterator[bytes], bytes], None]


class LineAssembler:
    """Makes whole lines, each ended by LF, from one stream of one rank.

    limit: bytes at which a line is cut. long: if given, it gets each longer line whole instead,
    before the results in which it would else be; ``spill`` keeps the line until then. bars:
    lines that rewrite themselves come in their last state; else all bytes come. keep_ends: CR LF
    stays, as for a program.
    """

    def __init__(
        self,
        long: Long | None = None,
        spill: Spill | None = None,
        *,
        limit: int = LINE_LIMIT,
        bars: bool = True,
        keep_ends: bool = False,
    ) -> None:
        self._bars = bars
        self._keep_ends = keep_ends
        self._limit = limit
        self._long = long
        self._spill = spill
        self._head = None if spill is None else LongLine(spill)
        self._rest = b""
        self._is_cut = self._redrawn = False
        #: the bars below each other that are redrawn now
        self.block: BarBlock | None = None
        #: whether the unfinished line is one that rewrites itself
        self.is_bar = False

    @property
    def rest(self) -> bytes:
        """The unfinished line, or the state of a bar, or of several, each a line; b"" if none."""
        if self.block is not None:
            return self.block.rest
        rest = self._rest.removesuffix(b"\r") if self._bars else self._rest
        return wiped_bar(rest) if self.is_bar else rest

    def feed(self, data: bytes) -> bytes:
        """The lines that ``data`` completes, b"" if none."""
        if self.block is not None:
            return self._redraw(data)
        if self._bars and (b"\x1b" in data or b"\x1b" in self._rest[-5:]) and not self._head:
            text, known = self._rest + data, len(self._rest)
            if (start := block_start(text, known, self.is_bar)) is not None:
                lines = self.feed(data[: start - known]) if start else b""
                self.block, self.is_bar, self._rest = BarBlock(), True, b""
                return lines + self._redraw(text[start:])
        end = data.rfind(b"\n") + 1
        if not end:
            return self._keep(self._rest + data)
        block = b"".join((self._rest, memoryview(data)[:end]))
        if self._head:
            block = self._ended(block)
        if self._bars and (self._redrawn or b"\r" in block):
            block = _overwritten(block, self._redrawn, keep_ends=self._keep_ends)
        return self._left(block, data[end:])

    def rested(self) -> bytes:
        """The lines of bars that the program has left; must be called once a tick."""
        return self.finish() if self.block is not None and self.block.has_rested() else b""

    def state(self) -> bytes:
        """The unfinished line so far, marked, to show it before its end; b"" if it is long.

        It still comes whole when it ends.
        """
        text = b"" if self._head else self.rest
        text = text[: character_edge(text, len(text))]
        mark = CONTINUED + b"\n"
        return text.replace(b"\n", mark) + mark if text.strip() else b""

    def flush(self) -> bytes:
        """Take out the unfinished line so far, marked; its rest becomes another line."""
        if self.block is not None:
            return self.finish()
        edge = character_edge(self._rest, len(self._rest))
        text, self._rest = self._rest[:edge], self._rest[edge:]
        if self._head:
            self._tell(text, CONTINUED + b"\n")
            return b""
        return text + CONTINUED + b"\n" if text else b""

    def finish(self) -> bytes:
        """The last line, when the stream ended without a line end."""
        text, self._rest, self.block = self.rest, b"", None
        if self._head:
            self._tell(text, b"\n")
            return b""
        is_bar, self.is_bar = self.is_bar, False
        if is_bar and not text.strip():
            return b""  # a bar that wiped itself out
        return text + b"\n" if text else b""

    def _redraw(self, data: bytes) -> bytes:
        assert self.block is not None
        lines, block = self.block.feed(data), self.block
        if not block.is_left:
            return lines
        self.block, (left, rest) = None, block.leave()
        return self._left(lines + left, rest)

    def _left(self, lines: bytes, rest: bytes) -> bytes:
        """``lines``, ready to show, and the pieces of the unfinished ``rest`` above the limit."""
        self.is_bar = self._is_cut = self._redrawn = False
        if self._head is None and _has_long(lines, self._limit):
            lines = _split(lines, self._limit)
        return lines + self._keep(rest)

    def _ended(self, block: bytes) -> bytes:
        """The lines in ``block`` after the end of the long line, which is given away."""
        assert self._head is not None
        line, _, lines = block.partition(b"\n")
        if self._bars and b"\r" in line.removesuffix(b"\r"):
            self._head.drop()
            return block
        self._tell(line if self._keep_ends else line.removesuffix(b"\r"), b"\n")
        self._redrawn = False
        return lines

    def _tell(self, text: bytes, end: bytes) -> None:
        """Give away the long line; ``text`` is its last part."""
        assert self._long is not None
        assert self._head is not None
        self._long(chain(self._head.pieces(), (text,)), end)
        self._head.drop()

    def _keep(self, text: bytes) -> bytes:
        """Hold the unfinished line ``text``; return the pieces that exceed the limit."""
        if self._bars and b"\r" in text:
            # a CR at the very end waits: an LF may follow and belong to it
            state = text.rstrip(b"\r")
            start = state.rfind(b"\r") + 1
            self.is_bar = True
            self._redrawn |= start > 0 or len(text) - len(state) > 1
            if start and self._head:
                self._head.drop()
            text = state[start:] + (b"\r" if len(state) < len(text) else b"")
        pieces = b""
        if len(text) > self._limit:
            text, pieces = self._put_aside(text)
        self._rest = text
        return pieces

    def _put_aside(self, text: bytes) -> tuple[bytes, bytes]:
        """(the part of ``text`` to hold, the pieces to return)."""
        if self._head is not None:
            body = text.rstrip(b"\r") if self._bars else text
            rest = self._head.take(body)
            if rest is not None:
                return rest + text[len(body) :], b""
            if self._head:
                self._tell(b"", CONTINUED + b"\n")
            assert self._spill is not None
            self._spill.broken += not self._is_cut
            self._is_cut = True
        pieces, text = _cut(text, self._limit)
        return text, pieces


class ExactLines:
    """Passes the bytes of one stream unchanged, in pieces that end with a line, for programs.

    A line longer than ``LINE_LIMIT`` waits in ``spill`` for its end.
    """

    def __init__(self, spill: Spill) -> None:
        self._head = LongLine(spill)
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that ``data`` completes, or a piece of one that cannot be put aside."""
        end = data.rfind(b"\n") + 1
        if end:
            yield from self.finish()
            yield data[:end]
        self._rest += data[end:]
        if len(self._rest) > LINE_LIMIT:
            left = self._head.take(self._rest)
            if left is None:
                yield from self.finish()
            else:
                self._rest = left

    def finish(self) -> Iterator[bytes]:
        """The unfinished line."""
        yield from self._head.pieces()
        yield self._rest
        self._head.drop()
        self._rest = b""


def _overwritten(block: bytes, redrawn: bool, *, keep_ends: bool = False) -> bytes:
    """``block`` with only the last state of each line with a lone CR.

    redrawn: the first line is the last state of such a line. keep_ends: CR LF stays.
    """
    if not keep_ends:
        block = block.replace(b"\r\n", b"\n")
        if not redrawn and b"\r" not in block:
            return block
    lines = block.split(b"\n")
    for at, line in enumerate(lines):
        body = line.removesuffix(b"\r") if keep_ends else line
        if b"\r" in body or (redrawn and at == 0):
            state = next((part for part in reversed(line.split(b"\r")) if part), b"")
            state = wiped_bar(state)
            lines[at] = state if state.strip() else b""
    return b"\n".join(lines)


def wiped_bar(state: bytes) -> bytes:
    """The visible part of a bar that wipes its line before it draws, or the rest of it after."""
    return state.rpartition(b"\x1b[2K")[2].replace(b"\x1b[K", b"").replace(b"\x1b[0K", b"")


def _has_long(block: bytes, limit: int) -> bool:
    """Whether a line of ``block`` is longer than ``limit``; reads few of its bytes."""
    at = 0
    while len(block) - at > limit:
        end = block.rfind(b"\n", at, at + limit + 1)
        if end < 0:
            return True
        at = end + 1
    return False


def _split(block: bytes, limit: int) -> bytes:
    return b"\n".join(b"".join(_cut(line, limit)) for line in block.split(b"\n"))


def _cut(line: bytes, limit: int) -> tuple[bytes, bytes]:
    """The pieces of ``line`` of at most ``limit`` bytes, each marked, and the rest."""
    pieces = b""
    while len(line) > limit:
        edge = character_edge(line, limit)
        pieces += line[:edge] + CONTINUED + b"\n"
        line = line[edge:]
    return pieces, line
