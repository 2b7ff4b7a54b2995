"""``dispatch debug``: pdb of a rank that runs, and of one that has come to ``breakpoint()``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..conftest import Desk

#: waits for a file between two lines, so that it is asked there and nowhere else
PROGRAM = """
import os, time
def work(secret):
    while not os.path.exists("go"):
        time.sleep(0.02)
    changed = secret + 1
    return changed
if os.environ["RANK"] == "0":
    answer = 41
    breakpoint()
    print("answer", answer, flush=True)
else:
    print("work", work(7), flush=True)
"""


def debugged(desk: Desk, rank: int, *lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*desk.argv()[:-2], "debug", "latest", "--rank", str(rank)],
        cwd=desk.folder, input="".join(f"{line}\n" for line in lines), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_rank_is_looked_into_and_goes_on(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(PROGRAM)
    process = desk.start("-H", "localhost:2", "--python", "python3", "train.py")
    assert process.stderr is not None
    waits = process.stderr.readline()
    assert waits.startswith("[0] ")
    assert "train.py:10: waiting for: dispatch debug " in waits
    assert waits.endswith(" --rank 0\n")

    first = debugged(desk, 0, "p answer", "answer = 42", "n", "p answer * 2", "q")
    assert first.returncode == 0, first.stderr
    assert [line.replace("(Pdb rank 0) ", "") for line in first.stdout.splitlines()][2:] == [
        "41", f"> {desk.folder}/train.py(11)<module>()",
        '-> print("answer", answer, flush=True)', "84", "the rank goes on",
    ]  # fmt: skip
    assert first.stderr == "note: rank 0 on localhost; c or q: it goes on\n"

    second = debugged(desk, 1, "p secret", "secret = 8", "c")  # it is asked where it is
    assert second.returncode == 0, second.stderr
    assert "in work" not in second.stdout
    assert "work()" in second.stdout
    assert "(Pdb rank 1) 7\n" in second.stdout

    third = debugged(desk, 1, "w")  # whoever hangs up lets it go on
    assert third.returncode == 0, third.stderr
    assert "train.py(13)<module>()" in third.stdout
    Path(desk.folder, "go").touch()
    assert process.stdout is not None
    assert sorted(process.stdout.read().splitlines()) == ["[0] answer 42", "[1] work 9"]
    assert process.wait(timeout=20) == 0


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
