"""What a running job is doing, and how far its output is, for who comes later.

``Phase`` is for ``dispatch jobs`` in another shell, from the event stream::

    connecting --RanksPlaced--> starting --all ranks run--> running
                                   ^                           |
                               restarting <--RunRestarting-- stopping <--a cause, or no rank is left

A file of one word in the job's record, replaced whenever the word changes (four times in
a run that goes well), so that a look at it asks nobody and cannot hang. That the launcher
lives at all is not said here: see ``registry``.

``Standing`` is what a caller who comes in the middle has to know. With that and the log
files nothing is shown twice or left out: the files are read up to where each stream stood,
the rest comes live. ``merged.log`` takes whole lines only, so for it the heads of lines that
are not whole yet are kept here as well, the last
``HEAD`` bytes of each; what went before in a longer one is told to a caller as missing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.jobs import registry

CONNECTING, STARTING, RUNNING, STOPPING, RESTARTING = registry.PHASES


class Phase(Sink):
    """Keeps the file in ``folder``; a disk that refuses it costs the word, not the job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._awaited = 0  # ranks that have yet to be started
        self._living: set[tuple[int, int]] = set()  # (attempt, rank)
        self.word = ""
        self._become(CONNECTING)

    def event(self, stamped: Stamped) -> None:
        match event := stamped.event:
            case ev.RanksPlaced(world_size):
                self._awaited = world_size
                self._living.clear()
                self._become(STARTING)
            case ev.RankSpawned(_, rank):
                self._living.add((event.attempt, rank))
                self._awaited -= 1
                if self._awaited == 0 and self.word == STARTING:
                    self._become(RUNNING)
            case ev.RankExited(_, rank):
                self._living.discard((event.attempt, rank))
                if not self._living and self._awaited <= 0:
                    self._become(STOPPING)  # what the ranks left is looked for
            case ev.JobStopping():
                self._become(STOPPING)
            case ev.RunRestarting():
                self._become(RESTARTING)

    def _become(self, word: str) -> None:
        if word != self.word:
            self.word = word
            with contextlib.suppress(OSError):
                registry.note_phase(self._folder, word)


HEAD = 64 << 10


class Standing:
    """A fold over output. heads: whether to keep the heads of lines."""

    def __init__(self, heads: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._heads = heads
        self._clock = clock
        self._until = 0.0
        self._world_size: int | None = None
        self._passed: dict[tuple[int, int], int] = {}
        self._ended: dict[tuple[int, int], None] = {}
        self._rests: dict[tuple[int, int], bytes] = {}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Count the bytes, and keep the head of a line that is not whole."""
        key = (rank, stream)
        self._passed[key] = self._passed.get(key, 0) + len(data)
        self._until = self._clock()
        if self._heads:
            end = data.rfind(b"\n") + 1
            rest = data[end:] if end else self._rests.get(key, b"") + data
            self._rests[key] = rest[-HEAD:]

    def ended(self, rank: int, stream: int) -> None:
        """The stream is at its end, so no line of it is waited for."""
        self._ended[rank, stream] = None
        self._rests.pop((rank, stream), None)

    def placed(self, world_size: int) -> None:
        """An attempt begins: all streams are open again, and bytes are counted on."""
        self._world_size = world_size
        self._ended.clear()

    def hello(self) -> dict[str, Any]:
        """The fields of the first frame; see ``protocol``."""
        return {
            "world_size": self._world_size,
            "passed": [[rank, stream, count] for (rank, stream), count in self._passed.items()],
            "ended": [[rank, stream] for rank, stream in self._ended],
            "until": self._until,
        }

    def rests(self) -> list[tuple[int, int, bytes]]:
        """(rank, stream, what has come of its line) where that is not whole yet."""
        return [(rank, stream, rest) for (rank, stream), rest in self._rests.items() if rest]
