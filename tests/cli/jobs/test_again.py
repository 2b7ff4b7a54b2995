"""``dispatch again``: the line that is run, where, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import cases

from dispatcher import cli
from dispatcher.cli.jobs import again
from dispatcher.cli.jobs.option_words import changed
from dispatcher.jobs import registry

from ..conftest import OnRecord


@cases(
    ("words", "changes", "found"),
    [
        ("--lr 1 --fp16", "--lr 2", "--lr 2 --fp16"),
        ("--lr=1 data", "--lr 2", "--lr=2 data"),
        ("--lr 1 data", "--lr=2", "--lr 2 data"),
        ("--lr 1", "--seed 3 --fp16", "--lr 1 --seed 3 --fp16"),
        ("--betas .9 .95 --x", "--betas .8 .99", "--betas .8 .99 --x"),
        ("--fp16 data", "--fp16", "--fp16 data"),
        ("--lr 1", "--lr", "--lr 1"),
        ("--fp16 --x", "--fp16=1", "--fp16=1 --x"),
        ("--betas=a", "--betas .8 .99", "--betas .8 .99"),
        ("--shift -1 --lr 1", "--shift -2e-4", "--shift -2e-4 --lr 1"),
        ("-b 32", "-b 64", "-b 64"),
        ("lr=1 +m.x=2", "+m.x=3 ~z=4", "lr=1 +m.x=3 ~z=4"),
        ("--set lr=1 --n 2", "lr=3", "--set lr=3 --n 2"),
        ("--tag a --tag b", "--tag c", "--tag a --tag c"),
        ("--tag a", "--tag c --tag d", "--tag c --tag d"),
        ("--tag a --tag b", "--tag c --tag d", "--tag c --tag d"),
        ("data --lr 1", "more", "data --lr 1 more"),
        ("--lr 1 -- --lr 5", "--lr 2 --new", "--lr 2 --new -- --lr 5"),
        ("--lr 1", "-- --lr 2", "--lr 1 -- --lr 2"),
        ("", "--lr 2", "--lr 2"),
    ],
)
def test_changed_arguments(words: str, changes: str, found: str) -> None:
    assert " ".join(changed(words.split(), changes.split())) == found


Run = Callable[..., int]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The lines that are run, in place of their runs."""
    found: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))

    def enter(name: str, words: list[str]) -> int:
        found.append([name, *words])
        return 7

    monkeypatch.setattr(again, "enter", enter)
    return found


def typed(folder: Path, options: str, words: str, *withheld: str) -> registry.Typed:
    return registry.Typed(tuple(options.split()), tuple(words.split()), str(folder), withheld)


@pytest.mark.parametrize(
    ("line", "options", "words"),
    [
        ("", "-H n1:2 --np 2", "t.py --lr 1"),
        ("lr-1", "-H n1:2 --np 2", "t.py --lr 1"),
        ("k3f --np 1 --dry-run", "-H n1:2 --np 2 --np 1 --dry-run", "t.py --lr 1"),
        ("--np 1 lr-1 --name lr-1 -- --lr 2 x", "-H n1:2 --np 2 --np 1 --name lr-1",
         "t.py --lr 2 x"),
        ("-- t.py --lr 2", "-H n1:2 --np 2", "t.py --lr 2"),
        ("-- --lr 2 -- --np 3", "-H n1:2 --np 2", "t.py --lr 2 -- --np 3"),
        ("-w n3,n4 -Hmore", "--np 2 -w n3,n4 -Hmore", "t.py --lr 1"),
    ],
)  # fmt: skip
def test_what_is_run(
    lines: list[list[str]], on_record: OnRecord, tmp_path: Path, line: str, options: str,
    words: str, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "there").mkdir()
    about = typed(tmp_path / "there", "-H n1:2 --np 2", "t.py --lr 1")
    on_record(name="lr-1", typed=about)
    assert cli.main(["again", *line.split()]) == 7
    assert lines == [["run", *options.split(), *words.split()]]
    assert os.getcwd() == os.environ["PWD"] == str(tmp_path / "there")
    assert capfd.readouterr().err == f"note: in {tmp_path}/there: {words}\n"


def test_several_programs_and_a_line_with_dashes_stay(
    lines: list[list[str]], on_record: OnRecord, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    on_record(typed=typed(tmp_path, "-w n1", "a.py : --np 2 b.py"))
    assert cli.main(["again"]) == 7
    assert lines.pop() == ["run", "-w", "n1", "a.py", ":", "--np", "2", "b.py"]
    assert cli.main(["again", "--", "--lr", "1"]) == 2
    assert "it has several programs" in capfd.readouterr().err
    on_record("20260131-142502-aaaaaa", typed=typed(tmp_path, "-w n1 --", "a.py -v"))
    assert cli.main(["again", "--np", "3"]) == 7
    assert lines.pop() == ["run", "-w", "n1", "--np", "3", "--", "a.py", "-v"]


def test_a_value_that_is_not_on_record(
    lines: list[list[str]], on_record: OnRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.delenv("TOKEN", raising=False)
    on_record(typed=typed(tmp_path, "-x TOKEN", "a.py", "TOKEN"))
    assert cli.main(["again"]) == 2
    assert "-x TOKEN=VALUE\n" in capfd.readouterr().err
    assert cli.main(["again", "-x", "TOKEN=hush"]) == 7
    assert "hush" not in capfd.readouterr().err
    assert lines.pop() == ["run", "-x", "TOKEN", "-x", "TOKEN=hush", "a.py"]
    monkeypatch.setenv("TOKEN", "other")
    assert cli.main(["again"]) == 7


@pytest.mark.parametrize(
    ("line", "folder", "said"),
    [
        ("nope", ".", "no record of job 'nope'"), ("latest x", ".", "put words for"),
        ("--nope", ".", "--nope: no such option"), ("latest", "gone", "gone: no such file"),
        ("latest", None, "its command line is not on record"),
    ],
)  # fmt: skip
def test_what_is_refused(
    lines: list[list[str]], on_record: OnRecord, tmp_path: Path, line: str, folder: str | None,
    said: str, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    on_record(typed=folder and typed(tmp_path / folder, "-H h", "t.py"))
    assert cli.main(["again", *line.split()]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert "  hint: " in err
    assert lines == []
