"""The gate that the threads of a run's hosts pass to connect: ``core.connect`` for many threads.

A host is past it once its link is open: what sshd's MaxStartups counts are connections that
have yet to log in, so an agent that takes long to start holds up nobody.
"""

from __future__ import annotations

import threading
import time

from dispatcher.core.connect import Attempt, ConnectPolicy
from dispatcher.model.failure import Failure


class ConnectGate:
    """``most`` hosts connect at once; each has ``seconds`` from its first attempt on."""

    def __init__(self, most: int, seconds: float) -> None:
        self._policy = ConnectPolicy(most, seconds, chance)
        self._room = threading.Condition()

    def enter(self, host: int) -> Attempt:
        """Wait for room; the attempt to make then."""
        with self._room:
            self._room.wait_for(lambda: self._policy.has_room)
            return self._policy.begin(host, time.monotonic())

    def reached(self, host: int) -> None:
        """``host`` is connected."""
        with self._room:
            self._policy.reached(host)
            self._room.notify(2)  # its own room, and what the window has grown by

    def failed(self, host: int, failure: Failure) -> float | None:
        """Seconds after which to ``enter`` once more; None: ``failure`` is final."""
        with self._room:
            self._room.notify()
            return self._policy.failed(host, failure, time.monotonic())

    def given_up(self, host: int) -> None:
        """Nobody connects to ``host`` any more."""
        with self._room:
            self._policy.given_up(host)
            self._room.notify()


def chance() -> float:
    """A random number from 0 to 1; needed only where hosts drop connections."""
    import random

    return random.random()  # noqa: S311 - it spreads attempts, nothing is secret
