"""Runs that start again, on this machine: what ranks see, what is kept apart, when it stops."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from rig import wait_for

from ..conftest import Desk, script

TWICE = (
    "import os, sys, time\n"
    "get = os.environ.get\n"
    "count = get('TORCHELASTIC_RESTART_COUNT')\n"
    "print(count, get('TORCHELASTIC_MAX_RESTARTS'), get('MASTER_PORT'), flush=True)\n"
    "if count == '0':\n"
    "    open(sys.argv[0], 'a').write('#')\n"
    "    if get('RANK') == '0': open('up', 'w').close(); time.sleep(1000)\n"
    "    while not os.path.exists('up'): time.sleep(0.01)\n"
    "    sys.exit(3)\n"
)


def report(desk: Desk) -> dict[str, object]:
    found = json.loads((desk.folder / "logs/latest/report.json").read_text())
    assert isinstance(found, dict)
    return found


def test_ranks_start_again_on_a_fresh_port(desk: Desk) -> None:
    done = desk.run(
        "--max-restarts", "3", "--log-dir", "logs", "-H", "localhost:2", script(desk.folder, TWICE)
    )
    assert done.returncode == 0
    said = sorted(line.split()[1:] for line in done.stdout.splitlines())
    assert [words[:2] for words in said] == [["0", "3"]] * 2 + [["1", "3"]] * 2
    assert said[0][2] == said[1][2] != said[2][2] == said[3][2]
    assert "note: rank 1 on localhost: exit code 3; restart 1 of 3\n" in done.stderr
    assert "note: prog.py changed between attempt 1 and attempt 2 on localhost\n" in done.stderr
    logs = desk.folder / "logs/latest"
    assert (logs / "rank-00000.out").read_text().startswith("0 3")
    assert (logs / "restart-1/rank-00000.out").read_text().startswith("1 3")
    told = report(desk)
    assert told["ok"]
    assert [a["what"] for a in told["attempts"]] == ["rank 1 on localhost: exit code 3"]  # type: ignore[attr-defined]


def test_what_the_first_ranks_leave_is_dead_before_the_second_start(desk: Desk) -> None:
    program = (
        "pid=$(cat stray 2>/dev/null)\n"
        'if [ -n "$pid" ]; then kill -0 $pid 2>/dev/null && echo alive; echo second; exit 0; fi\n'
        "setsid sh -c 'echo $$ > stray; trap \"\" TERM INT HUP; sleep 1000; sleep 1000' &\n"
        "while [ ! -s stray ]; do sleep 0.01; done\n"
        "exit 9\n"
    )
    done = desk.run("--max-restarts", "1", "-H", "localhost", "--no-python", "sh", "-c", program)
    assert (done.returncode, done.stdout) == (0, "[0] second\n")


def test_the_last_attempt_decides_and_all_are_told(desk: Desk) -> None:
    program = "exit $((5 + TORCHELASTIC_RESTART_COUNT))"
    done = desk.run(
        "--max-restarts", "2", "--restart-delay", "0.05", "--log-dir", "logs",
        "-H", "localhost", "--no-python", "sh", "-c", program,
    )  # fmt: skip
    assert done.returncode == 7
    assert [a["exit_code"] for a in report(desk)["attempts"]] == [5, 6]  # type: ignore[attr-defined]
    assert "note: attempt 2 of 3: rank 0 on localhost: exit code 6\n" in done.stderr
    assert "note: not started again: 2 restarts were made, which is the most\n" in done.stderr
    assert "error: rank 0 on localhost" in done.stderr


@pytest.mark.parametrize(
    ("program", "code", "why"),
    [
        ("exit 93", 93, "exit code 93 asks for none"),
        ("exit 1", 1, "3 attempts without progress"),
    ],
)
def test_when_there_is_no_point(desk: Desk, program: str, code: int, why: str) -> None:
    done = desk.run(
        "--max-restarts", "9", "--restart-delay", "0.05", "--progress-line", "step [0-9]+",
        "-H", "localhost", "--no-python", "sh", "-c", f"echo step; {program}",
    )  # fmt: skip
    assert done.returncode == code
    assert f"note: not started again: {why}\n" in done.stderr


@pytest.mark.parametrize(
    "way", [("--progress-line", "step [0-9]+"), ("--progress-file", "checkpoint")]
)
def test_progress_goes_on_for_longer(desk: Desk, way: tuple[str, str]) -> None:
    program = "printf 'step '; sleep 0.01; echo 7; date +%N > checkpoint; exit 1"
    done = desk.run(
        "--max-restarts", "4", "--restart-delay", "0", *way,
        "-H", "localhost", "--no-python", "sh", "-c", program,
    )  # fmt: skip
    assert "4 restarts were made" in done.stderr


def test_ctrl_c_in_a_pause_is_the_end(desk: Desk) -> None:
    process = desk.start(
        "--max-restarts", "9", "--restart-delay", "1000", "--log-dir", "logs",
        "-H", "localhost", "--no-python", "sh", "-c", "echo up; exit 4",
    )  # fmt: skip
    desk.lines(process, 2)
    assert process.stderr is not None
    while "restart 2 of 9" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert [a["exit_code"] for a in report(desk)["attempts"]] == [4, 4]  # type: ignore[attr-defined]


def test_gloo_meets_again(desk: Desk) -> None:
    program = (
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "one = torch.ones(1); dist.all_reduce(one)\n"
        "print(os.environ['TORCHELASTIC_RESTART_COUNT'], 'sum', int(one), flush=True)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and dist.get_rank() == 0: os._exit(1)\n"
        "dist.barrier(); dist.destroy_process_group()\n"
    )
    done = desk.run(
        "--max-restarts", "1", "-H", "localhost:2", script(desk.folder, program), timeout=220
    )
    assert done.returncode == 0, done.stderr
    assert {"[0] 1 sum 2", "[1] 1 sum 2"} <= set(done.stdout.splitlines())


def test_mpi_meets_again(desk: Desk) -> None:
    program = (
        "import os, sys\n"
        "from mpi4py import MPI\n"
        "total = MPI.COMM_WORLD.allreduce(1)\n"
        "print(os.environ['TORCHELASTIC_RESTART_COUNT'], 'sum', total, flush=True)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and MPI.COMM_WORLD.rank == 1:\n"
        "    raise ValueError('no')\n"
        "MPI.COMM_WORLD.barrier()\n"
    )
    before = shared()
    done = desk.run(
        "--max-restarts", "1", "-H", "localhost:2", script(desk.folder, program), timeout=220
    )
    assert done.returncode == 0, done.stderr
    assert {"[0] 1 sum 2", "[1] 1 sum 2"} <= set(done.stdout.splitlines())
    wait_for(lambda: shared() <= before, 20, "shared memory to be removed")


def shared() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("mpich_*")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--max-restarts", "x"), "--max-restarts"),
        (("--progress-line", "("), "--progress-line: not a pattern"),
        (("--min-nodes", "2"), "--min-nodes 2: only 1 host to start on"),
        (("--spares", "1"), "--spares 1: no host is left to start on"),
        (("--restart-delay", "-1"), "--restart-delay"),
    ],
)
def test_usage(desk: Desk, words: tuple[str, str], message: str) -> None:
    done = desk.run(*words, "-H", "localhost", "--no-python", sys.executable)
    assert done.returncode == 2
    assert message in done.stderr
