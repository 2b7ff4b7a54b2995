"""``dispatch profile`` of a job that runs, as a user calls it."""

from __future__ import annotations

import json

from rig import wait_for

from ..background import dispatch
from ..conftest import Desk, script

WORKS = """
import os, time
def work():
    while not os.path.exists("go"):
        time.sleep(0.01)
open("there" + os.environ["RANK"], "w").close()
if os.environ["RANK"] != "2":
    work()
"""


def test_ranks_below_a_command_or_not_and_one_that_has_ended(desk: Desk) -> None:
    name = script(desk.folder, WORKS)
    process = desk.start("-H", "localhost:3", "--wrap", "1:sh -c '\"$@\"; exit $?' wrap", name)
    wait_for(lambda: len([*desk.folder.glob("there?")]) == 3, 60, "all ranks have begun")
    words = ("profile", "latest", "--rank", "0-2", "--seconds", "1", "-o", "file.json")
    done = dispatch(*words, cwd=desk.folder)
    assert done.returncode == 125
    assert done.stdout == "file.json: open it with https://www.speedscope.app\n"
    assert "rank 2: no process of it is there [not-profiled]\n" in done.stderr
    told = json.loads((desk.folder / "file.json").read_text())
    names = [one["name"] for one in told["profiles"] if "MainThread" in one["name"]]
    assert [name.partition(" on ")[0] for name in names] == ["rank 0", "rank 1"]
    assert "work" in {one["name"] for one in told["shared"]["frames"]}
    (desk.folder / "go").touch()
    assert process.wait(60) == 0
