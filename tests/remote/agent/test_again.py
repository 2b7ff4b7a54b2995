"""An agent that prepares a further attempt: what is fresh then, and when it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from remote.driver import Agent


def again(agent: Agent, attempt: int, **fields: Any) -> None:
    agent.order(
        "prepare",
        **{
            "run_id": "test", "node": 0, "attempt": attempt, "check": {}, "path": None,
            "cwd": b"/", "reserve": None, "watch": None, "token": b"T" * 16, "heartbeat": 60.0,
            "lease": 60.0, "lifeline_grace": 0.3, "credit": 1, "parts": {}, **fields,
        },
    )  # fmt: skip


def test_everything_is_fresh(agent: Agent, tmp_path: Path) -> None:
    mark = tmp_path / "checkpoint"
    first = agent.prepare(reserve=0, watch=bytes(mark))["facts"]
    assert first["mark"] is None
    agent.start(["sh", "-c", f"echo 1; echo > {mark}; exit 3"])
    assert agent.text() == b"1\n"
    agent.order("sweep")
    seen = agent.report("swept")["mark"]
    assert seen == mark.stat().st_mtime_ns
    again(agent, 1, reserve=0, watch=bytes(mark))
    second = agent.report("ready", attempt=1)["facts"]
    assert second["port"] != first["port"]
    assert second["mark"] == seen
    assert second["error_folder"] != first["error_folder"]
    assert not os.path.exists(first["error_folder"])
    agent.reports.clear()
    agent.output.clear()
    agent.counts.clear()
    agent.start(["echo", "2"])
    assert agent.text() == b"2\n"
    agent.finish()


def test_a_fixed_port_is_kept_again(agent: Agent) -> None:
    port = agent.prepare(reserve=0)["facts"]["port"]
    agent.start(["true"])
    agent.status()
    agent.text(stream=1)
    agent.text(stream=2)
    again(agent, 1, reserve=port)
    assert agent.report("ready", attempt=1)["facts"]["port"] == port
    agent.finish()


def test_not_while_a_rank_lives(agent: Agent) -> None:  # N-5
    agent.prepare()
    agent.start(["sleep", "1000"])
    again(agent, 1)
    assert "prepare" in agent.report("notice")["text"]
    agent.finish()
