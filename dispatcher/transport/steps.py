"""How long each step of reaching a host took: for traces and for the names of late steps."""

from __future__ import annotations

import time


class Steps:
    """The step that is under way, and those before it with their seconds, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._since = time.monotonic()
        self._done: list[tuple[str, float]] = []

    def enter(self, name: str) -> None:
        """The step ``name`` begins, and so the one before it is over."""
        now = time.monotonic()
        self._done.append((self.name, now - self._since))
        self.name, self._since = name, now

    def taken(self) -> tuple[tuple[str, float], ...]:
        """(name, seconds) of every step so far, the current one until now."""
        return (*self._done, (self.name, time.monotonic() - self._since))
