"""Interprets signals to dispatch: Ctrl-C and others end the job, Ctrl-Z stops it. Pure.

Batch systems, systemd, timeout(1) and wrappers send TERM and HUP, INT and TERM, or one signal to a
process and then to its group. They mean one thing by it; only a person who presses Ctrl-C again is
in a hurry. At Ctrl-Z every host stops its ranks, then dispatch stops itself; SIGCONT undoes both.

* Z-1  dispatch is stopped only after every host has stopped its ranks, or ``LIMIT`` seconds
* Z-2  each host that got the order to pause gets the order to go on, too
* Z-3  while hosts are being reached dispatch goes on, unless it is asked again: a stopped dispatch
  would miss their answers, and agents would exit for lack of its heartbeat
"""

from __future__ import annotations

import math
import signal
from collections.abc import Collection

from dispatcher.core.events.actions import Action, PauseRanks, ResumeRanks, Suspend

#: seconds between two presses of a key; a signal that comes sooner is the same press, passed on
APART = 0.3
#: seconds in which Ctrl-C, which ends the reader of a pipe as well, comes after its end is seen
READER = 0.5

#: signals that keys of a terminal send
KEYS = (signal.SIGINT, signal.SIGQUIT)

#: how urgent the end is, after 1 for one that was asked for
KILL, LEAVE = 2, 3

#: seconds that hosts may take to stop their ranks
LIMIT = 2.0


class Interrupts:
    """Finds how urgent the end is (``level``); ``came``: the signals so far, without orders."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.level = 0
        self._pressed = -math.inf

    def hear(self, signum: int, now: float, by: str = "") -> int:
        """Note ``signum``; return the new ``level`` if that raises it, else 0.

        by: the command that orders it. SIGKILL is an order, too: a process never sees a real one.
        """
        ordered = signum == signal.SIGKILL and self.level < KILL
        again = signum == signal.SIGQUIT or self._pressed > -math.inf
        is_key = signum in KEYS and not by and now >= self._pressed + APART
        self._pressed = now if is_key else self._pressed
        self.came += [] if by or signum == signal.SIGKILL else [signum]
        if not self.level or ordered or (is_key and again):
            self.level += 1
            return self.level
        return 0


class Pause:
    """Stops the ranks of all hosts, then dispatch itself, as Ctrl-Z asks.

    deadline: when dispatch stops at the latest; None while no stop is under way.
    """

    def __init__(self) -> None:
        self.deadline: float | None = None
        self._awaited: set[int] = set()
        self._told: set[int] = set()
        self._wanted = False  # as soon as all hosts have answered

    def begin(self, hosts: Collection[int], now: float, *, reaching: bool = False) -> list[Action]:
        """Begin to stop: the user pressed Ctrl-Z. hosts: those whose agents answer.

        reaching: others do not yet, but will in a bounded time, or be given up.
        """
        if self.deadline is not None:
            return []
        self._wanted = reaching and not self._wanted  # Z-3
        if self._wanted:
            return []
        self._awaited, self._told = set(hosts), set(hosts)
        if not hosts:
            return [Suspend()]
        self.deadline = now + LIMIT
        return [PauseRanks(host) for host in sorted(hosts)]

    def stopped(self, host: int) -> list[Action]:
        """Note that ``host`` has stopped its ranks, or is gone."""
        self._awaited.discard(host)
        return self._suspend() if self.deadline is not None and not self._awaited else []

    def is_quiet(self, now: float) -> bool:
        """Whether ``tick`` has nothing to do, for any hosts."""
        return not self._wanted and (self.deadline is None or self.deadline > now)

    def tick(self, hosts: Collection[int], now: float, *, reaching: bool = False) -> list[Action]:
        """The actions that are due, with ``hosts`` and ``reaching`` as for ``begin``."""
        if self._wanted and not reaching:
            return self.begin(hosts, now)
        return self._suspend() if self.deadline is not None and self.deadline <= now else []

    def end(self, hosts: Collection[int]) -> list[Action]:
        """Let the hosts go on (Z-2). hosts: those whose agents answer now."""
        self._wanted = False
        told, self._told = self._told.intersection(hosts), set()
        return [ResumeRanks(host) for host in sorted(told)]

    def extend_deadlines(self, seconds: float) -> None:
        """Move the deadline by ``seconds``, in which the launcher itself was stopped."""
        if self.deadline is not None:
            self.deadline += seconds

    def _suspend(self) -> list[Action]:
        self.deadline = None
        return [Suspend()]
