"""Many commands over one byte stream: channels, with credit for each direction; no I/O.

The pool's daemon speaks it with a launcher, and the relay of a tree does. The near end numbers
and opens the channels, the far end runs a command in each::

    channel:4  kind:1  size:4   body:size                         big endian

===========  =========  ======================================================
kind         to the     body
===========  =========  ======================================================
OPEN         far end    which command; each of the two has its own words for it
INPUT        far end    bytes for its standard input; INPUT_END: no more of them
CLOSE        far end    the near end needs nothing more of the channel
OUTPUT       near end   bytes of its output, or its ERRORS; OUTPUT_END, ERRORS_END
ENDED        near end   how it ended, in the far end's format; output may still follow
MORE_INPUT   near end   4 bytes: how many more bytes of input are welcome
MORE_OUTPUT  far end    the same of its output, and MORE_ERRORS
===========  =========  ======================================================

Kinds from ``OWN`` on are the far end's own. Each direction has a window, as in SSH.
"""

from __future__ import annotations

from _struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER = Struct("!IBI")
COUNT = Struct("!I")

(
    OPEN, INPUT, INPUT_END, CLOSE, MORE_OUTPUT, MORE_ERRORS,
    OUTPUT, ERRORS, OUTPUT_END, ERRORS_END, ENDED, MORE_INPUT, OWN,
) = range(1, 14)  # fmt: skip

#: bytes of a body at most, unless an end allows more
LARGEST = 64 << 10
#: bytes that may be under way, or wait for their reader, before more are granted
OUTPUT_WINDOW, ERRORS_WINDOW, INPUT_WINDOW = 1 << 20, 256 << 10, 256 << 10


class Malformed(ValueError):
    """Data from the other end breaks this protocol."""


def frame(channel: int, kind: int, body: bytes = b"") -> bytes:
    """One frame as bytes. The caller keeps the other end's limit of a body."""
    return HEADER.pack(channel, kind, len(body)) + body


class Decoder:
    """Bytes in, frames out; holds one unfinished frame at most.

    largest: bytes of a body at most; most: kind -> the limit of kinds that have their own.
    """

    def __init__(self, largest: int = LARGEST, most: Mapping[int, int] | None = None) -> None:
        self._largest = largest
        self._most = most or {}
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """(channel, kind, body) of the frames that ``data`` completes, in any pieces.

        Raises: Malformed at a header with too large a size, before its body comes.
        """
        held: bytes | bytearray = data
        if self._held:
            self._held += data
            held = self._held
        found = []
        at, end = 0, len(held)
        with memoryview(held) as view:
            while end - at >= HEADER.size:
                channel, kind, size = HEADER.unpack_from(view, at)
                if size > self._most.get(kind, self._largest):
                    raise Malformed("a frame of %d bytes" % size)
                after = at + HEADER.size + size
                if after > end:
                    break
                found.append((channel, kind, bytes(view[at + HEADER.size : after])))
                at = after
        if held is self._held:
            del self._held[:at]
        elif at < end:
            self._held += data[at:]
        return found


class Credit:
    """Bytes of one direction of a channel, as either end counts them: at most ``window`` under way.

    One thread may ``use`` and another ``grant``, without a lock.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._granted = window
        self._used = 0
        self._taken = 0  # and not yet granted again

    @property
    def left(self) -> int:
        """Bytes that may still be sent."""
        return self._granted - self._used

    def use(self, size: int) -> None:
        """Count bytes that are about to be sent, or have come. Raises: Malformed: too many."""
        self._used += size
        if self._used > self._granted:
            raise Malformed("%d bytes without credit" % (self._used - self._granted))

    def grant(self, body: bytes) -> None:
        """Add credit from the other end. Raises: Malformed for more than its window."""
        if len(body) != COUNT.size:
            raise Malformed("credit in %d bytes" % len(body))
        more = COUNT.unpack(body)[0]
        if self.left + more > self._window:
            raise Malformed("credit for data that it was not sent")
        self._granted += more

    def taken(self, size: int) -> bytes:
        """So many bytes were taken: what to grant now, a quarter of the window or nothing."""
        self._taken += size
        if self._taken < self._window // 4:
            return b""
        count, self._taken = self._taken, 0
        self._granted += count
        return COUNT.pack(count)
