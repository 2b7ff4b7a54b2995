"""Pictures of a run for people and programs: its progress, and a table of its ranks.

Both are values, made from a ``RunState``, also for another process.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dispatcher.model.frozen import Document, Value, fields_of, value
from dispatcher.model.names import duration
from dispatcher.output.run_state import CHECKED, STATES, Rank, RunState
from dispatcher.output.text.lines import wiped_bar
from dispatcher.output.text.sanitize import cell, sanitize, sanitize_text
from dispatcher.plan.job.placement import rank_name

#: characters of the last progress that are shown
MOST_REACHED = 40
#: letter of proc(5) -> word
_WORDS = {
    "R": "runs", "S": "sleeps", "D": "in disk wait", "T": "stopped", "t": "traced",
    "Z": "zombie", "I": "idle",
}  # fmt: skip


@value
class Picture(Value):
    """A run's progress at one moment. hosts: state -> count; pending: hosts not checked yet.

    ranks: ``running``, ``done``, ``failed`` and ``lost`` -> count. silent: ranks that were
    reported as stalled and have written nothing since; silent_for: the seconds of that
    report. idle: those of them that use no CPU. ``reached`` is the last find of
    ``--progress-line``, and ``left`` the seconds until all is done, if that line shows it.
    """

    hosts: Mapping[int, int]
    pending: tuple[int, ...]
    ranks: Mapping[str, int]
    lines: int
    seconds: float
    since_line: float | None
    silent: tuple[int, ...] = ()
    silent_for: float = 0.0
    stopping: str | None = None
    idle: tuple[int, ...] = ()
    reached: str = ""
    left: float | None = None

    def __post_init__(self) -> None:
        if not self.hosts.keys() <= set(range(len(STATES))):
            raise ValueError(f"no states of hosts: {sorted(self.hosts)}")


def picture_of(state: RunState) -> Picture:
    """The progress of a run now; from any thread."""
    with state.lock:
        return _picture(state)


def _picture(state: RunState) -> Picture:
    now, state.counts_lines = state.clock(), True
    silent = tuple(sorted(state.silent))
    return Picture(
        hosts=dict(Counter(state.nodes.values())),
        pending=tuple(node for node, one in state.nodes.items() if one < CHECKED),
        ranks=dict(+state.counts),
        lines=state.lines,
        seconds=now - state.began,
        since_line=None if state.last_line is None else now - state.last_line,
        silent=silent,
        silent_for=min(state.silent.values(), default=0.0),
        stopping=state.stopping,
        idle=tuple(rank for rank in silent if state.shares.is_idle(rank)),
        reached=state.reached,
        left=None if state.pace is None else state.pace.left(now),
    )


def progress_text(reached: str, left: float | None) -> str:
    """``step 120/1000, 5 min left``, harmless for a terminal and short."""
    text = cell(reached, MOST_REACHED)
    return text if left is None else f"{text}, {duration(round(left))} left"


def decode_picture(plain: Any) -> Picture | None:
    """The picture whose fields ``plain`` has, after JSON; None if it has others."""
    from dispatcher.core.events import codec  # the run itself does not need it

    try:
        return cast("Picture", codec.reader(Picture)(plain, "picture"))
    except ValueError:
        return None


@value
class TopRank(Value):
    """A rank. cpu: percent of one CPU. rss, gpu_memory: bytes. gpu_used: percent.

    silence: seconds since it was heard last. Unknown values are null.
    """

    rank: str
    host: str
    local_rank: int
    pid: int | None
    state: str
    alive: bool = False
    cpu: float | None = None
    rss: int | None = None
    gpu_used: float | None = None
    gpu_memory: float | None = None
    gpu_watts: float | None = None
    silence: float | None = None
    last_line: str = ""  # sanitized


@value
class Snapshot(Document):
    """``dispatch top --json``.

    late_gpus: hosts whose GPUs do not answer. slow: which ranks are slow, as text. ``progress`` is
    the last match of --progress-line, or "", and ``left`` the seconds until all is done, or null.
    """

    schema = "top/1"
    unwritten = ("picture",)
    picture: Picture
    ranks: tuple[TopRank, ...]
    late_gpus: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    progress: str = ""
    left: float | None = None

    def plain(self) -> dict[str, Any]:
        """As values of JSON, for ``of_plain``."""
        return {**fields_of(self), "picture": fields_of(self.picture)}

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Snapshot:
        """The snapshot that ``plain`` encoded, after JSON. Raises: ValueError for anything else."""
        from dispatcher.core.events import codec  # the run itself does not need it

        snapshot: Snapshot = codec.reader(Snapshot)(plain, "table")
        safe = (
            dataclasses.replace(row, last_line=sanitize_text(row.last_line))
            for row in snapshot.ranks
        )
        return dataclasses.replace(snapshot, ranks=tuple(safe))


def snapshot_of(state: RunState, slow: Sequence[str] = ()) -> Snapshot:
    """A run now, rank by rank; from any thread. slow: lines on slow ranks."""
    with state.lock:
        ranks = [_row(state, rank, known) for rank, known in sorted(state.ranks.items())]
        late = tuple(state.hosts[node] for node in sorted(state.late))
        picture = _picture(state)
        return Snapshot(picture, tuple(ranks), late, tuple(slow), picture.reached, picture.left)


def _row(state: RunState, rank: int, known: Rank) -> TopRank:
    sample, gpu = known.sample, None
    if sample is not None and sample.own:
        gpu = state.gpus.get(known.node, {}).get(sample.own[0])
    return TopRank(
        rank_name(rank), state.hosts[known.node], known.local, known.pid, _word(known), known.alive,
        cpu=state.shares.of.get(rank),
        rss=None if sample is None else sample.rss,
        gpu_used=None if gpu is None else gpu.utilisation,
        gpu_memory=None if gpu is None else gpu.used,
        gpu_watts=None if gpu is None else gpu.watts,
        silence=state.clock() - known.wrote if known.alive else None,
        last_line=_last_line(state.tails.get(rank, (0, b""))[1]),
    )  # fmt: skip


def _word(known: Rank) -> str:
    """The state of a rank for the table: ``sleeps``, ``exit 3``, ``signal 9``, ..."""
    if known.alive:
        sample = known.sample
        return "starts" if sample is None else _WORDS.get(sample.state, sample.state)
    if known.state != "failed":
        return known.state
    if known.status is None:
        return "not started"
    return f"signal {-known.status}" if known.status < 0 else f"exit {known.status}"


def _last_line(tail: bytes) -> str:
    """The last line in ``tail``, or the last state of a line that rewrites itself; sanitized."""
    text = tail.rstrip(b"\r\n \t")
    line = text[max(text.rfind(b"\n"), text.rfind(b"\r")) + 1 :]
    return sanitize(wiped_bar(line.partition(b"\x1b[A")[0])).decode()
