"""The trace: every span begins and ends where the events say, and the file is one JSON array."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.files import trace
from dispatcher.output.files.trace import Trace
from output.descriptors import open_below

FACTS = ev.Facts("h", 1, "3.11", 4, 0, ("10.0.0.1",), "m")


def traced(path: Path, *happened: tuple[float, object]) -> list[dict[str, Any]]:
    """Feed events, or output of a rank as a number, each at its second; the picture's elements."""
    now = [0.0]
    said: list[str] = []
    sink = Trace(str(path), ["n1", "n2"], 0.5, said.append, clock=lambda: 100 + now[0])
    for seq, (when, what) in enumerate(happened, 1):
        now[0] = when
        if isinstance(what, int):
            sink.output(what, 1, b"line")
        else:
            assert isinstance(what, ev.Event)
            sink.event(Entry(seq, when, what))
    sink.close()
    assert said == []
    elements: list[dict[str, Any]] = json.loads(path.read_text())
    return elements


def spans(elements: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[str, float, float]]]:
    found: dict[tuple[int, int], list[tuple[str, float, float]]] = {}
    for e in elements:
        if e["ph"] == "X":
            span = (e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6)
            found.setdefault((e["pid"], e["tid"]), []).append(span)
    return found


def test_one_host_from_connect_to_drain(tmp_path: Path) -> None:
    steps = (("name lookup", 0.25), ("connection", 0.5))
    elements = traced(
        tmp_path / "t.json",
        (0.0, ev.NodeConnecting(0)),
        (1.0, ev.NodeConnected(0, "10.0.0.1", "paramiko", steps)),
        (2.0, ev.NodeBooted(0, 0)),
        (3.0, ev.NodeReady(0, FACTS)),
        (4.0, ev.RanksPlaced(1, "10.0.0.1", 29500)),
        (5.0, ev.RankSpawned(0, 0, 77)),
        (6.0, 0),
        (6.5, 0),
        (7.0, ev.RankExited(0, 0, 3)),
        (7.5, ev.OutputEnded(0, 0, 1, 8, 8)),
        (8.0, ev.OutputEnded(0, 0, 2, 0, 0)),
        (9.0, ev.NodeSwept(0, 0)),
    )
    found = spans(elements)
    assert found[0, 0] == [("load and plan", 0.0, 0.5)]
    assert found[1, 0] == [
        ("name lookup", 0.75, 1.0),
        ("connection", 1.0, 1.5),
        ("connect", 0.5, 1.5),
        ("boot", 1.5, 2.5),
        ("check", 2.5, 3.5),
        ("wait for others", 3.5, 4.5),
        ("spawn", 4.5, 5.5),
        ("ranks", 5.5, 9.5),
    ]
    assert found[1, 1] == [("start", 5.5, 6.5), ("run", 6.5, 7.5), ("drain", 7.5, 8.5)]
    names = {e["args"]["name"] for e in elements if e["ph"] == "M"}
    assert names == {"dispatch", "n1", "n2", "link", "rank 0"}
    assert os.stat(tmp_path / "t.json").st_mode & 0o777 == 0o600


def test_output_may_overtake_the_news_of_its_rank(tmp_path: Path) -> None:
    elements = traced(
        tmp_path / "t.json",
        (1.0, ev.RanksPlaced(2, "a", 1)),
        (1.5, 3),
        (2.0, ev.RankSpawned(1, 3, 77)),
        (2.5, 3),
        (3.0, ev.RankExited(1, 3, 0)),
    )
    assert spans(elements)[2, 4] == [("start", 2.5, 2.5), ("run", 2.5, 3.5), ("drain", 3.5, 3.5)]


def test_what_is_under_way_at_the_end_ends_there(tmp_path: Path) -> None:
    found = spans(
        traced(
            tmp_path / "t.json",
            (0.0, ev.NodeConnecting(0)),
            (0.0, ev.NodeConnecting(1)),
            (1.0, ev.NodeLost(0, Failure(Kind.REFUSED, "refused"))),
            (2.0, ev.RunFinished(125, "Rejected")),
        )
    )
    assert found[1, 0] == [("connect", 0.5, 1.5)]
    assert found[2, 0] == [("connect", 0.5, 2.5)]


def test_a_run_that_never_began_is_still_one_array(tmp_path: Path) -> None:
    assert spans(traced(tmp_path / "t.json"))[0, 0] == [("load and plan", 0.0, 0.5)]


def test_a_full_disk_is_said_once() -> None:
    said: list[str] = []
    full = Trace("/dev/full", ["n1"], 0.0, said.append)
    full.event(Entry(1, 0.0, ev.NodeConnecting(0)))
    full.close()
    assert said == ["/dev/full: trace cannot be written: no space left on device"]


def moments(elements: list[dict[str, Any]]) -> list[tuple[int, str, float, dict[str, Any]]]:
    return [(e["pid"], e["name"], e["ts"] / 1e6, e["args"]) for e in elements if e["ph"] == "i"]


def test_what_only_happens_is_a_moment_on_its_host(tmp_path: Path) -> None:
    elements = traced(
        tmp_path / "t.json",
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
    assert moments(elements) == [
        (2, "probed", 1.5, {}), (0, "ranks.placed", 2.5, {}), (1, "odd", 3.5, {}),
        (2, "MPI barrier WORLD:0", 4.5, {}), (1, "node.swept", 5.5, {}), (2, "node.lost", 6.5, {}),
        (0, "job.stopping", 7.5, {"why": "why"}),
        (0, "signal.received", 8.5, {"signum": 2, "by": "", "first": None}),
        (0, "run.finished", 9.5, {"exit_code": 3, "why": "RankFailed"}),
    ]  # fmt: skip
    assert {(e["s"], e["tid"]) for e in elements if e["ph"] == "i"} == {("p", 0)}


def test_ranks_of_two_hosts_and_of_a_second_attempt(tmp_path: Path) -> None:
    ended = [ev.OutputEnded(1, 3, stream, 0, 0) for stream in (1, 2)]
    elements = traced(
        tmp_path / "t.json",
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
        (6.0, 3),
        (7.0, 9),
        (8.0, ev.RunFinished(0, "ok")),
    )
    found = spans(elements)
    assert found[2, 4] == [
        ("start", 2.5, 3.5),
        ("drain", 3.5, 4.5),
        ("start", 5.5, 6.5),
        ("run", 6.5, 8.5),
    ]
    assert found[2, 5] == [("start", 3.0, 8.5)]
    assert found[2, 0] == [("wait for others", 0.5, 1.5), ("spawn", 1.5, 2.5), ("ranks", 2.5, 8.5)]
    assert found[1, 0] == [("wait for others", 0.5, 1.5), ("spawn", 1.5, 8.5)]
    (drain,) = (e for e in elements if e["name"] == "start" and e["args"])
    assert drain["args"] == {"status": -9}
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in elements if e["ph"] == "M" and e["tid"]
    }
    assert names == {(2, 4): "rank 3", (2, 5): "rank 4"}
    kinds = [e["name"] for e in elements if e["ph"] == "M"]
    assert kinds[:5] == ["process_name"] + ["process_name", "thread_name"] * 2


def test_it_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("old" * 9999)
    elements = traced(tmp_path / "t.json")
    assert [e["args"]["name"] for e in elements if e["ph"] == "M"] == [
        "dispatch", "n1", "link", "n2", "link"
    ]  # fmt: skip
    text = (tmp_path / "t.json").read_text()
    assert text.startswith("[\n{")
    assert text.endswith("}\n]\n")
    assert len(text.splitlines()) == 2 + len(elements)  # one element a line


def test_a_disk_that_refuses_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    writing = Trace(str(tmp_path / "t"), ["n1"], 0.0, said.append)
    assert open_below(tmp_path) == ["t"]

    def refuse(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace, "write_all", refuse)
    for number in range(3):
        writing.event(Entry(number, 0.0, ev.NodeNoticed(0, "x")))
    assert open_below(tmp_path) == []
    writing.close()
    assert said == [f"{tmp_path / 't'}: trace cannot be written: no space left on device"]
