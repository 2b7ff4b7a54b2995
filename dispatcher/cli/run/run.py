"""``dispatch [run]``: start one rank per GPU or slot on every host, and see it through."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dispatcher import __version__
from dispatcher.cli import entry
from dispatcher.cli.entry import CONTEXT, enter
from dispatcher.cli.help import section
from dispatcher.cli.options import output_options
from dispatcher.cli.options.host_options import (
    fanout_option,
    host_options,
    keep_option,
    way_options,
)
from dispatcher.cli.options.option_classes import RunOptions

EPILOG = """\b
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


@entry.command("run", RunOptions, context_settings=CONTEXT, epilog=EPILOG)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
@host_options
@section(
    "Hosts",
    click.option(
        "--include",
        metavar="SPEC",
        help="Use only these hosts and slots: host@host:0,2 (DeepSpeed's syntax).",
    ),
    click.option("--exclude", metavar="SPEC", help="Leave these out; same syntax."),
    click.option("--nnodes", metavar="N", help="Use only the first N hosts."),
    click.option(
        "--spares",
        metavar="N",
        help="Keep N more hosts ready to replace others [default: those that the hostfile marks "
        "as spare].",
    ),
)
@section(
    "Program",
    click.option("-m", "--module", is_flag=True, help="PROGRAM is a Python module."),
    click.option("--no-python", is_flag=True, help="Run PROGRAM directly, without Python."),
    click.option(
        "--python",
        metavar="PATH",
        help="Python for the ranks [default: the active environment's, else dispatch's own].",
    ),
    click.option(
        "--local-rank-arg",
        metavar="NAME",
        help="Pass NAME=LOCAL_RANK as PROGRAM's first argument, as deepspeed does (--local_rank).",
    ),
    click.option(
        "--chdir", metavar="DIR", help="Working directory on every host [default: this one]."
    ),
    click.option(
        "--stdin",
        metavar="none|N|all",
        help="Who reads dispatch's standard input: nobody, rank N, or all ranks [default: none, "
        "so that your terminal, or a loop's `while read`, keeps it].",
    ),
    click.option(
        "--launcher",
        metavar="mpirun|PATH",
        help="Let mpirun or mpiexec of this machine (Open MPI, MPICH, Intel MPI) start the ranks, "
        "on these hosts and over these connections: for what dispatch cannot start itself.",
    ),
)
@section(
    "Ranks",
    click.option("-n", "--np", "np", metavar="N", help="World size [default: all slots]."),
    click.option(
        "--nproc-per-node",
        metavar="N|auto|gpu",
        help="Ranks on each host [default: its slots; else its GPUs; else 1].",
    ),
    click.option(
        "--per-node",
        is_flag=True,
        help="Start one process per host, for programs that start the ranks themselves; their "
        "arguments may contain {node_rank}, {nnodes}, {nproc_per_node}, {master_addr}, "
        "{master_port}, {address}, {host}, {is_first_node}, {run_id}, {restart}.",
    ),
    click.option(
        "--rdzv",
        is_flag=True,
        help="Start PROGRAM with one torchrun per host, and fill in its rendezvous options.",
    ),
    click.option(
        "--map-by",
        type=click.Choice(["slot", "node"]),
        help="Fill one host after the other (slot), or deal ranks out to hosts in turn (node).",
    ),
    click.option("--oversubscribe", is_flag=True, help="Allow more ranks than slots."),
)
@section(
    "Environment",
    click.option(
        "-x",
        "--export",
        "exports",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Export this variable to the ranks, as mpirun does; may be repeated. (In dispatch "
        "exec and the like -x leaves hosts out, as pdsh's does; here --exclude does that.)",
    ),
    click.option(
        "--env-file",
        "env_files",
        multiple=True,
        metavar="FILE",
        help="Read NAME=VALUE lines from FILE, after ~/.deepspeed_env and ./.deepspeed_env; may "
        "be repeated.",
    ),
    click.option(
        "--devices",
        type=click.Choice(["auto", "node", "rank", "none"]),
        help="CUDA_VISIBLE_DEVICES of the ranks. auto: the devices already chosen on the host, "
        "else those of all its slots; node: those of all its slots, whatever was chosen; rank: one "
        "of the chosen per rank; none: leave it alone.",
    ),
    click.option(
        "--omp",
        metavar="N|auto|keep",
        help="OMP_NUM_THREADS of the ranks: N, cores / local ranks (auto), or left alone (keep).",
    ),
    click.option("--master-addr", metavar="ADDR", help="MASTER_ADDR [default: found and tested]."),
    click.option(
        "--master-port", metavar="PORT", help="MASTER_PORT [default: one that is free on host 0]."
    ),
    click.option(
        "--iface",
        metavar="NAME",
        help="Network interface of the ranks, for MPI, NCCL, gloo and MASTER_ADDR.",
    ),
)
@section(
    "MPI",
    click.option(
        "--mpi",
        type=click.Choice(["auto", "pmi1", "none"]),
        help="Serve MPI as its process manager: PMI-1 for MPICH and Intel MPI, PMIx for Open MPI "
        "(auto); PMI-1 only (pmi1); or not at all (none).",
    ),
    click.option(
        "--pmi-port",
        is_flag=True,
        help="Offer MPI at a port of 127.0.0.1, not at an inherited descriptor: for MPI behind a "
        "wrapper that closes descriptors, as Python's subprocess does. Not the default, since "
        "other users can reach a port.",
    ),
    click.option(
        "--mpi-stall-warning",
        metavar="S",
        help="Name the ranks that others have been waiting for in MPI for S seconds [30].",
    ),
)
@section(
    "Connections",
    click.option("--user", metavar="NAME", help="Log in as NAME on hosts without a user."),
    click.option("--ssh-port", metavar="PORT", help="Port of sshd on hosts without a port."),
)
@way_options
@section(
    "Connections",
    keep_option,
    click.option("--fanout", metavar="N", help="Connect to at most N hosts at once [64]."),
    fanout_option,
    click.option(
        "--agent-python",
        metavar="PATH",
        help="Python for dispatch's agent on the hosts [default: the first python3 of 3.8 or "
        "later].",
    ),
    click.option(
        "--connect-timeout", metavar="S", help="Seconds to reach a host, login included [10]."
    ),
    click.option("--boot-timeout", metavar="S", help="Seconds for its agent to answer [30]."),
)
@section(
    "Checks before the start",
    click.option(
        "--check",
        type=click.Choice(["quick", "full", "none"]),
        help="quick: what costs nothing (directory, program, script and interface exist; hosts are "
        "distinct; host 0 can be reached). full: all of dispatch check --full. none: nothing.",
    ),
    click.option(
        "--exclude-unhealthy",
        is_flag=True,
        help="Do all of dispatch check first, and run without the hosts that are not fit.",
    ),
    click.option("--check-timeout", metavar="S", help="Seconds for that check [20; 60 if full]."),
)
@section(
    "Failures",
    click.option("--grace", metavar="S", help="Seconds between TERM and KILL [10]."),
    click.option("--heartbeat", metavar="S", help="Seconds between a host's heartbeats [5]."),
    click.option(
        "--max-missed-heartbeats", metavar="N", help="A host that misses N of them is lost [3]."
    ),
    click.option(
        "--lease", metavar="S", help="Ranks exit S seconds after losing the launcher [30]."
    ),
    click.option(
        "--hang-timeout",
        metavar="S",
        help="End the job when no rank has written, computed or used its GPU for S seconds, and "
        "show where each rank was; with --progress-line or --progress-file: when there was no "
        "progress for S seconds [never].",
    ),
)
@section(
    "Restarts",
    click.option("--max-restarts", metavar="N", help="Restart all ranks at most N times [0]."),
    click.option(
        "--min-nodes", metavar="N", help="Without a spare, go on with at least N hosts [all]."
    ),
    click.option(
        "--restart-delay",
        metavar="S",
        help="Seconds before the second restart in a row; doubles each time [1].",
    ),
    click.option(
        "--max-host-failures", metavar="K", help="Leave out a host on which K attempts ended [3]."
    ),
    click.option(
        "--progress-line",
        metavar="RE",
        help="A line that shows progress; after 3 attempts without one the run ends.",
    ),
    click.option(
        "--progress-file",
        metavar="PATH",
        help="The same for a file on host 0 that changes when there is progress.",
    ),
)
@output_options.options
@section(
    "Output",
    click.option(
        "--dedup-output",
        is_flag=True,
        help="Send what several ranks of a host write alike only once over the network; screen, "
        "files and counts stay as they are.",
    ),
)
@section(
    "This run",
    click.option(
        "--detach",
        is_flag=True,
        help="Go on in the background once the ranks run; see dispatch jobs, attach, logs, stop.",
    ),
    click.option(
        "--trace",
        metavar="FILE",
        help="Write where the time went; see dispatch report, or ui.perfetto.dev.",
    ),
    click.option("--dry-run", is_flag=True, help="Print the plan and touch no host."),
    click.option("--json", "as_json", is_flag=True, help="With --dry-run: JSON, secrets hidden."),
)
@click.version_option(__version__, prog_name="dispatch")
def command(options: RunOptions) -> int:
    """Run PROGRAM as one rank per GPU (or slot) on every host, over SSH.

    Every line comes back labelled; the first failure ends the job everywhere.
    """
    from dispatcher.cli.run.launch import launch

    return launch(options)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch`` with ``words``; the exit code. Errors are told here, in one form."""
    bare = {"--fanout-tree": "auto", "--keep": "600"}
    return enter(command, words, "dispatch", bare)
