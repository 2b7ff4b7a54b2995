"""One run of ``scripts/chaos``: drawn by the dice, played with its faults, and judged."""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.faults import FAULTS, PROGRAM, Broken, Run, kill, ours, start_fails

os.environ.setdefault("RANK", "-1")  # fault_rank is a rank's program first
import trail
from fault_rank import line
from testbed.cluster import Cluster

from dispatcher.bootstrap.payload import SOURCE_LIMIT
from dispatcher.model.hostset import fold

RANKS = 2  # on each host
#: seconds of work, and the span in which faults come; the same where a run may start again
WORK, SPAN = 1.5, 3.0
#: seconds of work of a run whose agents are killed as they start
START_WORK = 0.3
LONG_WORK, LONG_SPAN = 4.0, 6.0
#: how often a run may start again
RESTARTS = 2
LIMITS = ("--heartbeat", "1", "--lease", "4", "--grace", "2", "--connect-timeout", "6",
          "--boot-timeout", "10")  # fmt: skip
#: seconds from the last fault, or the end of the work, to the launcher's end: host lost after 3,
#: grace 2 and 2, sweep and finish 8 each
END_LIMIT = 25.0
#: seconds that each lost host may add where another attempt follows: the fence (lease 4 and 14),
#: then work
AGAIN_LIMIT = 18.0 + LONG_WORK + 5.0
#: seconds from there to clean hosts: lease 4, a second of grace, 8 of the guardian's patience; with
#: a host that was cut off SOURCE_LIMIT more, since there an agent may have waited for its source
CLEAN_LIMIT = 16.0
#: what must not happen, in the order of the summary
KINDS = ("late", "orphans", "leftovers", "terminal", "exit code", "wrong host", "lost bytes",
         "overlap", "world", "rank map")  # fmt: skip


class Terminal:
    """A terminal for the launcher; ``touched`` says whether its modes changed."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self._before = termios.tcgetattr(self.slave)
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self._said += data

    @property
    def touched(self) -> bool:
        return termios.tcgetattr(self.slave) != self._before

    def close(self) -> str:
        os.close(self.slave)
        self._reader.join(timeout=5)
        os.close(self.master)
        text = self._said.decode(errors="replace").replace("\r\n", "\n")
        return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


@dataclass(frozen=True)
class Plan:
    """A run to be: seconds of work, and faults, each so many seconds after the beginning.

    spares: hosts that wait, None where the run may not start again. habits: of its ranks.
    """

    work: float
    faults: Sequence[tuple[float, Callable[[Run], None]]] = ()
    spares: int | None = None
    habits: Sequence[str] = ()


def draw(dice: random.Random, start: bool) -> Plan:
    """A run as the dice have it; start: its agents are struck as they start, and nothing else."""
    spares = dice.choice([0, 1, 1, 1 if start else 2]) if dice.random() < 0.4 else None
    again = spares is not None
    work, span = (LONG_WORK, LONG_SPAN) if again else (WORK, SPAN)
    numbers = [1, 2, 2, 3] if again else [1, 1, 2]
    faults = sorted(
        ((dice.uniform(0.0, span), dice.choice(FAULTS)) for _ in range(dice.choice(numbers))),
        key=lambda pair: pair[0],
    )
    if start:
        work, faults = START_WORK, [(0.0, start_fails)]
    return Plan(work, faults, spares, [h for h in ("stubborn", "stray") if dice.random() < 0.4])


def play(cluster: Cluster, plan: Plan, number: int, dice: random.Random) -> dict[str, Any]:
    """Run ``plan`` as run ``number``; what happened, and in ``broken`` what must not have."""
    spares, again = plan.spares, plan.spares is not None
    place = os.path.join(cluster.shared, f"run-{number}")
    os.mkdir(place)
    terminal = Terminal()
    more = ["--max-restarts", str(RESTARTS)] if again else []
    more += ["--spares", str(spares)] if spares else []
    words = [*LIMITS, *more, "--log-dir", place, "-H", cluster.hostfile(RANKS), "--no-python",
             sys.executable, PROGRAM, "work", str(plan.work), place, *plan.habits]  # fmt: skip
    process = cluster.popen(
        [sys.executable, "-m", "dispatcher", *words],
        stdin=terminal.slave, stdout=terminal.slave, stderr=terminal.slave,
    )  # fmt: skip
    run = Run(cluster, place, dice, process, spares)
    began = time.monotonic()
    for when, fault in plan.faults:
        time.sleep(max(0.0, began + when - time.monotonic()))
        fault(run)
    struck = max(time.monotonic(), began + plan.work)
    broken: Broken = []
    limit = END_LIMIT + (RESTARTS * AGAIN_LIMIT if again else 0.0)
    try:
        code = process.wait(timeout=limit + max(0.0, struck - time.monotonic()))
    except subprocess.TimeoutExpired:
        broken.append(("late", f"did not end in {limit:.0f} s"))
        code = -9
        process.kill()
        process.wait()
    ended = time.monotonic() - struck
    if code < 0:  # it was killed, or told to end before it listened
        run.dead, code = True, 128 - code
    broken += clean(run)
    if terminal.touched:
        broken.append(("terminal", "its modes changed"))
    text = terminal.close()
    if code == 1 and 130 in run.codes and text.rstrip().endswith("KeyboardInterrupt"):
        run.dead, code = True, 130  # the interpreter was told, before there was a dispatch
    broken += judge(run, code, text)
    return {
        "run": number, "faults": [[round(w, 2), f.__name__] for w, f in plan.faults],
        "habits": list(plan.habits),
        "spares": spares, "attempts": len(trail.attempts(place)),
        "hurt": sorted(run.hurt), "exit": code, "seconds": round(ended, 2), "broken": broken,
        "off": sorted(run.off), "said": text[-3000:] if broken else "",
    }  # fmt: skip


def clean(run: Run) -> Broken:
    """What is left on any host after the time that is allowed for it; cut links are mended."""
    end = time.monotonic() + CLEAN_LIMIT + bool(run.cut) * SOURCE_LIMIT
    while (left := run.cluster.on_hosts()) and time.monotonic() < end:
        time.sleep(0.05)
    broken: Broken = [("orphans", f"left running: {left}")] if left else []
    for process in run.cluster.census():
        kill(process.outer, signal.SIGKILL)
    for host in run.cut - run.off:
        run.cluster.mend(host)
    for member in run.cluster._record.hosts:
        for path in [p for folder in ("tmp", "dev/shm") for p in ours(member.pid, folder)]:
            broken.append(("leftovers", f"{member.name}: {path.partition('root')[2]}"))
            shutil.rmtree(path, ignore_errors=True)
    return broken


def judge(run: Run, code: int, text: str) -> Broken:
    """What is wrong with the exit code, the verdict, the attempts and the files."""
    attempts = trail.attempts(run.place)
    world = (len(run.cluster.hosts) - (run.spares or 0)) * RANKS
    last = attempts[-1] if attempts else 0
    counts = [trail.written(run.place, last, rank) for rank in range(world)]
    broken: Broken = []
    if code == 0 and any(count is None or count < 0 for count in counts):
        broken.append(("exit code", "0, but not every rank was done"))
    if code not in run.codes | {0}:
        broken.append(("exit code", f"{code}, which no fault explains"))
    for attempt in attempts:
        broken += judge_ranks(run, attempt, world)
        broken += judge_files(run, attempt, world, code)
    if run.dead:
        return broken
    said = [line for line in text.splitlines() if line.startswith("error: ")]
    table = text[text.find("cannot be used") :]
    ended_by_user = bool(said and re.search("interrupted|stopped by", said[0]))
    if code == 125 or (code > 128 and said and not ended_by_user):
        named = said[0] if said and "cannot be used" not in said[0] else table
        names = {*run.hurt, fold(sorted(run.hurt))}
        if not any(re.search(rf"\b{re.escape(name)}(?!\w)", named) for name in names):
            broken.append(("wrong host", f"hurt {sorted(run.hurt)}, blamed: {said[:1]}"))
    if code and not said and any(count is not None for count in counts):
        broken.append(("exit code", f"{code} without a verdict"))
    why_told = "not started again: " in text or ended_by_user or not said
    if code and run.spares is not None and not why_told and "cannot be used" not in said[0]:
        broken.append(("exit code", f"{code}, and not a word on why it did not start again"))
    for before, after in itertools.pairwise(attempts):
        broken += judge_moves(run, before, after, text)
    return broken


def judge_ranks(run: Run, attempt: int, world: int) -> Broken:
    """What the ranks of ``attempt`` saw that they should not have seen."""
    broken: Broken = []
    for rank, seen in trail.seen(run.place, attempt).items():
        if seen.others:
            broken.append(("overlap", f"rank {rank} of attempt {attempt} met {seen.others}"))
        if seen.world != world:
            broken.append(("world", f"attempt {attempt} had {seen.world} ranks of {world}"))
    return broken


def judge_files(run: Run, attempt: int, world: int, code: int) -> Broken:
    """Whether the ranks' files hold what they wrote."""
    broken: Broken = []
    folder = f"latest/restart-{attempt}" if attempt else "latest"
    hurried = {128 + signal.SIGINT} & {code}  # a third Ctrl-C leaves at once
    for rank in range(world):
        count = trail.written(run.place, attempt, rank)
        if count is None:
            continue
        kept = read(os.path.join(run.place, folder, f"rank-{rank:05d}.out"))
        # of its first line any beginning may be there: Python writes each of its words by itself
        body = kept.partition(b"\n")[2] if kept.startswith(b"up") else kept
        if body != expected(rank, len(body)):
            broken.append(("lost bytes", f"rank {rank}: its file is not what it wrote"))
        elif not (run.hurt or hurried or run.dead) and len(body) < abs(count):
            broken.append(("lost bytes", f"rank {rank}: {abs(count)} written, {len(body)} kept"))
    return broken


def judge_moves(run: Run, before: int, after: int, text: str) -> Broken:
    """Whether every rank that changed its host was announced."""
    old, new = trail.seen(run.place, before), trail.seen(run.place, after)
    moves = {(old[rank].host, new[rank].host) for rank in old.keys() & new.keys()}
    return [
        ("rank map", f"ranks went from {left} to {taken} without a word")
        for left, taken in sorted(moves)
        if left != taken and f"note: {taken} takes the place of {left} with rank" not in text
    ]


def expected(rank: int, size: int) -> bytes:
    """The first ``size`` bytes of the rank's work."""
    data, number = bytearray(), 0
    while len(data) < size:
        data += line(rank, number)
        number += 1
    return bytes(data[:size])


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
