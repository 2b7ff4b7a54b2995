"""How long the user has been typing: time that no host is to be charged with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Typing:
    """Told when secrets begin and end to be typed; any thread may tell and ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._since = 0.0
        self._before = 0.0

    def told(self, began: bool) -> None:
        """Another secret is being typed, or one no more."""
        with self._lock:
            now = self._clock()
            if self._count:
                self._before += now - self._since
            self._since = now
            self._count += 1 if began else -1

    def seconds(self) -> float:
        """For how long somebody typed so far."""
        with self._lock:
            return self._before + (self._clock() - self._since if self._count else 0.0)
