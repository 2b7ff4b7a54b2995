"""Samples of real ranks by real agents, and what becomes of a reader that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.remote.probe.usage import parse
from remote.driver import Agent
from remote.probe.test_usage import SMI

PARTS = ("probe.sampler", "probe.usage")


def sample(agent: Agent, seconds: float = 0.2) -> None:
    agent.order("sample", seconds=seconds, parts=payload.parts(PARTS))


BUSY = "while :; do :; done"


def test_samples_of_real_ranks(agent: Agent) -> None:
    agent.prepare()
    agent.start(["sleep", "1000"], ["sh", "-c", f"sh -c '{BUSY}' & wait"])
    sample(agent)

    def busy() -> bool:
        seen = [s["ranks"] for s in agent.reports if s["type"] == "node.sampled"]
        asleep = any(rank == 0 and state == "S" for rank, state, *_ in (seen or [[]])[-1])
        return asleep and any(rank == 1 and cpu > 0.05 for rank, _, cpu, *_ in seen[-1])

    agent.until(busy)
    ranks = [s for s in agent.reports if s["type"] == "node.sampled"][-1]["ranks"]
    (_, state, idle, rss, threads, processes) = ranks[0][:6]
    assert (state, threads, processes) == ("S", 1, 1)
    assert idle <= 0.05
    assert rss > 0
    assert ranks[1][5] == 2
    assert all(isinstance(rank[8], float) for rank in ranks)  # seconds of silence
    assert agent.finish()["killed"] == 1  # the loop in the background


def test_what_takes_samples_is_not_left_behind(agent: Agent) -> None:
    agent.prepare()
    agent.start(["sleep", "0.5"])
    sample(agent)
    agent.report("node.sampled")
    assert agent.status() == 0
    assert agent.finish()["killed"] == 0


def test_a_sampler_that_is_killed_is_told_and_harms_nobody() -> None:
    agent = Agent(sys.executable)
    try:
        agent.prepare()
        (rank,) = agent.start(["sleep", "1000"]).values()
        sample(agent)
        agent.report("node.sampled")
        guarded = Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]
        children = Path(f"/proc/{guarded}/task/{guarded}/children").read_text().split()
        (sampler,) = {int(pid) for pid in children} - {rank}
        os.kill(sampler, signal.SIGKILL)
        assert "nothing is sampled any more" in agent.report("node.noticed")["text"]
        agent.finish()
    finally:
        agent.close()


def test_nobody_samples_before_the_start() -> None:
    agent = Agent(sys.executable)
    try:
        agent.prepare()
        sample(agent)
        assert "'sample' ignored while prepared" in agent.report("node.noticed")["text"]
        agent.finish()
    finally:
        agent.close()


def smi(folder: Path, text: str) -> str:
    """A PATH with an ``nvidia-smi`` of this text."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_gpus_through_a_program(tmp_path: Path, boot: Callable[..., Agent]) -> None:
    agent = boot(env={"PATH": smi(tmp_path, f"printf '{SMI.decode()}'")})
    agent.prepare()
    chosen = [
        [b"CUDA_VISIBLE_DEVICES=1,GPU-8f6c", b"MPI_LOCALRANKID=2", b"MPI_LOCALNRANKS=3"],
        [b"CUDA_VISIBLE_DEVICES=0", b"MPI_LOCALRANKID=1", b"MPI_LOCALNRANKS=3"],
    ]
    envs = {rank: [item.split(b"=") for item in items] for rank, items in enumerate(chosen)}
    agent.start(*[["sleep", "1000"]] * 3, envs=envs)
    sample(agent)
    agent.until(lambda: any(r.get("gpus") for r in agent.reports))
    (gpus,) = {str(r["gpus"]) for r in agent.reports if r.get("gpus")}
    assert gpus == str([gpu[:8] + gpu[9:] for gpu in parse(SMI)])
    ranks = [r["ranks"] for r in agent.reports if r.get("gpus")]
    assert [rank[6:8] for rank in ranks[-1]] == [[[1], [1, 0]], [[0], [0]], [None, None]]
    assert agent.finish()["killed"] == 0


def test_gpus_that_hang_hold_nobody(tmp_path: Path) -> None:
    agent = Agent(sys.executable, env={"PATH": smi(tmp_path, "sleep 1000 & wait")})
    try:
        agent.prepare()
        agent.start(["sleep", "1000"])
        sample(agent)
        agent.until(lambda: sum(r["type"] == "node.sampled" for r in agent.reports) >= 3)
        assert not any(r.get("gpus") for r in agent.reports)
        assert agent.finish()["killed"] == 0
    finally:
        agent.close()


LATE = """
import sys
from dispatcher.remote.probe import sampler, stack_dump, usage
sampler.LATE = 0.2
gpus = sampler.Gpus(0.1)
now = sampler.monotonic()
gpus.latest(now)
assert not gpus.late
pid = gpus.pid
gpus.wait(now + 0.5)
assert gpus.latest(sampler.monotonic()) == []
assert gpus.late and gpus.fd < 0
print(pid)
"""


def test_gpus_that_hang_are_late_and_killed(tmp_path: Path) -> None:
    path = smi(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    done = subprocess.run(
        [sys.executable, "-c", LATE], env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    asking = int(done.stdout)
    wait_for(lambda: not Path(f"/proc/{asking}").exists(), what="its end")
    # it may have been killed before it said so
    if (tmp_path / "pid").exists() and (hanging := (tmp_path / "pid").read_text().strip()):
        wait_for(lambda: not Path(f"/proc/{hanging}").exists(), what="nvidia-smi's end")
