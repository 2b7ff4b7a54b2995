"""An agent that waits for its run, on every Python there is: what it has, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from dispatcher.bootstrap import payload
from dispatcher.remote.protocol.frames import WAITING
from remote.driver import Agent, interpreters, new_enough

RUN_ID = "20260101-000000-abcdef"
#: the agent on standard input, as a kept connection writes it
Wait = Callable[..., Agent]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    (made / ".bashrc").write_text("export A=1\n")
    return made


@pytest.fixture
def wait(home: Path) -> Iterator[Wait]:
    made: list[Agent] = []

    def begin(
        python: tuple[int, int] = new_enough()[-1], seconds: float = 600, **options: Any
    ) -> Agent:
        ahead = payload.agent_ahead()
        agent = Agent(
            interpreters()[python], payload=ahead.opening() + b"%d\n" % seconds,
            env={"DISPATCH_RUN_ID": "_" * len(RUN_ID), "HOME": str(home)}, **options,
        )  # fmt: skip
        made.append(agent)
        agent.until(lambda: agent.scanner._tail.endswith(WAITING[-4:]) or agent.synced)
        return agent

    yield begin
    for agent in made:
        agent.close()


def take(agent: Agent, run_id: str = RUN_ID) -> None:
    agent.write(run_id.encode() + b"\n")


def tags(agent: Agent) -> list[bytes]:
    """The run's id of each process of the agent, as others see it."""
    variables = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in agent.living()]
    return [one for own in variables for one in own if one.startswith(b"DISPATCH_RUN_ID=")]


@cases("python", new_enough(), ids="{0[0]}.{0[1]}".format)
def test_it_serves_one_run_as_any_agent(wait: Wait, python: tuple[int, int]) -> None:
    agent = wait(python)
    assert len(agent.living()) == 1  # no guardian yet
    assert tags(agent) == [b"DISPATCH_RUN_ID=" + b"_" * len(RUN_ID)]
    take(agent)
    agent.prepare(run_id=RUN_ID)
    agent.start(["/bin/sh", "-c", "echo $DISPATCH_RUN_ID $A; pwd"], common=[[b"A", b"1"]])
    assert agent.text() == f"{RUN_ID} 1\n/\n".encode()
    assert agent.status() == 0
    assert tags(agent) == [f"DISPATCH_RUN_ID={RUN_ID}".encode()] * 2
    assert agent.finish()["killed"] == 0
    agent.is_gone()


def test_a_rank_has_what_it_would_have_of_an_agent_that_starts_now(wait: Wait, home: Path) -> None:
    """Signals, limits, umask, open files and variables, compared with those under another agent."""
    show = (
        "umask; (cd /proc/$$/fd; echo *); "
        "ulimit -a | grep -v pending; grep ^Sig /proc/self/status | grep -v Q; "
        "env | grep -v -e MARK -e ^_= | sort; "
        "cat /proc/self/oom_score_adj"
    )
    said: list[list[str]] = []
    for agent in (wait(), Agent(interpreters()[new_enough()[-1]], env={"HOME": str(home)})):
        if not said:
            take(agent)
        try:
            agent.prepare(run_id=RUN_ID)
            agent.start(["/bin/sh", "-c", show], common=[[b"DISPATCH_RUN_ID", RUN_ID.encode()]])
            said.append(agent.text().decode().splitlines())
            agent.finish()
        finally:
            agent.close()
    assert said[0] == said[1]
    assert len(said[0]) > 20


def test_it_holds_nothing_while_it_waits(wait: Wait, home: Path) -> None:
    agent = wait()
    pid = agent.process.pid
    links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert {link.partition(":")[0] for link in links} == {"/dev/null", "pipe"}
    assert os.readlink(f"/proc/{pid}/cwd") == os.getcwd()
    assert sorted(path.name for path in home.iterdir()) == [".bashrc"]
    assert agent.living() == [pid]


@pytest.mark.parametrize("how", ["its connection ends", "half a line", "a long line", "nobody"])
def test_it_ends_by_itself_and_says_nothing(wait: Wait, how: str) -> None:
    agent = wait(seconds=0 if how == "nobody" else 600)
    if how == "half a line":
        agent.write(b"2026")
    if how == "a long line":
        agent.write(b"x" * 100)
    elif how != "nobody":
        agent.close_input()
    assert agent.exit() == 0
    assert not agent.synced
    assert agent.errors == b""
    agent.is_gone()


@pytest.mark.parametrize("changed", [".bashrc", ".profile", None])
def test_it_serves_no_run_where_a_login_would_be_another(
    wait: Wait, home: Path, changed: str | None
) -> None:
    agent = wait()
    if changed is not None:
        (home / changed).write_text("export A=2\n")
    take(agent)
    if changed is None:
        agent.until(lambda: agent.synced)
        return
    assert agent.exit() == 0
    assert not agent.synced


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_it(wait: Wait, number: signal.Signals) -> None:
    agent = wait()
    agent.process.send_signal(number)
    assert agent.exit() == -number
    agent.is_gone()
