"""``dispatch debug``: pdb of a rank that runs, and of one that has come to ``breakpoint()``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from remote.driver import interpreters, new_enough
from rig import Cluster, wait_for

from dispatcher.bootstrap import payload

from ..conftest import PROGRAM as DISPATCH
from ..conftest import Desk

#: waits for a file between two lines, so that it is asked there and nowhere else
PROGRAM = """
import os, time
def work(secret):
    while not os.path.exists("go"):
        open("there", "a").close() or time.sleep(0.02)
    changed = secret + 1
    return changed
if os.environ["RANK"] == "0":
    answer = 41
    breakpoint()
    print("answer", answer, flush=True)
else:
    print("work", work(7), flush=True)
"""


#: dispatch, with the file that its second word names in the place of the debugger
WITH = """
import sys
from dispatcher import cli
from dispatcher.bootstrap import payload
own, usual = sys.argv.pop(1), payload.path_of
payload.path_of = lambda name: own if name == "rank.debugger" else usual(name)
cli.console()
"""


def patient(folder: Path) -> list[str]:
    """``dispatch``, which gives a rank a minute to answer."""
    text = Path(payload.path_of("rank.debugger")).read_text()
    assert "\nANSWER = 5.0\n" in text
    path = folder / "patient.txt"
    path.write_text(text.replace("\nANSWER = 5.0\n", "\nANSWER = 60.0\n"))
    return [sys.executable, "-c", WITH, str(path)]


def debugged(
    desk: Desk, rank: int, *lines: str, by: list[str] = DISPATCH
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*by, "debug", "latest", "--rank", str(rank)],
        cwd=desk.folder, input="".join(f"{line}\n" for line in lines), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_rank_is_looked_into_and_goes_on(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(PROGRAM)
    (desk.folder / ".pdbrc").write_text("!open('pdbrc-was-run', 'w')\n")
    by = patient(desk.folder)
    process = desk.start("-H", "localhost:2", "--python", "python3", "train.py")
    assert process.stderr is not None
    waits = process.stderr.readline()
    assert waits.startswith("[0] ")
    assert "train.py:10: waiting for: dispatch debug " in waits
    assert waits.endswith(" --rank 0\n")
    doors = f"dispatch-{waits.split()[-3]}-*/debug-*"
    wait_for(lambda: [*Path(tempfile.gettempdir()).glob(doors)], 60, "it waits, as it has said")

    first = debugged(desk, 0, "p answer", "answer = 42", "n", "p answer * 2", "q", by=by)
    assert first.returncode == 0, first.stderr
    assert [line.replace("(Pdb rank 0) ", "") for line in first.stdout.splitlines()][2:] == [
        "41", f"> {desk.folder}/train.py(11)<module>()",
        '-> print("answer", answer, flush=True)', "84", "the rank goes on",
    ]  # fmt: skip
    assert first.stderr == "note: rank 0 on localhost; c or q: it goes on\n"

    wait_for((desk.folder / "there").exists, 60, "rank 1 is in its function")
    second = debugged(desk, 1, "p secret", "secret = 8", "c", by=by)  # it is asked where it is
    assert second.returncode == 0, second.stderr
    assert "in work" not in second.stdout
    assert "work()" in second.stdout
    assert "(Pdb rank 1) 7\n" in second.stdout

    third = debugged(desk, 1, "w", by=by)  # whoever hangs up lets it go on
    assert third.returncode == 0, third.stderr
    assert "train.py(13)<module>()" in third.stdout
    Path(desk.folder, "go").touch()
    assert process.stdout is not None
    assert sorted(process.stdout.read().splitlines()) == ["[0] answer 42", "[1] work 9"]
    assert process.wait(timeout=60) == 0
    assert not (desk.folder / "pdbrc-was-run").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("version", sorted({*new_enough()}), ids="{0[0]}.{0[1]}".format)
def test_a_rank_of_another_host(cluster: Cluster, tmp_path: Path, version: tuple[int, int]) -> None:
    """Over sshd, and with every Python that a rank may have."""
    (tmp_path / "train.py").write_text(PROGRAM)
    there = Path(cluster.shared, f"debugged-{version[1]}")
    env, by = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}, patient(tmp_path)
    run = cluster.popen(
        [*DISPATCH, "-H", "n1:1,n2:1", "--python", interpreters()[version], "--log-dir",
         str(tmp_path / "logs"), f"--sync={there}", "train.py"],
        cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def debugged(rank: int, *lines: str) -> str:
        done = cluster.run(
            [*by, "debug", "latest", "--rank", str(rank)], env=env,
            input="".join(f"{line}\n" for line in lines),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == f"note: rank {rank} on n{rank + 1}; c or q: it goes on\n"
        return str(done.stdout)

    said = run.stderr
    try:
        assert said is not None
        wait_for(lambda: "waiting for: dispatch debug" in said.readline(), 60, "breakpoint()")
        assert "84\n" in debugged(0, "answer = 42", "n", "p answer * 2", "q")
        wait_for((there / "there").exists, 60, "rank 1 is in its function")
        assert "(Pdb rank 1) 7\n" in debugged(1, "p secret", "secret = 8", "n", "q")
        (there / "go").touch()
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 0, err
    assert sorted(out.splitlines()) == ["[0] answer 42", "[1] work 9"]


def test_a_rank_that_cannot_answer_is_told(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(
        "import signal, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {61})\n"
        "print('up', flush=True)\ntime.sleep(1000)\n"
    )
    process = desk.start("-H", "localhost:1", "--python", "python3", "train.py")
    desk.lines(process, 1)
    done = debugged(desk, 0)
    assert done.returncode != 0
    assert "does not answer: it is in C, or has replaced the signal" in done.stderr
    plain = desk.start("-H", "localhost:1", "--no-python", "sh", "-c", "echo up; exec sleep 1000")
    desk.lines(plain, 1)
    nobody = debugged(desk, 0)
    assert nobody.returncode == 2
    assert "no host has a rank 0 that runs Python [no-such-job]" in nobody.stderr
