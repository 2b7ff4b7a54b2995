"""The sinks of a run: labels, who may block the ranks, and where a footer may stand."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.cli.options.output_options import OutputSettings, ShowOptions, settings
from dispatcher.cli.run import run_sinks
from dispatcher.cli.run.run_sinks import (
    PAUSED,
    RankLabels,
    close_panel,
    files_keep_all,
    may_draw,
    open_screen,
    terminals,
    unhurried,
    view_of,
)
from dispatcher.core.events.run_events import Sink
from dispatcher.model.paths import RunPaths
from dispatcher.output.buffered import BufferedSink, Filtered
from dispatcher.output.run_state import RunState
from dispatcher.output.terminal.live_terminal import FIRST as SHOWN_AFTER
from dispatcher.output.terminal.screen import PARTIAL, STATE, Writer
from dispatcher.plan.job.placement import FIRST

from ..conftest import Terminal

#: what descriptors 0, 1 and 2 are: terminals, and what can pause
Streams = Callable[..., None]


def shown(**given: Any) -> OutputSettings:
    return settings(ShowOptions(**given), None)


class Locations:
    """Ranks 0 and 1 are on n1, rank 2 and a spawned one on n2."""

    def home(self, rank: int) -> tuple[int, int]:
        return {0: (0, 0), 1: (0, 1), 2: (1, 0), FIRST: (1, 5)}[rank]

    def host_of(self, rank: int) -> str:
        return ["n1", "n2"][self.home(rank)[0]]

    def program_of(self, rank: int) -> str:
        return ""


class Programs(Locations):
    """Rank 0 acts, the others learn."""

    def program_of(self, rank: int) -> str:
        return "" if rank >= FIRST else "learner" if rank else "actor"


def test_a_verdict_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["error: a", "  last lines of its stderr:", *[f"    {n}" for n in range(30)]]
    size: tuple[int, int] | None = None

    def get_terminal_size(fd: int) -> os.terminal_size:
        if size is None:
            raise OSError
        return os.terminal_size(size)

    monkeypatch.setattr(os, "get_terminal_size", get_terminal_size)
    assert run_sinks.on_screen(lines) == lines  # a file
    size = 0, 0
    assert run_sinks.on_screen(lines) == lines  # a terminal without a size
    size = 80, 24
    assert len(run_sinks.on_screen(lines)) <= 20
    assert run_sinks.on_screen(lines)[-1] == "    29"


def test_programs_have_their_names_in_labels() -> None:
    labels = RankLabels("rank", Programs())
    assert [labels.of(rank) for rank in (0, 2, FIRST)] == ["[actor 0]", "[learner 2]", "[1.0]"]
    assert labels.of_many((0, 1, 2)) == "[actor 0, learner 1-2]"
    assert labels.of_many((1, 2)) == "[learner 1-2]"


@cases(
    ("kind", "one", "spawned", "many", "hues"),
    [
        ("rank", "[2]", "[1.0]", "[0-2]", [0, 1, 2, FIRST]),
        ("host", "[n2:0]", "[n2:1.0]", "[n[1-2]]", [0, 0, 1, FIRST]),
        ("none", "", "", "", [0, 1, 2, FIRST]),
    ],
)
def test_labels(kind: str, one: str, spawned: str, many: str, hues: list[int]) -> None:
    labels = RankLabels(kind, Locations())
    assert (labels.of(2), labels.of(FIRST), labels.of_many([0, 1, 2])) == (one, spawned, many)
    assert [labels.hue(rank) for rank in (0, 1, 2, FIRST)] == hues


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    def set_(
        terminals: set[int], pausing: frozenset[int] = frozenset(), *, same: bool = True
    ) -> None:
        monkeypatch.setattr(os, "isatty", lambda fd: fd in terminals)
        monkeypatch.setattr(run_sinks, "can_pause", lambda fd: fd in pausing | terminals)
        monkeypatch.setattr(run_sinks, "same_file", lambda one, other: same)

    return set_


@pytest.mark.parametrize(
    ("overflow", "is_terminal", "pauses", "kept", "drops", "patience"),
    [
        ("auto", True, True, False, True, 0.0),
        ("auto", True, True, True, True, 0.0),
        ("auto", False, True, False, False, None),  # a pipe, the only place that has the bytes
        ("auto", False, True, True, True, PAUSED),
        ("auto", False, False, True, False, None),  # a file
        ("drop", False, False, False, True, 0.0),
        ("drop", True, True, False, True, 0.0),
        ("block", True, True, True, False, None),
    ],
)
@pytest.mark.parametrize("draws", [False, True])
def test_who_is_waited_for(
    streams: Streams, overflow: str, is_terminal: bool, pauses: bool, kept: bool, drops: bool,
    patience: float | None, draws: bool,
) -> None:  # fmt: skip
    streams({1} if is_terminal else set(), frozenset({1} if pauses else ()))
    screen, writer = Sink(), Writer()
    writer.pace = 7
    found = unhurried(screen, writer, 1, overflow, kept=kept, draws=draws)
    if not drops and not draws:
        assert found is screen
        return
    assert isinstance(found, BufferedSink)
    assert found._drop is drops
    if patience is not None:
        assert found._stall_limit == patience
    assert found._pace() == 7
    found.close()


@pytest.mark.parametrize(
    ("environ", "tty", "pausing", "same", "draws"),
    [
        ({"TERM": "xterm"}, {1, 2}, set(), True, True),
        ({"TERM": "xterm"}, {1, 2}, set(), False, False),  # two terminals
        ({"TERM": "xterm"}, {2}, set(), False, True),  # output to a file
        ({"TERM": "xterm"}, {2}, {1}, False, False),  # | tee
        ({"TERM": "xterm"}, {1}, set(), False, False),
        ({"TERM": "xterm"}, set(), set(), True, False),
        ({}, {1, 2}, set(), True, False),
        ({"TERM": ""}, {1, 2}, set(), True, False),
        ({"TERM": "dumb"}, {1, 2}, set(), True, False),
        ({"TERM": "unknown"}, {1, 2}, set(), True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, {1, 2}, set(), True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, {1, 2}, set(), True, True),
        ({"TERM": "xterm", "CI": "true"}, {1, 2}, set(), True, False),
    ],
)
def test_where_a_footer_may_stand(
    streams: Streams, environ: dict[str, str], tty: set[int], pausing: set[int], same: bool,
    draws: bool,
) -> None:  # fmt: skip
    streams(tty, frozenset(pausing), same=same)
    assert may_draw(environ) is draws
    assert terminals() == frozenset(tty)


@pytest.mark.parametrize(("no_color", "colours"), [("", True), ("1", False)])
def test_how_lines_look(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, no_color: str, colours: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    streams({2})
    labels = RankLabels("rank", Locations())
    view = view_of(shown(timestamps=True, grep="x"), labels)
    assert view.terminals == frozenset({2})
    assert view.coloured == (frozenset({2}) if colours else frozenset())
    assert (view.label(2), view.hue(2), view.fold_label([0, 1])) == ("[2]", 2, "[0-1]")
    assert view.timestamps
    assert view.grep is not None
    assert view.fold is None
    assert (view.partial_after, view.state_after) == (PARTIAL, STATE)
    view = view_of(shown(partial_after=0.5), labels)
    assert (view.partial_after, view.state_after) == (0.5, 0.5)
    assert view.timestamps is False


def test_the_screen_without_a_terminal(
    streams: Streams, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    streams(set())
    sink, footer = open_screen(
        shown(only_ranks="1"), RankLabels("rank", Locations()), RunState(["n1"]),
        on_broken=lambda: None, files_keep_all=False,
    )  # fmt: skip
    assert footer is None
    assert isinstance(sink, Filtered)
    for rank in (0, 1):
        sink.output(rank, 1, b"x\n")
        sink.output(rank, 2, b"y\n")
    sink.close()
    assert capfdbinary.readouterr() == (b"[1] x\n", b"[1] y\n")


@pytest.mark.parametrize(("quiet", "draws"), [(False, True), (True, False)])
def test_the_screen_of_a_terminal(terminal: Terminal, quiet: bool, draws: bool) -> None:
    terminal.take()
    sink, footer = open_screen(
        shown(quiet=quiet), RankLabels("none", Locations()), RunState(["n1"]),
        on_broken=lambda: None, files_keep_all=False,
    )  # fmt: skip
    assert (footer is not None) is draws
    assert isinstance(sink, BufferedSink)
    sink.output(0, 1, b"line\n")
    sink.close()
    terminal.leave()
    assert terminal.plain.startswith("line\r\n")


def test_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[int] = []
    sink, _ = open_screen(
        shown(), RankLabels("none", Locations()), RunState(["n1"]),
        on_broken=lambda: broken.append(1), files_keep_all=False,
    )  # fmt: skip
    source, end = os.pipe()
    os.close(source)
    kept = os.dup(1)
    os.dup2(end, 1)
    try:
        sink.output(0, 1, b"x\n" * 100)
        sink.close()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(end)
    assert broken == [1]


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@cases(
    ("lines", "seconds", "says"),
    [([], SHOWN_AFTER - 0.1, False), ([], SHOWN_AFTER, True), (["error: it failed"], 0.0, True)],
)
def test_the_end_of_a_footer(
    lines: list[str], seconds: float, says: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    close_panel(lines, 3 if lines else 0, 2, 4, seconds)
    out, err = capfd.readouterr()
    assert out == ""
    assert bool(err) is says
    assert ("4 ranks on 2 hosts" in err) is says
    assert ("it failed" in err) is bool(lines)
    if says:
        assert err.endswith("\n")
        assert max(map(len, plain(err).splitlines())) == (79 if lines else 29)


@cases(
    ("given", "kept"),
    [
        ({}, True),
        ({"log_overflow": "drop"}, False),
        ({"log_size": "1M"}, True),
        ({"log_size": "1M", "log_keep": "3"}, False),
    ],
)
def test_whether_files_have_every_byte(given: dict[str, str], kept: bool) -> None:
    output = shown(log_dir="d", **given)
    assert files_keep_all(output, RunPaths(Path("d"))) is kept
    assert files_keep_all(output, None) is False
