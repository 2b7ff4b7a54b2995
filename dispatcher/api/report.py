"""``Report``: how a run ended, as frozen values, and as the text of ``report.json``.

Its facts are those of the verdict on the screen, with hosts and ranks by name: ``3``, or ``1.0``
for a spawned rank. A report is a fold over the run's events (``Fold``): a run folds its own events,
``replay`` those of a journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.mpi_events import MpiFound, WorldPlaced
from dispatcher.model.errors import DispatchError, JournalUnusable
from dispatcher.model.failure import Failure
from dispatcher.model.frozen import Value, fields_of, value
from dispatcher.model.names import clock
from dispatcher.model.paths import create_file, write_all
from dispatcher.output.run_state import RunState
from dispatcher.output.text import verdict_text
from dispatcher.output.text.story import signal_name
from dispatcher.plan.job.placement import FIRST, rank_name
from dispatcher.plan.job.reassignment import Exclusion


@value
class HostFailure(Value):
    """Why a host could not be used: ``kind`` as text (``unreachable``, ``host lost``, ...).

    message_code: its code for ``dispatch explain``.
    """

    kind: str
    why: str
    hint: str | None = None
    message_code: str = ""


@value
class FirstFailure(Value):
    """The cause of the run's end.

    kind: RankFailed, MpiAborted, LeftMpi, RankNotStarted, NodeFailed, Rejected,
    Impossible, OutputLost, Hung, TimeUp or Interrupted. rank, host: where, if it was at one place.
    last_lines: that rank's last lines. facts: all its fields in ``report.json``. message_code: its
    code for ``dispatch explain``.
    """

    kind: str
    rank: str | None = None
    host: str | None = None
    last_lines: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    message_code: str = ""


@value
class RankEnding(Value):
    """One rank: exit code or -n for signal n, None if it was not seen to end.

    stdout, stderr: bytes that came. began, ended: seconds since the run began. program: the name of
    its program, if the job has several.
    """

    rank: str
    host: str
    pid: int | None
    status: int | None
    stdout: int
    stderr: int
    began: float | None
    ended: float | None
    program: str | None = None


@value
class SpawnedWorld(Value):
    """Ranks that rank ``by`` spawned over MPI, and their hosts."""

    world: int
    by: str
    hosts: tuple[str, ...]


@value
class MpiLibrary(Value):
    """The MPI ``library`` (a path, or "") that a host's ranks use, and what ``served`` it."""

    library: str
    served: str


@value
class RanksSaid(Value):
    """The ranks' own reason for their end, in a line; place: ``train.py:33`` in the user's code.

    is_echo: it blames another rank, as "Connection closed by peer" does. Numbers may
    differ from rank to rank; they are those of the first.
    """

    ranks: tuple[str, ...]
    error: str
    place: str
    is_echo: bool


@value
class FailedAttempt(Value):
    """An attempt to run the ranks before the last one; started: whether ranks were.

    cause: the kind of its cause, RestartAsked where a person asked for a restart. what: the cause
    in a line.
    """

    restart: int
    started: bool
    world_size: int
    hosts: tuple[str, ...]
    cause: str
    what: str
    exit_code: int


@value
class Report(Value):
    """How a run ended.

    exit_code: dispatch's own. verdict: dispatch's lines at the end, [] for a run that went as
    planned. began: seconds since 1970. seconds: how long it took. world_size: of the last attempt.
    ranks: of the last attempt, with spawned ones. spawned: worlds that ranks spawned over MPI.
    attempts: those before the last. lost: hosts that could not be used to the end. excluded: hosts
    that did not pass the checks before, and why. unkillable: pids that survived SIGKILL, by host;
    stuck: where they hang. swept: processes that ranks left behind, and dispatch killed. left_out:
    hosts not used any more, and why. no_restart: why there was no further attempt. mpi: which one,
    by host. nccl: its network, by host. log_dir: of the run's files. errors: the ranks' own
    reasons, the cause's first. before: ranks that had exited 0 before the cause. ended: rank -> the
    last signal that dispatch had sent it when it ended, such as SIGTERM. may_run_on: hosts that
    were lost, and for how many seconds more ranks may live there. name: of the job (--name).
    """

    unwritten = ("log_dir",)
    run_id: str
    exit_code: int
    cause: FirstFailure | None
    verdict: tuple[str, ...]
    began: float
    seconds: float
    world_size: int
    ranks: tuple[RankEnding, ...] = ()
    spawned: tuple[SpawnedWorld, ...] = ()
    lost: Mapping[str, HostFailure] = field(default_factory=dict)
    unkillable: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stuck: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    attempts: tuple[FailedAttempt, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    no_restart: str | None = None
    swept: Mapping[str, int] = field(default_factory=dict)
    excluded: tuple[Exclusion, ...] = ()
    mpi: Mapping[str, MpiLibrary] = field(default_factory=dict)
    nccl: Mapping[str, mon.NcclNetwork] = field(default_factory=dict)
    log_dir: Path | None = None
    errors: tuple[RanksSaid, ...] = ()
    before: tuple[str, ...] = ()
    ended: Mapping[str, str] = field(default_factory=dict)
    may_run_on: Mapping[str, float] = field(default_factory=dict)
    name: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every planned rank ran and exited with 0."""
        return self.cause is None

    @property
    def statuses(self) -> dict[str, int]:
        """Rank -> exit code or -n, for every rank that was seen to end."""
        return {one.rank: one.status for one in self.ranks if one.status is not None}

    def _repr_html_(self) -> str:
        from dispatcher.api.notebook import as_html

        return as_html(self.closing())

    def closing(self) -> list[str]:
        """The verdict's lines, then a line of numbers."""
        from dispatcher.model.names import plural

        hosts = len({one.host for one in self.ranks}) or len(self.lost)
        size = f"{plural(self.world_size, 'rank')} on {plural(hosts, 'host')}"
        mark = "\N{CHECK MARK}" if self.ok else f"exit code {self.exit_code} \N{MIDDLE DOT}"
        return [*self.verdict, f"{mark} {size}, {clock(self.seconds)}"]

    def plain(self) -> dict[str, Any]:
        """The value of ``report.json``."""
        cause = self.cause
        return {
            "schema": "report/1",
            **fields_of(self),
            "ok": self.ok,
            "cause": None if cause is None else _plain(cause),
            "statuses": self.statuses,
            "seconds": round(self.seconds, 3),
        }


class Fold(RunState):
    """The state of a run, from which its report is made once the run is over.

    Its events are those from ``RunBegan`` to ``RunClosed``. folder: of the run's files.
    """

    def __init__(self, folder: Path | None = None, hosts: Sequence[str] = ()) -> None:
        super().__init__(hosts)
        self.seq = 0
        self._folder = folder
        self._began: mon.RunBegan | None = None
        self._closed: mon.RunClosed | None = None
        self._excluded: list[Exclusion] = []
        self._addresses: dict[int, set[str]] = {}  # host -> its addresses
        self._per_node = False

    def _begin(self, world_size: int) -> None:
        super()._begin(world_size)
        self._spawned: list[WorldPlaced] = []
        self._mpi: dict[int, MpiFound] = {}

    def event(self, entry: ev.Entry) -> None:
        super().event(entry)
        self.seq = entry.seq
        match entry.event:
            case mon.RunBegan():
                self._began = entry.event
            case mon.RunClosed():
                self._closed = entry.event
            case ev.NodeReady(node, facts):
                self._addresses.setdefault(node, set()).update(facts.addresses)
            case ev.NodeConnected(node, str(address)):
                self._addresses.setdefault(node, set()).add(address)
            case ev.HostExcluded(host, why, by):
                self._excluded.append(Exclusion(host, why, by))
            case ev.RanksPlaced(per_node=per_node):
                self._per_node = per_node
            case WorldPlaced():
                self._spawned.append(entry.event)
            case MpiFound(node):
                self._mpi[node] = entry.event

    def report(self) -> Report:
        """How the run ended. Raises: DispatchError unless all of its events have been seen."""
        began, closed = self._began, self._closed
        if began is None:
            raise JournalUnusable("no run.began: not the whole journal of a run")
        if closed is None:
            raise JournalUnusable(
                "no run.closed: the run has not ended, or its launcher was killed"
            )
        hosts, nodes = began.hosts, closed.nodes
        names = [node.host for node in nodes]
        verdict = closed.verdict
        last = _last(closed.last_words)
        pids = {rank: one.pid for rank, one in self.ranks.items() if one.pid is not None}
        # in the order of time
        lines = verdict_text.left_out(self._excluded)
        lines += verdict_text.history(verdict, closed.attempt_errors)
        known = {hosts[node]: each for node, each in self._addresses.items()}
        lines += verdict_text.describe(
            verdict, nodes, pids, last, closed.advice.get, closed.errors, known,
            self.program_of, self._per_node,
        )  # fmt: skip
        lines += verdict_text.outcome(verdict)
        return Report(
            run_id=began.run_id,
            exit_code=verdict.exit_code,
            cause=None if verdict.ok else _cause(verdict, names, pids, last, closed.errors),
            verdict=(*lines, *closed.notes),
            began=began.at,
            seconds=closed.seconds,
            world_size=verdict.world_size,
            ranks=self._ranks(verdict, closed, hosts),
            spawned=tuple(
                SpawnedWorld(one.world, rank_name(one.by), tuple(hosts[node] for node in one.nodes))
                for one in self._spawned
            ),
            lost={names[node]: _failure(failure) for node, failure in verdict.lost.items()},
            unkillable={names[node]: pids for node, pids in verdict.unkillable.items()},
            stuck={names[node]: texts for node, texts in verdict.stuck.items()},
            attempts=tuple(_attempt(one, closed.attempt_errors) for one in verdict.attempts),
            left_out=dict(verdict.left_out),
            no_restart=verdict.no_restart,
            swept={names[node]: count for node, count in verdict.swept.items()},
            excluded=began.excluded,
            mpi={
                hosts[node]: MpiLibrary(one.library, one.served) for node, one in self._mpi.items()
            },
            nccl={hosts[node]: one for node, one in closed.nccl.items()},
            log_dir=self._folder,
            errors=tuple(
                RanksSaid(tuple(map(rank_name, one.ranks)), one.text, one.place, one.is_echo)
                for one in closed.errors
                if one.text
            ),
            before=tuple(map(rank_name, verdict.before)),
            ended={rank_name(rank): signal_name(sent) for rank, sent in verdict.ended.items()},
            may_run_on=dict(verdict.may_run_on),
            name=began.job_name,
        )

    def _ranks(
        self, verdict: verdicts.Verdict, closed: mon.RunClosed, hosts: Sequence[str]
    ) -> tuple[RankEnding, ...]:
        started = {rank: one for rank, one in self.ranks.items() if one.pid is not None}
        times = {rank: (one.pid, one.began, one.ended) for rank, one in started.items()}
        seated = {rank: node.host for node in closed.nodes for rank in node.ranks}
        seated.update((rank, hosts[one.node]) for rank, one in started.items())
        written = {rank: (out, err) for rank, out, err in closed.written}
        endings = []
        for rank, host in sorted(seated.items()):
            pid, began, ended = times.get(rank, (None, None, None))
            endings.append(RankEnding(
                rank_name(rank), host, pid, verdict.statuses.get(rank),
                *written.get(rank, (0, 0)), began, ended, self.program_of(rank) or None,
            ))  # fmt: skip
        return tuple(endings)


def replay(journal: Path) -> Report:
    """Make the report of a run again from its journal; it equals the run's own report.

    Raises: DispatchError, with the file and its line, if that is not the whole journal of a run.
    """
    from dispatcher.output.files.journal import read  # a run that reports reads none

    fold = Fold(journal.parent)
    for entry in read(journal):
        if fold.seq and entry.seq != fold.seq + 1:  # the disk was full for a while
            raise JournalUnusable(f"{journal}: event {fold.seq + 1} is missing")
        fold.event(entry)
        if isinstance(entry.event, mon.RunBegan) and entry.event.version > mon.VERSION:
            raise JournalUnusable(f"{journal}: of version {entry.event.version}, not {mon.VERSION}")
    try:
        return fold.report()
    except DispatchError as error:
        raise JournalUnusable(f"{journal}: {error.message}") from None
    except (LookupError, OverflowError) as error:  # numbers that fit no host or rank
        raise JournalUnusable(f"{journal}: its events do not fit together: {error}") from None


def _last(known: mon.LastWords | None) -> verdict_text.Last:
    """The last lines of the ranks in ``known``, which are equal for all of them."""

    def last(rank: int) -> tuple[str, list[str]]:
        if known is None or rank not in known.ranks:
            return "stderr", []
        return known.stream, list(known.lines)

    return last


def _cause(
    verdict: verdicts.Verdict,
    names: Sequence[str],
    pids: Mapping[int, int],
    last: verdict_text.Last,
    errors: Sequence[mon.RankError],
) -> FirstFailure:
    cause = verdict.cause
    assert cause is not None
    facts = dict(vars(cause))
    if isinstance(cause, verdicts.Hung):
        facts["groups"] = [group.plain() for group in cause.groups]
        facts["collective"] = None if cause.collective is None else cause.collective.plain()
        for key in ("signals", "nccl"):
            facts[key] = [
                {"name": one.name, "ranks": [rank_name(rank) for rank in one.ranks]}
                for one in facts[key]
            ]
        if cause.rank is None:
            del facts["rank"], facts["node"]
    if isinstance(cause, verdicts.LeftMpi):
        for key in ("ranks", "waiting"):
            facts[key] = [rank_name(rank) for rank in facts[key]]
    if isinstance(cause, verdicts.NodeFailed):
        facts["failure"] = fields_of(_failure(cause.failure))
    if isinstance(cause, verdicts.Rejected):
        facts["failures"] = {names[at]: fields_of(_failure(f)) for at, f in cause.failures.items()}
        facts["problems"] = {names[at]: sorted(what) for at, what in cause.problems.items()}
    rank = None if "rank" not in facts else rank_name(facts["rank"])
    if rank is not None and facts["rank"] >= FIRST:
        facts["rank"] = rank
    host = names[facts.pop("node")] if "node" in facts else None
    if host is not None:
        facts["host"] = host
    said: Sequence[str] = ()
    if isinstance(cause, (verdicts.RankFailed, verdicts.MpiAborted)):
        said = last(cause.rank)[1]
        own = verdict_text.own_error(cause, errors) or mon.RankError((), "")
        facts |= {
            "pid": pids.get(cause.rank), "last_lines": list(said),
            "error": None if cause.error is None else vars(cause.error),
            "last_error": own.text or None, "place": own.place or None, "remedy": own.hint or None,
        }  # fmt: skip
    if isinstance(cause, verdicts.RankFailed):
        facts["same"] = verdict_text.alike(cause, verdict, last, errors)
    if isinstance(cause, verdicts.Impossible):
        del facts["code"]  # it is the message code
    kind = type(cause).__name__
    return FirstFailure(kind, rank, host, tuple(said), facts, cause.message_code)


def _attempt(one: verdicts.Attempt, errors: Mapping[int, str]) -> FailedAttempt:
    kind, code = type(one.cause).__name__, one.cause.exit_code
    what = verdict_text.attempt_line(one, errors)
    return FailedAttempt(one.restart, one.started, one.world_size, one.names, kind, what, code)


def _plain(cause: FirstFailure) -> dict[str, Any]:
    return {"kind": cause.kind, "message_code": cause.message_code, **cause.facts}


def _failure(failure: Failure) -> HostFailure:
    return HostFailure(failure.kind.value, failure.why, failure.hint, failure.kind.code)


#: items of a list beyond which each of them is one line: with indentation json is ten times as
#: slow, and a run may have 80,000 ranks
MOST_INDENTED = 1000


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write ``value`` to the new file ``path``, mode 0600, or leave none. Raises: OSError."""
    fd = create_file(path)
    try:
        for piece in _indented(value):
            write_all(fd, piece.encode())
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _indented(value: Mapping[str, Any]) -> Iterator[str]:
    """``value`` as JSON for people, in pieces."""
    if not value:
        yield "{}\n"
        return
    before = "{\n"
    for key, item in value.items():
        yield f"{before}  {json.dumps(key)}: "
        if isinstance(item, (list, tuple)) and len(item) > MOST_INDENTED:
            yield "[\n    " + ",\n    ".join(map(json.dumps, item)) + "\n  ]"
        else:
            # texts have their line ends as \\n
            yield json.dumps(item, indent=2).replace("\n", "\n  ")
        before = ",\n"
    yield "\n}\n"
