"""The faults of ``scripts/chaos``: each hurts a part of a run and notes the host."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests" / "faults")]
from testbed.census import Process  # noqa: E402
from testbed.cluster import Cluster  # noqa: E402

from chaos.arrivals import Arrivals  # noqa: E402

PROGRAM = str(ROOT / "tests" / "faults" / "fault_rank.py")
#: seconds within which agents are killed, counted from the arrival of each
START_SPAN = 0.06
#: the folder of a run in /tmp
OURS = re.compile(r"dispatch-\d{8}-")
#: what an agent looks like in a list of processes
AGENT = "f=io.FileIO(0)"

Broken = list[tuple[str, str]]  # kind, what


@dataclass
class Run:
    """One run while it lasts. hurt: hosts a fault struck. codes: exit codes it explains.

    spares: hosts that wait, None where the run may not start again.
    """

    cluster: Cluster
    place: str
    dice: random.Random
    process: subprocess.Popen[bytes]
    spares: int | None = None
    hurt: set[str] = field(default_factory=set)
    codes: set[int] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    off: set[str] = field(default_factory=set)
    dead: bool = False  # the launcher was killed

    def on(self, host: str, text: str) -> list[Process]:
        found = self.cluster.census([host])
        return [p for p in found if text in p.command and p.state not in "ZX"]

    def launcher(self) -> Process | None:
        found = self.on("login", "dispatcher")
        return min(found, key=lambda process: process.outer) if found else None

    def agents(self, host: str) -> tuple[int, int] | None:
        """(agent, guardian) of the host, as this machine counts."""
        found = {process.outer for process in self.on(host, AGENT)}
        for pid in found:
            guardian = parent(pid)
            # a rank looks like its agent until it is executed
            if guardian in found and parent(guardian) not in found:
                return pid, guardian
        return None


def parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read()
    except OSError:
        return ""


def kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def rank_dies(run: Run) -> None:
    host = run.dice.choice(run.cluster.hosts)
    ranks = run.on(host, PROGRAM)
    number = run.dice.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
    if ranks and kill(run.dice.choice(ranks).outer, number):
        run.hurt.add(host)
        run.codes.add(128 + number)


def host_loses(run: Run, which: int, number: int) -> None:
    host = run.dice.choice(run.cluster.hosts)
    agents = run.agents(host)
    if agents is not None and kill(agents[which], number):
        run.hurt.add(host)
        run.codes.add(125)


def agent_dies(run: Run) -> None:
    host_loses(run, 0, signal.SIGKILL)


def guardian_dies(run: Run) -> None:
    host_loses(run, 1, signal.SIGKILL)


def session_dies(run: Run) -> None:
    host = run.dice.choice(run.cluster.hosts)
    agents = run.agents(host)
    session = parent(agents[1]) if agents is not None else 0
    # an orphan's parent is the host's init, whose end is that of the host
    if name_of(session).startswith("sshd") and kill(session, signal.SIGKILL):
        run.hurt.add(host)
        run.codes.add(125)


def agent_is_told(run: Run) -> None:
    host_loses(run, run.dice.choice([0, 1]), signal.SIGTERM)


def agent_stops(run: Run) -> None:
    host_loses(run, 0, signal.SIGSTOP)


def guardian_stops(run: Run) -> None:
    agents = run.agents(run.dice.choice(run.cluster.hosts))
    if agents is not None:
        kill(agents[1], signal.SIGSTOP)


def launcher_gets(run: Run, number: int) -> bool:
    launcher = run.launcher()
    if launcher is None or not kill(launcher.outer, number):
        return False
    run.codes.add(128 + number)
    return True


def interrupt(run: Run) -> None:
    for _ in range(run.dice.choice([1, 1, 2, 3])):
        launcher_gets(run, signal.SIGINT)
        time.sleep(run.dice.choice([0.0, 0.3]))


def terminate(run: Run) -> None:
    launcher_gets(run, run.dice.choice([signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]))


def launcher_dies(run: Run) -> None:
    run.dead = launcher_gets(run, signal.SIGKILL) or run.dead


def rank_stops(run: Run) -> None:
    """Nobody notices that; the user does, after a while."""
    ranks = run.on(run.dice.choice(run.cluster.hosts), PROGRAM)
    if ranks and kill(run.dice.choice(ranks).outer, signal.SIGSTOP):
        time.sleep(1.0)
        launcher_gets(run, signal.SIGINT)


def suspend(run: Run) -> None:
    launcher = run.launcher()
    if launcher is not None and kill(launcher.outer, signal.SIGTSTP):
        time.sleep(run.dice.uniform(0.1, 6.0))
        # it may not have stopped yet; what entered the host for us stops and goes on with it
        end = time.monotonic() + 3.0
        while kill(launcher.outer, signal.SIGCONT) and time.monotonic() < end:
            run.process.send_signal(signal.SIGCONT)
            time.sleep(0.2)


def cut(run: Run) -> None:
    host = run.dice.choice(run.cluster.hosts)
    run.cluster.cut(host, run.dice.choice(["both", "to", "from"]))
    run.cut.add(host)
    run.hurt.add(host)
    run.codes.add(125)


def flap(run: Run) -> None:
    """Shorter than what makes a host lost, unless this machine was too busy to mend it in time."""
    host = run.dice.choice(run.cluster.hosts)
    if host not in run.cut:
        began = time.monotonic()
        run.cluster.cut(host)
        time.sleep(0.8)
        run.cluster.mend(host)
        if time.monotonic() - began > 1.2:  # TCP may wait for as long again
            run.hurt.add(host)
            run.codes.add(125)


def power_off(run: Run) -> None:
    host = run.dice.choice(run.cluster.hosts)
    if host in run.off:
        return
    run.cluster.power_off(host)
    run.off.add(host)
    run.hurt.add(host)
    run.codes.add(125)


def start_fails(run: Run) -> None:
    """One or two hosts lose their agent, their guardian or both as they start."""
    hosts = run.dice.sample(run.cluster.hosts, run.dice.choice([1, 1, 2]))
    plan = {h: (run.dice.choice(["agent", "guardian", "both"]), run.dice.uniform(0.0, START_SPAN))
            for h in hosts}  # fmt: skip
    came: dict[str, float] = {}
    arrivals = Arrivals(run.cluster._record, AGENT)
    while plan and run.process.poll() is None:
        for host, (guardian, *others) in arrivals.look().items():
            agents = [pid for pid in others if parent(pid) == guardian]
            if host not in plan or not agents:
                continue
            if time.monotonic() - came.setdefault(host, time.monotonic()) < plan[host][1]:
                continue
            whom = {"agent": agents, "guardian": [guardian], "both": [guardian, *agents]}
            run.hurt.add(host)
            run.codes.add(125)
            for number in (signal.SIGSTOP, signal.SIGKILL):  # none sees the other's end
                for pid in whom[plan[host][0]]:
                    kill(pid, number)
            del plan[host]


def ours(pid: int, folder: str) -> list[str]:
    """Paths of the folders of runs in ``folder`` as the process sees it."""
    root = f"/proc/{pid}/root/{folder}"
    with contextlib.suppress(OSError):  # it has no power
        return [os.path.join(root, name) for name in os.listdir(root) if OURS.match(name)]
    return []


FAULTS = (rank_dies, agent_dies, guardian_dies, session_dies, agent_is_told, agent_stops,
          guardian_stops, interrupt, terminate, launcher_dies, rank_stops, suspend, cut, flap,
          power_off)  # fmt: skip
