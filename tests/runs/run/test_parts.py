"""Several programs in one job, started as a user starts them."""

from __future__ import annotations

import json

from dispatcher.api.report import replay

from ..conftest import Desk, script, words_of

ACTOR = """
import os
print('acts', os.environ['ROLE_RANK'], os.environ['X'], os.getcwd(), flush=True)
open('../said0', 'w').close()
"""
#: rank 2 fails once the others have said what they say
LEARNER = """
import os, sys, time
print('learns', *sys.argv[1:], flush=True)
if os.environ['RANK'] == '2':
    while not (os.path.exists('said0') and os.path.exists('said1')): time.sleep(0.02)
    sys.exit(1)
open('said1', 'w').close()
"""


def test_each_is_told_apart_everywhere(desk: Desk) -> None:
    (desk.folder / "sub").mkdir()
    actor = script(desk.folder / "sub", ACTOR, "actor.py")
    learner = script(desk.folder, LEARNER, "learner.py")
    done = desk.run(
        "-H", "localhost:3", "--log-dir", "logs", ":", "--np", "1", "-x", "X=1",
        "--chdir", "sub", actor, ":", "-n", "2", learner, "a", "::",
    )  # fmt: skip
    assert done.returncode == 1
    assert words_of(done.stdout) == [
        f"[actor 0] acts 0 1 {desk.folder}/sub", "[learner 1] learns a ::",
        "[learner 2] learns a ::",
    ]  # fmt: skip
    assert "error: rank 2 (learner) on localhost, pid" in done.stderr
    folder = desk.folder / "logs" / "latest"
    report = json.loads((folder / "report.json").read_text())
    assert [one["program"] for one in report["ranks"]] == ["actor", "learner", "learner"]
    assert replay(folder / "dispatch.jsonl").ranks[2].program == "learner"
    plan = json.loads((folder / "plan.json").read_text())
    assert [part["ranks"] for part in plan["parts"]] == [[0], [1, 2]]


def test_what_one_lacks_is_found_before_any_starts(desk: Desk) -> None:
    script(desk.folder, "print('acts')\n", "actor.py")
    done = desk.run("-H", "localhost:2", "-n", "1", "actor.py", ":", "-n", "1", "gone.py")
    assert (done.returncode, done.stdout) == (127, "")
    assert "gone.py: no such file" in done.stderr
