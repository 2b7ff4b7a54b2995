"""Our end of ``put``: what each host needs, sent at its own pace.

A host with Python is sent the program of ``there`` and the list of files, says what it
needs and gets just that; its report says what it did. A host without is sent a tar. One
writer thread a host; what hosts say is parsed on their own threads, bounded and checked.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.bootstrap import copy_program
from dispatcher.model.errors import UsageError
from dispatcher.remote.protocol import copy_frames
from dispatcher.transfer.put_files import Group, Sources
from dispatcher.transfer.talking import Talking
from dispatcher.transfer.told import Told
from dispatcher.transport.base import Link, LinkClosed

#: bytes of one answer of a host
_LARGEST = 64 << 20
_CHUNK = 64 << 10


class Sending(Talking):
    """Talks with the hosts (``runner.exec.dialogue``): ``plans[node]`` goes to ``node``.

    plans: sources, and the groups with that host's destinations. told: written as it goes.
    below: node -> what it is told to pass on (``tree.instructions``), and what is known
    of those hosts, by the names it has for them.
    """

    def __init__(
        self,
        plans: Sequence[tuple[Sources, tuple[Group, ...]]],
        *,
        checksum: bool,
        resume: bool,
        told: Sequence[Told],
        below: Mapping[int, tuple[dict[str, Any], dict[int, Told]]] | None = None,
    ) -> None:
        super().__init__("put", _LARGEST, told)
        self._plans = plans
        self._below = below or {}
        self._checksum = checksum
        self._resume = resume
        self._orders: dict[tuple[int, tuple[Group, ...]], bytes] = {}
        self._lock = threading.Lock()

    # -- one host ---------------------------------------------------------------------------

    def _by_tar(self, node: int, link: Link) -> None:
        sources, groups = self._plans[node]
        if len(groups) > 1:
            raise UsageError("{rank} in a destination needs a python3 there")
        with self._lock:
            packed = sources.tar()
        at = 0
        while data := packed.read(at, _CHUNK):
            link.write(data)
            at += len(data)
            self.told[node].bytes = min(at, self.told[node].wanted)

    def _by_python(self, node: int, link: Link) -> None:
        sources, _ = self._plans[node]
        told, hearing = self.told[node], self._hearing[node]
        link.write(copy_program.payload(bool(self._below.get(node))) + self._order(node))
        answer = hearing.value()
        if _take_report(told, answer):
            return
        needed, starts = needs_of(answer, sources.entries)
        told.wanted = sum(sources.entries[index].size for index in needed)
        try:
            for piece in sources.pieces(needed, starts):
                link.write(piece)
                told.bytes = min(told.wanted, told.bytes + len(piece))
        except LinkClosed:
            pass  # it may have said why
        while "of" in (answer := hearing.value()):
            self._take_message(node, answer)
        _take_report(told, answer)

    def _take_message(self, node: int, answer: dict[str, Any]) -> None:
        """What an inner host says of those below it: it can say nothing of any other."""
        _, below = self._below.get(node, ({}, {}))
        nodes = answer.pop("of", None)
        if not isinstance(nodes, list):
            raise copy_frames.BadFrame("a word of nobody")
        for other in nodes:
            told = below.get(other) if isinstance(other, int) else None
            if told is None:
                raise copy_frames.BadFrame("a word of a host that is not below it")
            told.python = True
            if "failed" not in answer:
                _take_report(told, answer)
            else:
                told.relay_error = str(answer["failed"])[:300]

    def _order(self, node: int) -> bytes:
        sources, groups = self._plans[node]
        more, _ = self._below.get(node, (None, None))
        if more:
            return sources.order(groups, checksum=self._checksum, resume=self._resume, more=more)
        key = (id(sources), groups)
        with self._lock:
            if key not in self._orders:
                self._orders[key] = sources.order(
                    groups, checksum=self._checksum, resume=self._resume
                )
            return self._orders[key]


def _take_report(told: Told, answer: dict[str, Any]) -> bool:
    """Whether ``answer`` is the host's last word; what it says is kept."""
    error, sent, equal = answer.get("error"), answer.get("sent"), answer.get("equal")
    if isinstance(error, str):
        told.error = error[:500]
    elif isinstance(sent, int) and isinstance(equal, int):
        told.sent, told.equal = sent, equal
        told.bytes = told.wanted = _number(answer.get("bytes"))
        told.found = _number(answer.get("found"))
    else:
        return False
    return True


def _number(value: object) -> int:
    """``value`` if it is a number of bytes, else 0."""
    return value if isinstance(value, int) and 0 <= value < 1 << 60 else 0


def needs_of(
    answer: dict[str, Any], entries: Sequence[copy_frames.Entry]
) -> tuple[list[int], dict[int, tuple[int, str]]]:
    """Which entries a host wants, and what it has of them already. Raises: BadFrame."""
    try:
        needed = copy_frames.numbers_of(answer["need"])
    except (KeyError, ValueError, AttributeError):
        raise copy_frames.BadFrame("a broken answer") from None
    last, wanted = -1, set(needed)
    for index in needed:
        if not last < index < len(entries) or entries[index].kind != copy_frames.FILE:
            raise copy_frames.BadFrame("it wants what was not offered")
        last = index
    starts = copy_frames.starts_of(answer)
    for index, (size, _) in starts.items():
        if index not in wanted or not 0 <= size <= entries[index].size:
            raise copy_frames.BadFrame("it has more of a file than there is")
    return needed, starts
