"""Output that several ranks of a host write alike, sent once; the others' copies are pointed at.

Both ends of a link keep the same window: the last bytes that crossed it in OUTPUT frames. A
SAME frame says that a rank has written bytes of that window. Ranks that do the same work write
the same text, one a little before the others. So each stream has a place in the window up to
which it has followed, and what it writes is compared there first. Where it writes a line of its
own, its next one is compared with the next there, and looked up among the lines that are known:
the first ones of each frame, and then one of every ``SPACING`` bytes. Who has followed all of
it writes what is new: nothing is looked up, and it is sent as it is.

Bounded: a few lines of a chunk are looked up, more only for what they have found. What is cheaper
sent as it is (short pieces) is sent so. The window goes on over attempts, at both ends. When that
pays, and what was not chosen: ``docs/design/output.md``.
"""

from __future__ import annotations

from _collections import deque  # type: ignore[import-not-found]

from dispatcher.remote.protocol.frames import HEADER, OUTPUT_LIMIT, SAME, SPAN, WireError, encode

#: bytes that a SAME frame stands for at least: as a part of a chunk, which it divides, and as
#: the whole of one; fewer are cheaper sent as they are
LEAST, LEAST_WHOLE = 2 * HEADER.size + SPAN.size, SPAN.size + 1
#: bytes of a line that it is known by at most
LONGEST = 256
#: lines known in all; each takes some 300 bytes
MOST = 16 << 10
#: lines known of each frame's beginning, and bytes from one to the next after those
FIRST, SPACING = 8, 2 << 10
#: lines looked up in a chunk; as few at least, after chunks of which nothing was found; and
#: bytes found that are worth one more
LINES, FEWEST, WORTH = 32, 4, 256


class Window:
    """The last ``size`` bytes of what only grows; a place counts from the first byte ever."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = bytearray()
        self.base = 0  # place of held[0]; what is before ``begin`` only waits to be dropped
        self.begin = self.end = 0  # places: of the first byte, and behind the last

    def add(self, data: bytes) -> None:
        """Let ``data`` follow; what is beyond ``size`` is forgotten."""
        self.held += data
        self.end += len(data)
        self.begin = max(0, self.end - self.size)
        if self.begin - self.base > self.size // 2:  # not each time: what is left is moved
            del self.held[: self.begin - self.base]
            self.base = self.begin

    def at(self, place: int, length: int) -> bytes:
        """The ``length`` bytes from ``place`` on. Raises: WireError if they are not all held."""
        if not (0 < length <= OUTPUT_LIMIT and self.begin <= place <= self.end - length):
            raise WireError("%d bytes at %d, which are not the same as any" % (length, place))
        start = place - self.base
        return bytes(memoryview(self.held)[start : start + length])

    def line_after(self, place: int) -> int:
        """Where the next line begins; ``end`` if none does."""
        at = self.held.find(b"\n", place - self.base)
        return self.end if at < 0 else self.base + at + 1

    def alike(self, data: memoryview, place: int, least: int) -> int:
        """How many of ``data``'s first bytes are those at ``place``; 0 for less than ``least``.

        All that there are of ``data`` or in the window, be it less; otherwise whole lines,
        unless they are long.
        """
        held, start = self.held, place - self.base
        most = min(len(data), self.end - place)
        if held.startswith(data[:most], start):
            return most
        if most < least or not held.startswith(data[:least], start):
            return 0
        low, high = least, 2 * least  # so many are alike, and ``most`` are not
        while high < most and held.startswith(data[:high], start):
            low, high = high, 2 * high
        most = min(most, high)
        while most - low > 1:
            middle = (low + most) // 2
            if held.startswith(data[:middle], start):
                low = middle
            else:
                most = middle
        if low < LONGEST:
            low = held.rfind(b"\n", start, start + low) + 1 - start
        return low if low >= least else 0


class Deduplicator:
    """Makes the frames of a link's output; ``size``: bytes of the window."""

    def __init__(self, size: int) -> None:
        self.window = Window(size)
        # (rank, stream) -> the place up to which it has followed, lines to look up in a chunk
        self.streams: dict[tuple[int, int], tuple[int, int]] = {}
        self.lines: dict[bytes, int] = {}  # where they are, the last if several are alike
        self.known: deque[tuple[int, bytes]] = deque()  # the same, in order

    def encode(self, kind: int, data: bytes, rank: int, stream: int) -> bytes:
        """The frames, joined, that stand for the OUTPUT frame of ``frames.encode``."""
        window, view = self.window, memoryview(data)
        place, lines = self.streams.get((rank, stream), (0, LINES))
        budget = max(lines // 2, FEWEST)
        least = min(LEAST, max(len(data), LEAST_WHOLE))
        frames: list[bytes] = []
        literal: list[bytes] = []
        at = done = own = 0  # done: bytes in frames; own: those of them that are literal
        level = False
        while at < len(data):
            # what goes before it pushes the oldest out of the window
            oldest = max(window.begin, window.end + own + at - done - window.size)
            place = min(max(place, oldest), window.end)
            rest = view[at:]
            same = window.alike(rest, place, least)
            level = place + same == window.end
            if same < least:
                if level or same == len(rest):
                    place += same  # followed, though not worth a frame of its own
                    break
                if not lines or len(rest) < least:
                    break
                lines -= 1
                for found in (window.line_after(place), self.lines.get(line_at(data, at), -1)):
                    same = window.alike(rest, found, least) if found >= oldest else 0
                    if same >= least:
                        break
                else:
                    at = data.find(b"\n", at) + 1 or len(data)
                    continue
                place = found
                level = place + same == window.end
            if done < at:
                literal.append(data[done:at])
                frames.append(encode(kind, literal[-1], rank, stream))
                own += at - done
            frames.append(encode(SAME, SPAN.pack(place, same), rank, stream))
            place += same
            at += same
            done = at
            lines += same // WORTH
            budget = LINES
        if done < len(data):
            literal.append(data[done:])
            frames.append(encode(kind, literal[-1], rank, stream))
        for piece in literal:
            self.add(piece)
        self.streams[rank, stream] = (window.end if level else place, budget)
        return b"".join(frames)

    def add(self, piece: bytes) -> None:
        """Let ``piece`` be found from now on."""
        window, known, at, first = self.window, self.known, 0, FIRST
        while len(piece) - at >= LEAST_WHOLE:
            line = line_at(piece, at)
            self.lines[line] = window.end + at
            known.append((window.end + at, line))
            first -= 1
            at = piece.find(b"\n", at + (LEAST if first > 0 else SPACING)) + 1 or len(piece)
        window.add(piece)
        while known and (known[0][0] < window.begin or len(known) > MOST):
            place, line = known.popleft()
            if self.lines[line] == place:
                del self.lines[line]


def line_at(data: bytes, at: int) -> bytes:
    """The line of ``data`` that begins at ``at``; a short one with what follows."""
    end = data.find(b"\n", at, at + LONGEST) + 1
    return data[at : max(end, at + LEAST) if end else at + LONGEST]
