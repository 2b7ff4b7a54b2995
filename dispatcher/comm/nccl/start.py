"""How the world's communicator starts: by ids over MPI, then on all ranks or none.

An id is made only when a communicator is wanted: it keeps a thread and a port until it is used.
"""

from __future__ import annotations

import ctypes
import logging

from dispatcher.comm.errors import NcclError
from dispatcher.comm.exchange import Aside, Exchange
from dispatcher.comm.nccl.communicator import Communicator
from dispatcher.comm.nccl.library import (
    IN_PROGRESS,
    SCALABLE,
    SIZE,
    Library,
    UniqueId,
    make_current,
)

log = logging.getLogger("dispatcher.comm")

#: How many ranks one id (one listening thread in one rank) serves; torch's number too.
RANKS_PER_ID = 128
#: Seconds for the abort of a start that failed.
_ABORT = 5.0


def roots(size: int, count: int) -> list[int]:
    """The ranks that make the ids, in the order NCCL wants them: [0, 3, 5] for 7 ranks, 3 ids.

    The first size % count ids serve one rank more than the others; each is made by
    the first rank it serves.
    """
    each, more = divmod(size, count)
    first = [0]
    for index in range(count - 1):
        first.append(first[-1] + each + (index < more))
    return first


def how_many(size: int, version: int, ranks_per_id: int = RANKS_PER_ID) -> int:
    """Ids for a world of this size with this NCCL: one, or one for each ``ranks_per_id`` ranks."""
    return 1 if version < SCALABLE else max(1, -(-size // ranks_per_id))


def share_ids(exchange: Exchange, library: Library, count: int, timeout: float) -> list[UniqueId]:
    """The same ids on every rank; if one cannot be made, every rank raises that rank's reason."""
    if count == 1:
        raw = exchange.share(lambda: bytes(library.unique_id()), "sharing the nccl id", timeout)
    else:
        makers = roots(exchange.size, count)
        mine = exchange.rank in makers
        parts = exchange.gather(
            lambda: bytes(library.unique_id()) if mine else b"", "sharing the nccl ids", timeout
        )
        raw = b"".join(parts)
    ids = [UniqueId(raw[start : start + SIZE]) for start in range(0, len(raw), SIZE)]
    log.debug("%s: nccl ids %s", exchange.who, " ".join(each.digest for each in ids))
    return ids


def start(
    exchange: Exchange,
    library: Library,
    ids: list[UniqueId],
    timeout: float,
    *,
    device: int | None = None,
    blocking: bool = True,
    hint: str = "export NCCL_DEBUG=INFO and run again",
    family: list[Communicator] | None = None,
) -> Communicator:
    """The communicator of all ranks, ready on every one of them.

    device is this rank's GPU. blocking: see ``Library.init_rank``; the call is made in its own
    thread, so that the other ranks' messages are still read. Raises the same NcclError, or
    RollCallError naming the ranks that were not ready after ``timeout`` seconds, on every rank,
    and aborts all that was started.
    """
    handle = ctypes.c_void_p()

    def begin() -> int:
        if device is not None:
            make_current(device)  # for this thread; the communicator is this GPU's
        return library.init_rank(handle, exchange.size, ids, exchange.rank, blocking=blocking)

    call = Aside(begin, "nccl-start")

    def step() -> bytes | None:
        code = call()
        if code == IN_PROGRESS:
            code = library.state(handle)
        if code is None or code == IN_PROGRESS:
            return None
        if code:
            why = library.why(code)
            raise NcclError(f"nccl: ncclCommInitRank: {why}", code=code, hint=hint)
        return b""

    try:
        exchange.assemble("starting nccl", timeout, step=step, hint=hint)
    except BaseException:
        if handle.value:  # null until NCCL has written it
            # a call that blocks ends by this; if one of the two does not, it is left behind
            Aside(lambda: library.call("ncclCommAbort", handle), "nccl-abort").wait(_ABORT)
            call.wait(_ABORT)
        raise
    return Communicator(
        library,
        handle,
        who=exchange.who,
        timeout=timeout,
        device=device,
        blocking=blocking,
        family=family,
    )
