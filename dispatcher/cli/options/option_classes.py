"""The options of every command that has many, as frozen classes: names, types and defaults.

A command takes one of these classes (see ``entry.command``); what it has in common with others is
a class above. A function takes the smallest class that has what it needs, and a misspelt option is
an error of mypy. The defaults stand here alone: click gets them from here.

A value is as it was typed, a text or a number of texts; what it means is said where it is used.
An option that a command does not offer has its default there: ``shell`` is an ``exec`` that offers
less. Of options whose value may be left out ``None`` is: not wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

if TYPE_CHECKING:
    from dataclasses import replace as replace

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Any:
        return lambda base: base

    def replace(options: Options, **changes: Any) -> Options:
        """``options`` with some of them changed."""
        return type(options)(**{**vars(options), **changes})


T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """Base of the classes: made by name, and then as they are.

    A dataclass to mypy; at run time defaults are those of the class and nothing is generated, which
    for a hundred options would be 3 ms of every start.
    """

    if not TYPE_CHECKING:

        def __init__(self, **given: Any) -> None:
            for name in given:
                if name not in names_of(type(self)):
                    raise TypeError(f"{type(self).__name__} has no option {name!r}")
            self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names_of(type(self)))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({given})"


def names_of(kind: type[Options]) -> dict[str, Any]:
    """Name -> default of all options of ``kind``."""
    return {
        name: getattr(kind, name)
        for cls in reversed(kind.__mro__)
        for name in vars(cls).get("__annotations__", ())
    }


# -- what several commands have -------------------------------------------------------------


class LoginOptions(Options):
    """How a host is reached."""

    user: str | None = None
    ssh_port: str | None = None
    ssh_config: str | None = None
    transport: Literal["auto", "paramiko", "ssh", "slurm"] = "auto"
    rsh: str | None = None
    host_keys: Literal["strict", "accept-new"] | None = None
    connect_timeout: str | None = None


class KeepOptions(LoginOptions):
    """For commands that use and leave open connections."""

    keep: str | None = None
    fanout_tree: str | None = None
    agent_python: str | None = None


class HostOptions(Options):
    """Which hosts."""

    hostfile: str | None = None
    lists: tuple[str, ...] = ()


class WhereOptions(HostOptions):
    """Which hosts, less some."""

    excluded: tuple[str, ...] = ()


class LimitOptions(KeepOptions):
    """How long a command may take on a host, and on how many at once."""

    command_timeout: str | None = None
    deadline: str | None = None
    grace: str | None = None
    server_alive_interval: str | None = None
    fanout: str | None = None
    serial: str | None = None
    stop_after: str | None = None


class SudoOptions(Options):
    """As whom a command runs."""

    user: str | None = None
    sudo: str | None = None
    ask_sudo_password: bool = False


class LineOptions(Options):
    """Which lines of ranks are shown, and how."""

    label: Literal["rank", "host", "none"] = "rank"
    timestamps: bool = False
    only_ranks: str | None = None
    rank0: bool = False
    fold: bool = False
    fold_numbers: bool = False
    grep: str | None = None
    partial_after: str | None = None
    quiet: bool = False


class ShowOptions(LineOptions):
    """What is shown of a run, and kept in files."""

    stall_after: str | None = None
    step_line: str | None = None
    watch: bool = False
    sample: str | None = None
    metrics: str | None = None
    screen_overflow: Literal["auto", "drop", "block"] = "auto"
    log_dir: str | None = None
    log_overflow: Literal["block", "spool", "drop"] = "block"
    log_merge: bool = False
    log_size: str | None = None
    log_keep: str | None = None
    verbose: bool = False


# -- commands -------------------------------------------------------------------------------


class ExecOptions(WhereOptions, LimitOptions, SudoOptions):
    """``dispatch exec``."""

    words: tuple[str, ...] = ()
    shell: str | None = None
    stdin: bool = False
    no_stdin: bool = False
    pty: bool = False
    max_code: bool = False
    no_label: bool = False
    gather: bool = False
    gather_all: bool = False
    diff: bool = False
    as_json: bool = False
    timestamps: bool = False
    output_dir: str | None = None
    error_dir: str | None = None
    screen_overflow: Literal["auto", "drop", "block"] = "auto"
    events: str | None = None
    failed_to: str | None = None
    retry_failed: str | None = None
    quiet: bool = False
    verbose: bool = False


class ShellOptions(ExecOptions):
    """``dispatch shell``."""

    no_gather: bool = False


class ConnectOptions(ExecOptions):
    """``dispatch connect``: an ``exec`` of ``true``."""

    keep: str | None = "600"
    listing: bool = False
    closing: bool = False


class CopyOptions(WhereOptions, LimitOptions):
    """What ``put`` and ``get`` share."""

    paths: tuple[str, ...] = ()
    checksum: bool = False
    no_resume: bool = False
    verbose: bool = False


class PutOptions(CopyOptions):
    """``dispatch put``."""

    branches: str | None = None


class GetOptions(CopyOptions):
    """``dispatch get``."""

    max_size: str = "16G"


class CheckOptions(WhereOptions, LoginOptions):
    """``dispatch check``."""

    words: tuple[str, ...] = ()
    full: bool = False
    python: str | None = None
    chdir: str | None = None
    iface: str | None = None
    master_port: str | None = None
    check_timeout: str | None = None
    xid_table: str | None = None
    site_checks: str | None = None
    pairs: bool = False
    backend: Literal["tcp", "mpi", "nccl", "gloo"] | None = None
    rounds: str | None = None
    slow: str | None = None
    svg: str | None = None
    verbose: bool = False
    nccl: bool = False
    texts: tuple[str, ...] = ()
    apply: str | None = None
    log: str | None = None
    as_json: bool = False


class HostsOptions(WhereOptions):
    """``dispatch hosts``."""

    words: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    taker: str | None = None
    fold_them: bool = False
    count: bool = False
    separator: str = "\n"
    sort: bool = False


class SweepOptions(WhereOptions, LoginOptions):
    """``dispatch sweep``."""

    run_id: str | None = None
    kills: bool = False


class AttachOptions(ShowOptions):
    """``dispatch attach``."""

    job: str | None = None
    from_start: bool = False
    stop_on_interrupt: bool = False


class RunOptions(HostOptions, KeepOptions, ShowOptions):
    """``dispatch run``."""

    words: tuple[str, ...] = ()
    # where
    include: str | None = None
    exclude: str | None = None
    nnodes: str | None = None
    spares: str | None = None
    # what
    module: bool = False
    no_python: bool = False
    python: str | None = None
    local_rank_arg: str | None = None
    chdir: str | None = None
    # how many
    np: str | None = None
    nproc_per_node: str | None = None
    per_node: bool = False
    rdzv: bool = False
    map_by: Literal["slot", "node"] = "slot"
    oversubscribe: bool = False
    # environment
    exports: tuple[str, ...] = ()
    env_files: tuple[str, ...] = ()
    devices: Literal["auto", "node", "rank", "none"] = "auto"
    omp: str = "auto"
    master_addr: str | None = None
    master_port: str | None = None
    iface: str | None = None
    # before and while it runs
    check: Literal["quick", "full", "none"] = "quick"
    exclude_unhealthy: bool = False
    check_timeout: str | None = None
    mpi: Literal["auto", "pmi1", "none"] = "auto"
    pmi_port: bool = False
    stdin: str = "none"
    launcher: str = "dispatch"
    dedup_output: bool = False
    # time
    boot_timeout: str | None = None
    grace: str | None = None
    heartbeat: str | None = None
    max_missed_heartbeats: str | None = None
    lease: str | None = None
    mpi_stall_warning: str | None = None
    hang_timeout: str | None = None
    fanout: str | None = None
    # starting again
    max_restarts: str | None = None
    min_nodes: str | None = None
    restart_delay: str | None = None
    max_host_failures: str | None = None
    progress_line: str | None = None
    progress_file: str | None = None
    # what is told
    detach: bool = False
    trace: str | None = None
    dry_run: bool = False
    as_json: bool = False


# -- what a text means ----------------------------------------------------------------------


def seconds(text: str | None, option: str, usual: T) -> float | T:
    """The seconds that ``option`` was given as ``text``, else ``usual``. Raises: UsageError."""
    if text is None:
        return usual
    from dispatcher.plan.job.request import parse_seconds

    return parse_seconds(text, option)


def count(text: str | None, option: str, usual: T, most: int | None = None) -> int | T:
    """The number that ``option`` was given as ``text``, else ``usual``. Raises: UsageError."""
    if text is None:
        return usual
    from dispatcher.model.names import MOST_RANKS, parse_count

    return parse_count(text, option, MOST_RANKS if most is None else most)
