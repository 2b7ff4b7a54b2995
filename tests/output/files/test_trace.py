"""The trace: every span begins and ends where the events say, and the file is one JSON array."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.files.trace import Trace

FACTS = ev.Facts("h", 1, "3.11", 4, 0, ("10.0.0.1",), "m")


def traced(path: Path, *happened: tuple[float, object]) -> list[dict[str, Any]]:
    """Feed events, or output of a rank as a number, each at its second; the picture's elements."""
    now = [0.0]
    said: list[str] = []
    trace = Trace(str(path), ["n1", "n2"], 0.5, said.append, clock=lambda: 100 + now[0])
    for seq, (when, what) in enumerate(happened, 1):
        now[0] = when
        if isinstance(what, int):
            trace.output(what, 1, b"line")
        else:
            assert isinstance(what, ev.Event)
            trace.event(Entry(seq, when, what))
    trace.close()
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
    trace = Trace("/dev/full", ["n1"], 0.0, said.append)
    trace.event(Entry(1, 0.0, ev.NodeConnecting(0)))
    trace.close()
    assert said == ["/dev/full: trace cannot be written: no space left on device"]
