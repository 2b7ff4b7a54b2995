"""Is a silent host still there? Asked as ssh does with ``ServerAliveInterval``; pure.

A request that the host has to answer, be it with a refusal: one without an answer would
tell nothing, as what is sent to a host that has vanished just waits in a buffer.
"""

from __future__ import annotations

from dispatcher.model.frozen import Value, value

#: seconds of silence until a question, and how many of them may stay without an answer
INTERVAL, MOST = 15.0, 3


def due(silent: float, interval: float, most: int) -> int | None:
    """How many questions are due after ``silent`` seconds; None: the host is given up.

    interval: 0 for never.
    """
    count = int(silent // interval) if interval > 0 else 0
    return None if count > most else count


@value
class Alive(Value):
    """What is said of all hosts. seconds: of silence until a question, 0: never; None: as
    ssh_config has it for the host, and where that says nothing ``otherwise``."""

    seconds: float | None = None
    otherwise: float = 0.0

    def limits(self, interval: float | None, count: int | None) -> tuple[float, int]:
        """The host's interval and number; ``interval`` and ``count`` are its ssh_config's."""
        said = interval if self.seconds is None else self.seconds
        return self.otherwise if said is None else said, MOST if count is None else count


#: for where somebody else watches
UNLESS_CONFIGURED = Alive()
