"""What the frames of a host's output bring; the other end of ``remote.protocol.dedup``.

A host is not trusted: a frame that points outside of the window, or at all where nobody asked
for it, breaks the protocol.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.remote.protocol.wire import SAME, SPAN, Frame, WireError

#: the bytes that an OUTPUT or SAME frame brings; raises WireError
Body = Callable[[Frame], bytes]

#: bytes of all hosts' windows together, and of one at most and at least
TOTAL, MOST, LEAST = 32 << 20, 4 << 20, 64 << 10


def window_of(plan: JobPlan, n_hosts: int) -> int:
    """Bytes of the window at each end of each link; 0: nothing is to be sent once."""
    return min(MOST, max(LEAST, TOTAL // n_hosts)) if plan.send_equal_once else 0


def bodies(window: int) -> Body:
    """What reads the output frames of one link, whose agent was told of this ``window``."""
    return alike(window) if window else literal


def literal(frame: Frame) -> bytes:
    """The bytes of an OUTPUT frame. Raises: WireError for one that points elsewhere."""
    if frame.kind == SAME:
        raise WireError("output that is the same as other, which was not asked for")
    return frame.body


def alike(size: int) -> Body:
    """What reads the frames that an ``remote.protocol.dedup.Equal`` of ``size`` made,
    in their order.
    """
    from dispatcher.remote.protocol.dedup import Window

    window = Window(size)

    def body(frame: Frame) -> bytes:
        if frame.kind == SAME:
            return window.at(*SPAN.unpack(frame.body))
        window.add(frame.body)
        return frame.body

    return body
