"""A host that fails in run after run is named at the next start, and can be left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rig import wait_for

from ..conftest import Desk, script


@pytest.mark.usefixtures("state")
def test_a_host_that_refuses_every_run(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host n4\n  HostName 127.0.0.1\n  Port 1\n")
    job = script(desk.folder, "import sys; sys.exit(int(sys.argv[1]))")
    reach = ("-F", "config", "--transport", "auto")
    both = ("-w", "localhost:1,n4:1", *reach)
    assert desk.run("-w", "localhost:1", *reach, job, "3").returncode == 3  # blames no host
    for before in ("", "", "note: n4 failed in 2 of the last 2 runs: connection refused (2)\n"):
        done = desk.run(*both, job, "0")
        assert done.returncode == 125
        assert before in done.stderr
        assert ("failed in" in done.stderr) == bool(before)
    done = desk.run(*both, "--nnodes", "1", "--avoid-failures", "2", job, "0")
    assert (done.returncode, "--avoid-failures" in done.stderr) == (0, False)  # it needs none of it
    words = ("-w", "n4:1,localhost:1", *reach, "--nnodes", "1", "--avoid-failures")
    done = desk.run(*words, "3", job, "0")
    assert (done.returncode, done.stderr) == (
        0,
        "note: --avoid-failures 3: left out: n4 failed in 3 of the last 3 runs: "
        "connection refused (3)\n",
    )
    assert desk.run(*words, "4", job, "0").returncode == 125
    done = desk.run(*words, "0", job, "0")
    assert (done.returncode, "--avoid-failures" in done.stderr) == (2, True)


@pytest.mark.usefixtures("state")
def test_a_fault_of_the_hardware_is_told_while_the_next_run_goes_on(desk: Desk) -> None:
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    fails = script(desk.folder, f"raise {ecc.replace(': ', '(', 1)!s}')".replace("(C", "('C"))
    for _ in range(2):
        assert desk.run("-w", "localhost:1", fails).returncode == 1
    waits = script(desk.folder, "import sys; sys.stdin.readline()", "waits.py")
    log = desk.folder / "log"
    with open(log, "w") as file:
        running = desk.start("-w", "localhost:1", "--stdin", "0", waits, stdin=-1, stderr=file)
        text = "note: localhost failed in 2 of the last 2 runs: uncorrectable ECC error (2)\n"
        wait_for(lambda: text in log.read_text(), 30, lambda: log.read_text())
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait(60) == os.EX_OK
