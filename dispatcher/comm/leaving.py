"""How a rank that cannot go on leaves MPI without hanging itself or the others.

A rank that dies of an exception still runs ``MPI_Finalize`` at its end, and that
waits for all ranks: the others sit in a collective, so the job hangs and nobody
sees why. ``arm`` hooks the interpreter's end: the reason is printed first, then, with MPI started,

- a reason that all ranks share: they meet for a moment and leave in good order,
  each with its own words and exit code 1;
- any other: this rank ends the job with ``MPI_Abort(1)``.

``sys.exit(3)`` calls no hook, and hangs in the same way while the others are in MPI. It
is seen only by ``with init() as job:``, whose end then calls ``exit_with``.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from dispatcher.comm.errors import CommError
from dispatcher.comm.exchange import Exchange

#: How long a rank waits for the others to reach the same end.
_TOGETHER = 2.0


class _Ways:
    """What the hook knows so far: the rank's name, and MPI once it is there."""

    armed = False
    who = ""
    mpi: Any = None
    exchange: Exchange | None = None


def arm(who: str) -> None:
    """From now on an uncaught CommError is told in words, without a traceback."""
    _Ways.who = who
    if _Ways.armed:
        return
    _Ways.armed = True
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
    if not (shared and exchange.barrier(_TOGETHER)):
        mpi.COMM_WORLD.Abort(1)


def _words(name: str, error: CommError) -> str:
    """``rank 3 on gpu01: comm: ...``, one line and its hint, in one write."""
    said = error.message.removeprefix("comm: ")
    text = f"{said}\n" if said.startswith(f"{name}: ") else f"{name}: {said}\n"
    return f"{text}hint: {error.hint}\n" if error.hint else text
