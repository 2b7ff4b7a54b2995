"""The causes that end a job, its attempts with their causes, and the verdict on the run."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from dispatcher.model import errors
from dispatcher.model.failure import Failure
from dispatcher.model.frozen import OneOf, Value, value
from dispatcher.model.hostset import fold

if TYPE_CHECKING:
    from dispatcher.core.events.collectives import Collective
    from dispatcher.core.events.stack_frames import Group


#: characters that are kept of each part of an error file
MESSAGE_LIMIT = 2048

TRACEBACK_LIMIT = 16384


@value
class ErrorFile(Value):
    """A rank's own report of its failure.

    ``message`` in one line, ``traceback`` in many; either may be "".
    """

    message: str
    traceback: str = ""


def read_error_file(data: bytes) -> ErrorFile | None:
    """Read the content of a rank's TORCHELASTIC_ERROR_FILE; None if it is empty.

    ``torch.distributed.elastic.multiprocessing.errors.record`` writes it as JSON::

        {"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback ...",
                                                                "timestamp": "1700000000"}}}

    The bytes come from a rank and are only data.
    """
    if not data.strip():
        return None
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return ErrorFile("its error file is not JSON, or too long")
    message = content.get("message") if isinstance(content, dict) else None
    traceback: object = ""
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        traceback = extra.get("py_callstack") if isinstance(extra, dict) else ""
        message = message.get("message")
    if not isinstance(message, str):
        return ErrorFile("its error file has no message")
    lines = message.strip().splitlines() or [""]
    text = traceback if isinstance(traceback, str) else ""
    return ErrorFile(lines[0][:MESSAGE_LIMIT], text.strip()[-TRACEBACK_LIMIT:])


class _Cause(OneOf):
    """Base of the causes that end an attempt."""

    @property
    def _is(self) -> tuple[int, str, str | None]:
        """The three values that follow."""
        raise NotImplementedError

    @property
    def exit_code(self) -> int:
        """The exit code of dispatch; docs/reference/exit-codes.md has the table."""
        return self._is[0]

    @property
    def message_code(self) -> str:
        """The code of its message, see ``model.messages``."""
        return self._is[1]

    @property
    def no_restart(self) -> str | None:
        """Why the ranks are not started again after it; None where they may be.

        An interrupt is the user's wish. Other causes would fail again in the same way, or need a
        person.
        """
        return self._is[2]


def _asks_for_none(how: str, code: int) -> str | None:
    return f"{how} asks for none" if code == errors.NO_RESTART else None


@value
class RankFailed(_Cause):
    """A rank ended with a status other than 0 (exit code, or -n for signal n).

    error, hint: see ``run_events.RankExited``.
    """

    node: int
    rank: int
    status: int
    error: ErrorFile | None = None
    hint: str = ""

    @property
    def _is(self) -> tuple[int, str, str | None]:
        how = "rank-failed" if self.status >= 0 else "rank-killed"
        asks = _asks_for_none(f"exit code {self.status}", self.status)
        return errors.from_status(self.status), how, asks


@value
class MpiAborted(_Cause):
    """A rank called MPI_Abort with ``code``; error: see ``run_events.RankExited``."""

    node: int
    rank: int
    code: int
    text: str = ""
    error: ErrorFile | None = None

    @property
    def _is(self) -> tuple[int, str, str | None]:
        asks = _asks_for_none(f"MPI_Abort({self.code})", self.code)
        return self.code or 1, "mpi-aborted", asks  # an abort is never a success


@value
class LeftMpi(_Cause):
    """A rank exited with 0 half-way: before MPI_Init (``never``), or without MPI_Finalize.

    ranks: all that did so, ``rank`` the first of them. waiting: ranks that are left in MPI.
    """

    node: int
    rank: int
    never: bool
    ranks: tuple[int, ...]
    waiting: tuple[int, ...] = ()

    _is = (1, "mpi-left-early", None)  # 1 as mpirun's, of a process "exiting improperly"


@value
class RankNotStarted(_Cause):
    """A rank's program could not be executed on its host."""

    node: int
    rank: int
    errno: int
    step: str
    what: str

    @property
    def _is(self) -> tuple[int, str, str | None]:
        again = "the program cannot be executed" if self.step == "exec" else None
        if (self.step, self.errno) == ("exec", errno.ENOENT):
            return errors.NOT_FOUND, "program-not-found", again
        return errors.NOT_EXECUTABLE, "program-not-executable", again


@value
class NodeFailed(_Cause):
    """A node was lost while its ranks ran."""

    node: int
    failure: Failure

    @property
    def _is(self) -> tuple[int, str, str | None]:
        return errors.CLUSTER, self.failure.kind.code, None


@value
class Rejected(_Cause):
    """Nothing was started: these nodes cannot be used; see ``rejection`` for the exit code.

    problems: node -> its agent's findings, as ``remote.host.host_facts.find_problems`` names them.
    """

    failures: Mapping[int, Failure]
    exit_code: int = errors.CLUSTER
    problems: Mapping[int, frozenset[str]] = field(default_factory=dict)

    _is = (errors.CLUSTER, "hosts-rejected", None)  # or the ``exit_code`` above


@value
class Impossible(_Cause):
    """Nothing was started: the plan does not fit what the hosts have.

    code: the error's code, such as ``no-gpu``.
    """

    message: str
    hint: str | None = None
    code: str = errors.PlanError.code

    @property
    def _is(self) -> tuple[int, str, str | None]:
        return errors.USAGE, self.code, "the hosts cannot hold it"


@value
class OutputLost(_Cause):
    """A stream arrived with another number of bytes than the agent sent."""

    node: int
    rank: int
    received: int
    sent: int

    _is = (errors.CLUSTER, "output-lost", "output was lost")


@value
class Signal(Value):
    """A source, ``name`` in ``hang_rule``, by which ``ranks`` hold the others back."""

    name: str
    ranks: tuple[int, ...]


@value
class Hung(_Cause):
    """All ranks had been inactive for ``seconds`` when dispatch found it; groups: where they were.

    node, rank: the one rank that holds the others back, if there is only one. collective: the one
    in which the ranks hang. signals: sources that blame ranks, the best first. nccl: errors that
    NCCL reports, and states of communicators that are not ready, with their ranks. writing: ranks
    did write, but nothing else.
    """

    seconds: float
    groups: tuple[Group, ...] = ()
    node: int | None = None
    rank: int | None = None
    collective: Collective | None = None
    signals: tuple[Signal, ...] = ()
    nccl: tuple[Signal, ...] = ()
    writing: bool = False

    _is = (errors.TIME_LIMIT, "job-hung", None)


@value
class TimeUp(_Cause):
    """The run reached its time limit of ``seconds``."""

    seconds: float

    _is = (errors.TIME_LIMIT, "time-limit", "its time is up")


@value
class Interrupted(_Cause):
    """Signal ``signum`` to dispatch ended the job; by: the command that stands for it, or ""."""

    signum: int
    by: str = ""

    @property
    def _is(self) -> tuple[int, str, str | None]:
        code = "reader-left" if self.signum == signal.SIGPIPE else "interrupted"
        return errors.SIGNAL_BASE + self.signum, code, "it was interrupted"


@value
class RestartAsked(_Cause):
    """A person asked for a restart of the ranks: not a failure, and never the end of a run.

    words: the new program and arguments, () to keep the old ones. names: of variables with new
    values. Words that are called like secrets are left out.
    """

    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    _is = (errors.CLUSTER, "interrupted", None)


Cause = (
    RankFailed
    | MpiAborted
    | LeftMpi
    | RankNotStarted
    | NodeFailed
    | Rejected
    | Impossible
    | OutputLost
    | Hung
    | TimeUp
    | Interrupted
    | RestartAsked
)


@value
class CodeChange(Value):
    """Files of the program that are others than before ``restart``, on ``hosts``; (): on all."""

    names: tuple[str, ...]
    restart: int
    hosts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """``train.py changed between attempt 1 and attempt 2 on all hosts``."""
        more = f" and {len(self.names) - 4} more" if self.names[4:] else ""
        when = f"between attempt {self.restart} and attempt {self.restart + 1}"
        names, where = ", ".join(self.names[:4]), fold(self.hosts) or "all hosts"
        return f"{names}{more} changed {when} on {where}"


@value
class Attempt(Value):
    """One attempt to run the ranks that was not the last, and its cause.

    names: node -> host of that attempt's plan, which the nodes of ``cause`` refer to.
    restart: how often ranks had been started before it. started: whether its own were.
    """

    restart: int
    names: tuple[str, ...]
    world_size: int
    cause: Cause
    started: bool


@value
class Verdict(Value):
    """How the run ended, for the screen, the report and the exit code.

    statuses: rank -> exit code or -n, of every rank that was reaped.
    lost: node -> failure, of every node that could not be used to the end.
    unkillable: node -> pids that survived SIGKILL; stuck: where the first of them hang.
    swept: node -> processes that ranks left behind and that had to be killed.
    attempts: those before the last one, in order; all else here is of the last.
    left_out: hosts by name that were not used to the end, and why.
    no_restart: why the ranks were not started again, where the user allowed that.
    before: ranks that had exited 0 when the cause was seen. ended: rank -> the last signal that
    dispatch had sent it when it ended, of those that ended after one. starts: how often ranks were
    started; 0 where that is not known. came: signals that dispatch got. sent: those that all ranks
    were sent at the end, and the seconds since the first of these. may_run_on: lost host -> seconds
    for which ranks may live on there. changed: the program's files that changed at a restart.
    """

    cause: Cause | None
    exit_code: int
    world_size: int
    statuses: Mapping[int, int] = field(default_factory=dict)
    lost: Mapping[int, Failure] = field(default_factory=dict)
    unkillable: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    stuck: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    swept: Mapping[int, int] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    no_restart: str | None = None
    before: tuple[int, ...] = ()
    ended: Mapping[int, int] = field(default_factory=dict)
    starts: int = 0
    came: tuple[int, ...] = ()
    sent: tuple[tuple[int, float], ...] = ()
    may_run_on: Mapping[str, float] = field(default_factory=dict)
    changed: tuple[CodeChange, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every planned rank ran and exited with 0."""
        return self.cause is None
