"""``dispatch top``: the table of a job in the background, on a terminal and printed once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import wait_for

from ..background import WAITS, detach, dispatch, go, jobs, up
from ..conftest import PROGRAM, Desk, script
from ..seat import Chair

HOSTS = ("-H", "localhost:2")


@pytest.fixture
def chair(desk: Desk, state: Path) -> Iterator[Chair]:
    chair = Chair(desk)
    yield chair
    chair.close()


def test_printed_once_with_samples_that_nobody_had_asked_for(desk: Desk, state: Path) -> None:
    up(row := detach(desk, *HOSTS, script(desk.folder, WAITS), "0"))
    done = dispatch("top", row["id"], "--sample", "3")  # it waits for figures for 11 s
    assert done.returncode == 0, done.stderr
    heading, *rows = (line.split() for line in done.stdout.splitlines())
    assert heading[:7] == ["RANK", "HOST", "LOCAL", "PID", "STATE", "CPU", "RSS"]
    assert [row[:3] for row in rows] == [["0", "localhost", "0"], ["1", "localhost", "1"]]
    assert all(row[5].endswith("%") and row[-2:] == ["up", row[0]] for row in rows)
    go(desk)
    wait_for(lambda: jobs()[-1]["state"] == "ended", 60, lambda: "its end")
    journal = Path(row["logs"], "dispatch.jsonl").read_text().splitlines()
    wanted = [e for e in map(json.loads, journal) if e["name"] == "samples.wanted"]
    assert [event["context"] for event in wanted] == [{"seconds": 3.0}]
    late = dispatch("top", row["id"])
    assert late.returncode != 0
    assert "it has ended, exit code 0" in late.stderr


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_leaving_leaves_the_job(chair: Chair, desk: Desk, state: Path, key: bytes) -> None:
    detach(desk, *HOSTS, script(desk.folder, WAITS), "0")
    process = chair.take(*PROGRAM, "top", "--sample", "0.3")
    chair.until(lambda lines: sum("up " in line and "%" in line for line in lines) == 2)
    assert chair.emulator.on_other_screen
    chair.press(key)
    code, _ = chair.end()
    assert code == (0 if key == b"q" else 130)
    assert chair.is_as_before
    assert process.poll() is not None
    assert jobs()[-1]["state"] == "running"
    go(desk)
    wait_for(lambda: jobs()[-1]["state"] == "ended", 60, lambda: "its end")


def test_ctrl_z_and_the_end_of_the_job(chair: Chair, desk: Desk, state: Path) -> None:
    detach(desk, *HOSTS, script(desk.folder, WAITS), "0")
    process = chair.take(*PROGRAM, "top", "--sample", "0.3")
    chair.until(lambda lines: sum("up " in line for line in lines) == 2)
    chair.press(b"\x1a")

    def stopped() -> bool:
        chair.watch()
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    wait_for(stopped, 60, lambda: "it has not stopped")
    chair.watch(0.2)
    assert chair.is_as_before
    process.send_signal(signal.SIGCONT)
    chair.until(lambda lines: sum("up " in line for line in lines) == 2)
    go(desk)
    code, lines = chair.end()
    assert code == 0
    assert chair.is_as_before
    assert any("ended, exit code 0" in line for line in lines)


def test_a_launcher_that_dies(chair: Chair, desk: Desk, state: Path) -> None:
    row = detach(desk, *HOSTS, script(desk.folder, WAITS), "0")
    chair.take(*PROGRAM, "top", "--sample", "0.3")
    chair.until(lambda lines: sum("up " in line for line in lines) == 2)
    os.kill(row["pid"], signal.SIGKILL)
    code, lines = chair.end()
    assert code == 125
    assert any("was killed: no verdict" in line for line in lines)
    assert chair.is_as_before


def test_metrics_of_a_run(desk: Desk) -> None:
    done = desk.run(
        *HOSTS, "--metrics", "prom", "--sample", "0.2", "--no-python", "sh", "-c",
        "sleep 1; exit $RANK",
    )  # fmt: skip
    assert done.returncode == 1
    text = (desk.folder / "prom").read_text()
    assert 'rank="1",host="localhost",local_rank="1"} 0' in text
    refused = desk.run(*HOSTS, "--metrics", "no/where", "--no-python", "true")
    assert refused.returncode == 2
    assert "--metrics no/where: no such file or directory" in refused.stderr
