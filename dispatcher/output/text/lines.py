r"""Whole lines out of chunks, and the last of them kept for the verdict.

A line ends at LF or CR LF. What stands before a lone CR is overwritten by what
follows, as on a terminal: of ``10%\r20%\r30%\n`` the line is ``30%``, and until
its end comes ``20%`` is its *state*, as progress bars want it. Files get the bytes
elsewhere, exactly.

Memory stays bounded, whatever a line's length. For a person, on a terminal, a line longer than
the limit comes in pieces, each but the last with ``CONTINUED`` behind it. For a program it must
stay whole: then its beginning is put aside (``spill``), and it comes at its end, as pieces to be
written one behind the other.

``Tail`` keeps the end of what every rank wrote, for the verdict, and counts its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain

from dispatcher.core.events.run_events import (
    Entry,
    OutputEnded,
    RanksPlaced,
    RunRestarting,
    Sink,
)
from dispatcher.model.names import plural
from dispatcher.output.files.spool import LongLine, Spill
from dispatcher.output.text.sanitize import character_edge, sanitize
from dispatcher.remote.protocol.frames import STDERR, STDOUT

TYPE_CHECKING = False

if TYPE_CHECKING:
    from dispatcher.core.events.verdicts import Cause
    from dispatcher.output.text.last_error import LastError

LINE_LIMIT = 64 << 10
CONTINUED = " \N{LEFTWARDS ARROW WITH HOOK}".encode()

#: takes a line longer than the limit: its pieces, and what is to stand behind them
Long = Callable[[Iterator[bytes], bytes], None]


class LineAssembler:
    """The lines of one stream of one rank. All results are whole lines, each ended by LF.

    limit: bytes at which a line is cut. Or, instead, ``long``: is given each line longer than
    that, before the results in which it would else be, and ``spill`` keeps it until then.
    """

    def __init__(
        self, long: Long | None = None, spill: Spill | None = None, *, limit: int = LINE_LIMIT
    ) -> None:
        self._limit = limit
        self._long = long
        self._spill = spill
        self._head = None if spill is None else LongLine(spill)
        self._rest = b""
        self._is_cut = self._redrawn = False
        #: whether the unfinished line is one that rewrites itself
        self.is_bar = False

    @property
    def rest(self) -> bytes:
        """The unfinished line, or the state of a bar; b"" if there is none."""
        rest = self._rest.removesuffix(b"\r")
        return wiped(rest) if self.is_bar else rest

    def feed(self, data: bytes) -> bytes:
        """The lines that ``data`` completes, b"" if none."""
        end = data.rfind(b"\n") + 1
        if not end:
            return self._keep(self._rest + data)
        block = b"".join((self._rest, memoryview(data)[:end]))
        if self._head:
            block = self._ended(block)
        if self._redrawn or b"\r" in block:
            block = _overwritten(block, self._redrawn)
        self.is_bar = self._is_cut = self._redrawn = False
        if self._head is None and _has_long(block, self._limit):
            block = _split(block, self._limit)
        return block + self._keep(data[end:])

    def state(self) -> bytes:
        """The unfinished line as it stands, marked, to be seen before its end; b"" of a long one.

        It comes whole all the same, when it ends.
        """
        text = b"" if self._head else self.rest
        text = text[: character_edge(text, len(text))]
        return text + CONTINUED + b"\n" if text.strip() else b""

    def flush(self) -> bytes:
        """The unfinished line as it stands, marked; what comes later is a line of its own."""
        edge = character_edge(self._rest, len(self._rest))
        text, self._rest = self._rest[:edge], self._rest[edge:]
        if self._head:
            self._tell(text, CONTINUED + b"\n")
            return b""
        return text + CONTINUED + b"\n" if text else b""

    def finish(self) -> bytes:
        """The last line, when the stream ended without a line end."""
        text, self._rest = self.rest, b""
        if self._head:
            self._tell(text, b"\n")
            return b""
        if self.is_bar and not text.strip():
            return b""  # a bar that wiped itself out
        return text + b"\n" if text else b""

    def _ended(self, block: bytes) -> bytes:
        """Of ``block``, that begins with the end of the long line, what does not belong to it."""
        assert self._head is not None
        end, _, lines = block.partition(b"\n")
        end = end.rstrip(b"\r")
        if b"\r" in end:
            self._head.drop()
            return block
        self._tell(end, b"\n")
        self._redrawn = False
        return lines

    def _tell(self, text: bytes, end: bytes) -> None:
        """Give away the long line, of which ``text`` is the last that is known."""
        assert self._long is not None
        assert self._head is not None
        self._long(chain(self._head.pieces(), (text,)), end)
        self._head.drop()

    def _keep(self, text: bytes) -> bytes:
        """Hold the unfinished line ``text``; what of it must leave because it is too long."""
        if b"\r" in text:
            # a CR at the very end waits: an LF may follow and belong to it
            state = text.rstrip(b"\r")
            start = state.rfind(b"\r") + 1
            self.is_bar = True
            self._redrawn |= start > 0
            if start and self._head:
                self._head.drop()
            text = state[start:] + (b"\r" if len(state) < len(text) else b"")
        pieces = b""
        if len(text) > self._limit:
            text, pieces = self._put_aside(text)
        self._rest = text
        return pieces

    def _put_aside(self, text: bytes) -> tuple[bytes, bytes]:
        """(what is held of ``text``, the pieces that must leave)."""
        if self._head is not None:
            body = text.rstrip(b"\r")
            rest = self._head.take(body)
            if rest is not None:
                return rest + text[len(body) :], b""
            if self._head:
                self._tell(b"", CONTINUED + b"\n")
            assert self._spill is not None
            self._spill.broken += not self._is_cut
            self._is_cut = True
        pieces = b""
        while len(text) > self._limit:
            edge = character_edge(text, self._limit)
            pieces += text[:edge] + CONTINUED + b"\n"
            text = text[edge:]
        return text, pieces


class ExactLines:
    """The bytes of one stream, unchanged, in pieces that end with a line: for programs.

    What is longer than ``LINE_LIMIT`` without a line end waits in ``spill``.
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
        """What waits."""
        yield from self._head.pieces()
        yield self._rest
        self._head.drop()
        self._rest = b""


def _overwritten(block: bytes, redrawn: bool) -> bytes:
    """``block`` with only the last state of each line that holds a lone CR.

    redrawn: whether the first line is the last state of one.
    """
    block = block.replace(b"\r\n", b"\n")
    if not redrawn and b"\r" not in block:
        return block
    lines = block.split(b"\n")
    for at, line in enumerate(lines):
        if b"\r" in line or (redrawn and at == 0):
            state = next((part for part in reversed(line.split(b"\r")) if part), b"")
            state = wiped(state)
            lines[at] = state if state.strip() else b""
    return b"\n".join(lines)


def wiped(state: bytes) -> bytes:
    """What is to be seen of a bar that wipes its line before it draws, or the rest of it after."""
    return state.rpartition(b"\x1b[2K")[2].replace(b"\x1b[K", b"").replace(b"\x1b[0K", b"")


def _has_long(block: bytes, limit: int) -> bool:
    """Whether a line of ``block`` is longer than ``limit``; looks at few of its bytes."""
    at = 0
    while len(block) - at > limit:
        end = block.rfind(b"\n", at, at + limit + 1)
        if end < 0:
            return True
        at = end + 1
    return False


def _split(block: bytes, limit: int) -> bytes:
    """``block`` with its overlong lines in marked pieces."""
    lines = block.split(b"\n")
    for at, line in enumerate(lines):
        pieces = []
        while len(line) > limit:
            edge = character_edge(line, limit)
            pieces.append(line[:edge] + CONTINUED)
            line = line[edge:]
        if pieces:
            lines[at] = b"\n".join([*pieces, line])
    return b"\n".join(lines)


#: lines of a stream that are told, and bytes of each
N_LINES = 20
LINE_BYTES = 512
#: lines of a stream that are looked at
MOST_LINES = 500
#: bytes of a stream that are kept at most, and at least where there are so many ranks that all of
#: their streams would be more than ``TOTAL``; half as many more may come before the oldest go
KEPT, LEAST_KEPT, TOTAL = 32 << 10, 8 << 10, 512 << 20

#: a frame of a C++ stack, as torch and glibc write them: twenty of them push out what matters
_FRAME = rb" *(?:frame #\d+: |#\d+ 0x|#\d+: )"
#: characters of it that are looked for; a message may go on in a form of our own
_PART = 40
#: so many frames one below the other are told as one line
_MANY_FRAMES = 3


class Tail(Sink):
    """``last(rank)`` gives the lines that say most about how the rank ended, ``error`` why it did.

    Bytes are kept as they come, and only those that are asked for become lines. sizes: (rank,
    stream) -> bytes that came in the present attempt. errors: number of restarts before an attempt
    -> why the rank that ended it did, in a line; of attempts before the present one.
    """

    def __init__(self) -> None:
        self.sizes: dict[tuple[int, int], int] = {}
        self.errors: dict[int, str] = {}
        self._ends: dict[tuple[int, int], bytearray] = {}
        self._kept = KEPT
        self._over: set[tuple[int, int]] = set()
        self._said: dict[int, str] = {}  # rank -> of the line that says why it ended

    def output(self, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        self.sizes[key] = self.sizes.get(key, 0) + len(data)
        end = self._ends.get(key)
        if end is None:
            end = self._ends[key] = bytearray()
        end += data[-self._kept :]
        if len(end) > self._kept * 3 // 2:
            del end[: -self._kept]

    def event(self, entry: Entry) -> None:
        match entry.event:
            case RanksPlaced(world_size, restart=restart):
                self._kept = min(KEPT, max(LEAST_KEPT, TOTAL // (2 * max(1, world_size))))
                if restart:
                    self.sizes.clear()
                    self._ends.clear()
                    self._over.clear()
                    self._said.clear()
            case OutputEnded(_, rank, stream):
                self._over.add((rank, stream))
            case RunRestarting(cause, number):
                self.errors.setdefault(number - 1, self.told(cause))

    def written(self) -> list[tuple[int, int, int]]:
        """(rank, bytes of its stdout, of its stderr) of each rank that wrote."""
        ranks = sorted({rank for rank, _ in self.sizes})
        return [
            (rank, self.sizes.get((rank, STDOUT), 0), self.sizes.get((rank, STDERR), 0))
            for rank in ranks
        ]

    def last(self, rank: int) -> tuple[str, list[str]]:
        """("stderr" or "stdout", its last lines sanitized); stderr if it said anything.

        The last up to the one that says why it ended, if ``error`` has found one further up.
        """
        for stream, name in ((STDERR, "stderr"), (STDOUT, "stdout")):
            lines = _without_frames(self._lines(rank, stream))
            while lines and not lines[-1].strip():
                lines.pop()
            lines = _around(lines, self._said.get(rank, "").encode())
            if lines:
                return name, [sanitize(line[:LINE_BYTES]).decode() for line in lines]
        return "stderr", []

    def error(self, rank: int, status: int) -> LastError | None:
        """What the rank, of ``status``, wrote about its end; on stdout if nothing on stderr."""
        from dispatcher.output.text.last_error import last_error  # few runs fail

        for stream in (STDERR, STDOUT):
            text = b"\n".join(self._lines(rank, stream)).decode("utf-8", "replace")
            lines = text.split("\n") if text else []
            found = last_error(lines, status)
            if found is not None and (found.text or stream == STDOUT):
                self._said[rank] = (found.text.partition(": ")[2] or found.text)[:_PART]
                return found
        return None

    def told(self, cause: Cause) -> str:
        """Why the rank of ``cause`` ended, as it wrote, in a line; "" where that is not known."""
        from dispatcher.core.events.verdicts import MpiAborted, RankFailed

        if not isinstance(cause, (RankFailed, MpiAborted)):
            return ""
        status = cause.status if isinstance(cause, RankFailed) else cause.code
        found = self.error(cause.rank, status)
        return "" if found is None else str(found)

    def _lines(self, rank: int, stream: int) -> list[bytes]:
        """The last whole lines of a stream; the very last may lack its end if that is over."""
        end = self._ends.get((rank, stream))
        if not end:
            return []
        assembler = LineAssembler()
        block = assembler.feed(bytes(end))
        if (rank, stream) in self._over:
            block += assembler.finish()
        lines = block.split(b"\n")[:-1]
        cut = self.sizes[rank, stream] > len(end) and len(lines) > 1
        # of the first, the beginning may be gone
        return (lines[1:] if cut else lines)[-MOST_LINES:]


def _around(lines: list[bytes], said: bytes) -> list[bytes]:
    """The last ``N_LINES``, or as many up to the last one with ``said`` if none of those has it."""
    tail = lines[-N_LINES:]
    if not said or any(said in line for line in tail):
        return tail
    at = next((n for n in range(len(lines) - 1, -1, -1) if said in lines[n]), None)
    if at is None:
        return tail
    more = plural(len(lines) - at - 1, "more line")
    return [*lines[max(0, at - N_LINES + 2) : at + 1], b"(%s)" % more.encode()]


def _without_frames(lines: list[bytes]) -> list[bytes]:
    """``lines`` with each long run of C++ frames as one."""
    kept: list[bytes] = []
    run: list[bytes] = []
    for line in [*lines, b""]:
        if re.match(_FRAME, line):
            run.append(line)
            continue
        many = len(run) > _MANY_FRAMES
        kept += [b"(%d frames of C++)" % len(run)] if many else run
        run.clear()
        kept.append(line)
    return kept[:-1]
