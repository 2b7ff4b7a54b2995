"""What a running job is doing, from the event stream: for ``dispatch jobs`` in another shell.

::

    connecting --RanksPlaced--> starting --all ranks run--> running
                                   ^                           |
                               restarting <--RunRestarting-- stopping <--a cause, or no rank is left

A file of one word in the job's record, replaced whenever the word changes (four times in
a run that goes well), so that a look at it asks nobody and cannot hang. That the launcher
lives at all is not said here: see ``registry``.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
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

    def event(self, entry: Entry) -> None:
        match event := entry.event:
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
