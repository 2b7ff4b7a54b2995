"""``dispatch hosts``: what nodeset does, from hostfiles too."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import promises
import pytest
from cases import cases

from dispatcher.cli import main
from dispatcher.jobs import registry


@cases(
    ("words", "said"),
    [
        (["n[1-3]"], "n1\nn2\nn3\n"),
        (["-f", "n1", "n2", "n3", "login"], "login,n[1-3]\n"),
        (["-c", "n[1-64]!n7"], "63\n"),
        (["-f", "-w", "n[1-9]", "-i", "n[5-20]"], "n[5-9]\n"),
        (["-f", "n[1-9]", "-x", "n[2-4],n20"], "n[1,5-9]\n"),
        (["-S", ",", "n[08-11/2]"], "n08,n10\n"),
        (["--sort", "-S", " ", "n10,n2,a1"], "a1 n2 n10\n"),
        (["n[1-3]", "-c"], "3\n"),
        (["n2,n1,n2"], "n2\nn1\n"),
        (["-S", "\\t", "n1", "n2"], "n1\tn2\n"),
        (["-S", "\\n\\n", "n1", "n2"], "n1\n\nn2\n"),
        (["-f", "n[1-9]", "-i", "n[2-5]", "-i", "n[4-9]"], "n[4-5]\n"),
        (["-f", "n1:4", "n2:2222"], "n[1-2]\n"),
        (["--sort", "-f", "n10,n2"], "n[2,10]\n"),
    ],
)
def test_says(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hosts", *words]) == 0
    out, err = capsys.readouterr()
    assert out == said
    assert "slot" not in err  # how many each has is no matter


def test_reads_hostfiles_and_standard_input(
    tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"n1 slots=8 # first\nn2:8\nme@n3:2222\n"
    stdin = io.TextIOWrapper(io.BytesIO(text))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["hosts", "-f", "-H", "-"]) == 0
    assert capsys.readouterr().out == "n[1-3]\n"


@cases(
    ("words", "said"),
    [
        ([], ""), (["n[3-1]"], ""), (["n1", "-x", "n1"], ""),
        (["-f", "-c", "n1"], "-f, -c and --json exclude each other"),
        (["n1", "-i", "n2"], "no host is left after -i"),
        (["n1", "-i", "n["], "-i: '[' without its ']'"),
        (["--for", "exec"], "--for was removed: `dispatch COMMAND --dry-run` shows"),
    ],
)  # fmt: skip
def test_why(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hosts", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def failed(run_id: str, hosts: str, blamed: dict[str, str]) -> None:
    folder = registry.enroll(
        run_id, program=["a"], hosts=[(name, None, None) for name in hosts.split()], ranks=1,
        logs=None, detached=False, reach={},
    )  # fmt: skip
    registry.conclude(folder, 125, [], blamed)


def test_failures_come_from_the_records_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["hosts", "--failures"]) == 0
    assert capsys.readouterr() == ("", "no failures of hosts on record\n")
    failed("20260131-142501-aaaaaa", "n1 n2", {"n1": "host-lost"})
    failed("20260131-142502-bbbbbb", "n1 n2 n3", {"n1": "unreachable", "n2": "unreachable"})
    assert main(["hosts", "--failures"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "HOST  FAILED  LAST                    WHY",
        "n1    2 of 2  20260131-142502-bbbbbb  host lost (1), unreachable (1)",
        "n2    1 of 2  20260131-142502-bbbbbb  unreachable (1)",
    ]
    assert main(["hosts", "--failures", "n[2-3]", "--json"]) == 0
    (one,) = promises.told(capsys.readouterr().out)
    assert (one["host"], one["failures"], one["causes"]) == ("n2", 1, {"unreachable": 1})
    assert main(["hosts", "--failures", "-f"]) == 2
    assert "--failures excludes -f and -c" in capsys.readouterr().err
