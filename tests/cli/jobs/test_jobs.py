"""``jobs``: which are shown, in which order, and how."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import promises
import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.jobs.jobs import RECENT, WIDEST, age
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import frame, listen

from ..conftest import Launched, OnRecord


def told(folder: Path, **changes: Any) -> None:
    """Change what the record says."""
    path = folder / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def known(on_record: OnRecord) -> dict[str, Path]:
    """Jobs of all kinds; the letter of each is the end of its id."""
    now = time.time()
    gone = [1, 1, "another boot"]
    kinds: dict[str, dict[str, Any]] = {
        "a": {"detached": True, "began": now - 3 * 86400},
        "b": {"detached": True, "began": now - 400},
        "c": {"detached": False, "began": now - 300},
        "d": {"detached": False, "began": now - 200, "launcher": gone},
        "e": {"detached": True, "began": now - 100},
        "f": {"detached": True, "began": now - RECENT - 10},
        "g": {"detached": True, "began": now - RECENT - 20, "launcher": gone},
        "h": {"detached": True, "began": now - RECENT - 30},
    }
    found = {}
    for letter, about in kinds.items():
        found[letter] = on_record(f"20260131-142501-aaaaa{letter}")
        told(found[letter], **about)
    for letter in "bf":
        registry.conclude(found[letter], 3, ["error: x"])
    registry.note_phase(found["e"], "starting")
    return found


@pytest.mark.parametrize(("words", "letters"), [([], "habcde"), (["-a"], "hgfabcde")])
def test_which_are_shown(
    known: dict[str, Path], words: list[str], letters: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that run, and of the others the recent ones that were not just in front of the user."""
    assert cli.main(["jobs", *words]) == 0
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    verdicts = ["VERDICT"] if words else []
    assert head == ["JOB", "STATE", "CODE", "RANKS", "AGE", "HOSTS", "PROGRAM", *verdicts]
    assert "".join(row[0][-1] for row in rows) == letters
    states = {row[0][-1]: (row[1], row[2]) for row in rows}
    assert states["a"] == ("running", "-")
    assert states["b"] == ("ended", "3")
    assert states["d"] == ("dead", "-")
    assert states["e"] == ("starting", "-")
    assert {row[0][-1]: row[4] for row in rows}["a"] == "3d00h"
    assert [row[3:4] + row[5:7] for row in rows] == [["2", "n[1-2]", "train.py"]] * len(rows)


def test_columns_stand_below_each_other(
    on_record: OnRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [(f"node-{a}", None, None) for a in "abcdefgh"]
    program = ("train\x1b.py", "--name", "two words", "x" * 40)
    on_record(hosts=names, ranks=None, program=program)
    on_record("20260131-142502-aaaaaa", ranks=12)
    assert cli.main(["jobs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = [lines[0].index(word) for word in lines[0].split()]
    assert all(line[at - 2 : at] == "  " for line in lines for at in starts[1:])
    assert all(line[at] != " " for line in lines for at in starts)
    assert all(line == line.rstrip() for line in lines)
    first = lines[1]
    assert first[starts[3] :].startswith("- ")
    hosts = first[starts[5] : starts[6]].rstrip()
    assert len(hosts) == WIDEST
    assert hosts.endswith("\u2026")
    assert first[starts[6] :].startswith("'train\\x1b.py' --name 'two words'"[:20])
    assert len(first[starts[6] :]) == WIDEST


def test_names_and_verdicts(on_record: OnRecord, capsys: pytest.CaptureFixture[str]) -> None:
    on_record("20260131-142501-aaaaaa", name="lr-1")
    ended = on_record("20260131-142502-bbbbbb", name="lr-2")
    on_record("20260131-142503-cccccc")
    registry.conclude(ended, 3, ["rank 1 on n2:\x1b exit code 3 [rank-failed]", "  more"])
    assert cli.main(["jobs"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        "NAME", "lr-1", "lr-2", "-",
    ]  # fmt: skip
    assert cli.main(["jobs", "--all", "lr-*"]) == 0
    lines = [line.split("train.py")[-1].strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == ["-", "rank 1 on n2:\\x1b exit code 3 [rank-failed]"]
    assert cli.main(["jobs", "nothing"]) == 0
    assert capsys.readouterr().err == "no jobs\n"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"reached": "step 3/9", "left": 130.4}, "step 3/9, 2 min left"),
        ({"reached": "\x1b[31m" + "y" * 99, "left": None}, "y" * 39 + "\u2026"),
        ({"reached": "step 3\x1b[2J", "left": None}, "step 3\\x1b[2J"),
        ({"reached": "x" * 99, "left": "soon"}, "x" * 39 + "\u2026"),
        ({"reached": 7}, None),
    ],
)
def test_the_progress_of_running_jobs(
    launched: Launched, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    answer: dict[str, Any], shown: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr("dispatcher.cli.jobs.jobs.PATIENCE", 30.0)
    launched(frame(type="say", line="x"), frame(type="progress", **answer), code=None)
    assert cli.main(["jobs"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert ("PROGRESS" in head) == (shown is not None)
    assert row.endswith(shown or "train.py")


def test_a_launcher_that_does_not_answer_holds_up_no_list(
    on_record: OnRecord, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.cli.jobs.jobs.PATIENCE", 0.05)
    with listen(on_record()):
        assert cli.main(["jobs", "--json"]) == 0
    (row,) = promises.told(capsys.readouterr().out)
    assert (row["state"], row["progress"], row["left"]) == ("running", None, None)


def test_for_programs(on_record: OnRecord, capsys: pytest.CaptureFixture[str]) -> None:
    typed = registry.Typed(("-H", "h"), ("t.py",), "/w")
    folder = on_record(
        program=("a", "b c"), logs=Path("/logs"), detached=True, typed=typed, variables=["LR"]
    )
    (folder / registry.PATCH).touch()
    registry.write(folder / "versions.json", {"torch": {"2.8.0": "n[1-2]"}})
    registry.conclude(folder, 3, [])
    assert cli.main(["jobs", "--json"]) == 0
    (row,) = promises.told(capsys.readouterr().out)
    job = registry.jobs()[0]
    assert row == {
        "schema": "job/1", "id": job.run_id, "state": "ended", "exit_code": 3, "ranks": 2,
        "hosts": "n[1-2]", "program": ["a", "b c"],
        "pid": job.launcher.pid, "node": job.node, "began": job.began,
        "ended": job.end["ended"] if job.end else None, "logs": "/logs", "detached": True,
        "name": None, "verdict": [], "commit": None, "dirty": None, "progress": None, "left": None,
        "command": ["-H", "h", "t.py"], "folder": "/w", "variables": ["LR"],
        "patch": str(folder / registry.PATCH), "patch_cut": False,
        "versions": {"torch": {"2.8.0": "n[1-2]"}},
    }  # fmt: skip
    (folder / "end.json").unlink()
    told(folder, logs=None)
    assert cli.main(["jobs", "--json"]) == 0
    (row,) = promises.told(capsys.readouterr().out)
    assert (row["ended"], row["logs"], row["exit_code"]) == (None, None, None)


@cases(("words", "shown"), [([], ("", "no jobs\n")), (["--json"], ("[]\n", ""))])
def test_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], shown: tuple[str, str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cli.main(["jobs", *words]) == 0
    assert capsys.readouterr() == shown


@cases(
    ("seconds", "words"),
    [(-5, "0s"), (0, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h00m"),
     (3 * 3600 + 5 * 60 + 59, "3h05m"), (86399, "23h59m"), (86400, "1d00h"),
     (4 * 86400 + 2 * 3600 + 3599, "4d02h"), (30 * 86400 + 23 * 3600, "30d23h")],
)  # fmt: skip
def test_an_age(seconds: float, words: str) -> None:
    assert age(seconds) == words
