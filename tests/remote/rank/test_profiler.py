"""Samples of a rank, by a py-spy or by the rank itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from binascii import a2b_base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.cli.jobs.profiling import NEEDS
from dispatcher.runner.run import orders

#: a thread that waits, and a main thread that is in one of two functions until it reads a line
RANK = """
import sys, threading, time
def one(): time.sleep(0.03)
def other(): time.sleep(0.03)
threading.Thread(target=time.sleep, args=(1000,), name="loader", daemon=True).start()
print("there", flush=True)
while True: one(), other()
"""
#: talks, as py-spy does, before and after its samples
SPY = """#!/bin/sh
echo "py-spy> Sampling"
trap 'echo "{\\"\\$schema\\": 1, \\"profiles\\": []}"; echo "py-spy> Wrote"; exit' INT
while :; do sleep 0.05; done
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    folder = tmp_path / "dispatch-run-1-ab"
    folder.mkdir(0o700)
    (folder / "sitecustomize.py").write_bytes(orders.hook())
    env = {**os.environ, "DISPATCH_RUN_ID": "run-1", "RANK": "3", "PYTHONPATH": str(folder)}
    words = ["/bin/sh", "-c", '"$@"; exit', "wrapped", sys.executable, "-c", RANK]
    process = subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def profiler(seconds: int, *ranks: str, path: str = "/usr/bin:/bin") -> subprocess.Popen[bytes]:
    source = payload.standalone("rank.profiler", NEEDS)
    words = payload.standalone_command(source, f"run-1 {seconds} {' '.join(ranks)}".encode())
    return subprocess.Popen(
        words, env={"PATH": path}, stdout=subprocess.PIPE, start_new_session=True
    )


def told(process: subprocess.Popen[bytes], code: int = 0) -> list[dict[str, Any]]:
    out = process.communicate(timeout=60)[0]
    assert process.returncode == code
    lines = [line.removeprefix(b"profile ") for line in out.splitlines()]
    return [json.loads(zlib.decompress(a2b_base64(line))) for line in lines]


def test_a_rank_samples_itself_and_goes_on(rank: subprocess.Popen[str]) -> None:
    (found,) = told(profiler(1, "2", "3"))
    assert found["rank"] == 3
    assert found["said"] == "1 s, 20 times a second, by the rank itself, without py-spy"
    frames = found["shared"]["frames"]
    by_name = {one["name"]: one for one in found["profiles"]}
    main = by_name["MainThread"]
    names = {tuple(frames[at]["name"] for at in sample) for sample in main["samples"]}
    assert names >= {("<module>", "one"), ("<module>", "other")}
    assert 0.5 < sum(main["weights"]) < 1.5
    assert len(by_name["loader"]["samples"]) == 1  # which did not change
    assert rank.poll() is None


def test_a_signal_ends_it_with_what_it_has(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    process = profiler(600, "3")
    asked = tmp_path / "dispatch-run-1-ab/debugger.py"
    wait_for(asked.exists, 60, "it is put there for the rank")
    os.killpg(process.pid, signal.SIGINT)
    assert [one["rank"] for one in told(process, 130)] == [3]
    (tmp_path / "py-spy").write_text(SPY.replace("while", f"touch {tmp_path}/there; while"))
    (tmp_path / "py-spy").chmod(0o755)
    process = profiler(600, "3", path=f"{tmp_path}:/usr/bin:/bin")
    wait_for((tmp_path / "there").exists, 60, "py-spy has begun")
    os.killpg(process.pid, signal.SIGTERM)  # at which py-spy writes nothing
    assert [one["profiles"] for one in told(process, 143)] == [[]]


@cases(
    ("spy", "said"),
    [
        (SPY, "1 s, 100 times a second, by py-spy"),
        (
            "#!/bin/sh\nexit 1\n",
            "1 s, 20 times a second, by the rank itself, without py-spy",
        ),
    ],
)
def test_a_py_spy_that_may_look_or_not(
    rank: subprocess.Popen[str], tmp_path: Path, spy: str, said: str
) -> None:
    (tmp_path / "py-spy").write_text(spy)
    (tmp_path / "py-spy").chmod(0o755)
    (found,) = told(profiler(1, "3", path=f"{tmp_path}:/usr/bin:/bin"))
    assert found["said"] == said
