"""Jobs that hang, and jobs that only look as if they did: started as a user starts them."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

import promises
import pytest
from rig import Cluster, wait_for

from dispatcher.core.hang_monitor import LOOK

from ..background import detach, dispatch, jobs, up
from ..conftest import Desk, script

HOSTS = ("-H", "localhost:3")
#: one rank sleeps elsewhere than the others, all of them in Python
ODD = """
import os, sys, time
def load_batch():
    time.sleep(1000)
def barrier():
    time.sleep(1000)
print("up", flush=True)
load_batch() if os.environ["RANK"] == "1" else barrier()
"""


def are_late(logs: Path) -> bool:
    """Whether a rank was too busy to show its stack in time, though it was waited for: then the
    kernel says where it is.
    """
    lines = (logs / "latest/dispatch.jsonl").read_text().splitlines()
    at = {one["name"]: one["t"] for one in map(json.loads, lines)}
    if at.get("stacks.gathered", 0) - at.get("ranks.hung", 0) < LOOK - 1:
        return False
    return ", by proc\n" in (logs / "latest/stacks-1.txt").read_text()


def test_ranks_that_sleep_are_ended_and_the_odd_one_is_named(desk: Desk) -> None:
    began = time.monotonic()
    name = script(desk.folder, ODD)
    # long enough for the last rank to come to its place, too
    done = desk.run(*HOSTS, "--hang-timeout", "5", "--log-dir", "logs", "--grace", "1", name)
    # the limit, two periods of samples, the look at the stacks, the grace; start and a slow machine
    assert time.monotonic() - began < 5 + 1 + 10 + 1 + 40
    assert done.returncode == 124, done.stderr
    verdict = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert verdict[0].startswith("error: no activity on any rank for ")
    latest = desk.folder / "logs/latest"
    cause = json.loads((latest / "report.json").read_text())["cause"]
    assert cause["kind"] == "Hung"
    text, late = (latest / "stacks-1.txt").read_text(), are_late(desk.folder / "logs")
    assert late or verdict[1:5] == [
        "  rank 1 on localhost is in load_batch at prog.py:4",
        "    load_batch at prog.py:4",
        "    <module> at prog.py:8",
        "  ranks 0,2 on localhost are in barrier at prog.py:6",
    ]
    assert late or (cause["rank"], cause["host"]) == (1, "localhost")
    assert late or [(group["ranks"], group["odd"]) for group in cause["groups"]] == [
        (["1"], True), (["0", "2"], False)
    ]  # fmt: skip
    assert late or text.count(", by ") == 5


#: an nvidia-smi whose two GPUs wait: all of their time, a sixth of their limit, no memory
WAITING = """#!/bin/sh
for i in 0 1; do echo "$i, 100, 41234, 81559, 121.37, 40, 700.00, $TRAFFIC, GPU-$i"; done
"""
SPINS = """
import os, time
end = time.monotonic() + float(os.environ["SPIN"])
def all_reduce():
    while time.monotonic() < end: pass
all_reduce()
"""


@pytest.mark.parametrize(("traffic", "code"), [(0, 124), (20, 0)])
def test_ranks_that_spin_beside_gpus(desk: Desk, tmp_path: Path, traffic: int, code: int) -> None:
    """A hang in the first collective; and inference that draws no more."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(WAITING.replace("$TRAFFIC", str(traffic)))
    smi.chmod(0o755)
    done = desk.run(
        "-H", "localhost:2", "--hang-timeout", "3", "--grace", "1", "--log-dir", "logs",
        "-x", f"SPIN={60 if code else 8}", script(desk.folder, SPINS),
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    found = "ranks 0-1 on localhost are in all_reduce at prog.py:5" in done.stderr
    assert found == bool(code) or are_late(desk.folder / "logs")


#: rank 1 computes for eight seconds, the others sleep until it has
SILENT = """
import os, time
end = time.monotonic() + 8
while os.environ["RANK"] == "1" and time.monotonic() < end:
    pass
if os.environ["RANK"] == "1":
    open("over", "w").close()
while not os.path.exists("over"):
    time.sleep(0.1)
"""


def test_who_computes_in_silence_is_not_ended(desk: Desk) -> None:
    # rank 1 itself may not run for a while, but not for so long
    done = desk.run(*HOSTS, "--hang-timeout", "5", script(desk.folder, SILENT))
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr


def test_without_progress_who_computes_is_ended(desk: Desk) -> None:
    text = "print('step 1', flush=True)\nwhile True: pass\n"
    done = desk.run(
        "-H", "localhost", "--hang-timeout", "1", "--progress-line", "^step", "--grace", "1",
        "--log-dir", "logs", script(desk.folder, text),
    )  # fmt: skip
    assert done.returncode == 124, done.stderr
    found = "rank 0 on localhost is in <module> at prog.py:2" in done.stderr
    assert found or are_late(desk.folder / "logs")


def test_time_after_ctrl_z_does_not_count(desk: Desk) -> None:
    text = "until [ -e quiet ]; do echo up; sleep 0.1; done; sleep 1000"
    process = desk.start(*HOSTS, "--hang-timeout", "3", "--no-python", "sh", "-c", text)
    desk.lines(process, 3)
    process.send_signal(signal.SIGTSTP)
    state = Path(f"/proc/{process.pid}/stat")
    wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", 30, "it is stopped")
    (desk.folder / "quiet").touch()  # before, they were never silent for so long
    time.sleep(4.0)  # more than the limit
    went_on = time.monotonic()
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=90) == 124
    assert time.monotonic() - went_on > 2.9


@pytest.mark.parametrize("seconds", ["0.5", "soon"])
def test_a_limit_that_is_none(desk: Desk, seconds: str) -> None:
    done = desk.run(*HOSTS, "--hang-timeout", seconds, "--no-python", "true")
    assert done.returncode == 2
    assert "hang" in done.stderr


def test_whoever_asks_is_told_where_the_ranks_are(desk: Desk, state: Path) -> None:
    row = detach(desk, *HOSTS, script(desk.folder, ODD))
    up(row, 3)
    for number in (1, 2):
        done = dispatch("stacks", row["id"])
        assert done.returncode == 0, done.stderr
        assert " on localhost " in done.stdout
        text = Path(row["logs"], f"stacks-{number}.txt").read_text()
        assert text.count(", by proc\n") == 3
    assert jobs()[-1]["state"] == "running"
    assert dispatch("stop", "--now", row["id"]).returncode != 2
    wait_for(lambda: jobs()[-1]["state"] == "ended", 60, lambda: "its end")
    late = dispatch("stacks", row["id"])
    assert late.returncode != 0
    assert "it has ended" in late.stderr


def test_a_run_in_the_foreground_answers_another_shell(desk: Desk, state: Path) -> None:
    process = desk.start("--log-dir", "logs", *HOSTS, script(desk.folder, ODD))
    desk.lines(process, 3)
    done = dispatch("stacks")
    assert (done.returncode, " on localhost " in done.stdout) == (0, True), done.stderr
    told = promises.told(dispatch("stacks", "--json").stdout)
    assert told["hosts"] == dict.fromkeys("012", "localhost")
    assert sorted(rank for group in told["groups"] for rank in group["ranks"]) == ["0", "1", "2"]
    assert told["file"].endswith("/stacks-2.txt")
    text = (desk.folder / "logs/latest/stacks-1.txt").read_text()
    assert text.count(", by proc\n") == 3
    assert dispatch("stop", "latest").returncode == 0
    assert process.wait(timeout=60) == 130
    assert not list(state.glob("dispatch/jobs/*/control"))


def test_a_rank_that_sleeps_in_a_step_is_found_among_three_hosts(cluster: Cluster) -> None:
    pytest.importorskip("torch")
    program = str(Path(__file__).parent / "workloads/stuck.py")
    logs = Path(cluster.shared, "stuck")
    words = [
        sys.executable, "-m", "dispatcher", "-H", "n[1-3]", "--iface", "eth0",
        "--hang-timeout", "5", "--grace", "1", "--log-dir", str(logs), program,
    ]  # fmt: skip
    done = cluster.run(words, timeout=220)
    assert done.returncode == 124, done.stderr
    late = are_late(logs)
    assert late or "  rank 2 on n3 is in load_batch at stuck.py:14\n" in done.stderr
    assert late or "  ranks 0-1 on n[1-2] are in all_reduce at " in done.stderr


#: rank 1 leaves a pair waiting for it, and rank 2 waits for that pair
GLOO = """
import time
import torch
import torch.distributed as dist
def load_batch():
    time.sleep(1000)
def step(group):
    dist.all_reduce(torch.ones(8), group=group)
dist.init_process_group("gloo")
rank, world, pair = dist.get_rank(), dist.group.WORLD, dist.new_group([0, 1])
step(world)
if rank < 2:
    step(pair)
load_batch() if rank == 1 else step(pair if rank == 0 else world)
"""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_the_collective_of_torch_is_named_with_who_has_not_called_it(desk: Desk) -> None:
    """By torch's own flight recorder, of gloo on CPUs."""
    done = desk.run(
        *HOSTS, "--hang-timeout", "5", "--log-dir", "logs", "--grace", "1",
        script(desk.folder, GLOO),
    )  # fmt: skip
    assert done.returncode == 124, done.stderr
    verdict = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert verdict[1] == (
        "  rank 1 on localhost has not called gloo:all_reduce Float[8], number 2 of group 1; "
        "rank 0 waits in it"
    )
    assert "called in step at prog.py:8" in done.stderr
    latest = desk.folder / "logs/latest"
    cause = json.loads((latest / "report.json").read_text())["cause"]
    signals = [{"name": "flight recorder", "ranks": ["1"]}, {"name": "stacks", "ranks": ["1"]}]
    assert cause["rank"] == 1
    if verdict[2].startswith("  known from: flight recorder"):  # too busy to show stacks in time
        assert cause["signals"][0] == signals[0]
    else:
        assert verdict[2] == "  flight recorder and stacks agree"
        assert verdict[3] == "  rank 1 on localhost is in load_batch at prog.py:6"
        assert cause["signals"] == signals
    assert cause["collective"] == {
        "group": "group 1", "sequence": 2, "name": "gloo:all_reduce Float[8]", "entered": ["0"],
        "missing": ["1"], "unknown": [], "differing": [],
    }  # fmt: skip
    assert (latest / "stacks-1.txt").read_text().count("-- flight recorder of rank ") == 3
