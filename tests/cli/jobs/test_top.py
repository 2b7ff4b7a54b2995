"""``top``: a table once, or on the whole screen until somebody leaves."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.jobs import top as command
from dispatcher.core.events.run_events import Entry, RankSpawned, RanksPlaced
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import frame
from dispatcher.output.monitor.run_picture import Snapshot, TopRank, snapshot_of
from dispatcher.output.run_state import RunState

from ..conftest import Launched, OnRecord, Terminal

RUN_ID = "20260131-142501-k3f9x2"
ENDED = frame(type="verdict", exit_code=3, lines=[])


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
    monkeypatch.setattr(command, "same_file", lambda one, other: same)
    assert command.is_screen() is is_one


def snapshot(*cpu: float | None, alive: bool = True) -> Snapshot:
    """Two ranks, and how much of a CPU each has used."""
    state = RunState(["n1", "n2"])
    for event in (RanksPlaced(2, "n1", 1), RankSpawned(0, 0, 71), RankSpawned(1, 1, 72)):
        state.event(Entry(0, 0.0, event))
    found = snapshot_of(state)
    rows = tuple(
        replace(row, cpu=share, alive=alive or row.rank == "0")
        for row, share in zip(found.ranks, cpu, strict=True)
    )
    return replace(found, ranks=rows)


def table(*cpu: float | None, alive: bool = True) -> bytes:
    return frame(type="table", table=snapshot(*cpu, alive=alive).plain())


@pytest.mark.parametrize(
    ("words", "every"), [([], 2.0), (["--sample", "0.5"], 0.5), (["--sample", "3600"], 3600.0)]
)
def test_a_table_is_printed_once_all_figures_are_known(
    launched: Launched, words: list[str], every: float, capsys: pytest.CaptureFixture[str]
) -> None:
    one = launched(table(None, 12.5), table(33.0, 12.5), table(99.0, 99.0), ENDED)
    assert cli.main(["top", *words]) == 0
    assert one.orders == [{"order": "attach", "table": every}]
    out, err = capsys.readouterr()
    assert ("71" in out, "72" in out, "n1" in out, "n2" in out) == (True,) * 4
    assert out.count("33") == 1
    assert "99" not in out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "ended" not in err


def test_the_table_for_programs(launched: Launched, capsys: pytest.CaptureFixture[str]) -> None:
    launched(table(33.0, 12.5), ENDED)
    assert cli.main(["top", "--json"]) == 0
    ranks = promises.told(capsys.readouterr().out)["ranks"]
    assert [(row["rank"], row["host"], row["pid"], row["cpu"]) for row in ranks] == [
        ("0", "n1", 71, 33.0), ("1", "n2", 72, 12.5),
    ]  # fmt: skip
    gpu = TopRank("1.0", "n1", 0, None, "runs", gpu_used=90.0, gpu_memory=2e9)
    cli.print_json(replace(snapshot(1.0, 1.0), ranks=(gpu,)))
    (rank,) = promises.told(capsys.readouterr().out)["ranks"]
    assert (rank["rank"], rank["gpu_used"], rank["gpu_memory"], rank["gpu_watts"]) == (
        "1.0", 90.0, 2e9, None,
    )  # fmt: skip


def test_a_rank_that_is_no_more_has_no_figures(
    launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(table(33.0, None, alive=False), ENDED)
    assert cli.main(["top"]) == 0
    assert "33" in capsys.readouterr().out


def test_figures_that_do_not_come_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    show = command._once(command.print_table, 8.0)
    waits = []
    for now[0] in (100.0, 107.9, 108.0):
        waits.append(show(snapshot(None, 1.0)))
        assert show(None) is True
    assert waits == [True, True, False]
    assert "71" in capsys.readouterr().out


def test_a_job_that_ends_meanwhile(launched: Launched, capsys: pytest.CaptureFixture[str]) -> None:
    launched(table(None, None), frame(type="say", line="x"), ENDED)
    assert cli.main(["top"]) == 0
    assert capsys.readouterr() == ("", f"note: job {RUN_ID} ended, exit code 3\n")


def test_a_job_that_has_ended(on_record: OnRecord, capsys: pytest.CaptureFixture[str]) -> None:
    registry.conclude(on_record(), 3, [])
    assert cli.main(["top"]) == 125
    said = f"error: job {RUN_ID}: it has ended, exit code 3 [job-ended]\n"
    said += f"  hint: dispatch logs {RUN_ID}\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("seconds", ["0.1", "3601", "x"])
def test_how_often(on_record: OnRecord, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    on_record()
    assert cli.main(["top", "--sample", seconds]) == 2
    assert "--sample" in capsys.readouterr().err


def test_a_launcher_that_shows_no_table(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "REPLY_TIMEOUT", 0.0)
    launched(frame(type="say", line="x"), frame(type="say", line="y"), table(1.0, 1.0), code=None)
    assert cli.main(["top"]) == 125
    assert "its launcher does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("rubbish", [b'{"type": "table", "table": {"rows": 3}}\n', b"{\n"])
def test_a_table_that_is_none(
    launched: Launched, rubbish: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(rubbish, code=None)
    assert cli.main(["top"]) == 125
    assert "its launcher does not answer" in capsys.readouterr().err


def test_ctrl_c(launched: Launched) -> None:
    launched(before=lambda: os.kill(os.getpid(), signal.SIGINT), code=None)
    assert cli.main(["top"]) == 130


def test_on_the_whole_screen_until_q(launched: Launched, terminal: Terminal) -> None:
    terminal.take()

    def leave() -> None:
        terminal.until("33")
        terminal.type("q")

    typist = threading.Thread(target=leave)
    typist.start()
    launched(table(33.0, 12.5), stays=True, code=None)
    before = [signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGHUP)]
    try:
        assert cli.main(["top"]) == 0
    finally:
        typist.join(40)
        for number, handler in zip((signal.SIGTSTP, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)
    shown = terminal.leave()
    assert shown.index("\x1b[?1049h") < shown.index("33") < shown.rindex("\x1b[?1049l")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_screen_is_given_back_at_a_signal(
    launched: Launched, terminal: Terminal, number: signal.Signals
) -> None:
    terminal.take()

    def leave() -> None:
        terminal.until("33")
        os.kill(os.getpid(), number)

    typist = threading.Thread(target=leave)
    typist.start()
    launched(table(33.0, 12.5), stays=True, code=None)
    before = [signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGHUP)]
    try:
        assert cli.main(["top"]) == 130
    finally:
        typist.join(40)
        for kept, handler in zip((signal.SIGTSTP, signal.SIGHUP), before, strict=True):
            signal.signal(kept, handler)
    assert "\x1b[?1049l" in terminal.leave()
