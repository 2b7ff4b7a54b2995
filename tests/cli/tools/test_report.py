"""``report``: the page it writes, and the phases that it has for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import promises
import pytest

from dispatcher import cli
from dispatcher.core.events import codec, verdicts
from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry
from dispatcher.jobs import registry

PLAN: dict[str, Any] = {
    "cwd": "/work", "nodes": [{"host": "n1"}, {"host": "n2"}],
    "ranks": [{"argv": ["python", "a.py", "--hf-token", "X1", "--url", "http://me:X2@h/"]}],
    "exports": {"NCCL_DEBUG": "INFO", "NCCL_SECRET": "X3", "MINE": "X4"},
    "limits": {"hang_timeout": 60}, "restarts": {"most": 2},
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The files of a run: its second attempt ended with 3 in rank 1."""
    cause = verdicts.RankFailed(1, 1, 3)
    before = verdicts.Attempt(0, ("n1", "n2"), 2, verdicts.RankFailed(0, 0, -9), started=True)
    nodes = (mon.PlacedNode("n1", (0,)), mon.PlacedNode("n2", (1,)))
    happened: list[ev.Event] = [
        mon.RunBegan("20260131-142501-k3f9x2", 1.0e9, ("n1", "n2")), ev.NodeConnecting(0),
        ev.NodeConnected(0, None, "ssh"), ev.RanksPlaced(2, "", 1), ev.RankSpawned(0, 0, 7),
        ev.NodeNoticed(1, "a <b> notice"),
        mon.RunClosed(verdicts.Verdict(cause, 3, 2, {1: 3}, attempts=(before,)), 9.0, nodes),
    ]  # fmt: skip
    lines = [codec.encode(Entry(at, float(at), event)) for at, event in enumerate(happened, 1)]
    folder = tmp_path / "run"
    (folder / "restart-1").mkdir(parents=True)
    (folder / "dispatch.jsonl").write_bytes(b"".join(lines))
    (folder / "plan.json").write_text(json.dumps(PLAN))
    (folder / "rank-00000.out").write_bytes(b"first\r\nbar 1%\rbar 2%\n\xff")
    (folder / "restart-1" / "rank-00001.err").write_text("Boom: <i>\n")
    return folder


def test_another_page_or_none(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in run.iterdir())
    page = run.parent / "page"
    assert cli.main(["report", str(run), "-o", str(page)]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(run), "-o", "-"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (page.read_text(), "")
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to others")
def test_a_run_of_another_user(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planted link chose the file that was written over, and one that the page showed."""
    ours, key, here = run.parent / "authorized_keys", run.parent / "key", run.parent / "here"
    ours.write_text("ours\n")
    key.write_text("PRIVATE KEY\n")
    here.mkdir()
    (run / "report.html").symlink_to(ours)
    failed = run / "restart-1" / "rank-00001.err"
    for plant in (Path.symlink_to, Path.hardlink_to):
        failed.unlink()
        plant(failed, key)
        for path in (run, run / "restart-1"):
            os.chown(path, 1, 1)
        monkeypatch.chdir(here)
        assert cli.main(["report", str(run)]) == 0
        assert "note: wrote report.html\n" in capsys.readouterr().err
        page = (here / "report.html").read_text()
        assert "n2" in page
        assert "PRIVATE" not in page
    assert ours.read_text() == "ours\n"
    assert cli.main(["report", str(run), "-o", str(run / "report.html")]) == 2
    assert ours.read_text() == "ours\n"


def test_phases_are_for_programs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        codec.encode(Entry(at, when, event))
        for at, (when, event) in enumerate([
            (0.0, mon.RunBegan("x", 0.0, ("n1", "n\x1b2"))),
            (0.0, ev.NodeConnecting(0)), (0.0, ev.NodeConnecting(1)),
            (0.25, ev.NodeConnected(0, None, "ssh")), (0.5, ev.NodeConnected(1, None, "ssh")),
            (2.25, ev.NodeBooted(0, 0)),
        ], 1)
    ]  # fmt: skip
    (run / "dispatch.jsonl").write_bytes(b"".join(lines))
    assert cli.main(["report", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"note: wrote {run}/report.html\n"
    (run / "report.html").unlink()
    assert cli.main(["report", str(run), "--json"]) == 0
    told = promises.told(capsys.readouterr().out)
    assert [(one["name"], one["count"], one["median"]) for one in told] == [
        ("connect", 2, 0.375), ("boot", 2, 1.875), ("check", 1, 0.0),
    ]  # fmt: skip
    assert not (run / "report.html").exists()
    page = run.parent / "page"
    assert cli.main(["report", str(run), "--json", "-o", str(page)]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (told, f"note: wrote {page}\n")
    assert page.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "error: this machine has no record of a job [no-such-job]\n"),
        (["none"], "error: this machine has no record of a job [no-such-job]\n"),
        (["none.json"], "error: none.json: no such file or directory [file-unusable]\n"),
        (["."], "error: .: not the folder of a run: no dispatch.jsonl [file-unusable]\n"),
        (["trace.json"], "error: trace.json: not the folder of a run: no dispatch.jsonl"),
        (["run/", "--json", "-o", "-"], "error: --json and -o - both want standard output"),
        (
            ["run/", "-o", "none/page"],
            "error: none/page: no such file or directory [file-unusable]\n",
        ),
    ],
)
def test_refusals(
    run: Path,
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(run.parent / "state"))
    monkeypatch.chdir(run.parent)
    Path("trace.json").write_text("[\n]\n")
    assert cli.main(["report", *words]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_the_page_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"note: wrote {run}/report.html\n"
    page = (run / "report.html").read_text()
    for said in (
        "20260131-142501-k3f9x2", "exit code 3", "error: rank 1 on n2", "n2: a &lt;b&gt; notice",
        "Last lines of rank 0 of attempt 1 (stdout)", "<pre>first\nbar 2%\n\ufffd</pre>",
        "Last lines of rank 1 of attempt 2 (stderr)", "<pre>Boom: &lt;i&gt;</pre>",
        "<td>hosts<td>n[1-2]", "<td>hang timeout<td>60", "<td>restarts: most<td>2",
        "<td>NCCL_DEBUG<td>INFO", "<td>other variables<td>MINE", "--hf-token &#x27;&lt;hidden&gt;",
    ):  # fmt: skip
        assert said in page
    assert not {f"X{n}" for n in range(1, 5) if f"X{n}" in page}


def test_a_job_by_its_name(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(run.parent / "state"))
    for logs, id in ((run, "20260131-142501-k3f9x2"), (None, "20260131-142502-aaaaaa")):
        record = registry.enroll(
            id, program=["a.py"], hosts=[], ranks=2, logs=logs, detached=False, reach={},
            name=None if logs is None else "lr.1",
        )  # fmt: skip
        registry.conclude(record, 3, [])
    (run.parent / "lr.1").mkdir()
    monkeypatch.chdir(run.parent)
    for name, code in (("k3f9", 0), ("lr.1", 0), ("./lr.1", 2), ("lr.2", 2)):
        assert cli.main(["report", name, "-o", "-"]) == code
        assert ("exit code 3" in capsys.readouterr().out) == (code == 0)
    journal = run / "dispatch.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])  # as a full disk leaves it
    assert cli.main(["report", "k3f9", "-o", "-"]) == 0
    assert "exit code 3; its journal breaks off</span>" in capsys.readouterr().out
    run.rename(run.parent / "elsewhere")
    assert cli.main(["report", "k3f9"]) == 125
    assert f"k3f9x2: its files are gone: {run} [no-log-files]" in capsys.readouterr().err
    assert cli.main(["report", "latest"]) == 125
    assert "aaaaaa: it keeps no files [no-log-files]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keep", "plan", "said"),
    [
        (6, "{}", "still runs, or its launcher was killed</span>"),
        (7, "[1]", "exit code 3</span>"),
        (7, '{"ranks": 3, "nodes": [0]}', "exit code 3</span>"),
        (7, "[" * 100_000, "exit code 3</span>"),
    ],
)
def test_what_is_there_is_drawn(run: Path, keep: int, plan: str, said: str) -> None:
    """Also while a line is being written, or where the launcher was killed in one."""
    journal = run / "dispatch.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:keep]) + b"".join(lines[keep:])[:-1])
    (run / "plan.json").write_text(plan)
    assert cli.main(["report", str(journal), "-o", str(run / "page")]) == 0
    assert said in (run / "page").read_text()


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (ev.NodeConnecting(0), "no run.began: not the journal of a run"),
        (mon.RunBegan("x", 0.0, ("n1",), version=99), "version 99, not 2"),
    ],
)
def test_no_journal_of_a_run(
    run: Path, event: ev.Event, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "dispatch.jsonl").write_bytes(codec.encode(Entry(1, 0.0, event)))
    assert cli.main(["report", str(run)]) == 125
    assert said in capsys.readouterr().err


def test_numbers_that_fit_no_host(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (run / "dispatch.jsonl").open("ab") as file:
        file.write(codec.encode(Entry(8, 1.0, ev.NodeNoticed(7, "x"))))
    assert cli.main(["report", str(run)]) == 125
    assert "dispatch.jsonl:8: its events do not fit together" in capsys.readouterr().err
