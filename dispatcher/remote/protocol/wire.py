"""Frames: the unit of the link between the launcher and an agent, in both directions.

A frame is a header of 12 bytes, big endian, and a body::

    kind:1  stream:1  node:2  rank:4  size:4   body:size

==========  ======  =============================================================
kind        lane    body
==========  ======  =============================================================
CONTROL 1   first   one packed dict with a ``"type"`` (``messages``), <= 16 MiB
OUTPUT  2   second  raw bytes a rank wrote to stream 1 or 2, 1 to ``OUTPUT_LIMIT``
ENDED   3   second  8 bytes: how many bytes that stream carried in all; its last frame
INPUT   4   second  raw bytes for the ranks that read standard input, also that many;
                    an empty one is the end of the input
TAKEN   5   first   8 bytes: how many more bytes of input the launcher may send
SAME    6   second  8 bytes, 4 bytes: the rank wrote what OUTPUT frames of this link
                    have brought from that place on, so many bytes (``equal``)
==========  ======  =============================================================

OUTPUT, ENDED, TAKEN and SAME come from the agent, INPUT from the launcher.

The first lane always passes the second: a kill or a heartbeat never waits
behind output or input. Within a lane order is kept. Output and input need credit,
each its own; control never does.

The decoder is pure: feed it any split of the bytes and the same frames come
out. It holds at most one frame; a header that breaks the rules raises at once,
before its body is awaited.
"""

from __future__ import annotations

from _struct import Struct

CONTROL = 1
OUTPUT = 2
ENDED = 3
INPUT = 4
TAKEN = 5
SAME = 6

STDOUT = 1
STDERR = 2

HEADER = Struct("!BBHII")
CONTROL_LIMIT = 16 << 20
OUTPUT_LIMIT = (64 << 10) - HEADER.size  # a pipe takes the frame whole
COUNT = Struct("!Q")
SPAN = Struct("!QI")  # a place among all bytes of OUTPUT frames, and a length

#: the first bytes an agent says; everything before them on its stream is noise
SYNC = b"\0DISPATCH1\n"


class WireError(ValueError):
    """Bytes that are not our protocol; the link that sent them cannot be used any more."""


def encode(kind: int, body: bytes, rank: int = 0, stream: int = 0, node: int = 0) -> bytes:
    """One frame as bytes. The caller keeps the size limits of the table above."""
    return HEADER.pack(kind, stream, node, rank, len(body)) + body


class Frame:
    """A decoded frame: ``kind``, ``stream``, ``node``, ``rank`` and ``body`` (bytes)."""

    __slots__ = ("body", "kind", "node", "rank", "stream")

    def __init__(self, kind: int, stream: int, node: int, rank: int, body: bytes) -> None:
        self.kind = kind
        self.stream = stream
        self.node = node
        self.rank = rank
        self.body = body

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __repr__(self) -> str:
        return "Frame(kind=%d, stream=%d, node=%d, rank=%d, %d bytes)" % (
            self.kind,
            self.stream,
            self.node,
            self.rank,
            len(self.body),
        )


class Decoder:
    """Turns any chunking of a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame; 0 when the stream stands between two frames."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames completed by ``data``, in order.

        Raises: WireError at the first header that breaks the rules.
        """
        buffer = self._buffer
        buffer += data
        frames = []
        at = 0
        while len(buffer) - at >= HEADER.size:
            kind, stream, node, rank, size = HEADER.unpack_from(buffer, at)
            _check(kind, stream, size)
            end = at + HEADER.size + size
            if end > len(buffer):
                break
            frames.append(Frame(kind, stream, node, rank, bytes(buffer[at + HEADER.size : end])))
            at = end
        del buffer[:at]
        return frames


def _check(kind: int, stream: int, size: int) -> None:
    if kind == CONTROL:
        ok = stream == 0 and size <= CONTROL_LIMIT
    elif kind == OUTPUT:
        ok = stream in (STDOUT, STDERR) and 0 < size <= OUTPUT_LIMIT
    elif kind == ENDED:
        ok = stream in (STDOUT, STDERR) and size == COUNT.size
    elif kind == INPUT:
        ok = stream == 0 and size <= OUTPUT_LIMIT
    elif kind == TAKEN:
        ok = stream == 0 and size == COUNT.size
    elif kind == SAME:
        ok = stream in (STDOUT, STDERR) and size == SPAN.size
    else:
        ok = False
    if not ok:
        raise WireError("bad frame: kind %d, stream %d, size %d" % (kind, stream, size))
