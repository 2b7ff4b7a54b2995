"""``dispatch restart``: what is ordered, what is refused, and what is told of it."""

from __future__ import annotations

import pytest

from dispatcher import cli
from dispatcher.jobs.job_socket import frame

from ..conftest import Launched

NEW = ["new.py", "--lr", "3"]


@pytest.mark.parametrize(
    ("words", "program", "exports"),
    [
        ([], [], []),
        (["latest"], [], []),
        (["--", *NEW], NEW, []),
        (["latest", "-x", "LR=3", "--", *NEW], NEW, [["LR", "3"]]),
        (["-x", "LR=3", "latest", "-x", "HERE", "--", "a.py", "--", "b"], ["a.py", "--", "b"],
         [["LR", "3"], ["HERE", "yes"]]),
    ],
)  # fmt: skip
def test_what_is_ordered(
    launched: Launched, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str], program: list[str], exports: list[list[str]],
) -> None:  # fmt: skip
    monkeypatch.setenv("HERE", "yes")
    one = launched(
        frame(type="hello", world_size=2, passed=[], ended=[], until=0.0, rests=0),
        frame(type="say", line="note: restarted by dispatch restart; attempt 2"),
        frame(type="placed", world_size=2, restart=1),
        frame(type="restarted", world_size=2, restart=1),
    )
    assert cli.main(["restart", *words]) == 0
    assert one.orders == [{"order": "restart", "words": program, "exports": exports}]
    assert capfd.readouterr().err == (
        "note: restarted by dispatch restart; attempt 2\n"
        f"note: job {one.run_id}: started again: attempt 2, 2 ranks\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["latest", "a.py"], 2, "error: a.py: put words for the program after --"),
        (["latest", "a.py", "a b"], 2, "  hint: dispatch restart latest -- a.py 'a b'\n"),
        (["latest", "--"], 2, "error: no command after --"),
        (["-x", "RANK=3"], 2, "error: -x: RANK is set by dispatch"),
        (["-x", "A=" + "x" * 80_000], 2, "error: more than 64 KiB of arguments and variables"),
        (["nobody"], 2, "error: this machine has no record of job 'nobody'"),
        ([], 125, "error: job {job}: it is ending [cannot-restart]\n  hint: look\n"),
    ],
)  # fmt: skip
def test_what_is_refused(
    launched: Launched, capfd: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    one = launched(frame(type="refused", why="it is ending", hint="look"))
    assert cli.main(["restart", *words]) == code
    assert said.format(job=one.run_id) in capfd.readouterr().err
    assert bool(one.orders) == (code == 125)


def test_a_job_that_ends_meanwhile(launched: Launched, capfd: pytest.CaptureFixture[str]) -> None:
    why = "error: rank 0: nosuchprog: not found"
    one = launched(frame(type="verdict", exit_code=127, lines=[]), code=127, lines=(why,))
    assert cli.main(["restart"]) == 125
    assert capfd.readouterr().err == f"{why}\nnote: job {one.run_id} ended, exit code 127\n"


def test_what_would_be_done(launched: Launched, capfd: pytest.CaptureFixture[str]) -> None:
    launched(code=None)
    assert cli.main(["restart", "--dry-run"]) == 0
    assert "and start them again" in capfd.readouterr().out
