"""Real agents: nothing survives them, nothing is lost, nothing waits behind output."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.remote.agent.node import EXIT_LIFELINE
from remote.driver import Agent

#: leaves a process behind that made its own session and has forgotten its parents
GRANDCHILD = 'setsid sh -c "sleep 300 & sleep 300" >/dev/null 2>&1 & echo up; '
#: takes no notice of TERM
STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.05; done"
#: code in the agent itself that prints, as some library might
STRAY = """
_gather = gather
def gather(*given):
    print("stray", flush=True)
    os.system("echo stray")
    return _gather(*given)
"""


def ready(agent: Agent, *ranks: int) -> None:
    """Wait until each of ``ranks`` has said that it is up."""

    def are_up() -> bool:
        agent.order("ping")  # a short lease is not to end before
        return all(b"up" in agent.output.get((rank, 1), b"") for rank in ranks or (0,))

    agent.until(are_up)


def patient(boot: Callable[..., Agent]) -> Agent:
    """An agent that does not cut the output of an ended rank."""
    modules = payload.sources()
    assert "DRAIN = 2.0" in modules["agent.node"]
    modules["agent.node"] = modules["agent.node"].replace("DRAIN = 2.0", "DRAIN = 60.0")
    return boot(payload=payload.payload_of(modules))


class TestNothingSurvives:
    def test_finish_kills_a_grandchild_in_its_own_session(self, agent: Agent) -> None:
        agent.prepare()
        agent.start(["sh", "-c", GRANDCHILD])
        assert agent.status() == 0
        wait_for(lambda: len(agent.living()) == 5, what="guardian, agent, shell and two sleeps")
        swept = agent.finish()
        assert (swept["killed"], swept["left"], swept["stuck"]) == (3, [], [])
        assert agent.living() == []

    @pytest.mark.parametrize("how", ["link", "lease", "TERM", "HUP"])
    def test_a_lost_lifeline_kills_all(self, agent: Agent, how: str) -> None:
        agent.prepare(lease=6.0 if how == "lease" else 60.0, lifeline_grace=0.2)
        agent.start(["sh", "-c", GRANDCHILD + "exec sleep 300"], ["sh", "-c", STUBBORN])
        ready(agent, 0, 1)
        if how == "link":
            agent.close_input()
        elif how != "lease":
            agent.process.send_signal(getattr(signal, "SIG" + how))
        assert agent.exit() == EXIT_LIFELINE
        assert agent.living() == []
        assert agent.report("rank.exited", rank=0)["status"] == -signal.SIGTERM
        assert agent.report("rank.exited", rank=1)["status"] == -signal.SIGKILL

    def test_term_reaches_a_stopped_rank(self, agent: Agent) -> None:
        agent.prepare(lifeline_grace=200.0)  # which would be for nothing
        agent.start(["sh", "-c", "echo up; kill -STOP $$"])
        ready(agent)
        agent.close_input()
        assert agent.exit() == EXIT_LIFELINE
        assert agent.status() == -signal.SIGTERM

    def test_grace_is_given(self, agent: Agent, tmp_path: Path) -> None:
        agent.prepare(lifeline_grace=10.0)
        save = f"trap 'sleep 0.3; echo saved > {tmp_path}/state; exit 0' TERM; echo up; "
        agent.start(["sh", "-c", save + "while :; do sleep 0.05; done"])
        ready(agent)
        agent.close_input()
        assert agent.exit() == EXIT_LIFELINE
        assert (tmp_path / "state").read_text() == "saved\n"

    def test_nobody_at_the_link_is_no_hang(self, agent: Agent) -> None:
        """Output is stuck in a link that nobody reads when the lifeline is lost."""
        agent.prepare(lifeline_grace=0.2)
        agent.start(["sh", "-c", "exec cat /dev/zero"])
        agent.until(lambda: agent.output)
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(60) == EXIT_LIFELINE
        assert agent.living() == []

    def test_an_end_before_the_first_order_is_an_exit(self, agent: Agent) -> None:
        agent.close_input()
        assert agent.exit() == EXIT_LIFELINE


class TestSignals:
    def test_what_an_ended_rank_has_left_is_reached_and_nobody_else(
        self, boot: Callable[..., Agent]
    ) -> None:
        """Its group may be another's by then: only who is in it and below us counts."""
        agent = patient(boot)
        waits = "; echo up; n=0; until [ $n = 400 ]; do sleep 0.05; n=$((n+1)); done"
        agent.prepare()
        agent.start(
            ["sh", "-c", f"(trap 'echo left; exit' USR1{waits}) & exit 0"],
            ["sh", "-c", f"trap 'echo wrong' USR1; trap 'echo fine; exit' USR2{waits}"],
        )
        assert agent.status(0) == 0
        agent.until(lambda: [bytes(agent.output.get((r, 1), b"")) for r in (0, 1)] == [b"up\n"] * 2)
        agent.order("signal_ranks", ranks=[0], signum=signal.SIGUSR1)
        assert agent.text(0) == b"up\nleft\n"
        agent.order("signal_ranks", ranks=[1], signum=signal.SIGUSR2)
        assert agent.text(1) == b"up\nfine\n"
        agent.finish()

    def test_all_of_a_rank_s_group_is_reached(self, boot: Callable[..., Agent]) -> None:
        agent = patient(boot)
        agent.prepare()
        trap = "trap 'echo got; exit 3' USR1; "
        inner = f'sh -c "{trap} echo up; while :; do sleep 0.02; done" & '
        agent.start(["sh", "-c", trap + inner + "while :; do sleep 0.02; done"])
        ready(agent)
        agent.order("signal_ranks", ranks=None, signum=int(signal.SIGUSR1))
        assert agent.status() == 3
        assert agent.text() == b"up\ngot\ngot\n"


class TestOutput:
    def test_a_stray_print_cannot_corrupt_frames(self, boot: Callable[..., Agent]) -> None:
        modules = payload.sources()
        modules["host.host_facts"] += STRAY
        agent = boot(payload=payload.payload_of(modules))
        agent.prepare()
        agent.start(["echo", "fine"])
        assert agent.text() == b"fine\n"
        agent.finish()
        assert agent.errors.count(b"stray\n") == 2

    def test_noise_before_the_sync_is_kept_apart(self, boot: Callable[..., Agent]) -> None:
        agent = boot(stage=["/bin/sh", "-c", "echo WELCOME; printf '\\0DISP'; eval \"$0\""])
        agent.prepare()
        assert bytes(agent.scanner.noise) == b"WELCOME\n\0DISP"
        agent.finish()


def cpu_ticks(pid: int) -> int:
    """What the process has used so far; a second has some hundred. Source: proc(5)."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def test_who_has_nothing_to_do_takes_no_time(agent: Agent) -> None:
    """Whatever has come is taken from where it lay, or the poll would not wait any more."""
    pid = agent.prepare()["facts"]["pid"]
    agent.start(["sh", "-c", "echo up"], ["sleep", "300"], ["sh", "-c", "exec >&- 2>&-; sleep 300"])
    assert (agent.text(0), agent.status(0)) == (b"up\n", 0)
    agent.order("ping")
    before, end = cpu_ticks(pid), time.monotonic() + 1.0
    while time.monotonic() < end:
        agent.hear(0.1)
    assert cpu_ticks(pid) - before < os.sysconf("SC_CLK_TCK") // 10
    agent.finish()


class TestErrorFolder:
    def test_it_is_private_and_goes_with_the_agent(self, agent: Agent) -> None:
        folder = agent.prepare()["facts"]["error_folder"]
        assert os.stat(folder).st_mode & 0o777 == 0o700
        agent.start(["sh", "-c", f"echo trace > {folder}/rank-0.json"])
        assert agent.status() == 0
        agent.finish()
        assert not os.path.exists(folder)

    def test_it_goes_when_the_lifeline_is_lost(self, agent: Agent) -> None:
        folder = agent.prepare(lifeline_grace=0.1)["facts"]["error_folder"]
        agent.close_input()
        assert agent.exit() == EXIT_LIFELINE
        assert not os.path.exists(folder)

    def test_a_useless_tmpdir_is_passed_over(self, boot: Callable[..., Agent]) -> None:
        for useless in ("/no/such/folder", "relative"):
            agent = boot(env={"TMPDIR": useless})
            assert agent.prepare()["facts"]["error_folder"].startswith(("/tmp/", "/dev/shm/"))
            agent.finish()
