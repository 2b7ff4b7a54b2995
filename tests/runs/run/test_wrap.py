"""``--wrap``: a command before the program of some ranks, as a user gives it."""

from __future__ import annotations

import json
import subprocess

from rig import wait_for

from ..conftest import PROGRAM as DISPATCH
from ..conftest import Desk, script

#: whether it leads its session, as a rank without another program above it does; then it waits
WAITS = """
import os, sys, time
def wait():
    while not os.path.exists("go"):
        time.sleep(0.02)
print(os.getsid(0) == os.getpid(), flush=True)
wait()
sys.exit(7 * int(os.environ["RANK"]))
"""
#: a shell that runs the words after it as its child, and exits as the child does
SHELL = "1:sh -c '\"$@\"; exit $?' wrap"


def asked(desk: Desk, *words: str, typed: str = "") -> str:
    argv = [*DISPATCH, *words]
    done = subprocess.run(
        argv, cwd=desk.folder, input=typed, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout


def test_a_wrapped_rank_is_found_below_its_command(desk: Desk) -> None:
    name = script(desk.folder, WAITS)
    words = ("--hang-timeout", "600", "--grace", "1", "--wrap", SHELL, name)
    process = desk.start("-H", "localhost:2", *words)
    assert desk.lines(process, 2) == ["[0] True\n", "[1] False\n"]

    def places() -> list[tuple[list[str], bool]]:
        groups = json.loads(asked(desk, "stacks", "latest", "--json"))["groups"]
        return [(one["ranks"], "wait at " in one["place"]) for one in groups]

    wait_for(lambda: places() == [(["0", "1"], True)], 60, "both ranks are in one place")
    assert "-> wait()\n" in asked(desk, "debug", "latest", "--rank", "1", typed="w\nq\n")
    (desk.folder / "go").touch()
    assert process.wait(60) == 7


def test_a_command_that_the_host_lacks(desk: Desk) -> None:
    done = desk.run("-H", "localhost:2", "--wrap", "1:no-such-profiler -x", "train.py")
    assert done.returncode == 127
    assert "no-such-profiler: not found\n" in done.stderr


def test_a_rank_out_of_range(desk: Desk) -> None:
    done = desk.run("-H", "localhost:2", "--wrap", "2:nice", script(desk.folder, WAITS))
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: --wrap: 2: the world's ranks are 0-1 [bad-value]\n" in done.stderr
