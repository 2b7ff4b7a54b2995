"""``dispatch [run]``: what it takes; each class is a section of its help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dispatcher import __version__
from dispatcher.cli.options.declaration import Options, argument, option
from dispatcher.cli.options.host_options import HostOptions, KeepOptions, LoginOptions, TreeOptions
from dispatcher.cli.options.output_options import ShowOptions

if TYPE_CHECKING:
    import click


class FilterOptions(Options, section="Hosts"):
    """Which of the hosts."""

    include: str | None = option(
        metavar="SPEC",
        help="Use only these hosts and slots: host@host:0,2 (DeepSpeed's syntax).",
    )
    exclude: str | None = option(metavar="SPEC", help="Leave these out; same syntax.")
    nnodes: int | None = option(metavar="N", help="Use only the first N hosts.")
    spares: int | None = option(
        metavar="N",
        help="Keep N more hosts ready to replace others [default: those that the hostfile marks "
        "as spare].",
    )


class ProgramOptions(Options, section="Program"):
    """What the ranks run."""

    module: bool = option("-m", help="PROGRAM is a Python module.")
    no_python: bool = option(help="Run PROGRAM directly, without Python.")
    python: str | None = option(
        metavar="PATH",
        help="Python for the ranks [default: the active environment's; else dispatch's own, or "
        "python3 where that is pipx's or uv's].",
    )
    local_rank_arg: str | None = option(
        metavar="NAME",
        help="Pass NAME=LOCAL_RANK as PROGRAM's first argument, as deepspeed does (--local_rank).",
    )
    chdir: str | None = option(
        metavar="DIR", help="Working directory on every host [default: this one]."
    )
    stdin: str = option(
        default="none",
        metavar="none|N|all",
        help="Who reads dispatch's standard input: nobody, rank N, or all ranks [default: none, "
        "so that your terminal, or a loop's `while read`, keeps it].",
    )
    launcher: str = option(
        default="dispatch",
        metavar="mpirun|PATH",
        help="Let mpirun or mpiexec of this machine (Open MPI, MPICH, Intel MPI) start the ranks, "
        "on these hosts and over these connections: for what dispatch cannot start itself.",
    )


class RankOptions(Options, section="Ranks"):
    """How many ranks, and where."""

    np: int | None = option("-n", metavar="N", help="World size [default: all slots].")
    nproc_per_node: str | None = option(
        metavar="N|auto|gpu",
        help="Ranks on each host [default: its slots; else its GPUs; else 1].",
    )
    per_node: bool = option(
        help="Start one process per host, for programs that start the ranks themselves; their "
        "arguments may contain {node_rank}, {nnodes}, {nproc_per_node}, {master_addr}, "
        "{master_port}, {address}, {host}, {is_first_node}, {run_id}, {restart}."
    )
    rdzv: bool = option(
        help="Start PROGRAM with one torchrun per host, and fill in its rendezvous options."
    )
    map_by: Literal["slot", "node"] = option(
        default="slot",
        help="Fill one host after the other (slot), or deal ranks out to hosts in turn (node).",
    )
    oversubscribe: bool = option(help="Allow more ranks than slots.")


class EnvironmentOptions(Options, section="Environment"):
    """What the ranks find in their environment."""

    exports: tuple[str, ...] = option(
        "-x",
        "--export",
        metavar="NAME[=VALUE]",
        help="Export this variable to the ranks, as mpirun does; may be repeated. (In dispatch "
        "exec and the like -x leaves hosts out, as pdsh's does; here --exclude does that.)",
    )
    env_files: tuple[str, ...] = option(
        "--env-file",
        metavar="FILE",
        help="Read NAME=VALUE lines from FILE, after ~/.deepspeed_env and ./.deepspeed_env; may "
        "be repeated.",
    )
    devices: Literal["auto", "node", "rank", "none"] = option(
        default="auto",
        help="CUDA_VISIBLE_DEVICES of the ranks. auto: the devices already chosen on the host, "
        "else those of all its slots; node: those of all its slots, whatever was chosen; rank: one "
        "of the chosen per rank; none: leave it alone.",
    )
    omp: str = option(
        default="auto",
        metavar="N|auto|keep",
        help="OMP_NUM_THREADS of the ranks: N, cores / local ranks (auto), or left alone (keep).",
    )
    master_addr: str | None = option(
        metavar="ADDR", help="MASTER_ADDR [default: found and tested]."
    )
    master_port: int | None = option(
        most=65535, metavar="PORT", help="MASTER_PORT [default: one that is free on host 0]."
    )
    iface: str | None = option(
        metavar="NAME", help="Network interface of the ranks, for MPI, NCCL, gloo and MASTER_ADDR."
    )


class MpiOptions(Options, section="MPI"):
    """How MPI is served."""

    mpi: Literal["auto", "pmi1", "none"] = option(
        default="auto",
        help="Serve MPI as its process manager: PMI-1 for MPICH and Intel MPI, PMIx for Open MPI "
        "(auto); PMI-1 only (pmi1); or not at all (none).",
    )
    pmi_port: bool = option(
        help="Offer MPI at a port of 127.0.0.1, not at an inherited descriptor: for MPI behind a "
        "wrapper that closes descriptors, as Python's subprocess does. Not the default, since "
        "other users can reach a port."
    )
    mpi_stall_warning: float | None = option(
        metavar="S",
        help="Name the ranks that others have been waiting for in MPI for S seconds [30].",
    )


class ReachOptions(LoginOptions, KeepOptions, section="Connections"):
    """How hosts are reached; the short names mean something else in a run."""

    user: str | None = option(metavar="NAME", help="Log in as NAME on hosts without a user.")
    ssh_port: int | None = option(
        most=65535, metavar="PORT", help="Port of sshd on hosts without a port."
    )
    fanout: int | None = option(metavar="N", help="Connect to at most N hosts at once [64].")


class AgentOptions(TreeOptions, section="Connections"):
    """How the agents are started."""

    agent_python: str | None = option(
        metavar="PATH",
        help="Python for dispatch's agent on the hosts [default: the first python3 of 3.8 or "
        "later].",
    )
    connect_timeout: float | None = option(
        metavar="S", help="Seconds to reach a host, login included [10]."
    )
    boot_timeout: float | None = option(metavar="S", help="Seconds for its agent to answer [30].")


class PreflightOptions(Options, section="Checks before the start"):
    """What is looked at first."""

    check: Literal["quick", "full", "none"] = option(
        default="quick",
        help="quick: what costs nothing (directory, program, script and interface exist; hosts are "
        "distinct; host 0 can be reached). full: all of dispatch check --full. none: nothing.",
    )
    exclude_unhealthy: bool = option(
        help="Do all of dispatch check first, and run without the hosts that are not fit."
    )
    check_timeout: float | None = option(
        metavar="S", help="Seconds for that check [20; 60 if full]."
    )


class FailureOptions(Options, section="Failures"):
    """When hosts are lost and ranks hang."""

    grace: float | None = option(metavar="S", help="Seconds between TERM and KILL [10].")
    heartbeat: float | None = option(metavar="S", help="Seconds between a host's heartbeats [5].")
    max_missed_heartbeats: int | None = option(
        metavar="N", help="A host that misses N of them is lost [3]."
    )
    lease: float | None = option(
        metavar="S", help="Ranks exit S seconds after losing the launcher [30]."
    )
    hang_timeout: float | None = option(
        metavar="S",
        help="End the job when no rank has written, computed or used its GPU for S seconds, and "
        "show where each rank was; with --progress-line or --progress-file: when there was no "
        "progress for S seconds [never].",
    )


class RestartOptions(Options, section="Restarts"):
    """How a job starts again."""

    max_restarts: str | None = option(metavar="N", help="Restart all ranks at most N times [0].")
    min_nodes: int | None = option(
        metavar="N", help="Without a spare, go on with at least N hosts [all]."
    )
    restart_delay: float | None = option(
        metavar="S",
        help="Seconds before the second restart in a row; doubles each time [1].",
    )
    max_host_failures: int | None = option(
        metavar="K", help="Leave out a host on which K attempts ended [3]."
    )
    progress_line: str | None = option(
        metavar="RE",
        help="A line that shows progress; after 3 attempts without one the run ends.",
    )
    progress_file: str | None = option(
        metavar="PATH",
        help="The same for a file on host 0 that changes when there is progress.",
    )


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        print(f"dispatch, version {__version__}")
        context.exit()


class RunOptions(
    HostOptions,
    FilterOptions,
    ProgramOptions,
    RankOptions,
    EnvironmentOptions,
    MpiOptions,
    ReachOptions,
    AgentOptions,
    PreflightOptions,
    FailureOptions,
    RestartOptions,
    ShowOptions,
    section="This run",
):
    """Run PROGRAM as one rank per GPU (or slot) on every host, over SSH.

    Every line comes back labelled; the first failure ends the job everywhere.
    """

    epilog = """\b
    Examples:
      dispatch -H hostfile train.py --lr 3e-4
      dispatch -H 'n[01-04]:8' -m mypackage.train
      dispatch -H n1,n2 --np 4 --no-python hostname
    Exit code: 0, or that of the first rank that failed (128+n for signal n); 2 usage;
    125 a host failed; 126/127 program not executable/not found; 130 Ctrl-C.
    \b
    Other commands, each with its own --help:
      dispatch exec      a command once on every host, without ranks; shell: a prompt for them
      dispatch put, get  files to and from every host
      dispatch connect   keep connections, so that the next exec is quick
      dispatch check     which hosts are fit for a job, and why not; what NCCL should be told
      dispatch hosts     expand, fold, count and combine host lists; fold: labelled lines
      dispatch jobs, attach, top, stacks, logs, stop    jobs started with --detach
      dispatch kill, sweep    end what a run left on its hosts
      dispatch report    where the time of a run went, from --trace
      dispatch import    torchrun's, deepspeed's and mpirun's lines as dispatch's
      dispatch config, completion, man    defaults from dispatch.toml; what your shell and man load
    """

    words: tuple[str, ...] = argument(last=True, metavar="PROGRAM [ARGS]...")
    dedup_output: bool = option(
        section="Output",
        help="Send what several ranks of a host write alike only once over the network; screen, "
        "files and counts stay as they are.",
    )
    detach: bool = option(
        help="Go on in the background once the ranks run; see dispatch jobs, attach, logs, stop."
    )
    trace: str | None = option(
        metavar="FILE",
        help="Write where the time went; see dispatch report, or ui.perfetto.dev.",
    )
    dry_run: bool = option(help="Print the plan and touch no host.")
    as_json: bool = option("--json", help="With --dry-run: JSON, secrets hidden.")
    version: bool = option(
        section="Other",
        help="Show the version and exit.",
        is_eager=True,
        expose_value=False,
        callback=_version,
    )
