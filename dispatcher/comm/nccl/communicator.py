"""NCCL communicators: collectives with a deadline on every call.

Calls block, as NCCL's and torch's do by default, and a watchdog aborts the communicator of one
that is late, which ends the call. A communicator made without blocking answers "in progress", and
``finish`` asks for its state until it is done or the deadline passes. No rank sits inside NCCL
then, and NCCL's manual ("Fault Tolerance") promises a safe abort for this way alone; but NCCL
starts a thread for each call (2.30.7, ``ncclGroupEndInternal``), and torch 2.7.1 left it again for
hangs that came and went (pytorch#153960, #154055).

Order the calls alike on all ranks of a communicator, and those of several
communicators alike too. Do not wait in MPI while a collective runs on the device.
A collective is queued on a CUDA stream, as a kernel is: the call returns before the
data is there, ``torch.cuda.synchronize()`` or the stream's order waits for it.

Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dispatcher.comm.errors import NcclError, fold
from dispatcher.comm.exchange import Pause
from dispatcher.comm.nccl.buffers import OPERATIONS, Buffer, as_buffer, current_stream
from dispatcher.comm.nccl.library import IN_PROGRESS, NO_COLOR, Library
from dispatcher.comm.nccl.watchdog import Watchdog

_WATCHDOG = Watchdog()
_LOCK = threading.Lock()


class Group(threading.local):
    """The group that is open in this thread: NCCL has one a thread, whoever opened it."""

    depth = 0
    error: NcclError | None = None

    def __init__(self) -> None:
        self.members: list[Communicator] = []


OPEN_GROUP = Group()


class Communicator:
    """The ranks of one group. ``rank`` and ``size`` count in it, ``name`` is for messages.

    Every method raises NcclError, naming this rank, when NCCL says no or is not done
    after ``timeout`` seconds; the communicator is aborted by then. ``family`` lists those that
    are open of all that came of one start, this one and its splits too; ``device`` is its GPU,
    as ``job.gpu`` counts, None if that is not known.
    """

    def __init__(
        self,
        library: Library,
        handle: ctypes.c_void_p,
        *,
        who: str,
        name: str = "world",
        timeout: float = 600.0,
        device: int | None = None,
        blocking: bool = True,
        family: list[Communicator] | None = None,
    ) -> None:
        self._library = library
        self._handle = handle
        self._who = who
        self._family = [] if family is None else family
        self.name = name
        self.timeout = timeout
        self.device = device
        self._blocking = blocking
        self.rank, self.size = library.place(handle)
        self._family.append(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"rank {self.rank} of {self.size}"
        return f"Communicator({self.name}: {state})"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    # ------------------------------------------------------------------ collectives

    def all_reduce(
        self, send: Any, receive: Any = None, *, op: str = "sum", stream: int | None = None
    ) -> None:
        """receive (send itself if None) = op over the ranks' send; equal counts on all ranks.

        The sum of bool is whether any is true, as in torch.
        """
        source, target = self._pair(send, receive)
        self._same("all_reduce", source.count, target.count)
        code = _code(op, source.dtype)
        self._queue("ncclAllReduce", source, target, source.count, source.code, code, stream=stream)

    def broadcast(
        self, send: Any, receive: Any = None, *, root: int = 0, stream: int | None = None
    ) -> None:
        """receive (send itself if None) = send of rank ``root``."""
        source, target = self._pair(send, receive)
        self._same("broadcast", source.count, target.count)
        self._peer(root)
        self._queue("ncclBroadcast", source, target, source.count, source.code, root, stream=stream)

    def all_gather(self, send: Any, receive: Any, *, stream: int | None = None) -> None:
        """receive = all ranks' send, in rank order; it has ``size`` times as many elements."""
        source, target = self._pair(send, receive)
        self._same("all_gather", source.count * self.size, target.count)
        self._queue("ncclAllGather", source, target, source.count, source.code, stream=stream)

    def reduce_scatter(
        self, send: Any, receive: Any, *, op: str = "sum", stream: int | None = None
    ) -> None:
        """receive = this rank's part of op over the ranks' send, which is ``size`` parts long."""
        source, target = self._pair(send, receive)
        self._same("reduce_scatter", target.count * self.size, source.count)
        code = _code(op, source.dtype)
        self._queue(
            "ncclReduceScatter", source, target, target.count, source.code, code, stream=stream
        )

    def send(self, data: Any, to: int, *, stream: int | None = None) -> None:
        """Queue ``data`` for rank ``to``, which must call recv; several at once: ``group()``."""
        self._point_to_point("ncclSend", data, to, stream)

    def recv(self, data: Any, source: int, *, stream: int | None = None) -> None:
        """Fill ``data`` with what rank ``source`` sends; the same count and type there."""
        self._point_to_point("ncclRecv", data, source, stream)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Calls inside start together at its end, so a ring of sends cannot wait in a circle.

        They may be those of several communicators. When one fails all of them are aborted, at
        the end, as NCCL frees nothing inside a group; what is raised is the first failure.
        """
        self._open()
        self._check(self._library.call("ncclGroupStart"), "ncclGroupStart")
        OPEN_GROUP.depth += 1
        try:
            yield
        except BaseException:
            with suppress(NcclError):  # which follows from what is raised
                self._end_group()
            raise
        self._end_group()

    def _end_group(self) -> None:
        OPEN_GROUP.depth -= 1
        if OPEN_GROUP.depth:
            code = self._library.call("ncclGroupEnd")
            self._check(0 if code == IN_PROGRESS else code, "ncclGroupEnd")
            return
        members, failure = tuple(dict.fromkeys(OPEN_GROUP.members)), OPEN_GROUP.error
        OPEN_GROUP.members, OPEN_GROUP.error = [], None
        try:
            end = "ncclGroupEnd"
            code = self._run(end, self._library.call, end, others=members)
            if not members:
                self._check(code, "ncclGroupEnd")
            for each in members:
                what = f"{each._who}: {each.name}: ncclGroupEnd"
                finish(each._library, each._open(), code, what, each.timeout)
        except NcclError as error:
            failure = failure or error
        if failure is not None:
            for each in members:
                each.abort()
            raise failure

    # ------------------------------------------------------------------ life

    def split(self, color: int | None, key: int = 0, *, name: str = "") -> Communicator | None:
        """The ranks with my color, by key and then rank; None for color None.

        Collective: every rank of this communicator calls it. No id is used.
        """
        child = ctypes.c_void_p()
        number = NO_COLOR if color is None else color
        call = "ncclCommSplit"
        code = self._run(call, self._library.split, self._open(), number, key, child)
        self._settle(code, call)
        if color is None:
            return None
        return self._child(child, name or f"{self.name}/{color}", "ncclCommSplit")

    def shrink(self, lost: Iterable[int], *, name: str = "") -> Communicator:
        """The ranks that are left without ``lost``, numbered anew; this communicator is aborted.

        Only those that are left call it, with the same ranks, from a thread that no call on this
        communicator holds. What runs on it ends, and the data it was at is of no use. Needs NCCL
        >= 2.27, else EnvironmentMissing.
        """
        gone = sorted(set(lost))
        for rank in gone:
            self._peer(rank)
        if not gone or self.rank in gone:
            raise ValueError(f"{self.name}: shrink without {gone} on rank {self.rank}")
        child, call = ctypes.c_void_p(), "ncclCommShrink"
        code = self._run(call, self._library.shrink, self._open(), gone, child)
        self._settle(code, call)
        made = self._child(child, name or f"{self.name} without {fold(gone)}", call)
        self.abort()
        return made

    def check(self) -> None:
        """Raises NcclError if the communicator broke since (a peer died, a link went down)."""
        state = self._library.state(self._open())
        if state not in (0, IN_PROGRESS):
            self.abort()
            self._check(state, "asynchronous error")

    @property
    def closed(self) -> bool:
        return not self._handle.value

    def abort(self) -> None:
        """Free it now, whatever runs on it, on this rank alone; may be called twice."""
        handle = self._let_go()
        if handle.value:
            self._library.call("ncclCommAbort", handle)

    def close(self) -> None:
        """Finish what is queued and free it; all its ranks call this. May be called twice."""
        if self.closed:
            return
        call = "ncclCommFinalize"
        self._settle(self._run(call, self._library.call, call, self._handle), call)
        code = self._library.call("ncclCommDestroy", self._let_go())
        if code != IN_PROGRESS:
            self._check(code, "ncclCommDestroy")

    # ------------------------------------------------------------------ below

    def _let_go(self) -> ctypes.c_void_p:
        """The handle, to one thread only; the communicator is closed from then on."""
        with _LOCK:
            handle, self._handle = self._handle, ctypes.c_void_p()
            if self in self._family:
                self._family.remove(self)
        return handle

    def _child(self, handle: ctypes.c_void_p, name: str, call: str) -> Communicator:
        """The communicator that ``call`` has begun to make of this one."""
        what = f"{self._who}: {name}: {call}"
        try:
            finish(self._library, handle, IN_PROGRESS, what, self.timeout)
        except BaseException:
            self._library.call("ncclCommAbort", handle)
            raise
        return Communicator(
            self._library,
            handle,
            who=self._who,
            name=name,
            timeout=self.timeout,
            device=self.device,
            blocking=self._blocking,
            family=self._family,
        )

    def _open(self) -> ctypes.c_void_p:
        if self.closed:
            raise NcclError(f"{self._who}: {self.name}: the communicator is closed")
        return self._handle

    def _pair(self, send: Any, receive: Any) -> tuple[Buffer, Buffer]:
        source = self._buffer(send)
        target = source if receive is None else self._buffer(receive)
        if source.dtype != target.dtype:
            raise TypeError(f"send is {source.dtype}, receive is {target.dtype}")
        return source, target

    def _buffer(self, data: Any) -> Buffer:
        buffer = as_buffer(data, on_host=self._library.on_host)
        if None not in (buffer.device, self.device) and buffer.device != self.device:
            raise ValueError(
                f"{self.name}: the memory is on gpu {buffer.device}, the communicator is of gpu"
                f" {self.device}"
            )
        return buffer

    def _same(self, call: str, needed: int, given: int) -> None:
        if needed != given:
            raise ValueError(f"{call}: {needed} elements needed for {self.size} ranks, not {given}")

    def _peer(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{self.name}: no rank {rank} among {self.size}")

    def _queue(
        self, call: str, source: Buffer, target: Buffer, *rest: int, stream: int | None
    ) -> None:
        where = current_stream(source.device) if stream is None else stream
        self._call(call, source.address, target.address, *rest, self._open(), where)

    def _point_to_point(self, call: str, data: Any, peer: int, stream: int | None) -> None:
        self._peer(peer)
        buffer = self._buffer(data)
        where = current_stream(buffer.device) if stream is None else stream
        self._call(call, buffer.address, buffer.count, buffer.code, peer, self._open(), where)

    def _call(self, call: str, *arguments: object) -> None:
        """Begin it and wait until it is queued; inside a group its end waits for all."""
        if OPEN_GROUP.depth:
            OPEN_GROUP.members.append(self)
        code = self._run(call, self._library.call, call, *arguments)
        if not OPEN_GROUP.depth:
            self._settle(code, call)
        elif code not in (0, IN_PROGRESS):
            OPEN_GROUP.error = OPEN_GROUP.error or self._error(code, call)
            raise OPEN_GROUP.error

    def _run(
        self, name: str, call: Callable[..., int], *words: Any, others: Sequence[Communicator] = ()
    ) -> int:
        """NCCL's answer; a call that is late ends, as this communicator and the others abort."""
        late = False

        def abort() -> None:
            nonlocal late
            late = True
            for each in (self, *others):
                each.abort()

        code = _WATCHDOG.run(self.timeout, abort, call, *words)
        if late:
            what = f"{self._who}: {self.name}: {name}"
            raise NcclError(f"{what}: not done after {self.timeout:g} s", code=IN_PROGRESS)
        return code

    def _settle(self, code: int, call: str) -> None:
        """Wait until the call is done, or abort."""
        if not code:
            return
        what = f"{self._who}: {self.name}: {call}"
        try:
            finish(self._library, self._open(), code, what, self.timeout)
        except BaseException:
            self.abort()
            raise

    def _check(self, code: int, call: str) -> None:
        if code:
            raise self._error(code, call)

    def _error(self, code: int, call: str) -> NcclError:
        why = self._library.why(code)
        return NcclError(f"{self._who}: {self.name}: {call}: {why}", code=code)


def finish(library: Library, handle: ctypes.c_void_p, code: int, what: str, timeout: float) -> None:
    """Returns when NCCL is no longer "in progress"; NcclError when it failed or took too long."""
    deadline, pause = time.monotonic() + timeout, Pause()
    while code == IN_PROGRESS:
        code = library.state(handle)
        if code != IN_PROGRESS:
            break
        if time.monotonic() > deadline:
            raise NcclError(f"{what}: not done after {timeout:g} s", code=IN_PROGRESS)
        pause()
    if code:
        raise NcclError(f"{what}: {library.why(code)}", code=code)


def _code(op: str, dtype: str) -> int:
    """The ncclRedOp_t of ``op``. Raises: ValueError."""
    if dtype == "bool" and op in ("sum", "avg"):
        if op == "avg":
            raise ValueError("no average of bool")
        op = "max"  # a sum of bytes would be 2, which is no bool; torch does the same
    try:
        return OPERATIONS[op]
    except KeyError:
        raise ValueError(f"no reduction {op!r}: one of {', '.join(OPERATIONS)}") from None
