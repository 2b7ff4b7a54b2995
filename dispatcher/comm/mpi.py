"""MPI itself, opened with a stated thread level: ``open_mpi("multiple")`` gives mpi4py's ``MPI``.

Importing ``mpi4py.MPI`` calls ``MPI_Init_thread``, so this is the only module that
does so, and only when asked. A rank that never starts MPI holds all others inside
that call, where nothing in this process can look: the process manager names it.

What is not here: any message. ``exchange`` sends those.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from dispatcher.comm.errors import CommError, EnvironmentMissing

_LEVELS = ("single", "funneled", "serialized", "multiple")
_WORLD_SIZE = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def open_mpi(thread_level: str = "multiple") -> Any:
    """The module ``mpi4py.MPI``, initialized at least at this thread level.

    Raises EnvironmentMissing without mpi4py or an MPI library, CommError when MPI
    was started before with, or can give, only a lower level.
    """
    if thread_level not in _LEVELS:
        raise CommError(f"comm: thread level {thread_level!r}: is none of {', '.join(_LEVELS)}")
    try:
        mpi4py = importlib.import_module("mpi4py")
    except ImportError as error:
        raise EnvironmentMissing(
            f"comm: mpi4py: not installed for {sys.executable}", hint="pip install mpi4py mpich"
        ) from error
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.thread_level = thread_level
    try:
        module: Any = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise EnvironmentMissing(
            f"comm: mpi4py: no MPI library could be loaded: {error}", hint="pip install mpich"
        ) from error
    if not module.Is_initialized():
        module.Init_thread(getattr(module, f"THREAD_{thread_level.upper()}"))
    given = int(module.Query_thread())
    wanted = int(getattr(module, f"THREAD_{thread_level.upper()}"))
    if given < wanted:
        names = {int(getattr(module, f"THREAD_{name.upper()}")): name for name in _LEVELS}
        raise CommError(
            f"comm: mpi: started with thread level {names.get(given, given)!r},"
            f" {thread_level!r} is needed",
            hint="call comm.init() before anything imports mpi4py.MPI",
        )
    return module


def check_world(size: int, env: Mapping[str, str], library: str) -> None:
    """Raises CommError if MPI sees fewer or more ranks than the launcher started.

    That happens when the MPI library does not speak the launcher's protocol: each
    rank is then a world of its own, and a broadcast reaches nobody.
    """
    for name in _WORLD_SIZE:
        text = env.get(name, "")
        if text.isascii() and text.isdigit():
            if int(text) != size:
                raise CommError(
                    f"comm: mpi: the world has {size} rank{'s' if size > 1 else ''},"
                    f" {name} says {text}: {library} does not speak this launcher's protocol",
                    hint="pip install mpich",
                )
            return
