"""Rounds of everything in turn on one cluster, and whether anything grows or is left behind.

Rounds of each kind come in an order that the seed chooses, each kind once before any comes again.
Four processes live from the first round to the last: a Python program that calls ``dispatcher``,
the process that keeps connections, the launcher of a job in the background, and that job's agent.
After each round their descriptors, threads and memory are counted, and the processes, sockets and
files of all hosts and of the launchers' own folders. The first round of each kind does not count.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from testbed.cluster import Cluster

from chaos import faults, runs
from chaos.arena import Arena
from chaos.faults import Broken, Run
from chaos.growth import count, grown, inventory, order
from dispatcher.jobs import registry

CALLS = os.path.join(os.path.dirname(__file__), "calls.py")
DISPATCH = (sys.executable, "-m", "dispatcher")
#: hosts of each run. Two more have kept connections, the last also a job that is never stopped, and
#: the rest take the place of those that lost power.
PLAY = 4
#: seconds for which a connection is kept
KEEP = "36000"
#: what a long job's rank does
TICK = ["sh", "-c", "while :; do echo $((n += 1)); sleep 0.1; done"]


class Soak:
    """What the rounds have in common; ``seconds`` is how long they are to go on."""

    def __init__(self, arena: Arena, seconds: float) -> None:
        self.arena, self.seconds, self.began = arena, seconds, time.monotonic()
        self.off = 0  # hosts that lost power
        self.objects = 0  # of the program
        self.base = {m.name: inventory(m) for m in arena.members}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.program = arena.popen([sys.executable, CALLS], **pipes)
        broken = self.dispatch("connect", "-H", arena.kept, "--keep", KEEP)
        words = ["--log-dir", os.path.join(arena.folder, "long"), "-w", arena.near]
        broken += self.dispatch("--detach", *words, "--no-python", *TICK)
        assert not broken, broken
        (job,) = self.jobs()
        self.job: str = job["id"]
        login = arena.census(["login"])
        agents = Run(arena.whole, "", random.Random(), self.program).agents(arena.near)
        assert agents is not None
        arena.living = {
            "program": next(p.outer for p in login if CALLS in p.command),
            "keeper": next(p.outer for p in login if "pool.daemon" in p.command),
            "job": next(p.outer for p in login if p.pid == job["pid"]),
            "agent": agents[0],
        }

    def dispatch(self, *words: str, meanwhile: Callable[[], object] = bool) -> Broken:
        """What is wrong with the end of ``dispatch words``."""
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with self.arena.popen([*DISPATCH, *words], **pipes) as process:
            try:
                meanwhile()
                said, _ = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
                return [("late", f"dispatch {' '.join(words)}: {said[-500:]}")]
        if process.returncode == 0:
            return []
        return [("exit code", f"dispatch {' '.join(words)}: {process.returncode}: {said[-1500:]}")]

    def jobs(self) -> list[dict[str, Any]]:
        words = [*DISPATCH, "jobs", "-a", "--json"]
        with self.arena.popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found: list[dict[str, Any]] = json.loads(process.stdout.read())
        return found

    def play(self, number: int, kind: str, dice: random.Random) -> Broken:
        """Round ``number``; what it broke and left, of which nothing is there afterwards."""
        run = Run(self.arena, "", dice, self.program)
        broken = KINDS[kind](self, run, number)
        end = time.monotonic() + 5.0
        while (left := self.arena.census(["login"])) and time.monotonic() < end:
            time.sleep(0.05)
        broken += [("orphans", f"login: {process.command}") for process in left]
        broken += runs.clean(run)
        for folder, name in [("", f"run-{number}"), ("soak", f"of-{number}")]:
            shutil.rmtree(os.path.join(self.arena.shared, folder, name), ignore_errors=True)
        gone = [n for n, pid in self.arena.living.items() if not os.path.exists(f"/proc/{pid}")]
        assert not gone, f"round {number}, {kind}: ended: {gone}; {broken}"
        return broken

    def ask(self, number: int, meanwhile: Callable[[], object] = bool) -> dict[str, int]:
        """Have the program call in each way: those whose exit code is not due, and the code."""
        asked, answers = self.program.stdin, self.program.stdout
        assert asked is not None
        assert answers is not None
        asked.write(
            json.dumps({"hosts": self.arena.place, "place": self.arena.mine(number)}) + "\n"
        )
        asked.flush()
        meanwhile()
        assert select.select([answers], [], [], 240)[0], "the program does not answer"
        told = json.loads(answers.readline())
        self.objects = told["objects"]
        wrong: dict[str, int] = told["wrong"]
        return wrong

    def close(self) -> Broken:
        """End what lives all the time; what is there afterwards that was not before."""
        broken = self.dispatch("stop", self.job)
        broken += self.dispatch("connect", "--close")
        self.program.communicate(timeout=30)
        self.arena.living.clear()
        end = time.monotonic() + 30.0
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.2)
        return broken + [("leftovers", f"at the end: {what} {n:+}") for what, n in left.items()]

    def left(self) -> dict[str, float]:
        """What hosts have more of than at the beginning, and sockets in our folders."""
        found: Counter[str] = Counter()
        for member in self.arena.members:
            where = "login" if member.name == "login" else "hosts"
            if os.path.exists(f"/proc/{member.pid}/root/proc"):  # it has power
                now, then = inventory(member), self.base[member.name]
                found.update({f"{where}: {what}": now[what] - then[what] for what in now})
        found["own folders: sockets"] = count(self.arena.folder, stat.S_ISSOCK)
        return {what: n for what, n in found.items() if n}

    def sample(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, pid in self.arena.living.items():
            with open(f"/proc/{pid}/status") as file:
                status = dict(line.split(":", 1) for line in file if ":" in line)
            found[f"{name}: descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
            found[f"{name}: threads"] = int(status["Threads"])
            found[f"{name}: KiB"] = int(status["VmRSS"].split()[0])
        found["program: objects"] = self.objects
        for where, what in itertools.product(("hosts", "login"), ("processes", "files", "sockets")):
            found[f"{where}: {what}"] = 0
        found |= self.left()
        for name in ("tmp", "run", "state"):
            found[f"own {name}: files"] = count(os.path.join(self.arena.folder, name))
        records = os.path.join(self.arena.folder, "state", "dispatch", "jobs")
        found["own state: records"] = len(os.listdir(records))
        found["own state: files"] -= count(records)
        return found


# -- the rounds: each says what it broke -----------------------------------------------------------

Round = Callable[[Soak, Run, int], Broken]


def spare_off(run: Run) -> None:
    host = run.cluster.hosts[-1]
    run.cluster.power_off(host)
    run.off.add(host)
    run.hurt.add(host)
    run.codes.add(125)


def struck(run: Run) -> None:
    """One fault, or none, on the hosts of a round; a link that is cut is soon mended."""
    chosen = run.dice.choice(
        [None, faults.agent_dies, faults.session_dies, faults.cut, faults.flap]
    )
    time.sleep(run.dice.uniform(0.3, 2.0))
    if chosen is not None:
        chosen(run)
    if run.cut:
        time.sleep(5.0)
        run.cluster.mend(run.cut.pop())


def played(work: float, *faults: Callable[[Run], None], spares: int | None = None) -> Round:
    """A run of ``chaos``, struck by these faults while it starts or works."""

    def play(soak: Soak, run: Run, number: int) -> Broken:
        # those that may lose power do so over the whole time, not at its beginning
        most = len(soak.arena.reserve) - PLAY + soak.off
        due = soak.off < most * min(1.0, (time.monotonic() - soak.began) / soak.seconds)
        chosen = [fault for fault in faults if fault is not spare_off or due]
        moments = sorted(0.5 + run.dice.uniform(0.0, 1.5) for _ in chosen)
        plan = runs.Plan(work, [*zip(moments, chosen, strict=True)], spares)
        result = runs.play(soak.arena, plan, number, run.dice)
        soak.off += len(result["off"])
        soak.arena.without(result["off"])
        broken: Broken = result["broken"]
        return broken + ([("said", result["said"])] if broken else [])

    return play


def commands(soak: Soak, run: Run, number: int) -> Broken:
    arena, there, mine = soak.arena, f"/tmp/soak-{number}", soak.arena.mine(number)
    sent, hosts = os.path.join(mine, "sent"), ["-H", soak.arena.place]
    limits = ["-t", "6", "-u", "4", "--grace", "1"]
    soak.dispatch("exec", *hosts, *limits, "--", "sleep", "2", meanwhile=lambda: struck(run))
    data = run.dice.randbytes(1 << 20)
    with open(sent, "wb") as file:
        file.write(data)
    broken = soak.dispatch("put", *hosts, sent, there)
    broken += soak.dispatch("get", *hosts, there, mine)
    broken += soak.dispatch("exec", *hosts, "--", "rm", there)
    for host in arena.hosts:
        if runs.read(os.path.join(mine, host, os.path.basename(there))) != data:
            broken.append(("lost bytes", f"{host}: what was put and got is not the same"))
    return broken


def kept(soak: Soak, run: Run, number: int) -> Broken:
    """Commands over connections that are kept, one of which is closed, or ends, or stops."""
    arena, broken = soak.arena, []
    hosts, how = ["-H", arena.kept], run.dice.choice(["close", "end", "cut", "stay"])
    for _ in range(3):
        broken += soak.dispatch("exec", *hosts, "--", "sh", "-c", "seq 1000; hostname >&2")
    if how == "close":
        broken += soak.dispatch("connect", "--close", "-w", arena.far)
    elif how == "end":
        for pid in arena.sessions(arena.far):
            faults.kill(pid, signal.SIGKILL)
    elif how == "cut":
        arena.cut(arena.far)
        soak.dispatch("exec", *hosts, "-u", "2", "-t", "3", "--grace", "1", "--", "hostname")
        arena.mend(arena.far)
    broken += soak.dispatch("exec", *hosts, "--", "hostname")
    return broken + soak.dispatch("connect", *hosts, "--keep", KEEP)


def background(soak: Soak, run: Run, number: int) -> Broken:
    """A job in the background that somebody looks at, that is struck or not, and stopped."""
    arena = soak.arena
    words = ["--log-dir", arena.mine(number), "-H", arena.place, "--no-python", *TICK]
    if broken := soak.dispatch("--detach", *runs.LIMITS, *words):
        return broken
    job = soak.jobs()[-1]["id"]
    broken += looked_at(soak, run, job)
    struck(run)
    soak.dispatch("stop", job)  # which may have ended by itself
    after = next(row for row in soak.jobs() if row["id"] == job)
    return broken + ([("late", f"stopped, and {after}")] if after["state"] != "ended" else [])


def attach(soak: Soak, run: Run, number: int) -> Broken:
    return looked_at(soak, run, soak.job)


def looked_at(soak: Soak, run: Run, job: str) -> Broken:
    """Somebody attaches to a job that goes on, and leaves in one way or another."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with soak.arena.popen([*DISPATCH, "attach", job, "--from-start"], **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        how = run.dice.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
        process.send_signal(how)
        if how == signal.SIGSTOP:
            time.sleep(1.0)
            process.kill()
        said = process.communicate(timeout=60)[1]
    if how == signal.SIGINT and process.returncode != 130:
        return [("exit code", f"attach, after Ctrl-C: {process.returncode}: {said[-500:]}")]
    return []


def calls(soak: Soak, run: Run, number: int) -> Broken:
    wrong = soak.ask(number)
    return [("exit code", f"of calls: {wrong}")] if wrong else []


def calls_struck(soak: Soak, run: Run, number: int) -> Broken:
    soak.ask(number, lambda: struck(run))
    return []


KINDS: dict[str, Round] = {
    "ends well": played(runs.WORK),
    "rank dies": played(runs.WORK, faults.rank_dies),
    "agent dies": played(runs.WORK, faults.agent_dies),
    "launcher dies": played(runs.WORK, faults.launcher_dies),
    "Ctrl-C": played(runs.WORK, faults.interrupt),
    "Ctrl-Z": played(runs.WORK, faults.suspend),
    "starts again": played(runs.LONG_WORK, faults.rank_dies, spares=0),
    "lost host": played(runs.LONG_WORK, faults.cut, spares=1),
    "lost spare": played(runs.LONG_WORK, spare_off, faults.rank_dies, spares=1),
    "commands": commands,
    "kept connections": kept,
    "background": background,
    "attach": attach,
    "calls": calls,
    "calls, struck": calls_struck,
}


def soak(minutes: float, hosts: int, seed: int, note: Callable[[dict[str, Any]], None]) -> bool:
    """Play rounds for so long. Whether none broke and nothing grew. note: takes each round."""
    times: list[float] = []
    samples: list[dict[str, float]] = []
    bad = 0
    with Cluster(max(hosts, PLAY + 2)) as cluster:
        soak = Soak(Arena(cluster, PLAY, runs.RANKS), minutes * 60)
        for number, kind in enumerate(order(list(KINDS), seed)):
            if time.monotonic() - soak.began > soak.seconds:
                break
            broken = soak.play(number, kind, random.Random(f"{seed} {number}"))
            times.append(time.monotonic() - soak.began)
            samples.append(soak.sample())
            bad += bool(broken)
            note({"run": f"{number}, {kind}", "broken": broken, "ended": times[-1], **samples[-1]})
        broken = soak.close()
        note({"run": "at the end", "broken": broken})
    # the newest came after the last look at their number, and one may run all the time
    most = {"own state: records": registry.MOST_RECORDS + 2}
    lines, grew = grown(samples[len(KINDS) :], most)
    print("\n".join(lines))
    print(
        f"{len(samples)} rounds in {times[-1] / 60:.0f} min, seed {seed}: {bad} broken, "
        f"{grew} numbers grew, {soak.off} hosts lost power"
    )
    return not (bad or broken or grew)
