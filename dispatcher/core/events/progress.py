"""Reads how far a rank has come from a line that ``--progress-line`` matches. Pure.

``Pace`` keeps the latest readings of one rank, and computes the time left from their rate.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

#: seconds over which the rate is measured; least seconds between two readings that are kept
RECENT, APART = 300.0, 1.0
#: bytes after the match in which the rest of ``120/1000`` or ``12%`` may be
TAIL = 32

_NUMBER = rb"\d{1,15}(?:\.\d{1,9})?"
#: of a date such as 2026/01/31 no part is a pair
_PAIR = re.compile(rb"(?<![\d/.])(%s)\s?(?:/|of)\s?(%s)(?![\d/])" % (_NUMBER, _NUMBER))
_PERCENT = re.compile(rb"(?<![\d.])(%s)\s?%%" % _NUMBER)


def part_of(match: re.Match[bytes]) -> tuple[float, float] | None:
    """(done, total) of ``120/1000``, ``120 of 1000`` or ``12%``; None if there is no such part.

    It begins in the match. A group ``total`` of the pattern goes first: then a group ``done``, or
    the first number beside it, is the other.
    """
    groups = match.groupdict()
    if groups.get("total") is not None:
        done = groups.get("done")
        if done is None:
            from_, to = (edge - match.start() for edge in match.span("total"))
            rest = re.search(_NUMBER, match[0][:from_] + b" " + match[0][to:])
            done = rest and rest[0]
        return _judged(done, groups["total"])
    text = match.string[match.start() : match.end() + TAIL]
    for pattern, whole in ((_PAIR, None), (_PERCENT, b"100")):
        found = pattern.search(text)
        if found is not None and found.start() < len(match[0]):
            return _judged(found[1], whole or found[2])
    return None


def _judged(done: bytes | None, total: bytes) -> tuple[float, float] | None:
    try:
        part, whole = float(done or b""), float(total)
    except ValueError:
        return None
    return (part, whole) if 0 <= part <= whole < 1e15 and whole else None


def time_left(seen: Sequence[tuple[float, float]], total: float, now: float) -> float | None:
    """Seconds until ``total``, from ``seen``: (time, done), the oldest first; None if unknown.

    A pause that is longer than usual counts in the rate, so the time left grows while it lasts.
    """
    if len(seen) < 2 or seen[-1][1] <= seen[0][1]:
        return None
    (first, begun), (last, done) = seen[0], seen[-1]
    span, pause = last - first, max(0.0, now - last)
    if pause <= 2 * span / (len(seen) - 1):
        return max(0.0, (total - done) * span / (done - begun) - pause)
    return (total - done) * (span + pause) / (done - begun)


class Pace:
    """How far ``rank`` has come, and when, in the last ``RECENT`` seconds."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._total = 0.0
        self._seen: deque[tuple[float, float]] = deque()

    def take(self, now: float, done: float, total: float) -> None:
        """Take a reading. Another total, or less done, begins a new count: the next epoch."""
        seen = self._seen
        if total != self._total or (seen and done < seen[-1][1]):
            self._total = total
            seen.clear()
        if len(seen) > 1 and now - seen[-2][0] < APART:
            seen.pop()
        seen.append((now, done))
        while len(seen) > 2 and seen[1][0] <= now - RECENT:
            seen.popleft()

    @property
    def rate(self) -> float | None:
        """Done a second, as of the last reading; None if it is not known."""
        if len(self._seen) < 2 or self._seen[-1][1] <= self._seen[0][1]:
            return None
        (first, begun), (last, done) = self._seen[0], self._seen[-1]
        return (done - begun) / max(last - first, 1e-3)

    def left(self, now: float) -> float | None:
        """Seconds until all is done; None while the rate is not known."""
        return time_left(self._seen, self._total, now)
