"""Ctrl-Z: every host stops its ranks, then dispatch stops itself; SIGCONT undoes both. Pure.

Rules, with their ids:

* Z-1  dispatch is stopped only after every host has stopped its ranks, or ``LIMIT`` seconds
* Z-2  whoever was told to pause is told to go on, whatever happened meanwhile
"""

from __future__ import annotations

from collections.abc import Collection

from dispatcher.core.actions import Action, PauseRanks, ResumeRanks, Suspend

#: seconds that hosts may take to stop their ranks
LIMIT = 2.0


class Pause:
    """deadline: when dispatch stops at the latest, None while nothing is under way."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self._awaited: set[int] = set()
        self._told: set[int] = set()

    def begin(self, hosts: Collection[int], now: float) -> list[Action]:
        """The user pressed Ctrl-Z while ``hosts`` have an agent that answers."""
        if self.deadline is not None:
            return []
        self._awaited, self._told = set(hosts), set(hosts)
        if not hosts:
            return [Suspend()]
        self.deadline = now + LIMIT
        return [PauseRanks(host) for host in sorted(hosts)]

    def stopped(self, host: int) -> list[Action]:
        """``host`` has stopped its ranks, or is gone."""
        self._awaited.discard(host)
        return self._suspend() if self.deadline is not None and not self._awaited else []

    def tick(self, now: float) -> list[Action]:
        return self._suspend() if self.deadline is not None and self.deadline <= now else []

    def end(self, hosts: Collection[int]) -> list[Action]:
        """We go on; ``hosts`` are those whose agents answer now (Z-2)."""
        told, self._told = self._told.intersection(hosts), set()
        return [ResumeRanks(host) for host in sorted(told)]

    def excuse(self, seconds: float) -> None:
        if self.deadline is not None:
            self.deadline += seconds

    def _suspend(self) -> list[Action]:
        self.deadline = None
        return [Suspend()]
