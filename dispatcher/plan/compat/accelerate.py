"""``accelerate launch``: its flags become what ``Accelerator()`` reads from the environment."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.model.errors import UsageError
from dispatcher.plan.compat.flag_table import Becomes, Flag, Line, flag, gone, read, refuse, to
from dispatcher.plan.compat.torchrun import spelled

WHO = "accelerate launch"
_ALL = "dispatch starts every node from one command"


def _variable(name: str, fixed: str | None = None) -> Becomes:
    return lambda *values: ("-x", f"{name}={fixed if fixed is not None else values[0]}")


TABLE: dict[str, Flag] = {}
flag(TABLE, "--num-processes", to("--np"), "the world's size, as there")
flag(TABLE, "--num-machines", to("--nnodes"))
flag(TABLE, "--machine-rank", gone, _ALL)
flag(TABLE, "--main-process-ip", gone, "dispatch proves an address of host 0")
flag(TABLE, "--main-process-port", to("--master-port"))
flag(TABLE, "--multi-gpu --same-network", gone, "that is how dispatch runs", values=0)
flag(TABLE, "--rdzv-backend --rdzv-conf --monitor-interval --role", gone, _ALL)
flag(TABLE, "--max-restarts", to("--max-restarts"))
flag(TABLE, "--mixed-precision", _variable("ACCELERATE_MIXED_PRECISION"))
flag(TABLE, "--dynamo-backend", lambda v: ("-x", f"ACCELERATE_DYNAMO_BACKEND={v.upper()}"))
flag(TABLE, "--gradient-accumulation-steps", _variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS"))
flag(TABLE, "--cpu", _variable("ACCELERATE_USE_CPU", "true"), values=0)
flag(TABLE, "--use-deepspeed", _variable("ACCELERATE_USE_DEEPSPEED", "true"), values=0)
flag(TABLE, "--deepspeed-config-file", _variable("ACCELERATE_DEEPSPEED_CONFIG_FILE"))
flag(TABLE, "--deepspeed-hostfile", to("-H"))
flag(TABLE, "--deepspeed-inclusion-filter", to("--include"))
flag(TABLE, "--deepspeed-exclusion-filter", to("--exclude"))
flag(TABLE, "--deepspeed-multinode-launcher", gone, "dispatch is the launcher")
flag(TABLE, "--log-dir", to("--log-dir"))
flag(TABLE, "-t --tee", gone, "every line is shown")
flag(TABLE, "-m --module", to("-m"), values=0)
flag(TABLE, "--no-python", to("--no-python"), values=0)
flag(TABLE, "-q --quiet", to("--quiet"), values=0)
_SETTINGS = "build FullyShardedDataParallelPlugin in the script, or give its FSDP_* with -x"
flag(TABLE, "--use-fsdp", refuse(_SETTINGS), values=0)
flag(TABLE, "--config-file", refuse("give what the file says as flags"))
flag(TABLE, "--gpu-ids", refuse("--include host:0,2"))


def translate(words: Sequence[str]) -> Line:
    """The line for ``accelerate launch ...``. Raises: UsageError."""
    if words[:1] != ["launch"] and tuple(words[:1]) != ("launch",):
        raise UsageError("accelerate: only its launch command starts ranks")
    options, rest, reasons = read(words[1:], TABLE, WHO, spelled)
    if not rest:
        raise UsageError(f"{WHO}: no script in it")
    return Line(tuple(options), tuple(rest), tuple(reasons))
