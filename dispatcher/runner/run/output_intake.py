"""How many bytes of output a host may have under way, counted where they arrive.

The agent reads its ranks' pipes only while it has credit. It gets back what the sinks have
taken, in large portions. A host is not trusted: one that sends more would fill our memory,
the more so as a few bytes may stand for many (``runner.run.equal``).
"""

from __future__ import annotations

import threading

from dispatcher.remote.protocol.wire import OUTPUT_LIMIT
from dispatcher.runner.run.reports import ReportError

#: what comes without credit: the rest of a pipe that others hold open; it has two for each rank
_CUT = 2 * ((1 << 20) + OUTPUT_LIMIT)


class Credit:
    """Counts one host's output. ``given`` and ``taken`` are called by different threads.

    most: bytes that the agent was granted at its start.
    """

    def __init__(self, most: int) -> None:
        self._portion = most // 2
        self._granted = most
        self._most = most
        self._held = 0  # given, and not yet taken
        self._unpaid = 0  # taken, and not yet given back
        self._lock = threading.Lock()

    def given(self, nbytes: int, ranks: int) -> None:
        """So many bytes came from a host of ``ranks`` ranks. Raises: ReportError if too many."""
        with self._lock:
            self._held += nbytes
            self._most = max(self._most, self._granted + ranks * _CUT)
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
