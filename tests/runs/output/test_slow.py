"""A rank that is slower than the others is named at the end of the run."""

from __future__ import annotations

from ..conftest import Desk, script

STEPS = """
import os
for step in range(8):
    print(f"step {step} took {0.9 if os.environ['RANK'] == '2' else 0.5} s")
"""


def test_the_slow_rank_is_named(desk: Desk) -> None:
    name = script(desk.folder, STEPS)
    words = ("-H", "localhost:4", "--step-line", r"^step \d+ took ([\d.]+)")
    done = desk.run(*words, name)
    assert done.returncode == 0
    assert done.stderr == "note: rank 2 on localhost: 1.8x the median step time (0.9 s)\n"
    assert desk.run(*words, "-q", name).stderr == ""
    assert desk.run("-H", "localhost", "--step-line", "(", name).returncode == 2
