"""The options of ``dispatch [run]``; each class is a section of its help. One list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dispatcher import __version__
from dispatcher.cli.options.declaration import Options, argument, option, preset
from dispatcher.cli.options.host_options import (
    ContainerOptions,
    HostOptions,
    KeepOptions,
    LoginOptions,
    TreeOptions,
)
from dispatcher.cli.options.output_options import ShowOptions

if TYPE_CHECKING:
    import click


class FilterOptions(Options, section="Hosts"):
    include: str | None = preset(
        metavar="SPEC", help="Use only these hosts and slots, written as for deepspeed: n1@n2:0,2."
    )
    exclude: str | None = preset(
        metavar="SPEC", help="Leave these hosts and slots out, written as for --include."
    )
    nnodes: str | None = preset(
        metavar="N|MIN:MAX",
        help="Use only the first N hosts. MIN:MAX, as for torchrun: use the first MAX, or all if "
        "fewer, and go on while MIN are left (--min-nodes).",
        usual="all",
    )
    spares: int | None = preset(
        metavar="N",
        help="Keep N more hosts ready to replace hosts that fail.",
        usual="the hosts that the hostfile marks as spare",
    )


class ProgramOptions(Options, section="Program"):
    app: str | None = option(
        metavar="FILE",
        help="Start the programs in FILE, one a line, in one world. On the command line put a : "
        "between programs, as for mpirun: --np 1 a.py : --np 7 b.py. Each program may have its "
        "own --np, --nproc-per-node, -w, -H, -x, --env-file, --chdir, --python, -m and "
        "--no-python before it; options for all come before --app, or before an extra leading :. "
        "After -- a : is an argument.",
    )
    module: bool = preset("-m", help="PROGRAM is a Python module, as with python -m.")
    no_python: bool = preset(
        help="Run PROGRAM as it is, without Python.",
        usual="only for a local file, not a .py, whose first line (#!) names another program",
    )
    python: str | None = option(
        metavar="PATH",
        help="Run the ranks with this Python.",
        usual="the active environment's; else dispatch's own, or python3 if pipx or uv installed "
        "dispatch",
    )
    local_rank_arg: str | None = option(
        metavar="NAME",
        help="Pass NAME=LOCAL_RANK as PROGRAM's first argument, as deepspeed passes --local_rank.",
    )
    # no preset: it runs a program that the folder would name
    wraps: tuple[str, ...] = option(
        "--wrap",
        metavar="RANKS:COMMAND",
        help="Put COMMAND, with its own options, before the program of these ranks (0, 0-3,8 or "
        "all), as for 0:nsys profile. May be repeated; the first is the outermost.",
    )
    chdir: str | None = preset(metavar="DIR", help="Run in DIR on every host.", usual="this folder")
    sync: str | None = preset(
        metavar="[=DIR]",
        bare=".",
        help="Send this folder to the same path on every host before the start, or to DIR and "
        "run there. It sends only differences, without files that .gitignore and .dispatchignore "
        "leave out, and removes nothing on the hosts.",
        usual="nothing is sent",
    )
    stdin: str = preset(
        default="none",
        metavar="none|N|all",
        help="Pass dispatch's standard input to no rank (none), rank N or all ranks. With none, "
        "your terminal or shell loop keeps it.",
    )
    launcher: Literal[
        "dispatch", "torchrun", "accelerate", "deepspeed", "lightning", "llamafactory-cli"
    ] = option(
        default="dispatch",
        help="Start PROGRAM by a framework's launcher, once on each host. Put its options before "
        "PROGRAM, after --; dispatch sets those for hosts, ranks and rendezvous.",
    )


class RankOptions(Options, section="Ranks"):
    np: int | None = preset("-n", metavar="N", help="Start N ranks in all.", usual="one per slot")
    nproc_per_node: str | None = preset(
        metavar="N|auto|gpu",
        help="Start N ranks on each host, or one per GPU (gpu).",
        usual="auto: one per slot, else one per GPU, else one",
    )
    per_node: bool = preset(
        help="Start one process per host, for a program that starts the ranks itself. Its "
        "arguments may contain {node_rank}, {nnodes}, {nproc_per_node}, {master_addr}, "
        "{master_port}, {address}, {host}, {is_first_node}, {world_size}, {run_id}, {restart}."
    )
    map_by: Literal["slot", "node", "numa", "socket", "core", "gpu", "ppr:N:WHAT"] = preset(
        default="slot",
        help="Fill one host after the other (slot), or place ranks round-robin over hosts "
        "(node). numa, socket, core, gpu: as slot, and deal the ranks of a host to these in "
        "turn; ppr:N:node, ppr:N:numa and so on: N ranks on each. Ranks are bound to it, unless "
        "--bind-to is set.",
    )
    rank_by: Literal["slot", "node"] | None = preset(
        help="Number the ranks host by host (slot), or round-robin over the hosts (node).",
        usual="as --map-by places them",
    )
    oversubscribe: bool = preset(help="Allow more ranks than slots.")
    bind_to: Literal["auto", "none", "core", "socket", "numa", "gpu"] = preset(
        default="auto",
        help="Bind each rank to CPUs. gpu: its GPU's NUMA node; numa: the same, and for ranks "
        "without a GPU a NUMA node each, in blocks; socket: the socket of that node; core: its "
        "own equal share of the cores; none: no binding; auto: as --map-by deals them, else as "
        "gpu, except ranks with GPUs at several NUMA nodes. It uses only CPUs that the login, "
        "batch system or container allows. -v shows the result.",
    )
    rankfile: str | None = preset(
        metavar="FILE",
        help="Place each rank by FILE, in Open MPI's form. A line `rank 0=n1 slot=0:1-2` puts "
        "rank 0 on host n1 (+n0 is the first of the hosts) and binds it to cores 1 and 2 of "
        "socket 0; slot=1-2 counts the host's cores, slot=p4-7 is its CPUs 4 to 7, and without "
        "slot= --bind-to decides.",
        usual="as --map-by sets",
    )
    report_bindings: bool = preset(help="Show for each host which ranks run on which CPUs.")
    mem_bind: Literal["none", "local"] = preset(
        default="none",
        help="Take memory of bound ranks only from their NUMA nodes (local), or also from others "
        "when these are full (none).",
    )
    near_hca: bool = preset(
        help="Set NCCL_IB_HCA of each rank to the RDMA devices nearest to its GPU. Without this, "
        "NCCL chooses among all devices."
    )


class EnvironmentOptions(Options, section="Environment"):
    exports: tuple[str, ...] = preset(
        "-x",
        "--export",
        metavar="NAME[=VALUE]",
        help="Export this variable to the ranks, as mpirun does. May be repeated. (In dispatch "
        "exec and others, -x leaves hosts out, as in pdsh; here --exclude does that.)",
    )
    env_files: tuple[str, ...] = option(
        "--env-file",
        metavar="FILE",
        help="Give the ranks the variables of FILE, lines of NAME=VALUE. May be repeated. "
        ".deepspeed_env of ~ and of this folder, or the file that DS_ENV_FILE names, is read "
        "first.",
    )
    devices: Literal["auto", "node", "rank", "none"] = preset(
        default="auto",
        help="Set CUDA_VISIBLE_DEVICES of the ranks. auto: the devices already chosen on the "
        "host, else the devices of all its slots; node: the devices of all its slots, whatever "
        "was chosen; rank: one of the chosen devices for each rank; none: do not change it.",
    )
    omp: str = preset(
        default="auto",
        metavar="N|auto|keep",
        help="Set OMP_NUM_THREADS of the ranks to N, to cores per local rank (auto), or do not "
        "change it (keep).",
    )
    master_addr: str | None = option(
        metavar="ADDRESS",
        help="Set MASTER_ADDR of the ranks.",
        usual="an address of host 0 that the other hosts have reached",
    )
    master_port: int | None = preset(
        most=65535,
        metavar="PORT",
        help="Set MASTER_PORT of the ranks.",
        usual="a free port of host 0",
    )
    iface: str | None = preset(
        metavar="NAME",
        help="Let the ranks use this network interface, for MPI, NCCL, gloo and MASTER_ADDR.",
    )


class MpiOptions(Options, section="MPI"):
    mpi: Literal["auto", "pmi1", "none"] = preset(
        default="auto",
        help="Serve MPI as its process manager: by PMI-1 for MPICH and Intel MPI and by PMIx for "
        "Open MPI (auto), by PMI-1 only (pmi1), or not at all (none).",
    )
    pmi_port: bool = preset(
        help="Serve MPI at a port of 127.0.0.1, not at an inherited descriptor, for wrappers "
        "that close descriptors, as Python's subprocess does. Other users can connect to it."
    )
    mpi_stall_warning: float | None = preset(
        metavar="SECONDS",
        positive=True,
        help="Name the ranks for which others have waited in MPI for SECONDS.",
        usual="30",
    )


class ReachOptions(LoginOptions, KeepOptions, section="Connections"):
    """Connections to hosts; the short names mean something else in a run."""

    user: str | None = preset(metavar="NAME", help="Log in as NAME on hosts without a user name.")
    ssh_port: int | None = preset(
        most=65535, metavar="PORT", help="Log in at this port on hosts without a port."
    )
    fanout: int | None = preset(metavar="N", help="Connect to at most N hosts at once.", usual="64")


class AgentOptions(TreeOptions, section="Connections"):
    agent_python: str | None = option(
        metavar="PATH",
        help="Run dispatch's agent on the hosts with this Python.",
        usual="the host's first working python3 of 3.8 or later",
    )
    connect_timeout: float | None = preset(
        metavar="SECONDS",
        positive=True,
        help="Give up on a host that is not reached within SECONDS, login included.",
        usual="10",
    )
    boot_timeout: float | None = preset(
        metavar="SECONDS",
        positive=True,
        help="Give up on a host whose agent does not answer within SECONDS.",
        usual="30",
    )


class PreflightOptions(Options, section="Checks before the start"):
    check: Literal["quick", "full", "none"] = preset(
        default="quick",
        help="Check the hosts before the ranks start. quick: checks that cost nothing (folder, "
        "program, script and interface exist, hosts are distinct, host 0 can be reached); full: "
        "all checks of dispatch check --full; none: no checks.",
    )
    allow_different_code: bool = preset(
        help="Start even if the script, or a Python package beside it, differs between hosts. "
        "Files that arguments name, and imported modules, are then not compared."
    )
    exclude_unhealthy: bool = preset(
        help="Make all checks of dispatch check first, and leave out the hosts that fail."
    )
    check_timeout: float | None = preset(
        metavar="SECONDS", help="End that check after SECONDS.", usual="20; 60 if full"
    )
    if_busy: Literal["warn", "fail", "wait"] = preset(
        default="warn",
        help="Choose what happens if other processes use the chosen GPUs, or, on hosts without "
        "GPUs, another of your jobs runs there. warn: a note after the start; fail: nothing is "
        "started; wait: the job waits until the hosts are free, after jobs that began to wait "
        "before it.",
    )
    avoid_failures: int | None = preset(
        metavar="N",
        help="Leave out hosts that failed in N or more of their last 5 runs, as far as spares, or "
        "hosts that the run does not need, can take their places. dispatch hosts --failures lists "
        "the hosts that failed.",
        usual="only name them",
    )


class FailureOptions(Options, section="Failures"):
    grace: float | None = preset(
        metavar="SECONDS",
        help="Wait SECONDS between TERM and KILL when dispatch ends ranks.",
        usual="10",
    )
    stop_signal: str | None = preset(
        metavar="SIGNAL",
        help="To end ranks, send them this signal first, and TERM after --grace.",
        usual="TERM; INT for Ctrl-C",
    )
    signal_to: Literal["rank", "all"] | None = preset(
        help="Send the first signal, and signals that dispatch passes on, to each rank's own "
        "process (rank) or to all of its processes (all). With rank, its workers live until it "
        "has saved its work.",
        usual="rank if it is Python, else all",
    )
    time_limit: str | None = preset(
        metavar="TIME",
        help="End the job when it has run for TIME: seconds, or 90m, 4h, 04:00:00, 1-12:00:00. "
        "The exit code is 124.",
        usual="MPIEXEC_TIMEOUT, in seconds; else never",
    )
    warning: str | None = preset(
        "--signal",
        metavar="SIGNAL[@SECONDS]",
        help="Send all ranks SIGNAL, SECONDS before the time limit, as Slurm's --signal does.",
        usual="none; 60 seconds",
    )
    heartbeat: float | None = preset(
        metavar="SECONDS",
        positive=True,
        help="Let every host send a heartbeat every SECONDS, at most 400 a second in all. A host "
        "that does not answer for three heartbeats (--max-missed-heartbeats) is lost; give more "
        "if the network is often down.",
        usual="5",
    )
    max_missed_heartbeats: int | None = preset(
        metavar="N", help="Give up on a host that misses N heartbeats.", usual="3"
    )
    lease: float | None = preset(
        metavar="SECONDS",
        positive=True,
        help="End the ranks of a host that has not heard from dispatch for SECONDS.",
        usual="30",
    )
    hang_timeout: float | None = preset(
        metavar="SECONDS",
        help="End the job after it hangs for SECONDS, and show each rank's position. It hangs if "
        "no rank writes, computes or uses its GPU; with --progress-line or --progress-file, if "
        "there is no progress.",
        usual="never",
    )


class RestartOptions(Options, section="Restarts"):
    max_restarts: str | None = preset(
        metavar="N",
        help="Restart a failed job at most N times. All its ranks start again.",
        usual="0",
    )
    min_nodes: int | None = preset(
        metavar="N",
        help="Go on with at least N hosts when others are lost and no spare is left.",
        usual="all",
    )
    restart_delay: float | None = preset(
        metavar="SECONDS",
        help="Wait SECONDS before the second restart in a row, and twice as long before each "
        "later restart.",
        usual="1",
    )
    max_host_failures: int | None = preset(
        metavar="K", help="Leave out a host on which K attempts have failed.", usual="3"
    )
    progress_line: str | None = preset(
        metavar="REGEX",
        help="Measure progress by a line that matches REGEX. After 3 attempts without such a "
        "line the run ends.",
    )
    progress_file: str | None = preset(
        metavar="PATH",
        help="Measure progress by a file on host 0 that changes. After 3 attempts without a change "
        "the run ends.",
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
    ContainerOptions,
    ReachOptions,
    AgentOptions,
    PreflightOptions,
    FailureOptions,
    RestartOptions,
    ShowOptions,
    section="This run",
):
    """Start PROGRAM on many hosts over SSH, one process (a rank) per GPU or slot.

    Every line comes back with the number of its rank. The first rank that fails ends all the
    others, on all hosts, and dispatch exits with its exit code.
    """

    examples = (
        ("dispatch -H hostfile train.py --lr 3e-4", "a rank per slot"),
        ("dispatch -H 'n[01-04]:8' -m mypackage.train", "8 ranks on each host"),
        ("dispatch -w n1,n2 --detach --log-dir logs train.py", "in the background"),
        ("dispatch -w n1,n2 --no-python hostname", "any program"),
    )
    brief = (
        "hostfile", "lists", "nnodes", "np", "nproc_per_node", "module", "no_python", "chdir",
        "exports", "max_restarts", "hang_timeout", "log_dir", "detach", "dry_run",
    )  # fmt: skip
    epilog = """
    Exit code: 0 if every rank exited with 0, else the exit code of the first failed rank (128+N if
    signal N ended it). 2: the command line is wrong, and no host was touched; 124: a time limit;
    125: a host or dispatch itself failed; 126, 127: the program cannot be run, or was not found;
    130: Ctrl-C.
    """

    words: tuple[str, ...] = argument(last=True, metavar="PROGRAM [ARGS]...")
    name: str | None = preset(
        metavar="NAME",
        help="Call the job NAME. Commands that take a JOB take NAME, too: the newest running "
        "job of that name, else the newest. Letters, digits and -_. only.",
        usual="no name",
    )
    detach: bool = preset(
        help="Go on in the background once the ranks run. See dispatch jobs, attach, logs, stop."
    )
    trace: str | None = option(
        metavar="FILE",
        help="Write the times of all phases to FILE at the end, for ui.perfetto.dev.",
    )
    on_end: str | None = option(
        metavar="COMMAND",
        help="Run COMMAND on this machine when the job ends, hangs, or restarts after a failure. "
        "/bin/sh runs it, for 30 seconds at most. DISPATCH_EVENT is end, hang or restart; "
        "DISPATCH_VERDICT, DISPATCH_EXIT_CODE, DISPATCH_JOB, DISPATCH_NAME, DISPATCH_PROGRAM and "
        "DISPATCH_LOG_DIR describe it, and standard input is the report as JSON.",
    )
    dry_run: bool = preset(help="Print the plan, and touch no host.")
    as_json: bool = preset(
        "--json", help="Print the plan as JSON, with --dry-run. Secrets are hidden."
    )
    version: bool = option(
        section="Other",
        help="Show the version and exit.",
        is_eager=True,
        expose_value=False,
        callback=_version,
    )
