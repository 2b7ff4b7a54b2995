"""A question to the holder itself: what it holds, or to let go of some of it."""

from __future__ import annotations

from typing import Any

from dispatcher.transport.pool import socket_path
from dispatcher.transport.pool.pool_frames import Frame, Frames, Malformed, fields

#: seconds that it may take to answer
LIMIT = 10.0


def ask(order: bytes) -> dict[str, Any] | None:
    """What the holder answers to a frame ``L`` or ``C``; None where there is none.

    Raises: UsageError if its folder is not ours alone; OSError, Malformed.
    """
    link = socket_path.dial()
    if link is None:
        return None
    with link:
        link.settimeout(LIMIT)
        link.sendall(order)
        frames, answers = Frames(), list[Frame]()
        while not answers:
            data = link.recv(1 << 16)
            if not data:
                raise Malformed("the holder hung up")
            answers += frames.feed(data)
    return fields(answers[0][2])
