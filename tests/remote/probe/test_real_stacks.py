"""Where ranks are: what a real agent finds out of real processes, by each of three ways."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.runner.run import orders
from remote.driver import Agent

PARTS = ("probe.sampler", "probe.usage", "probe.stack_dump", "host.tcp_peer", "probe.nccl_state")

SLEEPER = """
import os, sys, time
def load_batch():
    print("up", flush=True)
    time.sleep(1000)
load_batch()
"""


def stacks(agent: Agent, seconds: float = 0.0, within: float = 30.0) -> dict[str, Any]:
    order = {"number": 7, "seconds": within}
    agent.order("sample", seconds=seconds, parts=payload.parts(PARTS), stacks=order)
    found = agent.report("node.stacks")
    assert found["number"] == 7
    return found


@pytest.fixture
def agent_with() -> Iterator[Callable[..., Agent]]:
    """``agent_with(NAME=VALUE)`` starts an agent; one Python is enough here."""
    agents: list[Agent] = []

    def start(**env: str) -> Agent:
        agents.append(Agent(sys.executable, env=env))
        return agents[-1]

    yield start
    for agent in agents:
        if not agent.ended:
            agent.finish()
        agent.close()


@pytest.fixture
def hooked(agent_with: Callable[..., Agent], tmp_path: Path) -> Callable[..., Agent]:
    """Starts an agent whose one rank is a Python that sleeps and knows where its stacks go."""

    def start(program: str = SLEEPER, *, shell: bool = False, path: str = "") -> Agent:
        # no py-spy of this machine's
        agent = agent_with(PATH=f"{path}/usr/bin:/bin")
        folder = agent.prepare()["facts"]["error_folder"]
        hook = tmp_path / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_bytes(orders.hook())
        python = tmp_path / "bin/python"
        python.parent.mkdir()
        python.symlink_to(sys.executable)
        words = [str(python), "-c", program]
        if shell:
            words = ["sh", "-c", '"$@"; true', "sh", *words]
        known = {"PYTHONPATH": str(hook), "DISPATCH_STACKS": folder}
        agent.start(words, common=[[k.encode(), v.encode()] for k, v in known.items()])
        agent.until(lambda: agent.output.get((0, 1), bytearray()) == bytearray(b"up\n"))
        return agent

    return start


@pytest.mark.parametrize("shell", [False, True])
def test_by_its_own_faulthandler(hooked: Callable[..., Agent], shell: bool) -> None:
    agent = hooked(shell=shell)
    for _ in range(2):
        ((rank, _, state, how, text),) = stacks(agent)["ranks"]
        assert (rank, how) == (0, "faulthandler")
        assert state in "SR"  # it may not have gone back to sleep yet
        assert text.count(b"most recent call first") == 1
        assert b"in load_batch" in text
        agent.reports.clear()
    assert agent.finish()["killed"] == shell  # what the shell had started


def test_the_signal_goes_to_nobody_who_does_not_wait_for_it(hooked: Callable[..., Agent]) -> None:
    """It would end him."""
    agent = hooked("import faulthandler; faulthandler.unregister(62)" + SLEEPER)
    ((_, _, _, how, text),) = stacks(agent)["ranks"]
    assert how == "proc"
    assert text.startswith((b"S ", b"R "))  # it may not sleep yet
    assert agent.found("rank.exited") is None
    assert agent.finish()["killed"] == 0


def test_a_stopped_rank_is_seen_by_the_kernel(hooked: Callable[..., Agent]) -> None:
    agent = hooked()
    pid = agent.found("rank.spawned")["pids"][0][1]  # type: ignore[index]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    ((_, told, state, how, _),) = stacks(agent)["ranks"]
    assert (told, state, how) == (pid, "T", "proc")
    os.kill(pid, signal.SIGCONT)
    assert agent.finish()["killed"] == 0


@pytest.mark.parametrize("mood", ["well", "refused", "late"])
def test_by_py_spy_if_it_works(hooked: Callable[..., Agent], tmp_path: Path, mood: str) -> None:
    text = 'Thread 1 (idle): "MainThread"\\n    f (a.py:1)\\n'
    script = {"well": "", "refused": "exit 1", "late": "exec sleep 1000"}[mood]
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\nprintf '{text}'\n{script}\n")
    spy.chmod(0o755)
    agent = hooked(path=f"{tmp_path}:")
    ((_, pid, _, how, found),) = stacks(agent, 0.2, 8.0 if mood == "late" else 30.0)["ranks"]
    if mood != "late":  # then little time is left for the next
        assert how == ("py-spy" if mood == "well" else "faulthandler")
    assert (b"f (a.py:1)" in found) == (mood == "well")
    assert (tmp_path / "asked").read_text() == f"dump --nonblocking --full-filenames --pid {pid}\n"
    agent.report("node.sampled")  # it goes on with that
    assert agent.finish()["killed"] == 0


def test_what_nccl_and_torch_know(agent_with: Callable[..., Agent], tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        dump = tmp_path / "trace_0"
        agent = agent_with()
        agent.prepare()
        known = {"NCCL_RAS_ADDR": address, "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_")}
        agent.start(["sleep", "1000"], common=[[k.encode(), v.encode()] for k, v in known.items()])
        dump.write_bytes(b"\x80\x04")
        order = {"number": 7, "seconds": 30.0}
        agent.order("sample", seconds=0.0, parts=payload.parts(PARTS), stacks=order)
        server.settimeout(60)
        link, _ = server.accept()
        with link:
            asked = link.recv(100)
            link.sendall(b"SERVER PROTOCOL 2\n")
            while not asked.endswith(b"verbose status\n"):
                asked += link.recv(100)
            link.sendall(b"rank 3 is behind\n")
        found = agent.report("node.stacks")
    assert asked.startswith(b"client protocol 2\n")
    assert found["ras"] == b"SERVER PROTOCOL 2\nrank 3 is behind\n"
    assert found["flights"] == [[0, str(dump), 2, b"\x80\x04"]]
    assert found["ranks"][0][3:] == ["proc", found["ranks"][0][4]]
    assert b" sleep" in found["ranks"][0][4]
    assert agent.finish()["killed"] == 0


def test_by_the_kernel_on_any_python(boot: Callable[..., Agent]) -> None:
    agent = boot()
    agent.prepare()
    agent.start(["sleep", "1000"], ["sh", "-c", "sleep 1000; true"])
    texts = {rank: text for rank, _, _, how, text in stacks(agent)["ranks"] if how == "proc"}
    assert b" sleep" in texts[0]
    assert texts[1].partition(b"\n")[0].endswith(b" sh")
    agent.finish()
