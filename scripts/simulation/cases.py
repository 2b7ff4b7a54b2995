"""Runs that are simulated, and what is measured of each.

A run follows a ``Script``: once all ranks run, its stages come one after the other. What a row of
the table says is of three runs: one with an MPI barrier that ends by a rank's failure, one that
loses a host and starts again on a spare, one that loses a host and ends for it.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dispatcher
from dispatcher.api import run_session
from dispatcher.api.report import Report
from dispatcher.cli.options.connect_options import WINDOW
from dispatcher.cli.run.run_sinks import RunFooter
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Facts, Sink
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.paths import RunPaths
from dispatcher.output.monitor.run_picture import picture_of
from dispatcher.output.run_state import RunState
from dispatcher.output.terminal.live_terminal import Terminal
from dispatcher.output.terminal.screen import LineFormat, Screen
from dispatcher.plan.job.job_plan import JobPlan, plan_job
from dispatcher.plan.job.request import Limits, Restarts
from dispatcher.runner.run.orders import start_order
from dispatcher.transport.tree.topology import HostTree, plan_tree
from simulation.hosts import Agent
from simulation.model import Model, drawn
from simulation.ways import Tree
from simulation.world import Way, World, launcher_in

RUN_ID = "20260101-000000-abcdef"
#: seconds between all ranks' start, or the end of a stage, and the next stage
PAUSE = 1.0
#: what the ranks' environment is made of
_ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/user", "LANG": "C.UTF-8"}

#: what happens to one host while ranks run; what happens to all; what is so from the start
FAULTS = ("fail", "cut", "stop", "lie", "flood")
STAGES = ("write", "barrier", "end", *FAULTS)
FLAWS = ("mute", "refused")


@dataclass(frozen=True)
class Script:
    """stages: of ``STAGES``. flaw: of ``FLAWS``, what host ``where`` has from the start.

    where: the host of which faults speak. restarts, spares, limits: as the options.
    """

    stages: tuple[str, ...] = ("end",)
    flaw: str = ""
    where: int = 1
    restarts: int = 0
    spares: int = 0
    limits: Limits = field(default_factory=Limits)


@dataclass
class Outcome:
    """A run that was simulated. Times are virtual seconds since it began, ``cpu`` is not.

    up: when all ranks ran, of each attempt. began: stage -> when it did. cpu: seconds of the
    launcher, of which ``cpu_up`` until all ran first. barrier: bytes that the launcher sent in it,
    seconds until every host had its keys, and what it spent in these. sizes: name of a file ->
    bytes. updates: writes to the screen.
    """

    report: Report
    seconds: float
    up: list[float]
    began: dict[str, float]
    cpu: float
    cpu_up: float
    barrier: tuple[int, float, float] | None
    sent: int
    sizes: dict[str, int]
    updates: int

    def after(self, stage: str) -> float:
        """Seconds from ``stage`` to the end of the run."""
        return self.seconds - self.began[stage]


class _Director(Sink):
    """Follows the run, and has its script's stages come in their order."""

    def __init__(self, world: World, script: Script, agents: Sequence[Agent]) -> None:
        self.up: list[float] = []
        self.began: dict[str, float] = {}
        self.cpu_up = 0.0
        self.barrier: tuple[int, float, float] | None = None
        self._world, self._script, self._agents = world, script, agents
        self._stages = list(script.stages)
        self._expected, self._running = 0, 0
        self._committed, self._sent, self._spent = 0, 0, 0.0
        self._zero = world.clock.now
        self._cpu = time.process_time()

    @property
    def _now(self) -> float:
        return self._world.clock.now - self._zero

    @property
    def _used(self) -> float:
        """Processor time of the launcher so far."""
        return time.process_time() - self._cpu - self._world.theirs

    def event(self, entry: Entry) -> None:
        match entry.event:
            case ev.RanksPlaced(world_size):
                self._expected, self._running = world_size, 0
            case ev.RankSpawned():
                self._running += 1
                if self._running == self._expected:
                    self.up.append(self._now)
                    if len(self.up) == 1:
                        self.cpu_up = self._used
                    self._world.after(PAUSE, self._next)

    def _next(self) -> None:
        if self._stages:
            stage = self._stages.pop(0)
            self.began[stage] = self._now
            if stage in FAULTS:
                self._one(stage)
            else:
                getattr(self, f"_{stage}")()

    def _all(self, act: str, *words: Any) -> None:
        for agent in self._agents:
            if agent.works:
                self._world.after(0.0, lambda a=agent: getattr(a, act)(*words), theirs=True)  # type: ignore[misc]

    def _one(self, act: str) -> None:
        first = self._script.where
        agent = next(agent for agent in self._agents[first:] if agent.works)
        self._world.after(0.0, getattr(agent, act), theirs=True)

    def _write(self) -> None:
        self._all("write", b"rank %d goes on\n")
        self._world.after(PAUSE, self._next)

    def _barrier(self) -> None:
        living = [agent for agent in self._agents if agent.works]
        self._committed, self._sent, self._spent = len(living), self._world.sent, self._used
        size = int(self._world.model.keys) * max(len(agent.living) for agent in living)
        self._all("commit", b"k" * size)

    def released(self) -> None:
        """The barrier has opened on one more host."""
        self._committed -= 1
        if not self._committed:
            took = self._now - self.began["barrier"]
            self.barrier = (self._world.sent - self._sent, took, self._used - self._spent)
            self._world.after(PAUSE, self._next)

    def _end(self) -> None:
        self._all("end", 0)


def planned(hosts: int, ranks: int, script: Script, folder: Path) -> JobPlan:
    """The plan of a job, from a hostfile of as many lines."""
    hostfile = folder / "hostfile"
    count = hosts + script.spares
    hostfile.write_text("".join(f"node{at:05d} slots={ranks}\n" for at in range(count)))
    request = dispatcher.request(
        hostfile,
        ["train.py", "--epochs", "3"],
        cwd="/home/user/work",
        python="/usr/bin/python3",
        environ=_ENVIRON,
        limits=script.limits,
        restarts=Restarts(most=script.restarts),
        spares=script.spares or None,
    )
    return plan_job(request, RUN_ID)


def simulated(
    hosts: int,
    ranks: int,
    script: Script,
    model: Model,
    seed: int,
    folder: Path,
    *,
    plan: JobPlan | None = None,
    tree: HostTree | None = None,
) -> Outcome:
    """A run of ``ranks`` ranks on each of ``hosts`` hosts; its files are left in ``folder``.

    plan: as ``planned``. tree: of all but the spares.
    """
    plan = plan or planned(hosts, ranks, script, folder)
    links: list[Agent] = []
    world = World(model, lambda number: links[number].link())
    if tree is not None:
        world.way = Tree(world, tree)
    names = [node.host.name for node in (*plan.nodes, *plan.spares)]
    links += [
        Agent(world, number, drawn(model, seed, number), lambda: director.released())
        for number in range(len(names))
    ]
    world.login = lambda number: links[number].host.login
    director = _Director(world, script, links)
    if script.flaw == "mute":
        links[script.where].is_mute = True
    elif script.flaw == "refused":
        refused = Failure(Kind.REFUSED, "connection refused")
        world.dial = lambda at: refused if at == script.where else links[at].link()
    began = time.process_time()
    notes: list[str] = []
    with launcher_in(world):
        paths = RunPaths.create(str(folder), plan.run_id)
        session = run_session.RunSession(plan, lambda host: Way(), say=notes.append, paths=paths)
        with _screen(session.state) as (screen, writer):
            files = run_session.open_files(plan, paths, notes.append, merge=True)
            session.add(*files, screen, director)
            report = session.run(())
    spent = time.process_time() - began - world.theirs
    assert not notes, notes
    return Outcome(
        report=report,
        seconds=report.seconds,
        up=director.up,
        began=director.began,
        cpu=spent,
        cpu_up=director.cpu_up,
        barrier=director.barrier,
        sent=world.sent,
        sizes={path.name: path.stat().st_size for path in paths.folder.iterdir()},
        updates=writer.pace,
    )


@contextlib.contextmanager
def _screen(state: RunState) -> Iterator[tuple[Sink, Terminal]]:
    """A screen with a footer, as on a terminal of 120 x 40."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        writer = Terminal(
            frozenset({1, 2}), nowhere, {1: nowhere, 2: nowhere},
            size=lambda fd: (120, 40), typed=lambda fd: 0,
        )  # fmt: skip
        view = LineFormat(lambda rank: f"[{rank}]", terminals=frozenset({1, 2}))
        footer = RunFooter(state.hosts, lambda: picture_of(state))
        yield Screen(view, writer, footer=footer), writer
    finally:
        os.close(nowhere)


#: column -> how it is shown; those of which the growth is told
COLUMNS = {
    "hosts": "{:,.0f}", "plan s": "{:.2f}", "cpu ms/host": "{:.2f}", "KiB/host": "{:.0f}",
    "up s": "{:.2f}", "fail s": "{:.2f}", "lost s": "{:.1f}", "restart s": "{:.1f}",
    "barrier MiB": "{:,.1f}", "barrier s": "{:.2f}", "barrier ms/host": "{:.2f}",
    "journal MiB": "{:.1f}", "report MiB": "{:.1f}", "plan MiB": "{:.1f}", "screen": "{:,.0f}",
}  # fmt: skip


def row(
    hosts: int,
    ranks: int,
    model: Model,
    seed: int,
    *,
    short: bool = False,
    fanout: int = 64,
    tree: bool = False,
) -> dict[str, float]:
    """A row of the table; best in a process of its own, whose memory it tells.

    short: of runs that lose no host. fanout: hosts that connect at once. tree: as --fanout-tree. A
    flat barrier has a run of its own: it sends the square of the hosts, and so much takes minutes,
    in which hosts beat.
    """
    topology = plan_tree(hosts) if tree else None
    limits = Limits(fanout=WINDOW if tree else fanout)
    whole = Script(("fail",), limits=limits)
    meeting = Script(("barrier", "end"), limits=limits)
    again = Script(("cut", "end"), restarts=1, spares=1, limits=limits)
    lost = Script(("cut",), limits=limits)
    before = _peak()
    with tempfile.TemporaryDirectory(prefix="simulate-") as place:
        folders = [Path(place, name) for name in ("whole", "again", "lost", "meeting")]
        for folder in folders:
            folder.mkdir()
        began = time.process_time()
        plan = planned(hosts, ranks, whole, folders[0])
        took = time.process_time() - began
        one = simulated(hosts, ranks, whole, model, seed, folders[0], plan=plan, tree=topology)
        memory = _peak() - before
        lost_s = restart_s = math.nan
        if not short:
            two = simulated(hosts, ranks, again, model, seed, folders[1], tree=topology)
            restart_s = two.up[1] - two.began["cut"]
            three = simulated(hosts, ranks, lost, model, seed, folders[2], tree=topology)
            lost_s = three.after("cut")
        barrier = simulated(hosts, ranks, meeting, model, seed, folders[3], tree=topology).barrier
    assert barrier is not None
    mib = {name: size / (1 << 20) for name, size in one.sizes.items()}
    return {
        "hosts": hosts,
        "plan s": took,
        "cpu ms/host": 1000 * one.cpu / hosts,
        "KiB/host": memory / hosts,
        "up s": one.up[0],
        "fail s": one.after("fail"),
        "lost s": lost_s,
        "restart s": restart_s,
        "barrier MiB": barrier[0] / (1 << 20),
        "barrier s": barrier[1],
        "barrier ms/host": 1000 * barrier[2] / hosts,
        "journal MiB": mib["dispatch.jsonl"],
        "report MiB": mib["report.json"],
        "plan MiB": mib["plan.json"],
        "screen": one.updates,
    }


def prepared(hosts: int, ranks: int) -> tuple[float, float, int]:
    """Seconds of processor time for a plan, and for all orders to start; MiB held after them."""
    with tempfile.TemporaryDirectory(prefix="simulate-") as place:
        began = time.process_time()
        plan = planned(hosts, ranks, Script(), Path(place))
    planned_in = time.process_time() - began
    known = [
        Facts(f"node{at:05d}", 9, "/usr/bin/python3", 64, 8, (f"10.0.{at >> 8}.{at & 255}",),
              f"machine {at}", error_folder="/tmp/dispatch-0/run")
        for at in range(hosts)
    ]  # fmt: skip
    began = time.process_time()
    for node, facts in enumerate(known):
        start_order(plan, node, facts, "10.0.0.0", 29500, "kvs_1")
    return planned_in, time.process_time() - began, _peak() >> 10


def _peak() -> int:
    """The most memory that this process has had, in KiB.

    Not as getrusage(2) has it, which counts for a new process what it had before execve(2): all
    that its parent has.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
