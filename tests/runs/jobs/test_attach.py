"""dispatch attach as a screen: labels, folding, a footer, the past from any kind of log, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rig import wait_for

from ..background import WAITS, detach, dispatch, go, jobs, up
from ..conftest import PROGRAM, Desk, script
from ..seat import Seat, status_of

#: says the same on all ranks, and stays in the middle of a line until it may go on
SAME = WAITS.replace(
    'print("up", rank, flush=True)',
    'print("same on all", flush=True)\nprint("up", rank, flush=True)\nprint("be", end="")\n'
    "sys.stdout.flush()",
).replace('print("done"', 'print("gun\\ndone"')


@pytest.mark.parametrize("how", [[], ["--log-size", "4096"], ["--log-merge"]])
def test_the_past_from_any_kind_of_log(desk: Desk, state: Path, how: list[str]) -> None:
    much = 'print("\\n".join(f"{n:0100d}" for n in range(100)), flush=True)\nprint("up"'
    text = SAME.replace('print("up"', much)
    words = ("-H", "localhost:2", script(desk.folder, text), "0")
    row = detach(desk, *how, *words)
    # the launcher has it all before anybody asks: nothing but the past is left to tell
    wait_for(lambda: dispatch("logs").stdout.count("up ") == 2, 60, lambda: "both are up")
    if "--log-size" in how:
        assert Path(row["logs"], "rank-00000.out.2").exists()
    with subprocess.Popen([*PROGRAM, "attach", "--from-start"],
                          stdout=subprocess.PIPE, text=True) as one:  # fmt: skip
        assert one.stdout is not None
        shown = [one.stdout.readline() for _ in range(2 * 102)]
        go(desk)
        shown += one.stdout.readlines()
        assert one.wait(timeout=60) == 0
    for rank in (0, 1):
        own = [line[4:-1] for line in shown if line.startswith(f"[{rank}] ")]
        # what a line has of both worlds may be shown in two pieces, after a while
        joined = "\n".join(own).replace("be\ngun", "begun").split("\n")
        assert joined == ["same on all", *(f"{n:0100d}" for n in range(100)), f"up {rank}",
                          "begun", f"done {rank}"]  # fmt: skip
    again = dispatch("attach", "--from-start", "--fold", "--label", "host")
    assert again.returncode == 0
    assert again.stdout.count("[localhost] same on all\n") == 1
    assert "[localhost:1] done 1\n" in again.stdout
    only = dispatch("attach", "--from-start", "--only-ranks", "1").stdout.splitlines()
    assert only[0] == "[1] same on all"
    assert len(only) == 104
    assert dispatch("logs", "--rank", "0").stdout.endswith("\nup 0\nbegun\ndone 0\n")


def test_the_past_of_ranks_that_were_started_again(desk: Desk, state: Path) -> None:
    text = WAITS.replace('print("up"', 'print("try", os.environ["TORCHELASTIC_RESTART_COUNT"]')
    text = text.replace("end =", 'os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os._exit(3)\nend =', 1)  # noqa: E501  # fmt: skip
    detach(desk, "-H", "localhost:1", "--max-restarts", "1", script(desk.folder, text), "0")
    wait_for(lambda: "try 1" in dispatch("logs").stdout, 60, lambda: "it was started again")
    with subprocess.Popen([*PROGRAM, "attach", "--from-start"],
                          stdout=subprocess.PIPE, text=True) as one:  # fmt: skip
        assert one.stdout is not None
        assert [one.stdout.readline() for _ in range(2)] == ["[0] try 0 0\n", "[0] try 1 0\n"]
        go(desk)
        assert one.stdout.read() == "[0] done 0\n"


def test_bad_words_to_attach(desk: Desk, state: Path) -> None:
    detach(desk, "-H", "localhost:2", script(desk.folder, WAITS), "0")
    for words in (["--only-ranks", "2"], ["--grep", "("], ["--from-start", "--timestamps"],
                  ["--rank0", "--only-ranks", "1"]):  # fmt: skip
        assert dispatch("attach", *words).returncode == 2
    assert jobs()[-1]["state"] == "running"
    go(desk)
    assert dispatch("attach", "-q").returncode == 0


def test_before_a_terminal(desk: Desk, state: Path, seat: Seat) -> None:
    up(detach(desk, "-H", "localhost:2", script(desk.folder, WAITS), "3"))
    seat.take(*PROGRAM, "attach", "--from-start", "--label", "host")
    lines = seat.until(lambda lines: "2 ranks: 2 running" in status_of(lines) and len(lines) > 2)
    assert sorted(lines[:2]) == ["[localhost:0] up 0", "[localhost:1] up 1"]
    assert "1 host: 1 running" in status_of(lines)
    seat.process.send_signal(signal.SIGINT)
    code, lines = seat.end()
    assert code == 130
    assert "detached" in lines[-1]
    assert not any(status_of([line]) for line in lines)
    assert jobs()[-1]["state"] == "running"
    seat.take(*PROGRAM, "attach")
    seat.until(lambda lines: "2 ranks: 2 running" in status_of(lines))
    go(desk)
    code, lines = seat.end()
    assert code == 3
    assert any("exit code 3 \N{MIDDLE DOT} 2 ranks on 1 host" in line for line in lines)
    assert any(line.startswith("error: rank ") for line in lines)


@pytest.mark.parametrize("stubborn", [False, True])
def test_ctrl_c_ends_the_job_only_if_that_was_asked_for(
    desk: Desk, state: Path, stubborn: bool
) -> None:
    ignores = "import signal\n[signal.signal(s, signal.SIG_IGN) for s in (2, 15)]\n"
    text = (ignores if stubborn else "") + WAITS
    detach(desk, "-H", "localhost:1", script(desk.folder, text), "0")
    argv = [sys.executable, "-m", "dispatcher", "attach", "--from-start", "--stop-on-interrupt"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, **pipes) as one:
        assert one.stdout is not None
        assert one.stderr is not None
        assert one.stdout.readline() == "[0] up 0\n"
        os.kill(one.pid, signal.SIGINT)
        said = ""
        while "ending the job" not in said:
            said = one.stderr.readline()
            assert said
        if stubborn:
            os.kill(one.pid, signal.SIGINT)
        assert one.wait(timeout=60) == 130
        assert "stopped by dispatch stop" in one.stderr.read()
    assert jobs()[-1]["state"] == "ended"


@pytest.mark.parametrize("keeps", [False, True])
def test_a_run_in_another_terminal(
    desk: Desk, state: Path, tmp_path_factory: pytest.TempPathFactory, keeps: bool
) -> None:
    """It answers as one in the background does; its output is where its files are."""
    files = ["--log-dir", str(tmp_path_factory.mktemp("logs"))] if keeps else []
    run = desk.start("-H", "localhost:2", *files, script(desk.folder, WAITS), "3")
    assert desk.lines(run, 2) == ["[0] up 0\n", "[1] up 1\n"]
    (row,) = jobs()
    assert (row["state"], row["detached"]) == ("running", False)
    table = dispatch("top")
    assert table.returncode == 0, table.stderr
    assert [line.split()[-2:] for line in table.stdout.splitlines()[1:]] == [
        ["up", "0"], ["up", "1"]
    ]  # fmt: skip
    assert dispatch("stacks").returncode == 0
    asked = ["attach", *(["--from-start"] if keeps else [])]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*PROGRAM, *asked], **pipes) as viewer:
        assert viewer.stderr is not None
        if keeps:
            assert viewer.stdout is not None
            assert sorted(viewer.stdout.readline() for _ in range(2)) == [
                "[0] up 0\n", "[1] up 1\n"
            ]  # fmt: skip
        else:
            assert "keeps no files (--log-dir), so only its terminal" in viewer.stderr.readline()
        go(desk)
        out, err = viewer.communicate(timeout=60)
    assert (viewer.returncode, run.wait(60)) == (3, 3)
    assert run.stdout is not None
    rest = sorted(run.stdout.read().splitlines())  # rank 0 may be ended before its last line
    assert "[1] done 1" in rest
    assert sorted(out.splitlines()) == (rest if keeps else [])
    assert "error: rank 1 on localhost, pid " in err
