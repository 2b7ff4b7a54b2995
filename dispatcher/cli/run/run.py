"""``dispatch [run]``: start one rank per GPU or slot on every host, and see it through."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dispatcher import __version__
from dispatcher.cli import entry
from dispatcher.cli.entry import CONTEXT, enter
from dispatcher.cli.options import output_options
from dispatcher.cli.options.host_options import fanout_option, host_options
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
# where
@host_options
@click.option("--include", metavar="SPEC", help="Only these: host@host:0,2 (DeepSpeed's grammar).")
@click.option("--exclude", metavar="SPEC", help="All but these; same grammar.")
@click.option("--nnodes", metavar="N", help="Use the first N hosts.")
@click.option(
    "--spares",
    metavar="N",
    help="Keep N further hosts ready to replace others [default: the hostfile's spare ones].",
)
# what
@click.option("-m", "--module", is_flag=True, help="PROGRAM is a Python module.")
@click.option("--no-python", is_flag=True, help="PROGRAM is run as it is, without Python.")
@click.option(
    "--python",
    metavar="PATH",
    help="Python of the ranks [default: the active environment's, else dispatch's own].",
)
@click.option(
    "--local-rank-arg",
    metavar="NAME",
    help="Give PROGRAM NAME=LOCAL_RANK as its first argument: --local_rank, as deepspeed does.",
)
@click.option("--chdir", metavar="DIR", help="Working directory on every host [default: this one].")
# how many
@click.option("-n", "--np", "np", metavar="N", help="World size [default: all slots].")
@click.option(
    "--nproc-per-node",
    metavar="N|auto|gpu",
    help="Ranks on each host [default: its slots; else its GPUs; else 1].",
)
@click.option(
    "--per-node",
    is_flag=True,
    help="One process a host, for launchers of their own kind; its words may hold {node_rank}, "
    "{nnodes}, {nproc_per_node}, {master_addr}, {master_port}, {address}, {host}, "
    "{is_first_node}, {run_id}, {restart}.",
)
@click.option(
    "--rdzv",
    is_flag=True,
    help="Start PROGRAM by torchrun, one a host, its rendezvous options filled in.",
)
@click.option(
    "--map-by",
    type=click.Choice(["slot", "node"]),
    help="Fill a host first (slot) or deal ranks round (node).",
)
@click.option("--oversubscribe", is_flag=True, help="Allow more ranks than slots.")
# environment
@click.option(
    "-x",
    "--export",
    "exports",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Give the ranks this variable, as mpirun does; repeatable. (In exec and the other "
    "commands, -x leaves hosts out, as pdsh does; here --exclude does.)",
)
@click.option(
    "--env-file",
    "env_files",
    multiple=True,
    metavar="FILE",
    help="NAME=VALUE lines; ~/.deepspeed_env and ./.deepspeed_env are read first.",
)
@click.option(
    "--devices",
    type=click.Choice(["auto", "node", "rank", "none"]),
    help="CUDA_VISIBLE_DEVICES: those chosen on the node, else all its slots' (auto), all its "
    "slots' whatever was chosen (node), one of the chosen per rank, or left alone (none).",
)
@click.option(
    "--omp",
    metavar="N|auto|keep",
    help="OMP_NUM_THREADS: N, cores / local ranks (auto), or left alone (keep).",
)
@click.option("--master-addr", metavar="ADDR", help="MASTER_ADDR [default: proved by a probe].")
@click.option("--master-port", metavar="PORT", help="MASTER_PORT [default: kept free on host 0].")
@click.option(
    "--iface",
    metavar="NAME",
    help="Network interface for the ranks: MPI, NCCL, gloo and MASTER_ADDR use this one.",
)
# reaching hosts
@click.option("--user", metavar="NAME", help="Log in as NAME where the hostfile names nobody.")
@click.option("--ssh-port", metavar="PORT", help="Port of sshd where the hostfile names none.")
@click.option(
    "-F",
    "--ssh-config",
    metavar="FILE",
    envvar="DISPATCH_SSH_CONFIG",
    help="Read FILE instead of ~/.ssh/config and /etc/ssh/ssh_config.",
)
@click.option(
    "--transport",
    type=click.Choice(["auto", "paramiko", "ssh", "slurm"]),
    help="auto: in-process SSH; localhost without SSH. ssh: the system's ssh. slurm: one "
    "srun step a host.",
)
@click.option(
    "--rsh",
    metavar="CMD",
    help="Reach hosts by a command of yours: 'kubectl exec -i {host} --', 'ssh -J gate {host}'.",
)
@click.option(
    "--host-keys",
    type=click.Choice(["strict", "accept-new"]),
    help="Unknown host keys: refuse, or add [default: as ssh_config says, else strict].",
)
@click.option(
    "--keep", metavar="[=S]", help="Keep the connections for S idle seconds [600]; see connect."
)
@click.option(
    "--agent-python",
    metavar="PATH",
    help="Python for dispatch's agent on the hosts [default: the first python3 of 3.8 or later].",
)
@click.option(
    "--check",
    type=click.Choice(["quick", "full", "none"]),
    help="Before the start: prove what costs nothing (cwd, program, script, interface there; "
    "hosts distinct; host 0 within reach), or all of dispatch check --full, or nothing.",
)
@click.option(
    "--exclude-unhealthy",
    is_flag=True,
    help="Do all of dispatch check before the start; go on without the hosts that are not fit.",
)
@click.option("--check-timeout", metavar="S", help="Seconds for that check [20; 60 if full].")
@click.option(
    "--mpi",
    type=click.Choice(["auto", "pmi1", "none"]),
    help="Be the MPI process manager: of MPICH and Intel MPI by PMI-1, of Open MPI by PMIx "
    "(auto), by PMI-1 alone, or not at all.",
)
@click.option(
    "--pmi-port",
    is_flag=True,
    help="Offer MPI on a port of 127.0.0.1, not by inheritance: for MPI behind a wrapper that "
    "closes descriptors, as Python's subprocess does. Not the default, since others can knock "
    "at a port.",
)
@click.option(
    "--stdin",
    metavar="none|N|all",
    help="Who reads dispatch's standard input: nobody, rank N, or all ranks [default: none, so "
    "that a terminal, or a loop's `while read`, keeps what is its own].",
)
# time
@click.option(
    "--connect-timeout", metavar="S", help="Seconds to reach a host, login included [10]."
)
@click.option("--boot-timeout", metavar="S", help="Seconds for its agent to answer [30].")
@click.option("--grace", metavar="S", help="Seconds from TERM to KILL [10].")
@click.option("--heartbeat", metavar="S", help="Seconds between a host's heartbeats [5].")
@click.option(
    "--max-missed-heartbeats", metavar="N", help="Missed heartbeats that make a host lost [3]."
)
@click.option("--lease", metavar="S", help="Seconds after which ranks without a master die [30].")
@click.option(
    "--mpi-stall-warning", metavar="S", help="Seconds until ranks awaited in MPI are named [30]."
)
@click.option(
    "--hang-timeout",
    metavar="S",
    help="End a job of which no rank has written, computed or used its GPU for S seconds, and say "
    "where each was; with --progress-line or -file: one without progress for S [never].",
)
@click.option("--fanout", metavar="N", help="Hosts connecting at once [64].")
@fanout_option
@click.option(
    "--launcher",
    metavar="mpirun|PATH",
    help="Leave starting to the mpirun or mpiexec of this machine (Open MPI, MPICH, Intel MPI), "
    "with these hosts and this way to them: for what dispatch itself cannot start.",
)
# starting again
@click.option("--max-restarts", metavar="N", help="Start all ranks again N times at most [0].")
@click.option(
    "--min-nodes", metavar="N", help="Go on with N hosts at least when no spare is left [all]."
)
@click.option(
    "--restart-delay", metavar="S", help="Seconds before the second restart in a row; doubles [1]."
)
@click.option(
    "--max-host-failures", metavar="K", help="Leave a host out on which K attempts ended [3]."
)
@click.option(
    "--progress-line",
    metavar="RE",
    help="A line that shows progress; 3 attempts without it are the end.",
)
@click.option(
    "--progress-file", metavar="PATH", help="Likewise, a file on host 0 that progress changes."
)
@click.option(
    "--dedup-output",
    is_flag=True,
    help="What several ranks of a host write alike crosses the network once; the screen, files "
    "and counts stay as they are.",
)
# showing
@output_options.options
@click.option(
    "--detach",
    is_flag=True,
    help="Go on in the background once the ranks run; see dispatch jobs, attach, logs, stop.",
)
@click.option(
    "--trace",
    metavar="FILE",
    help="Write where the time went; see dispatch report, or ui.perfetto.dev.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and touch no host.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: as JSON, secrets hidden.")
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
