"""MPI opened with a stated thread level, and left without hanging the others.

Importing ``mpi4py.MPI`` calls ``MPI_Init_thread``, so only ``open_mpi`` does that. A rank that an
exception ends would hang in ``MPI_Finalize``. So ``arm`` hooks the interpreter's end. It prints the
reason. Then ranks that share it meet for a moment and leave in good order; any other rank ends the
job with ``MPI_Abort(1)``. ``sys.exit(3)`` calls no hook: ``exit_with`` is for it.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from dispatcher.comm.errors import CommError, EnvironmentMissing
from dispatcher.comm.exchange import Aside, Exchange

_LEVELS = ("single", "funneled", "serialized", "multiple")
_WORLD_SIZE = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def open_mpi(thread_level: str = "multiple") -> Any:
    """The module ``mpi4py.MPI``, initialized at least at this thread level.

    Raises EnvironmentMissing without mpi4py or an MPI library, CommError when MPI
    was started before with, or can give, only a lower level.
    """
    if thread_level not in _LEVELS:
        raise CommError(f"comm: thread level {thread_level!r}: not one of {', '.join(_LEVELS)}")
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
    rank is then alone in a world, and a broadcast reaches no other.
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


#: How long a rank waits for the others to reach the same end.
_TOGETHER = 2.0


class _Ways:
    """The state of the hook: the rank's name, and MPI once it has started."""

    armed = False
    who = ""
    mpi: Any = None
    exchange: Exchange | None = None
    abort: Callable[[], None] | None = None
    together = False  # after a failure that all share, they have met


def arm_mpi(who: str) -> None:
    """From now on print an uncaught CommError as a message, without a traceback."""
    _Ways.who = who
    if _Ways.armed:
        return
    _Ways.armed = True
    atexit.register(_end)  # early, so nearly the last to run
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if isinstance(error, CommError):
                sys.stderr.write(_words(_Ways.who, error))
            else:
                before(kind, error, trace)
            sys.stderr.flush()
            sys.stdout.flush()
        finally:
            _leave(isinstance(error, CommError) and error.shared)

    sys.excepthook = hook


def take_others_along(mpi: Any, exchange: Exchange) -> None:
    """From now on an uncaught exception ends the whole job."""
    _Ways.who, _Ways.mpi, _Ways.exchange = exchange.who, mpi, exchange


def abort_first(abort: Callable[[], None]) -> None:
    """Set a call that a rank makes before it leaves in good order after a failure; it may hang."""
    _Ways.abort = abort


def exit_with(error: SystemExit) -> None:
    """End the whole job with the code of a ``sys.exit`` that says failure; success returns."""
    code = error.code
    if code is None or code == 0 or _Ways.exchange is None:
        return
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    sys.stderr.flush()
    sys.stdout.flush()
    _Ways.mpi.COMM_WORLD.Abort(code)


def _leave(shared: bool) -> None:
    mpi, exchange = _Ways.mpi, _Ways.exchange
    if exchange is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    if shared and _Ways.abort is not None:  # a kernel that waits for ever would hold up the exit
        thread = threading.Thread(target=_Ways.abort, daemon=True)
        thread.start()
        thread.join(_TOGETHER)
    _Ways.together = shared and exchange.barrier(_TOGETHER)
    if not _Ways.together:
        mpi.COMM_WORLD.Abort(1)


def _end() -> None:
    """Leave without an end of the interpreter where a thread is still in what failed.

    C++ that comes back into a Python which is ending has its thread ended, and where that must not
    throw (pybind11's ``gil_scoped_release``, so all of torch) the process goes by SIGABRT.
    """
    if not (_Ways.together and Aside.any_at_work()):
        return
    if not _Ways.mpi.Is_finalized():
        _Ways.mpi.Finalize()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(1)


def _words(name: str, error: CommError) -> str:
    """``rank 3 on gpu01: comm: ...``, one line and its hint, in one write."""
    message = error.message.removeprefix("comm: ")
    text = f"{message}\n" if message.startswith(f"{name}: ") else f"{name}: {message}\n"
    return f"{text}hint: {error.hint}\n" if error.hint else text
