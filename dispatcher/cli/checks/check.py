"""The options of ``dispatch check``; each class is a section of its help."""

from __future__ import annotations

from typing import Literal

from dispatcher.cli.options.declaration import Options, argument, json_option, option, preset
from dispatcher.cli.options.host_options import ContainerOptions, LoginOptions, WhereOptions


class ReadingOptions(Options, section="Checks"):
    full: bool = preset(
        help="Also check GPUs, kernel log, InfiniBand and mounts, which takes longer."
    )
    speed: bool = option(
        help="Also measure the GPUs, with --full: matrix products, copies, an all-reduce in each "
        "host, compared with their peers."
    )
    python: str | None = option(
        metavar="PATH",
        help="Check with this Python, which the ranks will use.",
        usual="as for dispatch run",
    )
    chdir: str | None = preset(
        metavar="DIR", help="Check this folder, in which the ranks will run.", usual="this folder"
    )
    iface: str | None = preset(
        metavar="NAME", help="Check this network interface, which the ranks will use."
    )
    master_port: int | None = preset(
        most=65535,
        metavar="PORT",
        help="Check whether this port can be reached on host 0.",
        usual="any free port",
    )
    check_timeout: float | None = preset(
        metavar="SECONDS",
        help="End everything after SECONDS.",
        usual="20; 60 with --full, 180 with --speed",
    )
    xid_table: str | None = preset(
        metavar="FILE",
        help="Rate the driver's Xid messages by FILE, with --full. Its lines are NUMBER and "
        "critical, warn or ignore.",
    )
    site_checks: str | None = option(
        metavar="DIR",
        help="Also run the executables in DIR of each host, with --full. Each prints a line of "
        "JSON.",
    )


class PairOptions(Options, section="Pairs of hosts"):
    pairs: bool = preset(help="Measure the network between hosts, two by two, and find slow hosts.")
    backend: Literal["tcp", "nccl", "gloo"] | None = preset(
        help="Measure by plain TCP, or by torch ranks of --python with NCCL on all GPUs, or gloo "
        "on CPUs.",
        usual="tcp",
    )
    rounds: str | None = preset(
        metavar="N|all", help="Measure at most N rounds, or all pairs.", usual="4"
    )
    slow: float | None = preset(
        metavar="SHARE",
        help="Call a pair slow if it reaches less than this share of the usual rate. If given, "
        "it also replaces the known rates of GPUs within a host.",
        usual="0.5",
    )
    svg: str | None = option(metavar="FILE", help="Draw the pairs as a heat map in FILE.")


class NcclOptions(Options, section="NCCL"):
    nccl: bool = preset(
        help="Show the network that NCCL will use on every host, and the settings to give it."
    )
    apply: str | None = option(
        metavar="FILE", help="Write the settings to FILE, for --env-file of dispatch run."
    )


class FindingOptions(Options, section="Output"):
    verbose: bool = preset("-v", help="Also show checks that pass on all hosts.")
    as_json: bool = json_option("the result")
    connect_timeout: float = preset(
        "-t",
        section="Connections",
        default=10.0,
        metavar="SECONDS",
        positive=True,
        help="Give up on a host that is not reached within SECONDS, login included.",
        usual="10",
    )


class CheckOptions(
    WhereOptions,
    ReadingOptions,
    PairOptions,
    NcclOptions,
    FindingOptions,
    ContainerOptions,
    LoginOptions,
):
    """Check all hosts at once: which can run a job, which cannot, and why.

    With SCRIPT it also checks that every host has the script. dispatch run makes the quick checks
    by itself, and all of these with --check full.
    """

    examples = (
        ("dispatch check -H hostfile train.py", "quick checks, and the script"),
        ("dispatch check -H hostfile --full --json", "GPUs, kernel log, InfiniBand; for a program"),
        ("dispatch check -H hostfile --pairs --svg map.svg", "find slow links and slow hosts"),
        ("dispatch check -H hostfile --nccl --apply nccl.env", "settings for --env-file nccl.env"),
    )
    brief = (
        "hostfile", "lists", "excluded", "full", "python", "chdir", "check_timeout", "pairs",
        "backend", "svg", "nccl", "apply", "verbose", "as_json", "user",
    )  # fmt: skip
    epilog = """
    Exit code: 0 if all hosts pass, even with warnings. 1: a host fails, or could not be read; 2:
    the command line is wrong, and no host was touched; 125: a host was not reached; 130: Ctrl-C.
    """

    words: tuple[str, ...] = argument(metavar="[SCRIPT]")
