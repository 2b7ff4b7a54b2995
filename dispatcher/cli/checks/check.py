"""``dispatch check``: what it takes; each class is a section of its help."""

from __future__ import annotations

from typing import Literal

from dispatcher.cli.options.declaration import Options, argument, option
from dispatcher.cli.options.host_options import LoginOptions, WhereOptions


class ReadingOptions(Options, section="Checks"):
    """What is looked at on every host."""

    full: bool = option(help="Also check GPUs, kernel log, InfiniBand and mounts; slower.")
    python: str | None = option(metavar="PATH", help="Python for the ranks, as in a run.")
    chdir: str | None = option(
        metavar="DIR", help="Working directory of the ranks [default: this one]."
    )
    iface: str | None = option(metavar="NAME", help="Network interface of the ranks.")
    master_port: int | None = option(
        most=65535, metavar="PORT", help="Try this port on host 0 [any free one]."
    )
    check_timeout: float | None = option(
        metavar="S", help="Seconds for everything [20; 60 with --full]."
    )
    xid_table: str | None = option(
        metavar="FILE",
        help="With --full: lines of NUMBER critical|warn|ignore for the driver's Xid messages.",
    )
    site_checks: str | None = option(
        metavar="DIR",
        help="With --full: run the executables in DIR of each host; each prints a JSON line.",
    )


class PairOptions(Options, section="Pairs of hosts"):
    """How hosts are measured two by two."""

    pairs: bool = option(help="Measure hosts two by two; find the slow one.")
    backend: Literal["tcp", "mpi", "nccl", "gloo"] | None = option(
        help="Measure plain TCP, or ranks of --python: MPI, NCCL on GPU 0, gloo (CPU) [tcp]."
    )
    rounds: str | None = option(metavar="N|all", help="At most N rounds, or all pairs [4].")
    slow: float | None = option(
        metavar="SHARE", help="A pair is bad below this share of the usual [0.5]."
    )
    svg: str | None = option(metavar="FILE", help="Write the heat map to FILE.")


class NcclOptions(Options, section="NCCL"):
    """What is asked of NCCL."""

    nccl: bool = option(help="What NCCL will use on every host, and which settings to give.")
    texts: tuple[str, ...] = option(
        "--from",
        metavar="FILE",
        help="Read a host's ibstatus, rdma link, ip addr, env ... from FILE; may be repeated.",
    )
    apply: str | None = option(metavar="FILE", help="Write the advice for --env-file.")
    log: str | None = option(metavar="FILE", help="Compare with NCCL's INFO lines in FILE.")


class FindingOptions(Options, section="Output"):
    """What is shown of it."""

    verbose: bool = option("-v", help="Also show checks that are fine everywhere.")
    as_json: bool = option("--json", help="The result as one JSON object.")
    connect_timeout: float = option(
        "-t",
        section="Connections",
        default=10.0,
        metavar="S",
        help="Seconds to reach a host [10].",
    )


class CheckOptions(
    WhereOptions, ReadingOptions, PairOptions, NcclOptions, FindingOptions, LoginOptions
):
    """Look at all hosts at once and say which are fit for a job, which are not, and why."""

    epilog = """\b
    Examples:
      dispatch check -H hostfile train.py
      dispatch check -H hostfile --full --json
      dispatch check -H hostfile --pairs --svg map.svg
      dispatch check -H hostfile --pairs --backend nccl      # or gloo on CPUs, mpi, tcp
      dispatch check -H hostfile --nccl --apply nccl.env
      dispatch --env-file nccl.env -H hostfile train.py
      dispatch check --nccl --from b01.txt --from b02.txt   # ibstatus, ip addr, env ... pasted
    A run does by itself what costs nothing: --check quick. dispatch --check full does all of this.
    Exit code: 0 fit (warnings are told); 1 a host is not, or could not be read; 2 usage;
    125 a host was not reached; 130 Ctrl-C.
    """

    words: tuple[str, ...] = argument(metavar="[SCRIPT]")
