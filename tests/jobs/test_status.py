"""What ``dispatch jobs`` says of a running job, from its events."""

from __future__ import annotations

import os
from pathlib import Path

from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.core.events.verdicts import Interrupted
from dispatcher.jobs import registry
from dispatcher.jobs.status import Phase

PLACED = ev.RanksPlaced(2, "n1", 29500)
UP = [ev.RankSpawned(0, 0, 10), ev.RankSpawned(0, 1, 11)]
AGAIN = [ev.RankSpawned(0, 0, 12, attempt=1), ev.RankSpawned(0, 1, 13, attempt=1)]
DONE = [ev.RankExited(0, 0, 0), ev.RankExited(0, 1, 0)]
STOP = ev.JobStopping("x")
RESTART = ev.RunRestarting(Interrupted(2), 1, 1, 0.0)


@cases(
    ("events", "word"),
    [
        ([], "connecting"), ([ev.NodeConnecting(0)], "connecting"), ([PLACED], "starting"),
        ([PLACED, UP[0]], "starting"),
        ([PLACED, UP[0], DONE[0]], "starting"),  # it was quick; the other is still to come
        ([PLACED, *UP], "running"),
        ([PLACED, UP[0], DONE[0], UP[1]], "running"),
        ([PLACED, *UP, DONE[1]], "running"),
        ([PLACED, *UP, ev.RankSpawned(0, 1 << 20, 14), *DONE], "running"),  # one was spawned
        ([PLACED, *UP, *DONE], "stopping"), ([PLACED, *UP, STOP], "stopping"), ([STOP], "stopping"),
        ([PLACED, UP[0], STOP, UP[1]], "stopping"), ([PLACED, *UP, STOP, RESTART], "restarting"),
        ([PLACED, *UP, STOP, RESTART, PLACED], "starting"),
        ([PLACED, *UP, STOP, RESTART, PLACED, *AGAIN], "running"),
        ([PLACED, *UP, STOP, RESTART, PLACED, *AGAIN, *DONE], "running"),  # late words
    ],
)  # fmt: skip
def test_what_it_is_doing(tmp_path: Path, events: list[ev.Event], word: str) -> None:
    phase = Phase(tmp_path)
    for number, event in enumerate(events):
        phase.event(Entry(number, 0.0, event))
    assert phase.word == word
    assert registry._doing(tmp_path) == word


@cases("text", ["", "[]", '{"phase": 3}', '{"phase": "\\u001b[2J"}', "{}"])
def test_a_file_that_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "phase.json").write_text(text)
    assert registry._doing(tmp_path) == "running"


def test_a_folder_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    phase = Phase(tmp_path / "gone")
    phase.event(Entry(1, 0.0, PLACED))
    assert phase.word == "starting"
    assert not os.path.exists(tmp_path / "gone")
