"""Other launchers' command lines as dispatch's: ``translate(["torchrun", ...])``.

Pure: words in, words and reasons out. Each launcher is one table of its flags;
a flag that is not in it is an error, never dropped in silence, because a job that
ignores half of what it was asked looks as if it had run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from dispatcher.model.errors import UsageError
from dispatcher.plan.compat import accelerate, deepspeed, mpirun, torchrun
from dispatcher.plan.compat.flag_table import Line

__all__ = ["Line", "is_known", "translate"]

_LAUNCHERS: dict[str, Callable[[Sequence[str]], Line]] = {
    "torchrun": torchrun.translate,
    "torch.distributed.run": torchrun.translate,
    "torch.distributed.launch": torchrun.translate_launch,
    "deepspeed": deepspeed.translate,
    "ds": deepspeed.translate,
    "accelerate": accelerate.translate,
    "mpirun": mpirun.translate,
    "mpiexec": mpirun.translate,
    "orterun": mpirun.translate,
    "prterun": mpirun.translate,
    "mpirun.openmpi": mpirun.translate,
    "mpiexec.openmpi": mpirun.translate,
    "mpirun.mpich": mpirun.translate,
    "mpiexec.mpich": mpirun.translate,
    "mpiexec.hydra": mpirun.translate,
}


def translate(words: Sequence[str]) -> Line:
    """The dispatch command line that does what ``words`` do.

    Raises: UsageError for a launcher or a flag that is not known, or cannot be met.
    """
    name, rest = _launcher(words)
    if name not in _LAUNCHERS:
        known = ", ".join(dict.fromkeys(key for key in _LAUNCHERS if "." not in key))
        raise UsageError(f"not a launcher that is known here: {name!r}; known: {known}")
    return _LAUNCHERS[name](rest)


def is_known(words: Sequence[str]) -> bool:
    """Whether ``words`` are the command line of a launcher that ``translate`` knows."""
    return _launcher(words)[0] in _LAUNCHERS


def _launcher(words: Sequence[str]) -> tuple[str, list[str]]:
    """The launcher's name, "" for none, and its words."""
    rest = list(words)
    name = os.path.basename(rest.pop(0)) if rest else ""
    if name.startswith("python"):  # python [-u] -m torch.distributed.run ...
        while rest and rest[0] in ("-u", "-B"):
            rest.pop(0)
        name = rest[1] if len(rest) > 1 and rest[0] == "-m" else ""
        rest = rest[2:]
    return name, rest
