"""Formats that dispatch writes for programs as dictionaries; all others are a ``frozen.Document``.

Each class that exists when a run starts makes the start slower, so only type checkers and tests
import this file. ``scripts/schemas.py`` makes schemas of these classes, too.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

# -- a run ------------------------------------------------------------------------------


class PlannedNode(TypedDict):
    """A host of a plan, and its ranks.

    index: its number. user, port: where to log in, if that is not as usual. origin: where it was
    named, such as hostfile:3. slots: names of the GPUs, or numbers; null if they are counted at the
    start. environment: variables of the ranks on this host alone.
    """

    index: int
    host: str
    user: str | None
    port: int | None
    origin: str
    slots: list[str] | None
    ranks: list[int]
    environment: dict[str, str]


class Spare(TypedDict):
    """A host that waits until another is lost. slots: as for a node."""

    host: str
    slots: list[str] | None


class PlannedRank(TypedDict):
    """The program of one rank. argv: program and arguments. environment: beside ``exports``."""

    rank: int
    host: str
    local_rank: int
    argv: list[str]
    environment: dict[str, str]


class PlannedPart(TypedDict):
    """One of several programs. ranks: its own. cwd: their folder. argv: program and arguments."""

    name: str
    ranks: list[int]
    cwd: str
    argv: list[str]


class _Plan(TypedDict):
    schema: Literal["plan/1"]
    run_id: str
    name: str | None
    world_size: int | None
    cwd: str
    nodes: list[PlannedNode]
    spares: list[Spare]
    exports: dict[str, str]
    ranks: list[PlannedRank]
    limits: dict[str, Any]
    restarts: dict[str, Any]
    bind_to: Literal["auto", "none", "core", "socket", "numa", "gpu"]
    mem_bind: Literal["none", "local"]
    notices: list[str]


class Plan(_Plan, total=False):
    """The ranks and their hosts: plan.json, and ``dispatch --dry-run --json``. Secrets are hidden.

    world_size: null while GPUs have yet to be counted; ranks is empty then. cwd: the folder of the
    ranks. exports: variables that all ranks get. limits, restarts: seconds and numbers, as options
    set them. bind_to, mem_bind: as options set them; hosts report CPUs only when asked. notices:
    notes for the user. parents: with ``--fanout-tree``, host -> the host that leads to it. parts:
    the programs, if there are several. name: of the job (--name).
    """

    parents: dict[str, str]
    parts: list[PlannedPart]


class StackFrame(TypedDict):
    """A function, and its place in a file. line: 0 if unknown."""

    function: str
    file: str
    line: int


class StackGroup(TypedDict):
    """Ranks that are in the same place.

    how: the tool that found it: py-spy, faulthandler or proc. state: a letter of proc(5). frames:
    innermost first. odd: whether the others are elsewhere, and wait, or are far more. place: the
    most telling frame, as text. native: the innermost C function with a useful name, or "".
    """

    ranks: list[str]
    how: str
    state: str
    frames: list[StackFrame]
    odd: bool
    place: str
    native: str


class NamedRanks(TypedDict):
    """Ranks, and the name of their call or of the source that names them."""

    name: str
    ranks: list[str]


class HungCollective(TypedDict):
    """A collective that does not end, as torch's flight recorders have it.

    group: the process group. sequence: the call's number in the group. name: the operation, with
    its tensors. entered: ranks that are in it. missing: ranks that have not called it. unknown:
    ranks without a recording. differing: ranks that called something else.
    """

    group: str
    sequence: int
    name: str
    entered: list[str]
    missing: list[str]
    unknown: list[str]
    differing: list[NamedRanks]


class _Cause(TypedDict):
    kind: str
    message_code: str


class Cause(_Cause, total=False):
    """The reason why a run ended. Which fields there are depends on ``kind``.

    kind: RankFailed, MpiAborted, LeftMpi, RankNotStarted, NodeFailed, Rejected,
    Impossible, OutputLost, Hung, TimeUp or Interrupted. message_code: its code for ``dispatch
    explain``. rank, host, pid: where; a rank that was spawned is a text, 1.0. status: exit code,
    or -n for signal n. error: the rank's error file, with message and traceback.
    last_lines: its last output. last_error: the line of its output that gives the reason; place:
    its place in the user's code, train.py:33; remedy: a remedy for it. same: other ranks that
    failed in the same way. hint: a remedy, or facts from its host. code, text: of MPI_Abort. never:
    whether MPI was never begun. ranks, waiting: ranks that left MPI, and ranks that wait.
    errno, step, what: why a program could not be started. failure, failures: of a host, and by
    host. problems: by host, reasons against it. exit_code: of dispatch. message: why the plan is
    impossible. received, sent: bytes. seconds: of the hang, or of the time limit. groups: places of
    the ranks. collective: the collective that they hang in. signals: evidence about ranks that hold
    the others back, strongest first. signum: the signal that dispatch got; by: the command that
    ended the job.
    """

    rank: int | str
    host: str
    pid: int | None
    status: int
    error: dict[str, Any] | None
    last_lines: list[str]
    last_error: str | None
    place: str | None
    remedy: str | None
    same: list[int]
    hint: str | None
    code: int
    text: str
    never: bool
    ranks: list[str]
    waiting: list[str]
    errno: int
    step: str
    what: str
    failure: dict[str, Any]
    failures: dict[str, dict[str, Any]]
    problems: dict[str, list[str]]
    exit_code: int
    message: str
    received: int
    sent: int
    seconds: float
    groups: list[StackGroup]
    collective: HungCollective | None
    signals: list[NamedRanks]
    nccl: list[NamedRanks]
    writing: bool
    signum: int
    by: str


class Report(TypedDict):
    """How a run ended: report.json. Hosts are named, ranks are numbered: 3, or 1.0 if spawned.

    ok: whether every planned rank exited with 0. cause: the reason of the end; null if it went as
    planned. statuses: rank -> exit code, or -n for signal n.
    """

    schema: Literal["report/1"]
    ok: bool
    cause: Cause | None
    statuses: dict[str, int]


# -- commands on hosts ------------------------------------------------------------------


class Deed(TypedDict):
    """A host, and the planned action on it. user, port: if they are not as usual."""

    host: str
    user: str | None
    port: int | None
    does: str


class _DryRun(TypedDict):
    schema: Literal["dry-run/1"]
    command: str
    hosts: list[Deed]
    parents: dict[str, str]


class DryRun(_DryRun, total=False):
    """A command's planned actions: its ``--dry-run --json``, except for run, which shows its plan.

    parents: with ``--fanout-tree``, host -> the host that leads to it. batches: of commands
    that run or copy on every host, how many hosts each batch has, in the order of hosts. at_once:
    of the same, how many are at work at most. delay: seconds between batches. max_fail: how many
    failures stop new starts, null for never.
    """

    batches: list[int]
    at_once: int
    delay: float
    max_fail: int | None


class HostOutcome(TypedDict):
    """The result on one host.

    index: its number in the list. ok: whether all went well. outcome: exited, killed, failed,
    timeout, interrupted, not started or not copied. code: the exit code of the command. signal:
    the signal that ended it, such as KILL. kind: why the host could not be used, as text.
    message_code: the code of that for ``dispatch explain``. words: all of it, for the user.
    """

    host: str
    index: int
    ok: bool
    outcome: str
    code: int | None
    signal: str | None
    kind: str | None
    message_code: str | None
    words: str


class _Exec(HostOutcome):
    schema: Literal["exec/1"]
    seconds: float


class Exec(_Exec, total=False):
    """A line of ``dispatch exec --json``: one host, when all have ended.

    seconds: from the start of dispatch until the host was done. stdout, stderr: the command's
    output; stdout_base64, stderr_base64 in their place if it is not UTF-8; stdout_dropped,
    stderr_dropped: bytes that were too many to be kept.
    """

    stdout: str
    stderr: str
    stdout_base64: str
    stderr_base64: str
    stdout_dropped: int
    stderr_dropped: int


class Copied(HostOutcome):
    """A line of ``dispatch put --json`` and ``get --json``: one host, when all have ended.

    files: how many were copied, null if that is not known; equal: how many were the same already.
    bytes: that were copied. left_out: files that were not copied, and why.
    """

    schema: Literal["copy/1"]
    files: int | None
    equal: int
    bytes: int
    left_out: list[str]


# -- jobs -------------------------------------------------------------------------------


class Gathered(TypedDict):
    """Where ranks are. hosts: rank -> its host. late: hosts that did not answer in time.

    collective: one that some ranks wait in and others have not called; null where none is known.
    """

    groups: list[StackGroup]
    hosts: dict[str, str]
    late: list[str]
    collective: HungCollective | None


class Stacks(Gathered):
    """``dispatch stacks --json``: where the ranks of a job are.

    hosts: rank -> its host. late: hosts that did not answer in time. collective: a collective that
    some ranks wait in and others have not called; null if unknown. file: the whole stacks, as
    readable text; null if there is no file.
    """

    schema: Literal["stacks/1"]
    run_id: str
    file: str | None
