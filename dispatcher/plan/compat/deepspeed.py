"""``deepspeed``: DeepSpeed's own launcher."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.errors import UsageError
from dispatcher.plan.compat.flag_table import Flag, Line, Reason, flag, gone, read, refuse, to
from dispatcher.plan.compat.torchrun import spelled

WHO = "deepspeed"
_ALL = "dispatch starts every node from one command"

TABLE: dict[str, Flag] = {}
flag(TABLE, "-H --hostfile", to("-H"))
flag(TABLE, "-i --include", to("--include"))
flag(TABLE, "-e --exclude", to("--exclude"))
flag(TABLE, "--num-nodes", to("--nnodes"))
flag(TABLE, "--num-gpus --num-accelerators", to("--nproc-per-node"))
flag(TABLE, "--master-addr", to("--master-addr"))
flag(TABLE, "--master-port", to("--master-port"))
flag(TABLE, "--node-rank", gone, _ALL)
flag(TABLE, "--launcher --launcher-args", gone, "dispatch is the launcher")
flag(TABLE, "--module", to("-m"), values=0)
flag(TABLE, "--no-python", to("--no-python"), values=0)
flag(TABLE, "--no-local-rank", gone, "no --local_rank is added to the script's words", values=0)
flag(TABLE, "--no-ssh --no-ssh-check --force-multi", gone, _ALL, values=0)
flag(TABLE, "--save-pid", gone, "dispatch jobs knows the job; dispatch kill ends it", values=0)
flag(TABLE, "--enable-each-rank-log", to("--log-dir"))
flag(TABLE, "--ssh-port", to("--ssh-port"))
flag(TABLE, "--log-level", gone)
flag(TABLE, "-q --quiet", to("--quiet"), values=0)
flag(TABLE, "--bind-cores-to-rank", gone, "dispatch binds no cores; --omp sets threads", values=0)
flag(TABLE, "--bind-core-list", gone, "dispatch binds no cores")
flag(TABLE, "--venv-script", refuse("--python /path/to/venv/bin/python"))
flag(TABLE, "--autotuning", refuse("run the tuner by deepspeed itself"))
flag(TABLE, "--elastic-training", to("--max-restarts", "100"), values=0)
flag(TABLE, "--min-elastic-nodes", to("--min-nodes"))
flag(TABLE, "--max-elastic-nodes", to("--nnodes"))


def translate(words: Sequence[str]) -> Line:
    """The line for ``deepspeed``'s ``words``. Raises: UsageError."""
    options, rest, reasons = read(words, TABLE, WHO, spelled)
    if not rest:
        raise UsageError(f"{WHO}: no script in it")
    if not any(spelled(reason.written[0]) == "--no-local-rank" for reason in reasons):
        options += ("--local-rank-arg", "--local_rank")
        why = "deepspeed gives scripts --local_rank=N; leave it out if yours does not want it"
        reasons.append(Reason((), ("--local-rank-arg", "--local_rank"), why))
    return Line(tuple(options), tuple(rest), tuple(reasons))
