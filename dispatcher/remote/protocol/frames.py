"""Frames between the launcher and an agent, and the control messages in them; no I/O.

A frame is a header of 12 bytes, big endian, and a body::

    kind:1  stream:1  0:2  rank:4  size:4   body:size

==========  ======  =============================================================
kind        lane    body
==========  ======  =============================================================
CONTROL 1   first   one packed dict with a ``"type"``, <= 16 MiB
OUTPUT  2   second  raw bytes that a rank wrote to stream 1 or 2, 1 to ``OUTPUT_LIMIT``
ENDED   3   second  8 bytes: how many bytes that stream carried in all; its last frame
INPUT   4   second  raw bytes for the ranks that read standard input; empty: its end
TAKEN   5   first   8 bytes: how many more bytes of input the launcher may send
==========  ======  =============================================================

The first lane always passes the second, so a kill never waits behind output. Output and input
need credit, each its own; control never does.

An order, launcher to agent, has the name and the fields of its action in ``core.events.actions``:
``release_fence`` is ``ReleaseFence``. Those that need more of the plan are made in
``runner.run.orders`` (``prepare``, ``start_ranks``, ``spawn_ranks``, ``serve_pmix``,
``share_world``). Further orders: ``sample`` takes samples of ranks, or their stacks; ``credit``
lets more output be sent; ``ping`` renews the lease; ``watch`` looks after the launcher's machine;
``finish`` ends the agent. A report has the name and the fields of its event in ``core.events``:
``rank.exited`` is ``RankExited``.
"""

from __future__ import annotations

from _struct import Struct

from dispatcher.remote.protocol.packing import pack

CONTROL = 1
OUTPUT = 2
ENDED = 3
INPUT = 4
TAKEN = 5

STDOUT = 1
STDERR = 2

HEADER = Struct("!BBHII")
CONTROL_LIMIT = 16 << 20
OUTPUT_LIMIT = (64 << 10) - HEADER.size  # a pipe takes the frame whole
COUNT = Struct("!Q")

_RANKS, _NO_RANK = (STDOUT, STDERR), (0,)
#: kind -> its streams, and the least and the most bytes of a body
_SIZES: dict[int, tuple[tuple[int, ...], int, int]] = {
    CONTROL: (_NO_RANK, 0, CONTROL_LIMIT),
    OUTPUT: (_RANKS, 1, OUTPUT_LIMIT),
    ENDED: (_RANKS, COUNT.size, COUNT.size),
    INPUT: (_NO_RANK, 0, OUTPUT_LIMIT),
    TAKEN: (_NO_RANK, COUNT.size, COUNT.size),
}

#: the first bytes an agent says; everything before them on its stream is noise
SYNC = b"\0DISPATCH1\n"


class WireError(ValueError):
    """Bytes that are not our protocol; the link that sent them cannot be used any more."""


def encode(kind: int, body: bytes, rank: int = 0, stream: int = 0) -> bytes:
    """One frame as bytes. The caller keeps the size limits of the table above."""
    return HEADER.pack(kind, stream, 0, rank, len(body)) + body


class Frame:
    """A decoded frame: ``kind``, ``stream``, ``rank`` and ``body`` (bytes)."""

    __slots__ = ("body", "kind", "rank", "stream")

    def __init__(self, kind: int, stream: int, rank: int, body: bytes) -> None:
        self.kind = kind
        self.stream = stream
        self.rank = rank
        self.body = body


class Decoder:
    """Turns any chunking of a byte stream into frames; most: bytes of a CONTROL frame's body."""

    def __init__(self, most: int = CONTROL_LIMIT) -> None:
        self._buffer = bytearray()
        self._most = most

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame; 0 between two frames."""
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
            kind, stream, unused, rank, size = HEADER.unpack_from(buffer, at)
            streams, least, most = _SIZES.get(kind, ((), 0, 0))
            if unused or stream not in streams or not least <= size <= min(most, self._most):
                raise WireError("bad frame: kind %d, stream %d, size %d" % (kind, stream, size))
            end = at + HEADER.size + size
            if end > len(buffer):
                break
            frames.append(Frame(kind, stream, rank, bytes(buffer[at + HEADER.size : end])))
            at = end
        del buffer[:at]
        return frames


def control(type: str, **fields: object) -> bytes:
    """The bytes of one control frame."""
    fields["type"] = type
    return encode(CONTROL, pack(fields))
