"""``torchrun``, ``python -m torch.distributed.run`` and the older ``.launch``."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.errors import UsageError
from dispatcher.plan.compat.flag_table import Flag, Line, Reason, flag, gone, read, refuse, to

WHO = "torchrun"
_ALL = "dispatch starts every node from one command"
_MEETING = "dispatch proves an address of host 0 and keeps a port free there"


def _nnodes(value: str) -> Sequence[str]:
    least, colon, most = value.partition(":")
    if not colon:
        return ("--nnodes", value)
    return ("--nnodes", most, "--min-nodes", least, "--max-restarts", "3")


def _endpoint(value: str) -> None:
    if not value:
        raise UsageError("an empty endpoint")


TABLE: dict[str, Flag] = {}
flag(TABLE, "--nnodes", _nnodes, "a range is the least and the most number of hosts")
flag(TABLE, "--nproc-per-node", to("--nproc-per-node"))
flag(TABLE, "--node-rank --group-rank", gone, _ALL)
flag(TABLE, "--master-addr", gone, _MEETING)
flag(TABLE, "--master-port", to("--master-port"))
flag(TABLE, "--rdzv-endpoint", _endpoint, _MEETING)
flag(TABLE, "--rdzv-backend --rdzv-id --rdzv-conf --local-addr", gone, _MEETING)
flag(TABLE, "--standalone", to("-H", "localhost"), "on this machine", values=0)
flag(TABLE, "--max-restarts", to("--max-restarts"), "all ranks of all hosts start again")
flag(TABLE, "--log-dir", to("--log-dir"), "one file a rank of the world, of all hosts, here")
flag(TABLE, "-r --redirects -t --tee", gone, "every line is shown; --log-dir keeps them all")
flag(TABLE, "--role --monitor-interval --start-method --event-log-handler", gone, _ALL)
flag(TABLE, "--local-ranks-filter", gone, "see --only-ranks, which counts over all hosts")
flag(TABLE, "--shutdown-timeout", to("--grace"))
flag(TABLE, "--signals-to-handle", gone, "INT, TERM, HUP, QUIT, USR1 and USR2 reach the ranks")
flag(TABLE, "-m --module", to("-m"), values=0)
flag(TABLE, "--no-python", to("--no-python"), values=0)
flag(TABLE, "--run-path", refuse("name the script itself"), values=0)
flag(TABLE, "--numa-binding", refuse("bind in the script, or by --no-python numactl ..."))
flag(TABLE, "--virtual-local-rank", to("--devices", "rank"), "each rank sees one GPU", values=0)


def translate(words: Sequence[str]) -> Line:
    """The line for ``torchrun``'s ``words``. Raises: UsageError."""
    options, rest, reasons = read(words, TABLE, WHO, spelled)
    if not rest:
        raise UsageError(f"{WHO}: no script in it")
    return Line((*options, *_one_rank(options, reasons)), tuple(rest), tuple(reasons))


def _one_rank(options: Sequence[str], reasons: list[Reason]) -> Sequence[str]:
    """torchrun's own default, where the line does not say how many ranks a host has."""
    if "--nproc-per-node" in options:
        return ()
    words = ("--nproc-per-node", "1")
    reasons.append(Reason((), words, "torchrun's default; leave it out for a rank per GPU"))
    return words


LAUNCH = dict(TABLE)
flag(LAUNCH, "--use-env", gone, "LOCAL_RANK is always in the environment", values=0)


def translate_launch(words: Sequence[str]) -> Line:
    """The line for ``torch.distributed.launch``, which gives scripts ``--local-rank``."""
    options, rest, reasons = read(words, LAUNCH, "torch.distributed.launch", spelled)
    if not rest:
        raise UsageError("torch.distributed.launch: no script in it")
    options += _one_rank(options, reasons)
    if not any(reason.written and spelled(reason.written[0]) == "--use-env" for reason in reasons):
        options += ("--local-rank-arg", "--local-rank")
        why = "it gives scripts --local-rank=N; leave it out if yours does not want it"
        reasons.append(Reason((), ("--local-rank-arg", "--local-rank"), why))
    return Line(tuple(options), tuple(rest), tuple(reasons))


def spelled(name: str) -> str:
    """Both spellings are one: ``--nproc_per_node``."""
    return name.replace("_", "-")
