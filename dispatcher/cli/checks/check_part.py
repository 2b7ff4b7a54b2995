"""``dispatch check``: is the cluster fit for a job, and which host is not?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dispatcher.cli.entry import CONTEXT, enter
from dispatcher.cli.options.host_options import how_options, where_options
from dispatcher.model.errors import UsageError

EPILOG = """\b
Examples:
  dispatch check -H hostfile train.py
  dispatch check -H hostfile --full --json
  dispatch check -H hostfile --pairs --svg map.svg
  dispatch check -H hostfile --pairs --over nccl        # or gloo on CPUs, mpi, tcp
  dispatch check -H hostfile --nccl --apply nccl.env
  dispatch --env-file nccl.env -H hostfile train.py
  dispatch check --nccl --from b01.txt --from b02.txt   # ibstatus, ip addr, env ... pasted
A run does by itself what costs nothing: --check quick. dispatch --check full does all of this.
Exit code: 0 fit (warnings are told); 1 a host is not, or could not be read; 2 usage;
125 a host was not reached; 130 Ctrl-C.
"""


#: what must be asked for -> options that are about it alone
_GO_WITH = {
    "pairs": ("over", "rounds", "slow", "svg"),
    "nccl": ("texts", "apply", "log"),
}


@click.command(
    "check", context_settings={**CONTEXT, "allow_interspersed_args": True}, epilog=EPILOG
)
@click.argument("words", nargs=-1, metavar="[SCRIPT]")
@where_options
@click.option("--full", is_flag=True, help="Also GPUs, kernel log, InfiniBand, mounts; slower.")
@click.option("--python", metavar="PATH", help="Python of the ranks, as for a run.")
@click.option("--chdir", metavar="DIR", help="Working directory of the ranks [default: this one].")
@click.option("--iface", metavar="NAME", help="Interface over which the ranks will meet.")
@click.option("--master-port", metavar="PORT", help="Try this port on host 0 [any free one].")
@click.option("--check-timeout", metavar="S", help="Seconds for all of it [20; 60 with --full].")
@click.option(
    "--xid-table", metavar="FILE", help="With --full: NUMBER critical|warn|ignore, a line each."
)
@click.option(
    "--site-checks",
    metavar="DIR",
    help="With --full: run the executables in DIR of each host; each prints a JSON line.",
)
@click.option("--pairs", is_flag=True, help="Measure hosts two by two; find the slow one.")
@click.option(
    "--over",
    type=click.Choice(["tcp", "mpi", "nccl", "gloo"]),
    help="With --pairs: plain TCP, or ranks of --python: MPI, NCCL on GPU 0, gloo (CPU) [tcp].",
)
@click.option("--rounds", metavar="N|all", help="With --pairs: rounds at most; all pairs [4].")
@click.option("--slow", metavar="SHARE", help="With --pairs: bad below this of the usual [0.5].")
@click.option("--svg", metavar="FILE", help="With --pairs: write the heat map to FILE.")
@click.option("-v", "--verbose", is_flag=True, help="Show checks that are fine everywhere, too.")
@click.option("--nccl", is_flag=True, help="What NCCL will use on every host, and should be told.")
@click.option(
    "--from",
    "texts",
    multiple=True,
    metavar="FILE",
    help="With --nccl: a host's ibstatus, rdma link, ip addr, env ... as text; repeatable.",
)
@click.option("--apply", "apply", metavar="FILE", help="Write the advice to FILE for --env-file.")
@click.option("--log", "log", metavar="FILE", help="Compare with NCCL's INFO lines in FILE.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@click.option("-t", "--connect-timeout", metavar="S", help="Seconds to reach a host [10].")
@how_options
def command(**flags: Any) -> int:
    """Look at all hosts at once and say which are fit for a job, which are not, and why."""
    kinds = [kind for kind in ("full", "pairs", "nccl") if flags[kind]]
    if len(kinds) > 1:
        raise UsageError(f"--{kinds[0]} and --{kinds[1]} exclude each other")
    if flags["words"] and kinds and not flags["full"]:
        raise UsageError(f"--{kinds[0]} looks at no script")
    for kind, names in _GO_WITH.items():
        for name in names:
            if flags[name] and not flags[kind]:
                said = "from" if name == "texts" else name
                raise UsageError(f"--{said} goes with --{kind}")
    if flags["nccl"]:
        from dispatcher.cli.checks.nccl import run
    elif flags["pairs"]:
        from dispatcher.cli.checks.pairs import run
    else:
        from dispatcher.cli.checks.check import run
    return run(flags)


def main(words: Sequence[str]) -> int:
    """Run ``dispatch check`` with ``words``; the exit code."""
    return enter(command, words, "dispatch check")
