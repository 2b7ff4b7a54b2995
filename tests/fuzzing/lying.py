"""A launcher with a liar among its hosts, and the judgement of what came of it.

What the liar says is in ``lies``. The launcher is the real one, in this process; the honest hosts
are played beside it. Judged: it ends, in time; no thread of ours breaks; what honest hosts' ranks
wrote, where they were when somebody asked, and how they ended is what it is without the liar;
nobody honest is blamed; the terminal obeys nothing; the liar's host is named; no file is made
outside the run's folder.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.played import Agent, Answer, Command, Heard, Order, plan_of

from dispatcher.api.report import Report
from dispatcher.api.run_session import RunSession, open_files
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.exec_events import Exited
from dispatcher.core.events.monitor_events import StacksGathered, StacksWanted
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.bounds import TEXT_LIMIT
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host
from dispatcher.model.paths import RunPaths
from dispatcher.output.terminal.notes import Notes
from dispatcher.output.terminal.screen import LineFormat, Screen, Writer
from dispatcher.output.text.stacks_text import StackFiles
from dispatcher.output.text.story import Tail
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan
from dispatcher.plan.job.request import Limits, Restarts
from dispatcher.runner.exec.exec_loop import ExecRunner
from dispatcher.runner.run.host_intake import ENDS_LIMIT
from dispatcher.transport.base import Link, Target, Transport, Window

from .lies import Lies, LyingCommand, script
from .texts import harmless

#: seconds until a run with a liar must have ended, on a machine that does nothing else
MOST_SECONDS = 40.0
#: until a host that says nothing is given up; and the run, if a rank seems to be at work: a host
#: that keeps back that its rank has ended is not to be told from one whose rank works. One that
#: keeps back the end of that rank's output is given up before
LIMITS = Limits(
    connect_timeout=5.0, boot_timeout=1.5, heartbeat=0.5, max_missed_heartbeats=6, lease=5.0,
    grace=0.3, mpi_stall_warning=0.5, time_limit=2 * ENDS_LIMIT + 5.0,
)  # fmt: skip
EXEC_LIMITS = ExecLimits(connect=1.5, command=1.0, grace=0.2)
#: what a run's folder may hold
OURS = re.compile(
    r"(dispatch\.jsonl|(plan|report)\.json|(restart-\d+/)?rank-\d{5}\.(out|err)"
    r"|(stacks|ras)-1\.txt|flight-1-rank-\d{5}\.bin|restart-\d+)\Z"
)
HOSTS = 3
#: characters of a verdict: two texts of a host, each byte of which may be shown as four characters
MOST_TEXT = 2 * 4 * TEXT_LIMIT


class Harm(AssertionError):
    """What a liar did to others."""


class Honest(Agent):
    """As ``Agent``; slow: its ranks end at the second heartbeat, or when they are told to.

    ended: by each attempt that started ranks, rank -> the status that was reported. stood: ranks of
    which it told where they are.
    """

    def __init__(self, number: int, *, slow: bool) -> None:
        answers: dict[str, Answer] = {"sample": _look}
        if slow:
            answers |= {"start_ranks": _begin, "ping": _live}
        super().__init__(number, **answers)
        self.ended: dict[int, dict[int, int]] = {}
        self.stood: list[int] = []

    def spawned(self, order: Order) -> None:
        self.ended[self.order("prepare")["attempt"]] = {}
        super().spawned(order)

    def exits(self, rank: int, status: int = 0, **fields: Any) -> None:
        self.ended[max(self.ended)][rank] = status
        super().exits(rank, status, **fields)


def _begin(agent: Agent, order: Order) -> None:
    agent.spawned(order)
    for rank, *_ in order["ranks"]:
        agent.writes(rank, b"hello from %d\n" % rank)


def _live(agent: Agent, order: Order) -> None:
    agent.beat()
    if len([one for one in agent.orders if one["type"] == "ping"]) > 1:
        for rank in sorted(agent.living):
            agent.exits(rank)


def _look(agent: Agent, order: Order) -> None:
    assert isinstance(agent, Honest)
    if "stacks" not in order:
        return
    agent.stood = sorted(agent.living)
    agent.report(
        "node.stacks",
        number=order["stacks"]["number"],
        ranks=[[rank, 100 + rank, "S", "py-spy", _place(rank)] for rank in agent.stood],
        ras=b"",
        flights=[[rank, f"/tmp/trace_{rank}", 4, b"dump"] for rank in agent.stood],
        recorders=[[rank, b"{}"] for rank in agent.stood],
        natives=[[rank, b"#0 read ()"] for rank in agent.stood],
    )


def _place(rank: int) -> bytes:
    return b"Thread 1 (active)\n    step_%d (train.py:7)" % rank


class Attempts(Heard):
    """texts: of each time that ranks were placed, as ``text``, which has all."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[dict[tuple[int, int], bytes]] = []

    def event(self, entry: Entry) -> None:
        super().event(entry)
        if isinstance(entry.event, ev.RanksPlaced):
            self.texts.append({})

    def output(self, rank: int, stream: int, data: bytes) -> None:
        super().output(rank, stream, data)
        text = self.texts[-1]
        text[rank, stream] = text.get((rank, stream), b"") + data


class Curious(Sink):
    """Asks where the ranks are, once, when one has started."""

    def __init__(self, tell: Callable[[ev.Event], None]) -> None:
        self._tell: Callable[[ev.Event], None] | None = tell

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, ev.RankSpawned) and self._tell is not None:
            self._tell(StacksWanted())
            self._tell = None


class Way(Transport):
    """To each agent once: who looks for leftovers later does not reach it."""

    name = "played"

    def __init__(self, links: Sequence[Link]) -> None:
        self._links: list[Link | None] = list(links)
        self._lock = threading.Lock()

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        number = int(target.host[1:])
        with self._lock:
            link, self._links[number] = self._links[number], None
        return link or Failure(Kind.REFUSED, "it takes no second connection")


@contextmanager
def unbroken() -> Iterator[None]:
    """No thread ends with an exception meanwhile. Raises: Harm."""
    broken: list[str] = []
    before = threading.excepthook
    threading.excepthook = lambda args: broken.append(f"{args.exc_type.__name__}: {args.exc_value}")
    try:
        yield
    finally:
        threading.excepthook = before
    if broken:
        raise Harm(f"a thread broke: {broken[0]}")


class Stage:
    """The folder of a run, and what it shows."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="dispatch-liar-"))
        self.shown = os.open(self.base / "shown", os.O_RDWR | os.O_CREAT)
        (self.base / "run").mkdir()
        self.failed: list[str] = []

    def screen(self) -> Screen:
        view = LineFormat(lambda rank: f"[{rank}]", terminals=frozenset({1, 2}))
        return Screen(view, Writer({1: self.shown, 2: self.shown}))

    def text(self) -> bytes:
        return (self.base / "shown").read_bytes()

    def check(self) -> None:
        """Raises: Harm."""
        harmless(self.text())
        extra = {path.name for path in self.base.iterdir()} - {"shown", "run"}
        found = (path.relative_to(self.base / "run") for path in self.base.glob("run/**/*"))
        extra |= {str(path) for path in found if not OURS.match(str(path))}
        if extra:
            raise Harm(f"files beside the run's own: {sorted(extra)}")
        if self.failed:
            raise Harm(f"a sink failed: {self.failed[0]}")

    def close(self) -> None:
        os.close(self.shown)
        shutil.rmtree(self.base)


def judge_run(seed: int) -> str:
    """Run script ``seed`` of a job; what came of it in a word. Raises: Harm."""
    take = script(seed)
    liar = take.below(HOSTS)
    restarts = Restarts(take.one((0, 0, 1, 3)), delay=0.0, min_nodes=take.one((None, HOSTS - 1)))
    plan = plan_of(HOSTS, limits=LIMITS, restarts=restarts)
    ranks = {node.index: node.ranks for node in plan.nodes}
    others = [rank for node, own in ranks.items() if node != liar for rank in own]
    slow = take.chance(128)
    agents = [Honest(number, slow=slow) for number in range(HOSTS)]
    agents[liar]._out = lies = Lies(take, ranks[liar], others)
    stage, heard = Stage(), Attempts()
    begun = time.monotonic()
    try:
        with unbroken():
            way = Way(agents)
            screen = stage.screen()

            def answered(number: int, lines: Sequence[str], found: object) -> None:
                for line in lines:
                    screen.say(line)

            names = [node.host.name for node in plan.nodes]
            paths = RunPaths(stage.base / "run")
            session = RunSession(
                plan, lambda host: way,
                [Notes(names, screen.say, verbose=True), screen, heard,
                 Curious(lambda event: session.tell(event)),
                 StackFiles(names, paths.folder, answered, screen.say),
                 *open_files(plan, paths, screen.say)],
                say=screen.say, paths=paths,
                sink_failed=lambda sink, error: stage.failed.append(f"{sink}: {error!r}"),
            )  # fmt: skip
            report = _run(session)
            for line in report.verdict:
                screen.say(line)
        if time.monotonic() - begun > MOST_SECONDS:
            raise Harm(f"it took {time.monotonic() - begun:.0f} s")
        stage.check()
        _judge(report, heard, agents, liar, names, ranks, stage)
    except AssertionError as harm:
        raise Harm(f"script {seed}, liar n{liar} ({' '.join(lies.told)}): {harm}") from harm
    finally:
        stage.close()
    return "ok" if report.ok else "ended"


def _run(session: RunSession) -> Report:
    """To the end; after ``MOST_SECONDS`` as if somebody had pressed Ctrl-C three times."""

    def leave() -> None:
        for _ in range(3):
            session.tell(ev.SignalReceived(2))

    late = threading.Timer(MOST_SECONDS, leave)
    late.daemon = True
    late.start()
    try:
        return session.run(())
    finally:
        late.cancel()


def _judge(
    report: Report, heard: Attempts, agents: Sequence[Honest], liar: int, names: Sequence[str],
    ranks: Mapping[int, Sequence[int]], stage: Stage,
) -> None:  # fmt: skip
    lost = {event.node: event.failure for event in heard.of(ev.NodeLost)}
    for node, failure in lost.items():
        if "internal error" in failure.why:
            raise Harm(f"{names[node]}: {failure.why}")
        if node != liar:
            raise Harm(f"honest {names[node]} was lost: {failure.why}")
    for node, agent in enumerate(agents):
        if node == liar:
            continue
        began = [order for order in agent.orders if order["type"] == "start_ranks"]
        if [order for order in agent.orders if order["type"] == "spawn_ranks"]:
            raise Harm(f"{names[node]} was told to start programs that no rank asked for by MPI")
        for order in began:
            again = int(dict(order["common"])[b"TORCHELASTIC_RESTART_COUNT"])
            for rank, *_ in order["ranks"]:
                wrote, want = heard.texts[again].get((rank, 1), b""), b"hello from %d\n" % rank
                if wrote != want:
                    raise Harm(f"rank {rank} of {names[node]} wrote {want!r}; kept were {wrote!r}")
                folder = stage.base / "run" / (f"restart-{again}" if again else "")
                log = (folder / f"rank-{rank:05d}.out").read_bytes()
                if log != want:
                    raise Harm(f"the log of rank {rank} of {names[node]}: {log!r}")
        for attempt, ended in agent.ended.items():
            statuses = sorted(
                (event.rank, event.status)
                for event in heard.of(ev.RankExited)
                if event.attempt == attempt and (event.node == node or event.rank in ended)
            )
            if statuses != sorted(ended.items()):
                raise Harm(f"ranks of {names[node]} ended with {ended}; heard: {statuses}")
        for gathered in heard.of(StacksGathered):
            if node not in gathered.late:
                kept = stage.base / "run" / "stacks-1.txt"
                stacks = kept.read_bytes() if kept.exists() else b"no file"
                if any(_place(rank) not in stacks for rank in agent.stood):
                    raise Harm(f"where the ranks of {names[node]} are was lost: {stacks!r}")
        if not began and any((rank, 1) in heard.text for rank in ranks[node]):
            raise Harm(f"output of {names[node]}, where nothing ran")
    if report.ok:
        return
    last = {e.rank for e in heard.of(ev.RankExited) if e.node == liar}
    is_late = report.cause is not None and report.cause.kind == "TimeUp"
    if is_late and not heard.of(ev.RunRestarting) and last >= {*ranks[liar]}:
        raise Harm("it waited to the end of its time, though no rank was left")
    if report.exit_code not in range(1, 256):
        raise Harm(f"exit code {report.exit_code}")
    text = "\n".join(report.verdict)
    if names[liar] not in text:
        raise Harm(f"the verdict does not name {names[liar]}: {text}")
    if len(report.verdict) > 60 or len(text) > MOST_TEXT:
        raise Harm(f"a verdict of {len(report.verdict)} lines, {len(text)} characters")


# -- fan-out commands ---------------------------------------------------------------------


def judge_exec(seed: int) -> str:
    """Run script ``seed`` of a fan-out command; what came of the liar. Raises: Harm."""
    take = script(seed)
    liar = take.below(HOSTS)
    links: list[Link] = [Command(lambda data: (b"fine\n", b"oops\n", 3)) for _ in range(HOSTS)]
    links[liar] = LyingCommand(take)
    plan = ExecPlan(tuple(Host(f"n{n}") for n in range(HOSTS)), ("x",), limits=EXEC_LIMITS)
    heard, way, stage = Heard(), Way(links), Stage()
    try:
        with unbroken():
            screen = stage.screen()
            outcomes = ExecRunner(
                plan, lambda host: way, [heard, Tail(), screen],
                sink_failed=lambda sink, error: stage.failed.append(repr(error)),
            ).run(())  # fmt: skip
        stage.check()
        for node in range(HOSTS):
            if node == liar:
                continue
            kept = [heard.text.get((node, stream), b"") for stream in (1, 2)]
            if outcomes[node] != Exited(3) or kept != [b"fine\n", b"oops\n"]:
                raise Harm(f"honest n{node} ended with {outcomes[node]}, kept were {kept}")
    except AssertionError as harm:
        raise Harm(f"script {seed}, liar n{liar}: {harm}") from harm
    finally:
        stage.close()
    return type(outcomes[liar]).__name__


def judge_script(seed: int) -> str:
    """Script ``seed``: of every six one is a fan-out command, the others are jobs. Raises: Harm."""
    return judge_exec(seed) if seed % 6 == 5 else judge_run(seed)
