"""Loaded by a rank's Python before its program: an exception must not end in MPI_Finalize.

mpi4py finalizes MPI when the interpreter exits. After an uncaught exception in
one rank that call waits for ranks which wait for it, so the job would hang with
its traceback on the screen. Here such a rank leaves with exit code 1 instead,
once everything else that runs at exit has run; the launcher does the rest.

The file travels to the hosts and lies in a private folder that is first in
PYTHONPATH. It takes itself out of ``sys.path`` and PYTHONPATH and loads the
``sitecustomize`` it stands before, so neither the program nor its children find
a trace. Any Python from 3.7 can run it; nothing of dispatch is imported. What it does
not see: ``sys.exit(n)``, which is an orderly end, and a program that replaces
``sys.excepthook`` without calling the one before.
"""

from __future__ import annotations

import atexit
import os
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def step_aside() -> None:
    """Let the rank's own ``sitecustomize`` be found, as if this one had never been."""
    me = sys.modules[__name__]
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if place != folder]
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = os.pathsep.join(place for place in places if place != folder)
    if rest:
        os.environ["PYTHONPATH"] = rest
    else:
        os.environ.pop("PYTHONPATH", None)
    del sys.modules[__name__]
    try:
        import_module(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, me)  # who imports us looks for something there


def watch() -> None:
    """Leave before MPI_Finalize if an uncaught exception ends this process."""
    rank = os.getpid()
    usual = sys.excepthook
    failed: list[Any] = []

    def excepthook(kind: Any, value: Any, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            failed.append(kind)
        usual(kind, value, trace)

    def leave() -> None:
        mpi = sys.modules.get("mpi4py.MPI")
        if not failed or os.getpid() != rank or mpi is None:
            return
        if mpi.Is_initialized() and not mpi.Is_finalized():
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (AttributeError, OSError, ValueError):
                    pass
            os._exit(1)

    sys.excepthook = excepthook
    atexit.register(leave)  # the first to be registered is the last to run


if __name__ == "sitecustomize":
    watch()
    step_aside()
