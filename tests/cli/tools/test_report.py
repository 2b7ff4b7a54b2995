"""``report``: the page it writes and the phases it prints."""

from __future__ import annotations

import json
from pathlib import Path

import promises
import pytest

from dispatcher import cli
from dispatcher.cli.tools import report as command


def span(name: str, process: int, since: float, seconds: float) -> str:
    record = {"ph": "X", "pid": process, "tid": 0, "name": name, "ts": since * 1e6,
              "dur": seconds * 1e6}  # fmt: skip
    return json.dumps(record)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = [
        json.dumps({"ph": "M", "pid": n, "tid": 0, "name": "process_name", "args": {"name": name}})
        for n, name in ((1, "n1"), (2, "n\x1b2"))
    ]
    spans = [span("connect", 1, 0.0, 0.25), span("connect", 2, 0.0, 0.5), span("start", 1, 1, 2)]
    (tmp_path / "run.json").write_text("[\n" + ",\n".join([*names, *spans]) + "\n]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.json"


def test_phases_are_printed_and_the_page_is_written(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", "run.json"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "phase    times  shortest  median  longest  slowest",
        "connect      2     0.250   0.375    0.500  n\\x1b2",
        "start        1     2.000   2.000    2.000  n1",
    ]
    assert err == "note: wrote run.html\n"
    page = (trace.parent / "run.html").read_text()
    assert "<title>" in page
    assert "run.json" in page


def test_another_page_or_none(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(trace), "-o", "page"]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(trace), "-o", "-"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ((trace.parent / "page").read_text(), "")
    assert sorted(path.name for path in trace.parent.iterdir()) == ["page", "run.json"]


def test_phases_for_programs(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(trace), "--json"]) == 0
    told = promises.told(capsys.readouterr().out)
    assert [(one["name"], one["count"], one["median"]) for one in told] == [
        ("connect", 2, 0.375), ("start", 1, 2.0),
    ]  # fmt: skip
    assert [path.name for path in trace.parent.iterdir()] == ["run.json"]
    assert cli.main(["report", str(trace), "--json", "-o", "page"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (told, "note: wrote page\n")
    assert (trace.parent / "page").exists()
    assert cli.main(["report", str(trace), "--json", "-o", "-"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "error: missing argument"),
        (["none"], "error: none: no such file or directory [file-unusable]\n"),
        (["bad"], "error: bad:1: not a line of a trace [file-unusable]\n"),
        (
            ["run.json", "-o", "none/page"],
            "error: none/page: no such file or directory [file-unusable]\n",
        ),
    ],
)
def test_refusals(
    trace: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (trace.parent / "bad").write_text("{}\n]\n")
    assert cli.main(["report", *words]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_bytes_that_are_no_text_and_a_trace_that_is_too_large(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_bytes(trace.read_bytes().replace(b"n1", b"n\xff"))
    assert cli.main(["report", "run.json"]) == 0
    assert "n\ufffd" in capsys.readouterr().out
    monkeypatch.setattr(command, "MOST_TRACE", trace.stat().st_size - 1)
    assert cli.main(["report", "run.json"]) == 2
    assert "error: run.json: larger than" in capsys.readouterr().err
