"""``dispatch restart`` as a user calls it, from another shell than the one that has the run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from rig import wait_for

import dispatcher
from dispatcher.api.report import replay

from ..background import detach, dispatch, jobs
from ..conftest import Desk, script

#: says which code it is, what it was given, and that it was told to end; SIGUSR1 ends it as well
TOLD = """
import os, signal, sys
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
print("code 1", *sys.argv[1:], os.environ.get("LR"), flush=True)
while True:
    signal.pause()
"""


def test_a_run_of_the_foreground_goes_on_with_the_code_as_it_is_now(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = desk.folder / script(desk.folder, TOLD)
    there, log = (tmp_path_factory.mktemp(name) for name in ("there", "log"))
    words = ("-H", "localhost:2", f"--sync={there}", "--python", "python3", "--log-dir", str(log))
    run = desk.start(*words, path.name, "a")
    assert desk.lines(run, 2) == ["[0] code 1 a None\n", "[1] code 1 a None\n"]
    path.write_text(TOLD.replace("code 1", "code 2"))
    done = dispatch("restart", "-x", "LR=3", "--", path.name, "b", "--token", "swordfish")
    assert done.returncode == 0, done.stderr
    assert re.search(r"note: job \S+: started again: attempt 2, 2 ranks\n$", done.stderr)
    assert desk.lines(run, 4) == [
        "[0] code 2 b --token swordfish 3\n", "[0] saved\n",
        "[1] code 2 b --token swordfish 3\n", "[1] saved\n",
    ]  # fmt: skip
    wrong = dispatch("restart", "--", "none.py")
    assert (wrong.returncode, wrong.stderr.count("[cannot-restart]")) == (125, 1)
    run.send_signal(signal.SIGUSR1)  # which is passed on
    _, err = run.communicate(timeout=60)
    assert run.returncode == 0
    command = f"restarted by dispatch restart -x LR -- {path.name} b --token '<hidden>'"
    notes = [line for line in err.splitlines() if "logs in" not in line]
    assert re.match("note: --sync: 1 of 1 file", notes[0])
    assert notes[1] == f"note: {command}; attempt 2"
    assert notes[2].startswith("note: --sync: 1 of 1 file")
    changed = f"note: {path.name} changed between attempt 1 and attempt 2 on localhost"
    assert notes[3:] == [changed, f"note: attempt 1 of 2: {command}",
                         "note: the job succeeded after 1 restart", changed]  # fmt: skip
    (folder,) = (each for each in log.iterdir() if each.name != "latest")
    report = json.loads((folder / "report.json").read_text())
    assert [(one["cause"], one["what"]) for one in report["attempts"]] == [
        ("RestartAsked", command)
    ]
    kept = "".join(each.read_text() for each in folder.rglob("*.json*"))
    assert "swordfish" not in kept
    told = json.dumps(replay(folder / "dispatch.jsonl").plain())
    assert json.loads(told) == report


def test_a_job_in_the_background(desk: Desk) -> None:
    name = script(desk.folder, TOLD)
    detach(desk, "-H", "localhost:1", name, "a")
    for number, words in enumerate([("latest",), ("--", name, "b c")], 2):
        done = dispatch("restart", *words)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1].endswith(f"started again: attempt {number}, 1 rank")
    assert jobs()[-1]["program"] == [name, "b c"]
    wait_for(lambda: "b c" in dispatch("logs").stdout, 60, lambda: "it runs")
    stopped = dispatch("stop")
    assert stopped.returncode == 0
    assert "note: attempt 2 of 3: restarted by dispatch restart -- " in stopped.stderr
    ended = dispatch("restart", "latest")
    assert (ended.returncode, ended.stderr.count("[job-ended]")) == (125, 1)


def test_a_run_of_a_program_is_restarted_and_stopped_from_a_shell(desk: Desk) -> None:
    name = script(desk.folder, TOLD)
    lines: list[str] = []
    heard = {code: threading.Event() for code in ("code 1 a", "code 1 b")}

    def hear(line: dispatcher.Line) -> None:
        lines.append(line.text)
        if line.text != "saved":
            heard[line.text.rpartition(" ")[0]].set()

    orders: list[subprocess.CompletedProcess[str]] = []

    def order() -> None:
        heard["code 1 a"].wait(60)
        orders.append(dispatch("restart", "--", name, "b"))
        heard["code 1 b"].wait(60)
        orders.append(dispatch("stop"))

    other = threading.Thread(target=order)
    other.start()
    request = dispatcher.request(
        "localhost:1", [name, "a"], cwd=str(desk.folder), python=sys.executable
    )
    report = dispatcher.run(request, on_line=hear)
    other.join(100)
    assert [one.returncode for one in orders] == [0, 0], orders
    assert f"note: restarted by dispatch restart -- {name} b; attempt 2\n" in orders[0].stderr
    assert lines == ["code 1 a None", "saved", "code 1 b None", "saved"]
    assert report.exit_code == 130
    assert report.verdict[0] == f"note: attempt 1 of 2: restarted by dispatch restart -- {name} b"
    assert "note: stopped by dispatch stop" in report.verdict[1]
    assert jobs()[-1]["state"] == "ended"
    assert os.getpid() == jobs()[-1]["pid"]
