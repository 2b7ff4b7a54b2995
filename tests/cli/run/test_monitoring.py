"""Who looks at ranks: nothing unless it is wanted, and what there has to be for it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.api.request import plan_job
from dispatcher.api.request import request as asked
from dispatcher.cli.options.output_options import ShowOptions, settings
from dispatcher.cli.run import monitoring
from dispatcher.cli.run.monitoring import Monitoring, WatchTable, check, is_screen, open_table
from dispatcher.cli.run.run import RunOptions
from dispatcher.core.events.run_events import Entry, RankSpawned, RanksPlaced, Sink
from dispatcher.model.errors import UsageError
from dispatcher.output.monitor.live_table import Table
from dispatcher.output.monitor.outliers import SampleOutliers, StepLines

from ..conftest import Terminal

PLAN = plan_job(asked("n1:1,n2:1", ["a"], kind="command", spares=1))
HOSTS = ["n1", "n2"]


def made(**given: Any) -> Monitoring:
    return Monitoring(PLAN, settings(ShowOptions(**given), None), HOSTS, lambda event: None)


@cases(
    ("environ", "terminals", "same", "is_one"),
    [
        ({"TERM": "xterm"}, {1, 2}, True, True),
        ({"TERM": "xterm"}, {1, 2}, False, False),
        ({"TERM": "xterm"}, {1}, True, False),
        ({"TERM": "xterm"}, {2}, True, False),
        ({"TERM": "dumb"}, {1, 2}, True, False),
        ({"TERM": "unknown"}, {1, 2}, True, False),
        ({"TERM": ""}, {1, 2}, True, False),
        ({}, {1, 2}, True, False),
    ],
)
def test_whether_there_is_a_screen(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], terminals: set[int], same: bool,
    is_one: bool,
) -> None:  # fmt: skip
    monkeypatch.delenv("TERM", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "isatty", lambda fd: fd in terminals)
    monkeypatch.setattr(monitoring, "same_file", lambda one, other: same)
    assert is_screen() is is_one


@cases(
    ("options", "screen", "typed", "said"),
    [
        (RunOptions(watch=True), True, True, ""),
        (RunOptions(watch=True, stdin="all"), True, False, ""),
        (RunOptions(watch=True, stdin="all"), True, True, "--watch and --stdin would both read"),
        (RunOptions(watch=True), False, True, "--watch: standard output and standard error are"),
        (RunOptions(watch=True, detach=True), True, True, "--watch needs a screen"),
    ],
)
def test_what_watch_needs(
    monkeypatch: pytest.MonkeyPatch, options: RunOptions, screen: bool, typed: bool, said: str
) -> None:
    monkeypatch.setattr(monitoring, "is_screen", lambda: screen)
    monkeypatch.setattr(os, "isatty", lambda fd: typed and fd == 0)
    if not said:
        assert check(options) is None  # type: ignore[func-returns-value]
        return
    with pytest.raises(UsageError) as caught:
        check(options)
    assert caught.value.message.startswith(said)
    assert caught.value.hint


@cases(
    ("given", "kinds"),
    [
        ({}, []),
        ({"step_line": "x"}, [StepLines]),
        ({"sample": 1.0}, [SampleOutliers]),
        ({"metrics": "f"}, [SampleOutliers, Table]),
        ({"step_line": "x", "metrics": "f", "sample": 1.0}, [StepLines, SampleOutliers, Table]),
    ],
)
def test_only_what_is_wanted(given: dict[str, Any], kinds: list[type]) -> None:
    found = made(**given)
    assert [type(sink) for sink in found.sinks] == kinds
    screen: Any = object()
    assert found.over(screen) is screen
    with found as same, found.lent():
        assert same is found


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
    found = made(metrics=str(path), sample=0.5)
    (sink,) = found.metrics(lambda line: None)
    (_, table) = found.sinks
    for one in (table, sink):
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


def test_the_table_knows_all_hosts() -> None:
    table = open_table(PLAN, lambda: ("n1 is slow",))
    table.event(Entry(0, 0.0, RanksPlaced(1, "n1", 1)))
    table.event(Entry(0, 0.0, RankSpawned(1, 0, 7)))
    found = table.snapshot()
    assert found.slow == ("n1 is slow",)
    assert [row.host for row in found.rows] == ["n2"]  # the spare


class Watched(Sink):
    """In the place of the screen with the table before it."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.back = self.lendings = 0

    def give_back(self) -> None:
        self.back += 1

    def lent(self) -> Any:
        self.lendings += 1
        return self

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *error: object) -> None:
        self.lendings += 10


def test_the_terminal_is_given_back(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatcher.output.terminal import alt_screen

    monkeypatch.setattr(alt_screen, "WatchScreen", Watched)
    terminal.take()
    found = made(watch=True)
    screen: Any = object()
    over: Any = found.over(screen)
    assert isinstance(over, Watched)
    assert over.given[1] is screen
    with found:
        with found.lent():
            assert over.lendings == 1
        assert (over.lendings, over.back) == (11, 0)
    assert over.back == 1
    with made(watch=True) as early:
        pass  # ended before there was a screen
    for one in (found, early):
        assert one._watched is not None
        one._watched._view.alt_screen.close()
    terminal.leave()


def test_no_terminal_for_the_table(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="--watch: the terminal: inappropriate ioctl"):
        WatchTable(HOSTS, open_table(PLAN, tuple))
