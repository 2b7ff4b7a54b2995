"""Output on its way in: how much may be under way, and whether its end was told.

The agent reads its ranks' pipes only while it has credit. It gets back what the sinks have
taken, in large portions. A host is not trusted: one that sends more than its credit would fill
our memory, and breaks the protocol. So does one that tells the end of a rank, and then nothing
of the rest of its output: we would wait for that forever.
"""

from __future__ import annotations

import math
import threading

from dispatcher.remote.protocol.frames import OUTPUT_LIMIT
from dispatcher.runner.run.reports import ReportError

#: what comes without credit: the rest of a rank's two pipes that others hold open. An agent lets go
#: of one rank's at a time, and only while it has credit (``agent_loop.Loop.let_go``)
_CUT = 2 * ((1 << 20) + OUTPUT_LIMIT)


class Credit:
    """Counts one host's output. ``given`` and ``taken`` are called by different threads.

    most: bytes that the agent was granted at its start.
    """

    def __init__(self, most: int) -> None:
        self._portion = most // 2
        self._most = most + _CUT
        self._held = 0  # given, and not yet taken
        self._unpaid = 0  # taken, and not yet given back
        self._lock = threading.Lock()

    @property
    def is_free(self) -> bool:
        """Whether the sinks have all that came, so that more may come."""
        return not self._held

    def given(self, nbytes: int) -> None:
        """So many bytes came from the host. Raises: ReportError if too many."""
        with self._lock:
            self._held += nbytes
            if self._held > self._most:
                raise ReportError("more output than it was given credit for")

    def taken(self, nbytes: int) -> int:
        """The sinks took so many bytes; how many to give back now."""
        with self._lock:
            self._held -= nbytes
            self._unpaid += nbytes
            if self._unpaid < self._portion:
                return 0
            count, self._unpaid = self._unpaid, 0
            return count


#: seconds in which an agent tells the end of the output of a rank that exited, or more of it; it
#: reads on for 2 s where other processes hold the pipes (``remote.agent.node.DRAIN``)
ENDS_LIMIT = 10.0


class Ends:
    """The streams of ranks that exited whose end was not told yet.

    It takes the limit twice until one is late: we may have been stopped (Ctrl-Z) in the first.
    """

    def __init__(self) -> None:
        self._open: set[tuple[int, int]] = set()
        self._since, self._again = 0.0, False

    def exited(self, rank: int, ended: set[tuple[int, int]], now: float) -> None:
        """``rank`` was reaped; of its streams 1 and 2 those in ``ended`` were told to be over."""
        self._open.update({(rank, 1), (rank, 2)} - ended)
        self.moved(now)

    def ended(self, rank: int, stream: int) -> None:
        """The end of a stream was told."""
        self._open.discard((rank, stream))

    def moved(self, now: float) -> None:
        """Output came, of whichever rank."""
        self._since, self._again = now, False

    def clear(self) -> None:
        """Nothing is waited for any more."""
        self._open.clear()

    def wait(self, now: float) -> float:
        """Seconds until ``late`` wants to be asked."""
        return max(0.0, self._since + ENDS_LIMIT - now) if self._open else math.inf

    def late(self, now: float, *, is_free: bool) -> str:
        """What is not told though nothing holds it back (``is_free``); "" if all is well."""
        if not self._open or now < self._since + ENDS_LIMIT:
            return ""
        if is_free and self._again:
            return f"rank {min(self._open)[0]} exited, and the rest of its output is not told"
        self._since, self._again = now, is_free
        return ""
