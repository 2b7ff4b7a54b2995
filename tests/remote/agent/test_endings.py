"""Whoever dies first, agent or guardian, nothing is left; both may be stopped for a while.

Each test leaves a process behind that made its own session and lost its parents:
only a sweep from above finds it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from rig import wait_for

from dispatcher.bootstrap import payload as bootstrap
from dispatcher.remote.agent.node import EXIT_LIFELINE
from remote.driver import Agent

STRAY = 'setsid sh -c "sleep 300 & exit 0" >/dev/null 2>&1; echo up; '
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"
STOPPED = "kill -STOP $$"


def again(agent: Agent, attempt: int) -> None:
    """Order a further attempt."""
    fields = {
        "run_id": "test", "node": 0, "attempt": attempt, "check": {}, "path": None, "cwd": b"/",
        "reserve": None, "watch": None, "token": b"T" * 16, "heartbeat": 60.0, "lease": 60.0,
        "lifeline_grace": 0.3, "credit": 1, "parts": {},
    }  # fmt: skip
    agent.order("prepare", **fields)


def settle(agent: Agent, after: str = "exec sleep 300", **fields: object) -> int:
    """Start two ranks with a stray each;
    the agent's pid (the guardian is ``remote.host.process``).
    """
    pid: int = agent.prepare(**fields)["facts"]["pid"]
    assert pid != agent.process.pid
    agent.start(["sh", "-c", STRAY + after], ["sh", "-c", STRAY + after])

    def are_up() -> bool:
        agent.order("ping")  # a short lease is not to end before
        return [bytes(agent.output.get((r, 1), b"")) for r in (0, 1)] == [b"up\n"] * 2

    agent.until(are_up)
    return pid


@pytest.mark.parametrize("after", ["exec sleep 300", STUBBORN, STOPPED])
class TestKilled:
    def test_agent(self, agent: Agent, after: str) -> None:
        folder = agent.prepare()["facts"]["error_folder"]
        pid = agent.found("node.ready")["facts"]["pid"]  # type: ignore[index]
        agent.start(["sh", "-c", STRAY + after])
        agent.until(lambda: agent.output)
        os.kill(pid, signal.SIGKILL)
        assert agent.exit() == 128 + signal.SIGKILL
        assert agent.living() == []
        assert b"the agent was killed by signal 9" in agent.errors
        assert not os.path.exists(folder)

    def test_guardian(self, agent: Agent, after: str) -> None:
        settle(agent, after)
        agent.process.kill()
        assert agent.report("node.dying") == {
            "type": "node.dying",
            "why": "the agent's guardian was killed",
        }
        agent.is_gone()


class TestStopped:
    def test_agent_is_continued_at_the_end_of_the_link(self, agent: Agent) -> None:
        os.kill(settle(agent), signal.SIGSTOP)
        agent.close_input()
        assert agent.exit() == EXIT_LIFELINE
        assert agent.living() == []
        assert b"crashed" not in agent.errors  # it has swept, and has said why

    def test_agent_beyond_its_lease(self, quick: Agent) -> None:
        """Nobody is at the other end to find out, and the link stays open."""
        os.kill(settle(quick, lease=6.0, heartbeat=0.5), signal.SIGSTOP)
        assert quick.exit() == 1
        assert quick.living() == []
        assert b"the agent was stopped or stuck" in quick.errors

    def test_agent_that_is_stopped_again_is_killed(self, quick: Agent) -> None:
        pid = settle(quick, STUBBORN)
        os.kill(pid, signal.SIGSTOP)
        quick.close_input()

        def stop_again() -> bool:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            return quick.process.poll() is not None

        wait_for(stop_again)
        quick.is_gone()

    def test_guardian_does_not_hold_the_end(self, agent: Agent) -> None:
        settle(agent)
        agent.process.send_signal(signal.SIGSTOP)
        agent.finish()
        assert agent.living() == []


MADE = "os.mkdir(path, 0o700)"
PREPARES = "self.cwd, self.token = "


def changed(module: str, old: str, new: str) -> bytes:
    """What travels, with ``new`` in place of ``old`` in one module."""
    modules = bootstrap.sources()
    assert old in modules[module]
    modules[module] = modules[module].replace(old, new)
    return bootstrap.payload_of(modules)


class TestLast:
    def test_both_are_killed_when_the_launcher_knows_that_all_is_over(
        self, boot: Callable[..., Agent], tmp_path: Path
    ) -> None:
        """It does not look again at a host that has said so."""
        both = "os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)"
        payload = changed("agent.agent_loop", "self.drain()", both)
        agent = boot(payload=payload, env={"TMPDIR": str(tmp_path)})
        assert agent.prepare()["facts"]["error_folder"].startswith(str(tmp_path))
        agent.order("finish")
        agent.report("node.swept")
        agent.is_gone()
        assert os.listdir(tmp_path) == []


class TestStart:
    """There is no moment at which nobody knows of the agent's folder, or of the agent."""

    @pytest.mark.parametrize("attempt", [0, 1])
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_agent_is_killed_where_it_makes_its_folder(
        self, boot: Callable[..., Agent], tmp_path: Path, attempt: int, when: str
    ) -> None:
        dies = f"os.path.exists({str(tmp_path / 'now')!r}) and os.kill(os.getpid(), 9)"
        both = (dies, MADE) if when == "before" else (MADE, dies)
        payload = changed("host.own_folder", MADE, "; ".join(both))
        agent = boot(payload=payload, env={"TMPDIR": str(tmp_path)})
        if attempt:
            folder = agent.prepare()["facts"]["error_folder"]
            assert os.listdir(tmp_path) == [os.path.basename(folder)]
        (tmp_path / "now").touch()
        again(agent, attempt)
        assert agent.exit() == 128 + signal.SIGKILL
        assert os.listdir(tmp_path) == ["now"]

    def test_guardian_is_killed_where_the_agent_makes_its_folder(
        self, boot: Callable[..., Agent], tmp_path: Path
    ) -> None:
        kills = MADE + "; os.kill(os.getppid(), 9)"
        agent = boot(payload=changed("host.own_folder", MADE, kills), env={"TMPDIR": str(tmp_path)})
        assert agent.prepare()["facts"]["error_folder"].startswith(str(tmp_path))
        agent.is_gone()
        assert os.listdir(tmp_path) == []

    def test_agent_is_stopped_before_it_has_said_a_word(self, boot: Callable[..., Agent]) -> None:
        """The guardian sees the end of the link all the same."""
        stops = "os.kill(os.getpid(), 19); " + PREPARES
        agent = boot(payload=changed("agent.agent_loop", PREPARES, stops))
        again(agent, 0)
        wait_for(lambda: any(map(is_stopped, agent.living())), what="the agent to stop")
        agent.close_input()
        assert agent.exit() == EXIT_LIFELINE
        assert agent.living() == []


def is_stopped(pid: int) -> bool:
    with suppress(OSError):  # it ended
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def test_agent_that_crashes(boot: Callable[..., Agent]) -> None:
    handles = "loop.no_failure_yet = loop.no_failure_yet and"
    agent = boot(payload=changed("agent.later_orders", handles, f"raise KeyError\n    {handles}"))
    settle(agent)
    agent.order("signal_ranks", ranks=None, signum=signal.SIGUSR1)
    assert agent.exit() == 1
    assert agent.living() == []
    assert b"KeyError" in agent.errors
    assert agent.errors.endswith(b"it crashed\n")


@pytest.fixture
def quick(boot: object) -> Agent:
    """An agent whose guardian loses patience after half a second."""
    modules = bootstrap.sources()
    modules["agent.guardian"] = modules["agent.guardian"].replace("SLACK = 8.0", "SLACK = 0.5")
    return boot(payload=bootstrap.payload_of(modules))  # type: ignore[operator, no-any-return]


def test_without_a_guardian_strays_stay(boot: object) -> None:
    """The control: what the tests above would see if nobody watched."""
    modules = bootstrap.sources()
    modules["agent.guardian"] = modules["agent.guardian"].replace(
        "proctree.kill_all(_reap_all)", "pass"
    )
    agent: Agent = boot(payload=bootstrap.payload_of(modules))  # type: ignore[operator]
    os.kill(settle(agent), signal.SIGKILL)
    agent.exit()
    # one look is not enough: a stray that is just becoming sleep shows no environment
    wait_for(lambda: len(agent.living()) == 2, what="only the strays to be left")
