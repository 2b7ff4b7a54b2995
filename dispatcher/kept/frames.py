"""What passes through the holder's socket: frames of a kind, a size and a body; pure.

::

    caller   O open (JSON)  D input  E end of input  W window (JSON)  L list  C close (JSON)
    holder   A opened (JSON)  F failure (JSON)  N not kept  1 output  2 error output
             e end of output  r end of error output  X the command's end (JSON)  L list (JSON)

A connection is one command. Its end, from either side, is the end of the link. What the
reader does not take stays in the kernel's buffers: that is the credit.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

#: bytes of a body at most
LARGEST = 1 << 20
_HEAD = struct.Struct(">cI")


class Malformed(ValueError):
    """What was read is not of this protocol."""


def frame(kind: bytes, body: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(body)) + body


def told(kind: bytes, /, **fields: Any) -> bytes:
    """A frame whose body is ``fields`` as JSON."""
    return frame(kind, json.dumps(fields).encode())


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

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(kind, body) of each frame that is complete. Raises: Malformed."""
        self._rest += data
        while len(self._rest) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._rest)
            if size > LARGEST:
                raise Malformed(f"a frame of {size} bytes")
            end = _HEAD.size + size
            if len(self._rest) < end:
                return
            body = bytes(self._rest[_HEAD.size : end])
            del self._rest[:end]
            yield kind, body
