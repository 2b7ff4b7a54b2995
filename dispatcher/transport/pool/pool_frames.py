"""What passes between a dispatch and the holder: frames of a kind, a channel, a size, a body; pure.

::

    caller   O open (JSON)  D input  E end of input  W window (JSON)  Z leave
    holder   A opened (JSON)  F failure (JSON)  N not kept  1 output  2 error output
             e end of output  r end of error output  X the command's end (JSON)
    both     G more may come (a number)
    at once  L list  C close (JSON)  and L the answer (JSON), on no channel

A connection is one dispatch, a channel one command; the caller numbers them. Its end, from
either side, is the end of all. What one command's reader does not take must not hold up the
others, so each has a credit, as in SSH: ``OUTPUT`` bytes of its output and errors together,
``INPUT`` bytes of its input, and then what ``G`` grants.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

#: part of the socket's name, since a holder may be older than who calls it
PROTOCOL = 3
#: bytes of a body at most
LARGEST = 1 << 20
#: bytes of a command's output, and of its input, that may be under way or wait for its reader
OUTPUT, INPUT = 1 << 20, 256 << 10
#: bytes of input that may come with an order: as many as any connection takes at once
OPENING = 8 << 10
_HEAD = struct.Struct(">cII")
_NUMBER = struct.Struct(">I")

Frame = tuple[bytes, int, bytes]


class Malformed(ValueError):
    """What was read is not of this protocol."""


def frame(kind: bytes, channel: int = 0, body: bytes = b"") -> bytes:
    return _HEAD.pack(kind, channel, len(body)) + body


def told(kind: bytes, channel: int = 0, /, **fields: Any) -> bytes:
    """A frame whose body is ``fields`` as JSON."""
    return frame(kind, channel, json.dumps(fields).encode())


def granted(channel: int, size: int) -> bytes:
    """The frame that grants ``size`` bytes."""
    return frame(b"G", channel, _NUMBER.pack(size))


def number(body: bytes) -> int:
    """What a ``G`` grants. Raises: Malformed."""
    if len(body) != _NUMBER.size:
        raise Malformed("not a number")
    return int(_NUMBER.unpack(body)[0])


def fields(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises: Malformed."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Malformed("not an object")
    return found


class Frames:
    """Bytes in, frames out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """(kind, channel, body) of each frame that is complete. Raises: Malformed."""
        self._rest += data
        at = 0
        try:
            while len(self._rest) - at >= _HEAD.size:
                kind, channel, size = _HEAD.unpack_from(self._rest, at)
                if size > LARGEST:
                    raise Malformed(f"a frame of {size} bytes")
                end = at + _HEAD.size + size
                if len(self._rest) < end:
                    return
                body = bytes(self._rest[end - size : end])
                at = end
                yield kind, channel, body
        finally:
            del self._rest[:at]
