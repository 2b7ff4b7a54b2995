"""Who looks at ranks: nothing unless it is wanted, and what there has to be for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.api.request import plan_job
from dispatcher.api.request import request as asked
from dispatcher.cli.options.output_options import ShowOptions, settings
from dispatcher.cli.run.run_sinks import Monitoring
from dispatcher.core.events.run_events import Entry, RankSpawned, RanksPlaced
from dispatcher.model.errors import UsageError
from dispatcher.output.monitor.notices import GpuNotes, StallDetector
from dispatcher.output.monitor.outliers import SampleOutliers, StepLines
from dispatcher.output.run_state import RunState

PLAN = plan_job(asked("n1:1,n2:1", ["a"], kind="command", spares=1))
HOSTS = ["n1", "n2"]


def made(state: RunState | None = None, **given: Any) -> Monitoring:
    state = state or RunState(HOSTS)
    return Monitoring(PLAN, settings(ShowOptions(**given), None), state, lambda event: None)


@cases(
    ("given", "kinds"),
    [
        ({}, []),
        ({"step_line": "x"}, [StepLines]),
        ({"sample": 1.0}, [SampleOutliers, GpuNotes]),
        ({"metrics": "f"}, [SampleOutliers, GpuNotes]),
        ({"stall_after": 9.0}, [StallDetector]),
        (
            {"step_line": "x", "metrics": "f", "sample": 1.0},
            [StepLines, SampleOutliers, GpuNotes],
        ),
    ],
)
def test_only_what_is_wanted(given: dict[str, Any], kinds: list[type]) -> None:
    found = made(**given)
    assert [type(sink) for sink in found.sinks] == kinds


def test_slow_ranks_in_words() -> None:
    assert made().slow() == ()
    found = made(step_line="step: (.*)")
    (sink,) = found.sinks
    sink.event(Entry(0, 0.0, RanksPlaced(2, "n1", 1)))
    for rank in (0, 1):
        sink.event(Entry(0, 0.0, RankSpawned(rank, rank, 7)))
    for _ in range(30):
        for rank, seconds in ((0, b"0.1"), (1, b"0.9")):
            sink.output(rank, 1, b"step: " + seconds + b"\n")
    assert found.slow() == sink.words()  # type: ignore[attr-defined]


def test_figures_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    state = RunState(HOSTS)
    found = made(state, metrics=str(path), sample=0.5)
    (sink,) = found.metrics(lambda line: None)
    for one in (state, sink):
        one.event(Entry(0, 0.0, RanksPlaced(2, "n1", 1)))
        one.event(Entry(0, 0.0, RankSpawned(0, 0, 77)))
    sink.close()
    text = path.read_text()
    assert PLAN.run_id in text
    assert re.search(r'host="n1"', text)
    assert made().metrics(lambda line: None) == []
    assert made(sample=1.0).metrics(lambda line: None) == []


def test_figures_that_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="--metrics /no/where/f: no such file or directory"):
        made(metrics="/no/where/f").metrics(lambda line: None)
