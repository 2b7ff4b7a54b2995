"""Folds equal text: whole blocks, lines while they come, and hosts with the same trouble. Pure.

``gather_blocks`` folds whole blocks, one a host. ``Folding`` folds lines that are still coming: a
line waits a short time for the same line of other ranks, and joins an earlier equal one only if the
order of its rank's lines stays. ``grouped`` folds hosts with the same trouble: their own names,
addresses, fingerprints and line numbers become ``{host}``, ``{address}``, ``{fingerprint}``,
``{line}``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dispatcher.model.frozen import Value, value
from dispatcher.model.names import fold_numbers
from dispatcher.output.text.sanitize import sanitize_text
from dispatcher.plan.job.placement import rank_name

Who = TypeVar("Who", bound=Hashable)

#: seconds a line waits for others, and lines and bytes that may wait at once
WINDOW = 0.25
MOST_LINES = 8192
MOST_BYTES = 4 << 20

_NUMBER = re.compile(rb"(?<![A-Za-z0-9_])[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_COLOUR = re.compile(rb"(\x1b\[[0-9;:]*m)")


def gather_blocks(blocks: Iterable[tuple[Who, bytes]]) -> list[tuple[list[Who], bytes]]:
    """Each different block once, with all its speakers, in order of each block's first one."""
    groups: dict[bytes, list[Who]] = {}
    for who, block in blocks:
        groups.setdefault(block, []).append(who)
    return [(speakers, block) for block, speakers in groups.items()]


def masked(line: bytes) -> bytes:
    """``line`` with every number shown as ``#``: ``step 3 loss 2.31`` is ``step # loss #``."""
    if b"\x1b" not in line:
        return _NUMBER.sub(b"#", line)
    parts = _COLOUR.split(line)
    parts[::2] = [_NUMBER.sub(b"#", part) for part in parts[::2]]
    return b"".join(parts)


@dataclass
class Folded(Generic[Who]):
    """A line and all its speakers. kind: the caller's key; lines of two kinds are never equal.

    awaited: how many speakers there were when the first one wrote it.
    """

    line: bytes
    kind: int
    speakers: list[Who]
    born: float
    number: int
    awaited: int


class Folding(Generic[Who]):
    """Takes lines one by one, and returns each once with all its speakers.

    speakers: how many there are; a line that all have written comes out at once, any
    other after ``window`` seconds, or sooner when too much waits.
    mask: lines that differ only in numbers are equal, and come out masked.
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
        """Add ``line`` of ``who``; return the lines that come out because of it."""
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
            group = Folded(line, kind, [who], now, self._count, self._awaited)
            numbers.append(group.number)
            groups.append(group)
            self._waiting.append(group)
            self._bytes += len(line)
        self._latest[who] = group.number
        return self.due(now)

    def leave(self, count: int = 1) -> None:
        """Note that ``count`` speakers have ended; later lines do not wait for them."""
        self._awaited -= count

    def due(self, now: float) -> list[Folded[Who]]:
        """The lines whose time has come, in order."""
        out = []
        while self._waiting:
            head = self._waiting[0]
            crowded = len(self._waiting) > MOST_LINES or self._bytes > MOST_BYTES
            ripe = len(head.speakers) >= head.awaited or now - head.born >= self._window
            if not (crowded or ripe):
                break
            out.append(self._pop())
        return out

    def finish(self) -> list[Folded[Who]]:
        """All that still waits."""
        return [self._pop() for _ in range(len(self._waiting))]

    @property
    def waiting(self) -> int:
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
    return f"{word} {fold_numbers(numbers, rank_name)}"


#: trouble -> a remedy that the launcher's own machine knows, or None
Advise = Callable[[str], "str | None"]

_OWN_PREFIX = re.compile(r"\A\{host\}: |(?<=: )\{host\}: ")

_PORT = re.compile(r"(?<=[^:]):[0-9]+\Z")

#: hints that are shown at most
MOST_HINTS = 5

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_OWN = (
    (re.compile(r"(?<![\w.:])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)"), "{address}"),
    (re.compile(r"(?<![\w:.])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]{1,4}:){7})[0-9a-fA-F]{0,4}"
                r"(?::[0-9a-fA-F]{0,4}){2,7}(?:(?<=::)|(?<!:))(?!\w)"), "{address}"),
    (re.compile(r"(?<=/known_hosts:)\d+|(?<=/known_hosts2:)\d+"), "{line}"),
)  # fmt: skip


def no_advice(trouble: str) -> None:
    """An ``Advise`` without any remedy."""


@value
class Trouble(Value):
    """One host's trouble: its ``kind`` in short, the reason ``why``, and a hint.

    about: the key for advice; "" for none.
    """

    host: str
    kind: str
    why: str
    hint: str | None = None
    about: str = ""


def grouped(troubles: Iterable[Trouble]) -> list[tuple[list[str], Trouble]]:
    """(hosts, their common trouble), in the order of each group's first host."""
    groups: dict[tuple[str, str, str], list[Trouble]] = {}
    for one in troubles:
        why = sanitize_text(one.why)
        groups.setdefault((one.kind, one.about, in_common(why, one.host)), []).append(one)
    found = []
    for (kind, about, common), members in groups.items():
        texts = {sanitize_text(one.why) for one in members}
        why = texts.pop() if len(texts) == 1 else sanitize_text(_OWN_PREFIX.sub("", common))
        # the first hint is the group's
        hint = next((one.hint for one in members if one.hint), None)
        hosts = [one.host for one in members]
        found.append((hosts, Trouble(hosts[0], kind, why, hint, about)))
    return found


def hints(groups: Sequence[tuple[list[str], Trouble]], advise: Advise = no_advice) -> list[str]:
    """The hints for ``groups``: each remedy once, even if it is for several hosts."""
    found: dict[str, str] = {}
    for _, one in groups:
        hint = advise(one.about or one.kind) or one.hint
        if hint:
            found.setdefault(in_common(hint, one.host), f"  hint: {sanitize_text(hint)}")
    return list(found.values())[:MOST_HINTS]


def in_common(text: str, host: str) -> str:
    """``text`` with placeholders for the host's own name, addresses and fingerprints."""
    text = _FINGERPRINT.sub("{fingerprint}", text)  # before short names, which it may contain
    for own in (host, _PORT.sub("", host)):
        text = re.sub(rf"(?<![\w.-]){re.escape(own)}(?![\w-])", "{host}", text)
    for pattern, word in _OWN:
        text = pattern.sub(word, text)
    return text
