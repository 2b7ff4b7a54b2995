"""``--if-busy``: a note, a refusal, or a wait while others use the GPUs or hosts of a run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import wait_for

from dispatcher.jobs import registry
from dispatcher.remote.host import host_facts

from ..background import dispatch, jobs
from ..conftest import Desk, script

SMI = """#!/bin/sh
case $1 in
--query-gpu=*) echo '0, GPU-aa'; echo '1, GPU-bb';;
*) cat {apps};;
esac
"""


@pytest.fixture
def foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process on GPU 1, as long as the file ``apps`` says so; the hostfile ``both``."""
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(SMI.format(apps=tmp_path / "apps"))
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "both").write_text("localhost gpus=0,1\n")
    (tmp_path / "first").write_text("localhost gpus=0\n")
    with subprocess.Popen(["sleep", "1000"]) as process:
        (tmp_path / "apps").write_text(f"GPU-bb, {process.pid}\n")
        yield process
        process.kill()


def test_a_note_after_the_start(desk: Desk, foreign: Any) -> None:
    waits = script(desk.folder, "import sys; sys.stdin.readline()", "waits.py")
    text = f"note: GPUs are in use: localhost: sleep of root (GPU 1, pid {foreign.pid})\n"
    log = desk.folder / "log"
    with open(log, "w") as file:
        running = desk.start("-H", "both", "--stdin", "0", waits, stdin=-1, stderr=file)
        wait_for(lambda: "GPUs are in use" in log.read_text(), 30, log.read_text)
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait(60) == 0
    assert log.read_text() == text.replace("root", Path(f"/proc/{foreign.pid}").owner())


def test_a_refusal_before_it(desk: Desk, foreign: Any) -> None:
    made = script(desk.folder, "open('made', 'w')")
    done = desk.run("-H", "both", "--if-busy", "fail", made)
    assert done.returncode == 125
    assert "host in use" in done.stderr
    assert f"(GPU 1, pid {foreign.pid})" in done.stderr
    assert "hint: --if-busy wait" in done.stderr
    assert not (desk.folder / "made").exists()
    assert desk.run("-H", "first", "--if-busy", "fail", made).returncode == 0
    assert desk.run("-H", "both", "--if-busy", "flee", made).returncode == 2


def test_a_wait_ends_when_the_gpus_are_free(desk: Desk, foreign: Any) -> None:
    """Of two jobs that wait, the second goes when the first has ended."""
    named = script(desk.folder, "import os, sys; print(sys.argv[1], file=open('order', 'a'))")
    words = ("-H", "both", "-n", "1", "--if-busy", "wait", "--detach", named)
    first = desk.run("--name", "j1", *words, "one")
    assert first.returncode == 0, first.stderr
    assert f"waits for localhost: sleep of {Path('/proc/self').owner()}" in first.stdout
    second = desk.run("--name", "j2", *words, "two")
    assert "waits for localhost: your job j1 (" in second.stdout
    assert [job["state"] for job in jobs()] == ["waiting", "waiting"]
    (desk.folder / "apps").write_text("")
    wait_for(lambda: {job["state"] for job in jobs()} == {"ended"}, 60, "both end")
    assert (desk.folder / "order").read_text().split() == ["one", "two"]
    assert [job["exit_code"] for job in jobs()] == [0, 0]


@pytest.mark.parametrize("by", ["Ctrl-C", "stop"])
def test_a_wait_can_be_ended(desk: Desk, foreign: Any, by: str) -> None:
    made = script(desk.folder, "open('made', 'w')")
    waiting = desk.start("-H", "both", "--if-busy", "wait", made)
    wait_for(lambda: [job["state"] for job in jobs()] == ["waiting"], 60, "it waits")
    assert waiting.stderr is not None
    assert waiting.stderr.readline().startswith("note: waiting for localhost: sleep of ")
    if by == "stop":
        assert dispatch("stop", "latest").returncode == 0
    else:
        waiting.send_signal(signal.SIGINT)
    assert waiting.wait(60) == 130
    assert not (desk.folder / "made").exists()


@pytest.mark.usefixtures("state")
def test_other_jobs_and_ranks_that_were_lost_count_too(desk: Desk) -> None:
    """On a host without GPUs: a job of mine is named; a host that a job lost is not used."""
    waits = script(desk.folder, "import sys; sys.stdin.readline()", "waits.py")
    running = desk.start("-w", "localhost:1", "--name", "j1", "--stdin", "0", waits, stdin=-1)
    wait_for(lambda: [job["state"] for job in jobs()] == ["running"], 60, "it runs")
    log = desk.folder / "log"
    with open(log, "w") as file:
        second = desk.start("-w", "localhost:1", "--stdin", "0", waits, stdin=-1, stderr=file)
        text = "note: hosts are in use: localhost: your job j1 ("
        wait_for(lambda: log.read_text().startswith(text), 30, log.read_text)
    for one in (running, second):
        assert one.stdin is not None
        one.stdin.close()
        assert one.wait(60) == 0
    registry.note_left({host_facts.identity(): 60.0})
    done = desk.run("-w", "localhost:1", "--if-busy", "fail", waits)
    assert done.returncode == 125
    assert "ranks of a job that lost it may still run" in done.stderr
