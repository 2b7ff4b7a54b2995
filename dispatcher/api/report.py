"""``Report``: how a run ended, as frozen values, and as the text of ``report.json``.

``Report``: how a run ended, as frozen values, and as the text of ``report.json``.

The facts are those of the verdict on the screen. Hosts stand by name, ranks by their
names as well: ``3``, or ``1.0`` for one that was spawned.

What became of every rank: a fold over the events, for the report.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from dispatcher.core.events.mpi_events import MpiFound, WorldPlaced
from dispatcher.core.events.run_events import RankExited, RankSpawned, RanksPlaced
from dispatcher.core.events.sink import Sink, Stamped
from dispatcher.core.events.verdicts import (
    Hung,
    LeftMpi,
    MpiAborted,
    MpisDiffer,
    RankFailed,
    Verdict,
)
from dispatcher.model.failure import Failure
from dispatcher.model.frozen import Value, value
from dispatcher.output.files.journal import create, write_all
from dispatcher.output.text import verdict_text as attempts
from dispatcher.output.text.verdict_text import Last, alike
from dispatcher.plan.job import placement
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.plan.job.reassignment import Exclusion
from dispatcher.remote.protocol.frames import STDERR, STDOUT

TYPE_CHECKING = False

if TYPE_CHECKING:
    from dispatcher.checks.nccl.nccl_log import Said
    from dispatcher.core.events.stack_frames import Group


@value
class HostFailure(Value):
    """Why a host could not be used: ``kind`` is one word (``unreachable``, ``lost``, ...)."""

    kind: str
    why: str
    hint: str | None = None


@value
class FirstFailure(Value):
    """What ended the run.

    kind: RankFailed, MpiAborted, LeftMpi, MpisDiffer, RankNotStarted, NodeFailed, Rejected,
    Impossible, OutputLost, Hung or Interrupted. rank, host: where, as far as it was at one
    place. last_lines: what that rank said last. facts: all that ``report.json`` has of it.
    """

    kind: str
    rank: str | None = None
    host: str | None = None
    last_lines: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)


@value
class RankEnding(Value):
    """One rank: exit code or -n for signal n, None if it was not seen to end.

    stdout, stderr: bytes that came. began, ended: seconds since the run began.
    """

    rank: str
    host: str
    pid: int | None
    status: int | None
    stdout: int
    stderr: int
    began: float | None
    ended: float | None


@value
class SpawnedWorld(Value):
    """Ranks that rank ``by`` spawned over MPI, and on which hosts."""

    world: int
    by: str
    hosts: tuple[str, ...]


@value
class MpiLibrary(Value):
    """The MPI ``library`` (a path, or "") that a host's ranks use, and what ``served`` it."""

    library: str
    served: str


@value
class NcclNetwork(Value):
    """The network ``net`` that NCCL said it uses, on which ``devices``, and its version if told."""

    net: str
    devices: tuple[str, ...]
    version: str


@value
class FailedAttempt(Value):
    """An attempt to run the ranks before the last one; started: whether ranks were."""

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

    exit_code: as dispatch's own. verdict: what dispatch says at the end, [] for a run that
    went as planned. began: seconds since 1970. seconds: how long it took. ranks: of the last
    attempt, with those that were spawned. lost: hosts that could not be used to the end.
    unkillable: pids that survived SIGKILL, by host; stuck: where they hang. swept: processes
    left behind by ranks, and killed. left_out: hosts not used any more, and why. no_restart:
    why there was no further attempt. mpi: which one, by host. nccl: what it said
    of its network, by host. log_dir: of the run's files.
    """

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
    nccl: Mapping[str, NcclNetwork] = field(default_factory=dict)
    log_dir: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether every planned rank ran and exited with 0."""
        return self.cause is None

    @property
    def statuses(self) -> dict[str, int]:
        """Rank -> exit code or -n, of every rank that was seen to end."""
        return {one.rank: one.status for one in self.ranks if one.status is not None}

    def plain(self) -> dict[str, Any]:
        """The value of ``report.json``."""
        told = {name: value for name, value in asdict(self).items() if name != "log_dir"}
        cause = self.cause
        return {
            **told,
            "ok": self.ok,
            "cause": None if cause is None else {"kind": cause.kind, **cause.facts},
            "statuses": self.statuses,
            "seconds": round(self.seconds, 3),
        }


def report(
    verdict: Verdict,
    plan: JobPlan,
    lines: Iterable[str],
    began: float,
    seconds: float,
    endings: Endings,
    last: Last,
    hosts: Sequence[str],
    excluded: Sequence[Exclusion] = (),
    folder: Path | None = None,
    nccl: Mapping[int, Said] | None = None,
) -> Report:
    """The report on ``verdict``, which is ``lines`` in words.

    endings: of the ranks, and the worlds they spawned. last: see ``describe``. hosts: name of
    each host by its number in events. excluded: hosts that were left out before. folder: of
    its files. nccl: what it said, by the number of the host.
    """
    names = [node.host.name for node in plan.nodes]
    return Report(
        run_id=plan.run_id,
        exit_code=verdict.exit_code,
        cause=None if verdict.ok else _cause(verdict, names, endings, last),
        verdict=tuple(lines),
        began=began,
        seconds=seconds,
        world_size=verdict.world_size,
        ranks=_ranks(verdict, plan, endings, hosts),
        spawned=tuple(
            SpawnedWorld(
                one.world, placement.name(one.by), tuple(hosts[node] for node in one.nodes)
            )
            for one in endings.spawned
        ),
        lost={names[node]: _failure(failure) for node, failure in verdict.lost.items()},
        unkillable={names[node]: pids for node, pids in verdict.unkillable.items()},
        stuck={names[node]: texts for node, texts in verdict.stuck.items()},
        attempts=tuple(
            FailedAttempt(**{**one, "hosts": tuple(one["hosts"])})
            for one in attempts.record(verdict)["attempts"]
        ),
        left_out=dict(verdict.left_out),
        no_restart=verdict.no_restart,
        swept={names[node]: count for node, count in verdict.swept.items()},
        excluded=tuple(excluded),
        mpi={hosts[node]: MpiLibrary(one.library, one.served) for node, one in endings.mpi.items()},
        nccl={
            hosts[node]: NcclNetwork(one.net, one.devices, one.version)
            for node, one in (nccl or {}).items()
        },
        log_dir=folder,
    )


def _cause(verdict: Verdict, names: Sequence[str], endings: Endings, last: Last) -> FirstFailure:
    cause = verdict.cause
    facts = dict(vars(cause))
    if isinstance(cause, Hung):
        facts["groups"] = [_group(group) for group in cause.groups]
        if cause.rank is None:
            del facts["rank"], facts["node"]
    if isinstance(cause, MpisDiffer):
        facts["used"] = [vars(one) for one in cause.used]
    if isinstance(cause, LeftMpi):
        facts["ranks"], facts["waiting"] = (
            [placement.name(rank) for rank in ranks] for ranks in (cause.ranks, cause.waiting)
        )
    if "failure" in facts:
        facts["failure"] = asdict(_failure(facts["failure"]))
    if "failures" in facts:
        facts["failures"] = {
            names[node]: asdict(_failure(one)) for node, one in facts["failures"].items()
        }
    if "problems" in facts:
        facts["problems"] = {names[node]: sorted(what) for node, what in facts["problems"].items()}
    rank = None if "rank" not in facts else placement.name(facts["rank"])
    if rank is not None and facts["rank"] >= placement.FIRST:
        facts["rank"] = rank
    host = names[facts.pop("node")] if "node" in facts else None
    if host is not None:
        facts["host"] = host
    said: Sequence[str] = ()
    if isinstance(cause, (RankFailed, MpiAborted)):
        said = last(cause.rank)[1]
        facts["pid"] = endings.pids.get(cause.rank)
        facts["error"] = None if cause.error is None else vars(cause.error)
        facts["last_lines"] = list(said)
    if isinstance(cause, RankFailed):
        facts["same"] = alike(cause, verdict.statuses, last)
    return FirstFailure(type(cause).__name__, rank, host, tuple(said), facts)


def _ranks(
    verdict: Verdict, plan: JobPlan, endings: Endings, hosts: Sequence[str]
) -> tuple[RankEnding, ...]:
    seated = {place.rank: plan.nodes[place.node].host.name for place in plan.ranks}
    seated.update((rank, hosts[node]) for rank, node in endings.nodes.items())
    return tuple(
        RankEnding(
            placement.name(rank),
            host,
            endings.pids.get(rank),
            verdict.statuses.get(rank),
            endings.sizes.get((rank, STDOUT), 0),
            endings.sizes.get((rank, STDERR), 0),
            endings.began.get(rank),
            endings.ended.get(rank),
        )
        for rank, host in sorted(seated.items())
    )


def _group(group: Group) -> dict[str, Any]:
    frames = [vars(frame) for frame in group.frames]
    ranks = [placement.name(rank) for rank in group.ranks]
    return {**vars(group), "ranks": ranks, "frames": frames, "place": group.place}


def _failure(failure: Failure) -> HostFailure:
    return HostFailure(failure.kind.value, failure.why, failure.hint)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to the new file ``path``, mode 0600. Raises: OSError."""
    fd = create(path)
    try:
        write_all(fd, (json.dumps(value, indent=2) + "\n").encode())
    finally:
        os.close(fd)


class Endings(Sink):
    """Of the ranks of the present attempt, by rank.

    pids: its process id. nodes: the number of its host. began, ended: seconds since the run
    began. sizes: (rank, stream) -> bytes that came. spawned: the worlds that ranks spawned.
    mpi: host -> which library its ranks use, and what serves it.
    """

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        self.nodes: dict[int, int] = {}
        self.began: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.sizes: dict[tuple[int, int], int] = {}
        self.spawned: list[WorldPlaced] = []
        self.mpi: dict[int, MpiFound] = {}

    def event(self, stamped: Stamped) -> None:
        match stamped.event:
            case RanksPlaced():  # of another attempt than what is known
                for known in (self.pids, self.nodes, self.began, self.ended, self.sizes):
                    known.clear()
                self.spawned.clear()
                self.mpi.clear()
            case RankSpawned(node, rank, pid):
                self.pids[rank], self.nodes[rank] = pid, node
                self.began[rank] = stamped.t
            case RankExited(_, rank):
                self.ended[rank] = stamped.t
            case WorldPlaced():
                self.spawned.append(stamped.event)
            case MpiFound(node):
                self.mpi[node] = stamped.event

    def output(self, rank: int, stream: int, data: bytes) -> None:
        key = (rank, stream)
        self.sizes[key] = self.sizes.get(key, 0) + len(data)
