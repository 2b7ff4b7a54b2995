"""Options and commands that dispatch no longer has, and their replacements.

A row goes after one minor version.
"""

from __future__ import annotations

#: name of the option without dashes, or ``name=value`` where only that value went, or ``dispatch
#: COMMAND`` -> the replacement
REMOVED: dict[str, str] = {
    "watch": "start with --detach, and look at the table with `dispatch top`",
    "dispatch man": "the package brings its manual pages; read them with `man dispatch`",
    "for": "`dispatch COMMAND --dry-run` shows the hosts that COMMAND takes",
    "launcher=mpirun": "dispatch starts the ranks of an MPI program itself. If a site "
    "needs its own mpirun, run that by hand, or try --transport slurm",
    "backend=mpi": "--backend tcp measures the same links; for the rates of MPI itself run a "
    "benchmark of two ranks, as `dispatch -w n1,n2 --no-python osu_bw`",
    "from": "dispatch check had it; `dispatch check --nccl` asks the hosts themselves",
    "log": "dispatch check had it; a run with `-x NCCL_DEBUG=INFO` says itself where NCCL fell "
    "back to sockets, and --log-dir keeps what ranks say",
    "dedup-output": "ssh's own `Compression yes`, with --transport ssh, saves bytes on a slow line",
    "send-equal-once": "see --dedup-output",
    "rdzv": "`--launcher torchrun` does the same",
    "alive": "it is now --server-alive-interval",
    "beats-lost": "it is now --max-missed-heartbeats",
    "fan-out": "it is now --fanout",
    "host-faults": "it is now --max-host-failures",
    "live": "it is now --no-gather",
    "mpi-patience": "it is now --mpi-stall-warning",
    "over": "it is now --backend",
    "stop-after": "it is now --max-fail",
    "tree": "it is now --fanout-tree",
    "log-overflow=spool": "the ranks wait for a slow disk; put --log-dir on a faster disk",
}


def removed(name: str, value: str | None = None) -> str | None:
    """Return the text ``--NAME was removed: ...``; None for an option that was never there.

    name: with or without leading dashes. value: one that the option no longer takes.
    """
    name = name.lstrip("-").replace("_", "-")
    key = name if value is None else f"{name}={value}"
    return f"--{key} was removed: {REMOVED[key]}" if key in REMOVED else None


def removed_command(name: str) -> str | None:
    """Return the text ``dispatch NAME was removed: ...``; None if it was never a command."""
    key = f"dispatch {name}"
    return f"{key} was removed: {REMOVED[key]}" if key in REMOVED else None
