"""Equal output of many, said once: whole blocks, or lines while they stream by; pure.

``gather`` is for output that is complete (one block a host). ``Folding`` is for
lines that are still coming: a line waits a short time for the others to say
the same. Every speaker's lines keep their order, so a line may join an earlier
equal one only if nothing its speaker said since would be passed by it.
A speaker is any value that can be a key: a rank, a host's name.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dispatcher.plan.job.placement import name


def plural(count: int, noun: str, many: str | None = None) -> str:
    """``1 host``, ``2 hosts``; many: the plural, where that is not made with an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


Who = TypeVar("Who", bound=Hashable)

#: seconds a line waits for others, and lines and bytes that may wait at once
WINDOW = 0.25
MOST_LINES = 8192
MOST_BYTES = 4 << 20

_NUMBER = re.compile(rb"(?<![A-Za-z0-9_])[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def gather(blocks: Iterable[tuple[Who, bytes]]) -> list[tuple[list[Who], bytes]]:
    """Each different block once, with all who said it; in order of the first who did."""
    groups: dict[bytes, list[Who]] = {}
    for who, block in blocks:
        groups.setdefault(block, []).append(who)
    return [(speakers, block) for block, speakers in groups.items()]


def fold_numbers(numbers: Iterable[int], name: Callable[[int], str] = str) -> str:
    """``0-3,7`` for any order of 0, 1, 2, 3 and 7; ``name`` writes one number."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(name(a) if a == b else f"{name(a)}-{name(b)}" for a, b in runs)


def masked(line: bytes) -> bytes:
    """``line`` with every number shown as ``#``: ``step 3 loss 2.31`` is ``step # loss #``."""
    return _NUMBER.sub(b"#", line)


@dataclass
class Folded(Generic[Who]):
    """A line and all who said it. kind: what the caller told lines apart by."""

    line: bytes
    kind: int
    speakers: list[Who]
    born: float
    number: int


class Folding(Generic[Who]):
    """Lines go in one by one and come out once for all who said them.

    speakers: how many there are; a line that all have said comes out at once, any
    other after ``window`` seconds, or sooner when too much waits.
    mask: lines that differ in numbers only are equal, and come out masked.
    """

    def __init__(self, speakers: int, *, window: float = WINDOW, mask: bool = False) -> None:
        self._awaited = speakers
        self._window = window
        self._mask = mask
        self._waiting: deque[Folded[Who]] = deque()
        self._by_key: dict[tuple[int, bytes], tuple[list[int], list[Folded[Who]]]] = {}
        self._latest: dict[Who, int] = {}  # number of the last line each speaker is part of
        self._bytes = 0
        self._count = 0

    def add(self, who: Who, line: bytes, now: float, kind: int = 0) -> list[Folded[Who]]:
        """``who`` said ``line``; the lines that come out because of it."""
        key = (kind, masked(line) if self._mask else line)
        numbers, groups = self._by_key.setdefault(key, ([], []))
        at = bisect_right(numbers, self._latest.get(who, 0))
        if at < len(groups):
            group = groups[at]
            group.speakers.append(who)
            if group.line != line:
                group.line = key[1]
        else:
            self._count += 1
            group = Folded(line, kind, [who], now, self._count)
            numbers.append(group.number)
            groups.append(group)
            self._waiting.append(group)
            self._bytes += len(line)
        self._latest[who] = group.number
        return self.due(now)

    def leave(self, count: int = 1) -> None:
        """``count`` speakers have ended; nobody waits for them any more."""
        self._awaited -= count

    def due(self, now: float) -> list[Folded[Who]]:
        """The lines whose time has come, in order."""
        out = []
        while self._waiting:
            head = self._waiting[0]
            crowded = len(self._waiting) > MOST_LINES or self._bytes > MOST_BYTES
            ripe = len(head.speakers) >= self._awaited or now - head.born >= self._window
            if not (crowded or ripe):
                break
            out.append(self._pop())
        return out

    def finish(self) -> list[Folded[Who]]:
        """All that still waits."""
        return [self._pop() for _ in range(len(self._waiting))]

    @property
    def waiting(self) -> int:
        """How many lines wait for others to say the same."""
        return len(self._waiting)

    def _pop(self) -> Folded[Who]:
        group = self._waiting.popleft()
        key = (group.kind, masked(group.line) if self._mask else group.line)
        numbers, groups = self._by_key[key]
        del numbers[0], groups[0]  # the oldest of all is the oldest of its key
        if not groups:
            del self._by_key[key]
        self._bytes -= len(group.line)
        return group


def fold_ranks(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-3,7,1.0-1.1``."""
    numbers = sorted(ranks)
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {fold_numbers(numbers, name)}"
