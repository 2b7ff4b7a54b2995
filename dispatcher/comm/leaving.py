"""How a rank that cannot go on leaves MPI without hanging itself or the others.

A rank that dies of an exception still runs ``MPI_Finalize`` at its end, and that
waits for all ranks: the others sit in a collective, so the job hangs and nobody
sees why. ``arm`` hooks the interpreter's end: the reason is printed first, then

- a reason that all ranks share: they meet for a moment and leave in good order,
  each with its own words and exit code 1;
- any other: this rank ends the job with ``MPI_Abort(1)``.

``sys.exit`` is not caught; a rank that leaves with a code of its own choice is the
launcher's to judge.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

from dispatcher.comm.errors import CommError
from dispatcher.comm.exchange import Exchange

#: How long a rank waits for the others to reach the same end.
_TOGETHER = 2.0

_armed = threading.Event()


def arm(mpi: Any, exchange: Exchange, name: str) -> None:
    """From now on an uncaught exception ends the whole job; ``name`` is this rank's."""
    if _armed.is_set():
        return
    _armed.set()
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if isinstance(error, CommError):
                sys.stderr.write(_words(name, error))
            else:
                before(kind, error, trace)
            sys.stderr.flush()
            sys.stdout.flush()
        finally:
            if mpi.Is_initialized() and not mpi.Is_finalized():
                shared = isinstance(error, CommError) and error.shared
                if not (shared and exchange.barrier(_TOGETHER)):
                    mpi.COMM_WORLD.Abort(1)

    sys.excepthook = hook


def _words(name: str, error: CommError) -> str:
    """``rank 3 on gpu01: comm: ...``, one line and its hint, in one write."""
    said = error.message.removeprefix("comm: ")
    text = f"{said}\n" if said.startswith(f"{name}: ") else f"{name}: {said}\n"
    return f"{text}hint: {error.hint}\n" if error.hint else text
