"""Where the time of a run went: spans of its journal, phases, and the trace for other programs."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dispatcher import cli
from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.timeline import History, Span, chrome_trace, owner, phases

FACTS = ev.Facts("h", 1, "3.11", 4, 0, ("10.0.0.1",), "m")


def a_run(*happened: tuple[float, ev.Event]) -> History:
    """The history of a run on n1 and n2; each event at its second."""
    history = History()
    for seq, (when, event) in enumerate([(0.0, mon.RunBegan("x", 0.0, ("n1", "n2"))), *happened]):
        history.event(Entry(seq, when, event))
    return history


def spans(history: History) -> dict[tuple[int, int], list[tuple[str, float, float]]]:
    """(host, line) -> name, begin and end of what a trace has there."""
    found: dict[tuple[int, int], list[tuple[str, float, float]]] = {}
    for e in chrome_trace(history, 0.5):
        if e["ph"] == "X":
            span = (e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6)
            found.setdefault((e["pid"], e["tid"]), []).append(span)
    return found


def test_one_host_from_connect_to_drain() -> None:
    steps = (("name lookup", 0.25), ("connection", 0.5))
    history = a_run(
        (0.0, ev.NodeConnecting(0)),
        (1.0, ev.NodeConnected(0, "10.0.0.1", "paramiko", steps)),
        (2.0, ev.NodeBooted(0, 0)),
        (3.0, ev.NodeReady(0, FACTS)),
        (4.0, ev.RanksPlaced(1, "10.0.0.1", 29500)),
        (5.0, ev.RankSpawned(0, 0, 77)),
        (7.0, ev.RankExited(0, 0, 3)),
        (7.5, ev.OutputEnded(0, 0, 1, 8, 8)),
        (8.0, ev.OutputEnded(0, 0, 2, 0, 0)),
        (9.0, ev.NodeSwept(0, 0)),
    )
    found = spans(history)
    assert found[0, 0] == [("load and plan", 0.0, 0.5)]
    assert found[1, 0] == [
        ("connect", 0.5, 1.5),
        ("name lookup", 0.75, 1.0),
        ("connection", 1.0, 1.5),
        ("boot", 1.5, 2.5),
        ("check", 2.5, 3.5),
        ("wait for others", 3.5, 4.5),
        ("spawn", 4.5, 5.5),
        ("ranks", 5.5, 9.5),
    ]
    assert found[1, 1] == [("run", 5.5, 7.5), ("drain", 7.5, 8.5)]
    elements = list(chrome_trace(history, 0.5))
    assert [e["args"] for e in elements if e["name"] == "run"] == [{"status": 3}]
    names = [(e["pid"], e["tid"], e["args"]["name"]) for e in elements if e["ph"] == "M"]
    assert names == [
        (0, 0, "dispatch"), (1, 0, "n1"), (1, 0, "link"), (2, 0, "n2"), (2, 0, "link"),
        (1, 1, "rank 0"),
    ]  # fmt: skip


def test_what_is_under_way_at_the_end_ends_there() -> None:
    history = a_run(
        (0.0, ev.NodeConnecting(0)),
        (0.0, ev.NodeConnecting(1)),
        (1.0, ev.NodeLost(0, Failure(Kind.REFUSED, "refused"))),
        (2.0, ev.RunFinished(125, "Rejected")),
    )
    for _ in range(2):  # to ask changes nothing
        found = spans(history)
        assert found[1, 0] == [("connect", 0.5, 1.5)]
        assert found[2, 0] == [("connect", 0.5, 2.5)]


def test_a_run_that_never_began_has_its_plan() -> None:
    assert spans(History()) == {(0, 0): [("load and plan", 0.0, 0.5)]}


def test_what_only_happens_is_a_moment_on_its_host() -> None:
    history = a_run(
        (1.0, ev.NodeProbed(1, ("10.0.0.1",))),
        (2.0, ev.RanksPlaced(1, "10.0.0.1", 29500)),
        (3.0, ev.NodeNoticed(0, "odd")),
        (4.0, mpi_events.PmiCommitted(1, 0, "WORLD:0", 0, b"")),
        (5.0, ev.NodeSwept(0, 0)),
        (6.0, ev.NodeLost(1, Failure(Kind.LOST, "x"))),
        (7.0, ev.JobStopping("why")),
        (8.0, ev.SignalReceived(2)),
        (9.0, ev.RunFinished(3, "RankFailed")),
        (9.5, ev.NodeHeard(0)),
    )
    moments = [e for e in chrome_trace(history, 0.5) if e["ph"] == "i"]
    assert [(e["pid"], e["name"], e["ts"] / 1e6, e["args"]) for e in moments] == [
        (2, "probed", 1.5, {}), (0, "ranks.placed", 2.5, {}), (1, "odd", 3.5, {}),
        (2, "MPI barrier WORLD:0", 4.5, {}), (1, "node.swept", 5.5, {}), (2, "node.lost", 6.5, {}),
        (0, "job.stopping", 7.5, {"why": "why"}),
        (0, "signal.received", 8.5, {"signum": 2, "by": "", "first": None}),
        (0, "run.finished", 9.5, {"exit_code": 3, "why": "RankFailed"}),
    ]  # fmt: skip


def test_ranks_of_two_hosts_and_of_a_second_attempt() -> None:
    ended = [ev.OutputEnded(1, 3, stream, 0, 0) for stream in (1, 2)]
    found = spans(a_run(
        (0.0, ev.NodeReady(0, FACTS)),
        (0.0, ev.NodeReady(1, FACTS)),
        (1.0, ev.RanksPlaced(2, "a", 1)),
        (2.0, ev.RankSpawned(1, 3, 77)),
        (2.5, ev.RankSpawned(1, 4, 78)),
        (3.0, ev.RankExited(1, 3, -9)),
        (3.0, ev.RankExited(0, 9, 0)),  # nobody knows that one
        (3.5, ended[0]),
        (4.0, ended[1]),
        (4.0, ev.OutputEnded(0, 9, 1, 0, 0)),
        (5.0, ev.RankSpawned(1, 3, 79)),
        (8.0, ev.RunFinished(0, "ok")),
    ))  # fmt: skip
    assert found[2, 4] == [("run", 2.5, 3.5), ("drain", 3.5, 4.5), ("run", 5.5, 8.5)]
    assert found[2, 5] == [("run", 3.0, 8.5)]
    assert found[2, 0] == [("wait for others", 0.5, 1.5), ("spawn", 1.5, 2.5), ("ranks", 2.5, 8.5)]
    assert found[1, 0] == [("wait for others", 0.5, 1.5), ("spawn", 1.5, 8.5)]


def test_phases_name_the_slowest() -> None:
    made = [
        Span(0, -1, "connect", 0.1, 0.3), Span(1, -1, "connect", 0.1, 0.7),
        Span(0, 0, "run", 0.9, 60.9), Span(1, 1, "run", 1.0, 62.0), Span(7, -1, "boot", 1.0, 2.0),
    ]  # fmt: skip
    found = {phase.name: phase for phase in phases(made, ["n1", "n2"])}
    assert list(found) == ["connect", "run", "boot"]
    connect = found["connect"]
    assert (connect.count, connect.slowest) == (2, "n2")
    assert [connect.shortest, connect.median, connect.longest] == pytest.approx([0.2, 0.4, 0.6])
    assert found["run"].slowest == "rank 1 on n2"
    assert owner(made[-1], ["n1", "n2"]) == "host 7"


# -- the commands ---------------------------------------------------------------------------


def traced(path: Path) -> list[dict[str, Any]]:
    """The elements of a trace, one a line."""
    text = path.read_text()
    elements: list[dict[str, Any]] = json.loads(text)
    assert len(text.splitlines()) == len(elements) + 2
    return elements


def test_a_trace_needs_no_log_dir_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    path = tmp_path / "run.json"
    path.write_text("old" * 9999)
    path.chmod(0o600)
    words = ["-H", "localhost:2", "--no-python", "sh", "-c", "exit $RANK"]
    assert cli.main(["--trace", str(path), *words]) == 1
    assert "trace" not in capfd.readouterr().err
    names = [one["name"] for one in traced(path)]
    assert {"load and plan", "connect", "boot", "check", "spawn"} <= set(names)
    assert names.count("run") == 2
    assert names[-1] == "run.finished"
    assert os.listdir(tmp_path / "tmp") == []


def test_a_disk_that_is_full_at_the_end_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--trace", "/dev/full", "-H", "localhost", "--no-python", "true"]) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "/dev/full" in line]
    assert said == ["note: /dev/full: trace cannot be written: no space left on device"]


def test_the_page_and_the_trace_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    words = ["-H", "localhost:2", "--trace", str(tmp_path / "run.json"), "--log-dir", str(logs)]
    sampled = f"$(grep -c node.sampled {logs}/latest/dispatch.jsonl)"
    words += ["--sample", "0.2", "--quiet", "--no-python", "sh", "-c"]
    words += [f"until [ {sampled} -ge 3 ]; do sleep 0.1; done"]
    assert cli.main(words) == 0
    assert [one["name"] for one in traced(tmp_path / "run.json")].count("run") == 2
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600
    assert cli.main(["report", str(logs / "latest")]) == 0
    told = capsys.readouterr()
    assert "note: wrote" in told.err
    assert told.out == ""
    text = (logs / "latest" / "report.html").read_text()
    assert "succeeded</span>" in text
    assert text.count("<g class=heat ") >= 2  # CPU and memory
    assert "<title>rank 1 on localhost: " in text
