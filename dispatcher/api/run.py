"""``run``, ``run_async`` and ``start``: run a job from a program; ``exec``: one command on hosts.

``start`` returns a ``Running``, which iterates over the ranks' lines. dispatch writes nothing to
the terminal and takes no signal unless the program asks for it. See docs/guides/python.md.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from dispatcher.api import transports
from dispatcher.api.exec_session import ExecSession
from dispatcher.api.registration import JobRecord
from dispatcher.api.report import Report
from dispatcher.api.request import Hosts, check_words, hosts_of, plan_job
from dispatcher.api.run_session import RunSession, open_files
from dispatcher.bootstrap import payload
from dispatcher.core.events.exec_events import exit_code, own_code
from dispatcher.core.events.run_events import Entry, OutputEnded, RanksPlaced, SignalReceived, Sink
from dispatcher.model.arguments import check_names, check_types
from dispatcher.model.errors import UsageError, WrongArgument
from dispatcher.model.frozen import fields_of
from dispatcher.model.paths import RunPaths
from dispatcher.output.exec.host_results import BOTH, HostResult, describe
from dispatcher.output.terminal.notes import Notes
from dispatcher.output.text.lines import LineAssembler, Spill
from dispatcher.output.text.sanitize import sanitize
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan, target_hosts
from dispatcher.plan.job.job_plan import JobPlan, with_compared
from dispatcher.plan.job.placement import rank_name
from dispatcher.plan.job.request import Request
from dispatcher.runner import loop
from dispatcher.runner.background import BackgroundRun
from dispatcher.runner.run.run_loop import HANDLED
from dispatcher.transport.base import ALIVE_INTERVAL, Keepalive

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dispatcher.api.notebook import Cell

Say = Callable[[str], None]


@dataclass(frozen=True)
class Line:
    """A line that a rank wrote, without its end; ``str`` of it is safe for a terminal.

    rank: by name, as in ``Report``. data: any bytes, of any number.
    """

    rank: str
    stream: Literal["stdout", "stderr"]
    data: bytes

    @property
    def text(self) -> str:
        """The line as text; bytes that are not UTF-8 are replaced."""
        return self.data.decode("utf-8", "replace")

    def __str__(self) -> str:
        return f"[{self.rank}] {sanitize(self.data).decode()}"


class Running(BackgroundRun[Report, Line | Entry]):
    """A run of ``job``: ``start()`` it, iterate over its output, ``wait()`` for its report.

    lines, events: whether iterating gives them. Raises: UsageError before any host is touched.
    """

    def __init__(self, job: Request | JobPlan, lines: bool, events: bool, how: How) -> None:
        check_names("run", ("on_line", "on_event", *How.__annotations__), how)
        check_types("run", How, how)
        if not isinstance(job, Request | JobPlan):
            raise WrongArgument(
                f"run: job takes a Request or a JobPlan, not {job!r}",
                hint='dispatcher.request("hostfile", ["train.py"])',
            )
        plan = with_compared(plan_job(job) if isinstance(job, Request) else job)
        ways = how.get("ways", transports.Ways())
        hosts = [node.host for node in (*plan.nodes, *plan.spares)]
        names = [host.name for host in hosts]
        transports.check_reachable(ways, hosts)
        transports.allow_open_files(len(hosts))
        agent_python, log_dir = how.get("agent_python"), how.get("log_dir")
        if agent_python is not None:
            payload.command(first=[agent_python])  # check it before any host is touched
        is_shown = how.get("progress", True) and "ipykernel" in sys.modules
        self._cell = cell = _cell() if is_shown else None
        say = how.get("on_note", _log if cell is None else cell.say)
        for notice in plan.notices:
            say(f"note: {notice}")
        self._reach = transports.TransportPool(ways, how.get("ask", transports.nobody))
        paths = None if log_dir is None else RunPaths.create(os.fspath(log_dir), plan.run_id)
        self._session = session = RunSession(
            plan, self._reach.transport_for, say=say, paths=paths,
            check=how.get("check", True), agent_python=agent_python,
        )  # fmt: skip
        session.add(Notes(
            names, lambda line: self._say(line), verbose=False, error_of=session.error_of,
            reached=lambda: session.reached,
        ))  # fmt: skip
        if paths is not None:
            session.add(*open_files(plan, paths, say))
        if lines or events:
            session.add(_Feed(self.put, say, lines=lines, events=events))
        if cell is not None:
            cell.begin(session.state)
            session.add(cell)
        self._paths, self._say = paths, say
        super().__init__(self._carry_out, self.tell)

    @property
    def plan(self) -> JobPlan:
        """The present plan: closed once the hosts' GPUs were counted."""
        return self._session.plan

    def tell(self, event: SignalReceived) -> None:
        """Send the run a signal; from any thread or signal handler."""
        self._session.tell(event)

    def _carry_out(self) -> Report:
        session = self._session
        ways = fields_of(self._reach.ways)
        record = JobRecord(session, ways, self._paths, self._say, by_program=True)
        session.add(record)
        self._say = record.shown_to_clients(self._say)
        with record, self._reach:
            record.answer()
            report = self._session.run(())
        record.conclude(report.exit_code, report.verdict, report.may_run_on)
        if self._cell is not None:
            self._cell.conclude(report.closing())
        return report


class _Feed(Sink):
    """Puts lines and events into the program's queue."""

    def __init__(
        self, put: Callable[[Line | Entry, int], None], say: Say, *, lines: bool, events: bool
    ) -> None:
        self._put = put
        self._say = say
        self._spill = Spill()
        self._lines = lines
        self._events = events
        self._assemblers: dict[tuple[int, int], LineAssembler] = {}

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, OutputEnded):
            self._end((entry.event.rank, entry.event.stream))
        elif isinstance(entry.event, RanksPlaced):
            self._end_all()  # lines of a lost host, whose ranks are started again
        if self._events:
            self._put(entry, 0)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if self._lines:
            key = (rank, stream)
            if key not in self._assemblers:
                self._assemblers[key] = LineAssembler(partial(self._long, key), self._spill)
            self._split(key, self._assemblers[key].feed(data))

    def tick(self, now: float) -> bool:
        for key, lines in self._assemblers.items():
            self._split(key, lines.rested())
        return any(lines.block for lines in self._assemblers.values())

    def close(self) -> None:
        self._end_all()
        self._spill.close()
        for words in self._spill.words():
            self._say(f"note: {words}")

    def _end_all(self) -> None:
        for key in list(self._assemblers):
            self._end(key)

    def _end(self, key: tuple[int, int]) -> None:
        if key in self._assemblers:
            self._split(key, self._assemblers.pop(key).finish())

    def _split(self, key: tuple[int, int], block: bytes) -> None:
        for line in block.split(b"\n")[:-1]:
            self._line(key, line)

    def _long(self, key: tuple[int, int], pieces: Iterator[bytes], end: bytes) -> None:
        self._line(key, b"".join((*pieces, end[:-1])))

    def _line(self, key: tuple[int, int], data: bytes) -> None:
        rank, stream = key
        self._put(Line(rank_name(rank), "stdout" if stream == 1 else "stderr", data), len(data))


class How(TypedDict, total=False):
    """The options of a run.

    log_dir: keep files there, as --log-dir does. ways: how hosts are reached. check: do the cheap
    checks before the start (default: True). agent_python: as the option. ask: asks for a
    passphrase; by default none is asked for. on_note: called with each note for the user, a line
    at a time; by default the logger ``dispatcher`` gets it. progress: show the progress and the
    verdict in a notebook, below the cell (default: True).
    """

    log_dir: str | os.PathLike[str] | None
    ways: transports.Ways
    check: bool
    agent_python: str | None
    ask: transports.Ask
    on_note: Say
    progress: bool


def start(
    job: Request | JobPlan, *, lines: bool = False, events: bool = False, **how: Unpack[How]
) -> Running:
    """Start ``job``; use the run as a context manager, which ends the job when it is left.

    lines, events: whether iterating gives them. how: see ``How``.
    Raises: UsageError (HostfileError, PlanError) before any host is touched.
    """
    return Running(job, lines, events, how).start()


def run(
    job: Request | JobPlan,
    *,
    on_line: Callable[[Line], None] | None = None,
    on_event: Callable[[Entry], None] | None = None,
    signals: bool = False,
    **how: Unpack[How],
) -> Report:
    """Run ``job`` to its end; return the report, also of a failure.

    on_line, on_event: called with each line and event, in this thread. signals: take the signals
    that dispatch takes (the main thread only), and pass them on to the ranks. Without it Ctrl-C,
    like any error in a callback, ends the job on all hosts and is then raised. how: see ``How``.
    Raises: UsageError (HostfileError, PlanError) before any host is touched.
    """
    if signals and threading.current_thread() is not threading.main_thread():
        raise UsageError("signals: only the main thread can take them")
    running = Running(job, on_line is not None, on_event is not None, how)
    taken = loop.signals_to(lambda n: running.tell(SignalReceived(n)), HANDLED if signals else ())
    with taken, running:
        for told in running.start():
            _tell(on_line, on_event, told)
        return running.wait()


async def run_async(
    job: Request | JobPlan,
    *,
    on_line: Callable[[Line], None] | None = None,
    on_event: Callable[[Entry], None] | None = None,
    **how: Unpack[How],
) -> Report:
    """``run`` for programs with an asyncio loop: ``report = await dispatcher.run_async(job)``.

    on_line, on_event: called on the loop, whose other tasks go on. how: see ``How``.
    Cancelling it, as ``asyncio.timeout`` and ``wait_for`` do, ends the job on all hosts and then
    raises CancelledError; cancelling it a second time kills the ranks at once. An error in a
    callback ends the job in the same way and is then raised. Raises: UsageError (HostfileError,
    PlanError) before any host is touched.
    """
    running = Running(job, on_line is not None, on_event is not None, how)
    return await running.run_async(partial(_tell, on_line, on_event))


def _tell(
    on_line: Callable[[Line], None] | None,
    on_event: Callable[[Entry], None] | None,
    told: Line | Entry,
) -> None:
    heard: Callable[[Any], None] | None = on_line if isinstance(told, Line) else on_event
    if heard is not None:
        heard(told)


def _cell() -> Cell | None:
    from dispatcher.api.notebook import Cell, display_here

    display = display_here()
    return None if display is None else Cell(display)


def _log(line: str) -> None:
    import logging

    kind, _, text = line.partition(": ")
    known = kind in ("note", "error")
    level = logging.ERROR if kind == "error" else logging.INFO
    logging.getLogger("dispatcher").log(level, "%s", text if known else line)


Answer = HostResult  #: its old name


@dataclass(frozen=True)
class Answers:
    """One result a host, in the hosts' order.

    exit_code, verdict: as ``dispatch exec`` has them; largest_code: as with ``-S``.
    """

    hosts: tuple[HostResult, ...]
    exit_code: int
    largest_code: int
    verdict: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0 on every host."""
        return all(one.ok for one in self.hosts)


class _Settings(TypedDict, total=False):
    limits: ExecLimits
    ways: transports.Ways


def exec(
    hosts: Hosts,
    argv: Sequence[str],
    *,
    limits: ExecLimits | None = None,
    ways: transports.Ways | None = None,
    ask: transports.Ask = transports.nobody,
) -> Answers:
    """Run ``argv`` on each of ``hosts``. Ctrl-C ends it on all hosts and is raised.

    ways: how hosts are reached. ask: asks for a passphrase; by default none is asked for.
    Raises: UsageError (HostfileError, PlanError) before any host is touched.
    """
    check_words(argv)
    given = {name: item for name, item in (("limits", limits), ("ways", ways)) if item is not None}
    check_types("exec", _Settings, given)
    ways = ways or transports.Ways()
    places = target_hosts([hosts_of(hosts)], ())
    exec_plan = ExecPlan(places, tuple(argv), limits=limits or ExecLimits())
    transports.check_reachable(ways, places)
    transports.allow_open_files(len(places))
    reach = transports.TransportPool(ways, ask, Keepalive(otherwise=ALIVE_INTERVAL))
    session = ExecSession(exec_plan, reach.transport_for, streams=BOTH)

    def work() -> tuple[HostResult, ...]:
        with reach:
            return session.run(())

    background: BackgroundRun[tuple[HostResult, ...], None] = BackgroundRun(work, session.tell)
    with background:
        results = background.start().wait()
    outcomes = [one.outcome for one in results]
    largest = max(map(own_code, outcomes))
    return Answers(results, exit_code(outcomes), largest, tuple(describe(results)))
