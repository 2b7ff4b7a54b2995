"""Is a silent host still there? Asked as ssh does with ``ServerAliveInterval``; pure.

A request that the host has to answer, be it with a refusal: one without an answer would
tell nothing, as what is sent to a host that has vanished just waits in a buffer.
"""

from __future__ import annotations

#: seconds of silence until a question, and how many of them may stay without an answer
INTERVAL, MOST = 15.0, 3


def due(silent: float, interval: float, most: int) -> int | None:
    """How many questions are due after ``silent`` seconds; None: the host is given up.

    interval: 0 for never.
    """
    count = int(silent // interval) if interval > 0 else 0
    return None if count > most else count
