"""The user's request: program, numbers, limits, restarts; checked alone, before the hosts are
looked at.

Numbers that arrive as text become numbers here (``parse_count``, ``parse_nproc``,
``parse_seconds``), by plain ASCII digits only. Whether the hosts can satisfy a request is
``job_plan``'s to decide; ``core.run`` acts on the limits. One file, because it is one
list of all that a request may hold, and of its contradictions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, field, replace
from typing import Literal, cast

from dispatcher.model import names
from dispatcher.model.arguments import Arguments
from dispatcher.model.errors import ConflictingOptions, MissingArgument, UsageError
from dispatcher.model.frozen import Value, value
from dispatcher.model.host import Hostlist
from dispatcher.model.names import BadName, digits, quoted
from dispatcher.plan.job import binding, parts, placement
from dispatcher.plan.job.binding import BindTo, MemBind
from dispatcher.plan.job.parts import Part as Part
from dispatcher.plan.job.parts import Program as Program

#: seconds between two attempts at most
LONGEST_DELAY = 60.0
#: an attempt that lived this many seconds is not part of a crash loop
LONG_LIFE = 300.0
#: attempts in a row without progress that end a run which shows its progress
MOST_FRUITLESS = 3


@value
class Restarts(Arguments):
    """The rules of starting again.

    most: restarts at most, TORCHELASTIC_MAX_RESTARTS. delay: seconds before the second restart in a
    row; the first comes at once, each later restart waits twice as long. min_nodes: hosts to go on
    with at least when others are lost; None: all are needed. max_host_failures: attempts that may
    end on one host before it is left out. progress_file: on host 0, changed by an attempt that came
    further. progress_line: a pattern that some line of such an attempt contains.
    """

    most: int = 0
    delay: float = 1.0
    min_nodes: int | None = None
    max_host_failures: int = 3
    progress_file: str | None = None
    progress_line: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.delay < 1e7:  # also refuses nan
            raise UsageError(f"--restart-delay: {self.delay} is not a sensible time")
        if self.progress_line is not None:
            try:
                re.compile(self.progress_line.encode("utf-8", "surrogateescape"))
            except re.error as error:
                raise UsageError(f"--progress-line: not a pattern: {error}") from None
        if self.progress_file is not None and (
            not self.progress_file or "\0" in self.progress_file
        ):
            raise UsageError("--progress-file: not a file name")

    @property
    def shows_progress(self) -> bool:
        """Whether the user set a sign of progress, a file or a pattern."""
        return self.progress_file is not None or self.progress_line is not None

    def pause(self, in_a_row: int) -> float:
        """Seconds before the next start after ``in_a_row`` (>= 1) attempts that came to nothing."""
        if in_a_row <= 1:
            return 0.0
        return float(min(LONGEST_DELAY, self.delay * 2.0 ** min(in_a_row - 2, 30)))


Nproc = int | Literal["auto", "gpu"]
Stdin = int | Literal["none", "all"]
SignalTo = Literal["auto", "rank", "all"]

LONGEST = 10**7  # seconds; four months
#: seconds for which a network may be away, however often hosts give a heartbeat
LEAST_UNREACHABLE = 3.0
#: limits of which 0 says never, nothing or at once
MAY_BE_ZERO = frozenset(
    ("unreachable", "grace", "lifeline_grace", "hang_timeout", "time_limit")
    + ("warn_signal", "stop_signal")
)
SHORTEST_HANG = 1.0  # seconds


@value
class Limits(Arguments):
    """Every duration in seconds that a run waits, the signals for ranks at its end, and how many
    links open at once.
    """

    connect_timeout: float = 10.0  # name, TCP, key exchange and login of one host together
    boot_timeout: float = 30.0  # from command sent to the agent's hello
    heartbeat: float = 5.0  # between two beats of an agent
    heartbeat_rate: float = 400.0  # most beats a second of all hosts together; see ``for_hosts``
    max_missed_heartbeats: int = 3  # missing beats that make a host lost
    unreachable: float = 0.0  # silence of its kernel that makes a host lost; 0: by ``heartbeat``
    lease: float = 30.0  # an agent without its master kills its ranks after this
    grace: float = 10.0  # TERM to KILL
    lifeline_grace: float = 1.0  # TERM to KILL when the master is gone
    mpi_stall_warning: float = 30.0  # ranks that others wait for in MPI are named after this
    hang_timeout: float = 0.0  # ranks without activity are ended after this; 0 never
    time_limit: float = 0.0  # the run is ended after this; 0 never
    warn_signal: int = 0  # signal for ranks ``warn_before`` seconds before that; 0 for none
    warn_before: float = 60.0
    stop_signal: int = 0  # the first signal for ranks when they are ended; 0: see ``kill_steps``
    fanout: int = 64  # hosts being connected at once

    @property
    def silence(self) -> float:
        """Seconds from one heartbeat on after which a host is lost, if no other came.

        The first that is missed is due after one ``heartbeat``.
        """
        return self.heartbeat * (1 + self.max_missed_heartbeats)

    @property
    def kernel_silence(self) -> float:
        """Seconds without an answer of its kernel after which a host is lost, busy or not."""
        missed = self.heartbeat * self.max_missed_heartbeats
        return self.unreachable or max(LEAST_UNREACHABLE, missed)

    @property
    def silence_text(self) -> str:
        """Why a host is given up that was silent for so long."""
        return f"no heartbeat for {self.silence:.0f} s"

    def for_hosts(self, count: int) -> Limits:
        """These limits, with heartbeats as often as ``count`` hosts may give them.

        400 a second take a sixth of a core; of 10,000 hosts, which log in for a minute, beats every
        5 s cost as much as that (``scripts/simulate``). A lease outlives those that may be missing.
        """
        beat = count / self.heartbeat_rate
        if beat <= self.heartbeat:
            return self
        lease = max(self.lease, 2 * beat * self.max_missed_heartbeats)
        return replace(self, heartbeat=beat, lease=lease, unreachable=self.kernel_silence)

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            least = 1 if name in ("max_missed_heartbeats", "fanout") else 0
            positive = seconds > 0 or name in MAY_BE_ZERO
            if not (least <= seconds < LONGEST and positive):  # also refuses nan
                raise UsageError(f"{name}: {seconds} is not a sensible limit")
        if 0 < self.hang_timeout < SHORTEST_HANG:
            raise UsageError(
                f"hang_timeout: {self.hang_timeout:g} s: every job is silent for that long",
                hint="--hang-timeout 600",
            )
        missed = self.silence - self.heartbeat
        if self.lease * (1 + 1e-9) < missed:  # 3 x 0.2 is above 0.6
            raise UsageError(
                f"lease of {self.lease} s is shorter than {self.max_missed_heartbeats} heartbeats"
                f" of {self.heartbeat} s: ranks would be killed before their host is lost"
            )


@value
class JobSettings(Value):
    """Settings of a request that its plan takes over; most have the name of their option."""

    _: KW_ONLY
    name: str | None = None  # of the job, by which commands find it, too
    python: str = "python3"
    np: int | None = None
    nproc_per_node: Nproc | None = None
    map_by: str = "block"
    rank_by: Literal["slot", "node"] | None = None
    report_bindings: bool = False
    oversubscribe: bool = False
    devices: str = "auto"
    omp: int | Literal["auto", "keep"] = "auto"
    master_addr: str | None = None
    master_port: int | None = None
    iface: str | None = None
    mpi: Literal["auto", "pmi1", "none"] = "auto"
    pmi_port: bool = False
    stdin: Stdin = "none"
    limits: Limits = field(default_factory=Limits)
    signal_to: SignalTo = "auto"  # the first signal goes to the rank's own process, or to all of it
    restarts: Restarts = field(default_factory=Restarts)
    local_rank_arg: str | None = None  # a rank's first argument is this and =LOCAL_RANK
    wraps: tuple[str, ...] = ()  # RANKS:COMMAND, words before the program of these ranks
    per_node: bool = False  # one process a node; its words have placeholders, see ``per_node``
    bind_to: BindTo = "auto"
    mem_bind: MemBind = "none"
    near_hca: bool = False  # NCCL_IB_HCA of each rank names what is near to its GPU
    allow_different_code: bool = False  # hosts may have other scripts and packages than others


@value
class Request(Arguments, JobSettings):
    """Everything the flags say, not yet judged against the hosts.

    environ: of the login node. exports: values of ``-x``. env_files, rankfile: source and text.
    user, port: of hosts that name none. parts: the programs, if there are several; program: the
    first of them.
    """

    hosts: Hostlist
    program: Program
    cwd: str
    _: KW_ONLY
    nnodes: int | None = None
    include: str | None = None
    exclude: str | None = None
    rankfile: tuple[str, bytes | str] | None = None
    user: str | None = None
    port: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    exports: tuple[str, ...] = ()
    env_files: tuple[tuple[str, bytes | str], ...] = ()
    spares: int | None = None
    parts: tuple[Part, ...] = ()

    @property
    def places(self) -> tuple[placement.Placed, ...]:
        """The place of each rank by the rankfile, () without one. Raises: UsageError."""
        if self.rankfile is None:
            return ()
        source, text = self.rankfile
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        return placement.parse_rankfile(text, source)


def parse_nproc(text: str, flag: str = "--nproc-per-node") -> Nproc:
    """The value of ``--nproc-per-node``: ``auto``, ``gpu``, or a number. Raises: UsageError."""
    if text in ("auto", "gpu"):
        return cast("Nproc", text)
    return _number(text, flag, 1, "a number, gpu or auto")


def parse_stdin(text: str, flag: str = "--stdin") -> Stdin:
    """The value of ``--stdin``: ``none``, ``all``, or a rank. Raises: UsageError."""
    if text in ("none", "all"):
        return cast("Stdin", text)
    return _number(text, flag, 0, "none, all or the number of a rank")


def _number(text: str, flag: str, low: int, takes: str) -> int:
    try:
        return digits(text, flag, low, names.MOST_RANKS - 1 + low)
    except BadName as bad:
        raise UsageError(bad.message, hint=f"{flag} takes {takes}") from None


#: seconds of each part of a time with colons, from the right
_SIXTIES = (1, 60, 3600)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WITH_UNIT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", re.ASCII)


def parse_seconds(text: str, flag: str) -> float:
    """The value of a duration ``flag``, in seconds. Raises: UsageError."""
    try:
        value = float(text) if text.isascii() and "_" not in text else float("nan")
    except ValueError:
        value = float("nan")
    if not 0 <= value < LONGEST:
        number = _WITH_UNIT.fullmatch(text)
        seconds = float(number[1]) * _UNITS[number[2]] if number else 10
        hint = f"{flag} {seconds:.15g}" if seconds < LONGEST else None
        raise UsageError(f"{flag}: not a number of seconds: {text!r}", hint=hint)
    return value


def parse_time(text: str, flag: str) -> float:
    """Seconds of ``90``, ``30m``, ``2h``, ``1d``, or as batch systems write it: ``04:00:00``,
    ``90:00`` (minutes, seconds), ``1-12`` (days, hours), ``1-12:30:00``.

    Unlike Slurm's, a bare number is of seconds, as for all other options. Raises: UsageError.
    """
    bad = UsageError(f"{flag}: not a time: {text!r}", hint=f"{flag} 04:00:00, or {flag} 4h")
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if dash:  # after days come hours
        parts += ["0"] * (3 - len(parts))
    plain = [*parts, days] if dash else parts
    if dash or len(parts) > 1:
        if len(parts) > 3 or not all(p.isascii() and p.isdigit() and len(p) < 9 for p in plain):
            raise bad
        seconds = sum(int(p) * n for p, n in zip(reversed(parts), _SIXTIES, strict=False))
        seconds += int(days or 0) * 86400
        return parse_seconds(str(seconds), flag)
    unit = _UNITS.get(text[-1:])
    try:
        return parse_seconds(text[: -1 if unit else None], flag) * (unit or 1)
    except UsageError:
        raise bad from None


def parse_signal(text: str, flag: str) -> int:
    """The number of ``USR1``, ``SIGUSR1`` or ``10``. Raises: UsageError."""
    import signal

    names_of = {one.name.removeprefix("SIG"): one.value for one in signal.Signals}
    name = text.upper().removeprefix("SIG")
    number = names_of.get(name) or (int(text) if text.isascii() and text.isdigit() else 0)
    if number not in names_of.values() or number in (signal.SIGKILL, signal.SIGSTOP):
        raise UsageError(
            f"{flag}: not a signal that a program can handle: {text!r}", hint=f"{flag} USR1"
        )
    return int(number)


def parse_warning(text: str, flag: str) -> tuple[int, float | None]:
    """(signal, seconds before the limit or None) of ``USR1@120``.

    The ``B:`` of Slurm's ``--signal``, which means the batch script, is accepted and ignored.
    Raises: UsageError.
    """
    name, at, seconds = text.removeprefix("B:").partition("@")
    return parse_signal(name, flag), parse_seconds(seconds, flag) if at else None


def check_request(request: Request, run_id: str) -> None:
    """Check that every value could be honoured by some hosts.

    Raises: UsageError for the first value that none could.
    """
    if not run_id or not all(
        char.isascii() and (char.isalnum() or char in "-_.") for char in run_id
    ):
        raise UsageError(f"run id: letters, digits and -_. only: {quoted(run_id)}")
    if request.parts:
        _check_parts(request)
    program = request.program
    if not program.argv or not program.argv[0]:
        raise MissingArgument("no program to run", hint="dispatch -H hostfile train.py")
    for text in (*program.argv, *request.wraps, request.python, request.cwd):
        if "\0" in text:
            raise UsageError(f"a NUL byte in {quoted(text)}: no program can be given one")
    if not request.python or request.python.startswith("-"):
        raise UsageError(f"--python: not a program: {quoted(request.python)}")
    for text in request.wraps:
        parts.parse_wrap(text)
    local = request.local_rank_arg
    if local is not None and (not local or "=" in local or "\0" in local):
        raise UsageError(
            f"--local-rank-arg: not the name of an argument: {local!r}",
            hint="--local-rank-arg --local_rank",
        )
    if request.stdin != "none" and request.restarts.most:
        raise ConflictingOptions(
            f"--stdin {request.stdin}: input is read once, so ranks cannot be started again",
            hint="leave out --max-restarts, or have the ranks read a file",
        )
    if request.per_node and request.bind_to not in ("auto", "none"):
        raise ConflictingOptions(
            f"--bind-to {request.bind_to}: with one process a host, the ranks are not dispatch's",
            hint="bind by what PROGRAM offers: torchrun --numa-binding node",
        )
    if request.mem_bind == "local" and request.bind_to == "none":
        raise ConflictingOptions("--mem-bind local needs ranks that are bound, not --bind-to none")
    most, restarts = names.MOST_RANKS, request.restarts
    for flag, number, high in (
        ("--np", request.np, most), ("--nnodes", request.nnodes, most),
        ("--spares", request.spares, most), ("--min-nodes", restarts.min_nodes, most),
        ("--max-host-failures", restarts.max_host_failures, most),
        ("--nproc-per-node", request.nproc_per_node, most), ("--omp", request.omp, 1 << 16),
        ("--ssh-port", request.port, 65535), ("--master-port", request.master_port, 65535),
    ):  # fmt: skip
        if isinstance(number, int) and not 1 <= number <= high:
            raise UsageError(f"{flag}: {number} is not between 1 and {high}")
    nproc, omp = request.nproc_per_node, request.omp
    words: tuple[tuple[str, str | None, tuple[str | None, ...]], ...] = (
        ("--nproc-per-node", "auto" if isinstance(nproc, int) else nproc, (None, "auto", "gpu")),
        ("--omp", "auto" if isinstance(omp, int) else omp, ("auto", "keep")),
        ("--rank-by", request.rank_by, (None, "slot", "node")),
        ("--devices", request.devices, POLICIES),
        ("--bind-to", request.bind_to, tuple(binding.TARGETS)),
        ("--mem-bind", request.mem_bind, binding.POLICIES),
    )
    for flag, word, known in words:
        if word not in known:
            choice = ", ".join(name for name in known if name)
            raise UsageError(f"{flag}: {quoted(str(word))} is not one of {choice}")
    mapping = placement.parse_mapping(request.map_by)
    if mapping.each is not None and request.nproc_per_node is not None:
        raise ConflictingOptions(
            f"--map-by {request.map_by} says how many ranks a host has, and so does "
            "--nproc-per-node"
        )
    if mapping.each is not None and request.parts:
        raise ConflictingOptions(
            f"--map-by {request.map_by}: a job of several programs cannot have it",
            hint="--nproc-per-node N, of each program",
        )
    if request.rankfile is not None:
        _check_rankfile(request)
    named: tuple[tuple[str, str | None, Callable[[str], str]], ...] = (
        ("--name", request.name, names.check_job),
        ("--user", request.user, names.check_user),
        ("--master-addr", request.master_addr, names.check_host),
        ("--iface", request.iface, names.check_interface),
    )
    for flag, name, check_name in named:
        if name is not None:
            try:
                check_name(name)
            except BadName as bad:
                raise UsageError(f"{flag}: {bad.message}", hint=bad.hint) from None


def _check_rankfile(request: Request) -> None:
    """Check that ranks can have their places of a rankfile. Raises: UsageError."""
    places = request.places
    own = "it says itself where ranks are"
    names_cpus = any(one.slot for one in places)
    for flag, asked, why in (
        (f"--np {request.np}", request.np not in (None, len(places)),
         f"it has places for {names.plural(len(places), 'rank')}"),
        ("--nproc-per-node", request.nproc_per_node is not None, own),
        (f"--map-by {request.map_by}", request.map_by != "block", own),
        ("--rank-by", request.rank_by is not None, own),
        (f"--bind-to {request.bind_to}",
         names_cpus and request.bind_to not in ("auto", "none"), "it says on which CPUs"),
        ("--min-nodes", request.restarts.min_nodes is not None, "all of its hosts are needed"),
        ("several programs", bool(request.parts), "it is for one program"),
    ):  # fmt: skip
        if asked:
            raise ConflictingOptions(f"--rankfile does not go with {flag}: {why}")


def _check_parts(request: Request) -> None:
    """Check that a job of these programs can be run as asked. Raises: UsageError."""
    parts.check(request.parts, numbers=request.np is not None or request.nproc_per_node is not None)
    one = "it is for one program"
    for flag, asked, why in (
        ("--per-node", request.per_node, one),
        ("--local-rank-arg", request.local_rank_arg is not None, one),
        ("--min-nodes", request.restarts.min_nodes is not None, "all of its hosts are needed"),
    ):
        if asked:
            raise ConflictingOptions(f"{flag}: a job of several programs cannot have it: {why}")


#: auto: all chosen GPUs of the node. node: all of the node. rank: a chosen GPU each. none: nothing
POLICIES = ("auto", "node", "rank", "none")
