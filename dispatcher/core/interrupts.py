"""Tells a person who presses Ctrl-C again from machines that send signal after signal. Pure.

Batch systems, systemd, timeout(1) and wrappers send TERM and HUP, INT and TERM, or one signal to a
process and then to its group. They mean one thing by it, and send KILL where they mean that.
"""

from __future__ import annotations

import math
import signal

#: seconds between two presses of a key; what comes sooner is one press that was passed on
APART = 0.3
#: seconds in which Ctrl-C, which ends the reader of a pipe as well, comes after its end is seen
READER = 0.5

#: signals that keys of a terminal send
KEYS = (signal.SIGINT, signal.SIGQUIT)

#: how urgent the end is
END, KILL, LEAVE = 1, 2, 3


class Interrupts:
    """How urgent the end is (``level``), by the signals that ``came``, orders left out."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.level = 0
        self._pressed = -math.inf

    def hear(self, signum: int, now: float, by: str = "") -> int:
        """The new ``level`` if ``signum`` raises it, else 0.

        by: the command that orders it. SIGKILL is an order, too: no process is told of a real one.
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
