"""What ``stacks`` asks of a job's launcher, and shows."""

from __future__ import annotations

import time
from pathlib import Path

import promises
import pytest

from dispatcher import cli
from dispatcher.cli.jobs import stacks
from dispatcher.core.events.stack_frames import Frame, Group
from dispatcher.jobs import registry
from dispatcher.jobs.job_socket import frame

from ..conftest import Launched, OnRecord

# -- the command ------------------------

RUN_ID = "20260131-142501-k3f9x2"
ENDED = frame(type="verdict", exit_code=3, lines=[])
ANSWER = frame(type="stacks", number=2, lines=["0-1: in train.py:3", "bad\x1b]0;x"])


def test_an_answer_is_printed_and_its_file_named(
    launched: Launched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stacks-2.txt").write_text("all of it")
    one = launched(frame(type="say", line="x"), ANSWER, logs=tmp_path)
    assert cli.main(["stacks"]) == 0
    assert one.orders == [{"order": "stacks"}]
    assert capsys.readouterr() == (
        "0-1: in train.py:3\nbad\\x1b]0;x\n", f"note: whole stacks in {tmp_path}/stacks-2.txt\n",
    )  # fmt: skip


def test_an_answer_for_programs(
    launched: Launched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stacks-2.txt").write_text("all of it")
    groups = [Group((1,), "py-spy", "S", (Frame("load", "a.py", 3),), odd=True).plain()]
    found = {"groups": groups, "hosts": {"1": "n2"}, "late": ["n1"], "more": 1}
    launched(frame(type="stacks", number=2, lines=[], found=found), logs=tmp_path)
    assert cli.main(["stacks", "--json"]) == 0
    told = promises.told(capsys.readouterr().out)
    assert (told["groups"], told["hosts"], told["late"]) == (groups, {"1": "n2"}, ["n1"])
    assert (told["run_id"], told["file"]) == (RUN_ID, f"{tmp_path}/stacks-2.txt")
    assert told["collective"] is None  # as of a launcher that was started before there was one


def test_a_launcher_that_has_words_alone(
    launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(ANSWER)
    assert cli.main(["stacks", "--json"]) == 125
    assert "its launcher is an older dispatch, without stacks --json" in capsys.readouterr().err


@pytest.mark.parametrize("with_logs", [False, True])
def test_a_run_in_the_foreground_can_be_asked_as_well(
    launched: Launched, tmp_path: Path, with_logs: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(ANSWER, detached=False, logs=tmp_path if with_logs else None)
    assert cli.main(["stacks"]) == 0
    assert capsys.readouterr().err == ""


def test_a_job_that_ends_meanwhile(launched: Launched, capsys: pytest.CaptureFixture[str]) -> None:
    launched(ENDED)
    assert cli.main(["stacks"]) == 125
    assert capsys.readouterr() == ("", f"note: job {RUN_ID} ended, exit code 3\n")


def test_a_job_that_has_ended(on_record: OnRecord, capsys: pytest.CaptureFixture[str]) -> None:
    registry.conclude(on_record(), 3, [])
    assert cli.main(["stacks", "latest"]) == 125
    said = f"error: job {RUN_ID}: it has ended, exit code 3 [job-ended]\n"
    said += f"  hint: dispatch logs {RUN_ID}\n"
    assert capsys.readouterr().err == said


def test_a_launcher_that_does_not_answer(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says other things meanwhile; its hosts, and it, have so many seconds."""
    monkeypatch.setattr(stacks, "GATHER", 0.2)
    monkeypatch.setattr(stacks, "SLACK", 0.2)
    launched(frame(type="say", line="x"), stays=True, code=None)
    began = time.monotonic()
    assert cli.main(["stacks"]) == 125
    assert time.monotonic() - began >= 0.4
    assert (
        capsys.readouterr().err
        == f"error: job {RUN_ID}: its launcher does not answer [launcher-silent]\n"
    )
