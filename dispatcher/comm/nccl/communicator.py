"""NCCL communicators: an all_reduce with a deadline, and the splits of the world.

Calls block, as NCCL's and torch's do by default. A watchdog aborts the communicator of a call that
is late, which ends the call. A communicator made without blocking answers "in progress", and
``finish`` asks for its state until it is done or the deadline passes; ``docs/guides/comm.md`` says
what speaks for each. A collective is queued on a CUDA stream, as a kernel is: the call returns
before the data is there.

Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from dispatcher.comm.errors import NcclError
from dispatcher.comm.exchange import Pause
from dispatcher.comm.nccl.library import IN_PROGRESS, NO_COLOR, Library

T = TypeVar("T")

_LONGEST, _SHORTEST = 1.0, 0.01  # seconds between two looks of the watchdog
#: ncclDataType_t by torch's name of the type
_TYPES = {
    "int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10,
    "float8_e5m2": 11,
}  # fmt: skip
#: the same types as numpy names them, where it has them
_TYPESTRS = {
    "i1": "int8", "u1": "uint8", "b1": "bool", "i4": "int32", "u4": "uint32", "i8": "int64",
    "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64",
}  # fmt: skip
#: ncclRedOp_t by name
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


@dataclass(frozen=True)
class Buffer:
    """``count`` elements of ``dtype`` (torch's name, as ``float32``) at device ``address``.

    device is the GPU's number if known: torch has a current stream for each.
    """

    address: int
    count: int
    dtype: str = "float32"
    device: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _TYPES:
            raise TypeError(f"nccl has no type {self.dtype!r}: one of {', '.join(_TYPES)}")
        if self.count < 0 or (self.count and not self.address):
            raise ValueError(f"no buffer: {self.count} elements at address {self.address:#x}")

    @property
    def code(self) -> int:
        """Its ncclDataType_t."""
        return _TYPES[self.dtype]


def as_buffer(thing: Any, *, on_host: bool = False) -> Buffer:
    """The memory of a torch tensor, an array with ``__cuda_array_interface__``, or a Buffer.

    on_host allows CPU memory (for a test's NCCL). torch is not imported: a tensor is known by its
    attributes. Raises TypeError for objects without device memory and for types that NCCL lacks,
    ValueError for memory with gaps.
    """
    if isinstance(thing, Buffer):
        return thing
    if hasattr(thing, "data_ptr") and hasattr(thing, "is_contiguous"):
        if not thing.is_contiguous():
            raise ValueError("the tensor is not contiguous: give tensor.contiguous()")
        if not thing.is_cuda and not on_host:
            raise TypeError(f"the tensor is on {thing.device}, nccl needs it on a gpu")
        device = thing.device.index if thing.is_cuda else None
        dtype = str(thing.dtype).removeprefix("torch.")
        return Buffer(int(thing.data_ptr()), int(thing.numel()), dtype, device)
    interface = getattr(thing, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        raise TypeError(f"no device memory: {type(thing).__name__}")
    if interface.get("strides") is not None:
        raise ValueError("the array is not contiguous")
    kind = str(interface["typestr"])
    count = math.prod(map(int, interface["shape"]))
    return Buffer(int(interface["data"][0]), count, _TYPESTRS.get(kind[1:], kind))


def current_stream(device: int | None) -> int:
    """torch's current stream of this device (None: the current device), else 0, CUDA's default."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.current_stream(device).cuda_stream)


class Watchdog:
    """``run(60, abort, call, ...)``: calls ``abort`` if the call takes longer than that.

    One thread looks at all calls that block, since a thread inside NCCL cannot look at a clock. It
    starts with the first call, and looks once a second, or ten times in the shortest limit. It also
    asks each of ``open`` for errors: NCCL reports a lost peer only to a thread that asks.
    """

    def __init__(self) -> None:
        self.open: set[Communicator] = set()
        # thread -> the deadline of its call, and a function to call then, once
        self._calls: dict[int, tuple[float, Callable[[], None]]] = {}
        self._pause = _LONGEST
        self._sooner = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(
        self, seconds: float, late: Callable[[], None], call: Callable[..., T], *words: Any
    ) -> T:
        """``call(*words)``; ``late`` is called in another thread, and not waited for."""
        if self._thread is None or seconds < 10 * self._pause:
            self._start(max(_SHORTEST, seconds / 10))
        me = threading.get_ident()
        self._calls[me] = (time.monotonic() + seconds, late)
        try:
            return call(*words)
        finally:
            self._calls.pop(me, None)

    def _start(self, pause: float) -> None:
        with self._lock:
            self._pause = min(self._pause, pause)
            self._sooner.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="nccl-watch", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        while True:
            self._sooner.wait(self._pause)
            self._sooner.clear()
            now = time.monotonic()
            for thread, call in list(self._calls.items()):
                deadline, late = call
                if now > deadline and self._calls.get(thread) is call:
                    self._calls[thread] = (float("inf"), late)
                    threading.Thread(target=late, name="nccl-abort", daemon=True).start()
            for communicator in list(self.open):
                communicator.look()


_WATCHDOG = Watchdog()
#: held while a communicator is asked or let go: the watchdog and a caller would free it twice
_LOCK = threading.RLock()


class Communicator:
    """The ranks of one group. ``rank`` and ``size`` count in it, ``name`` is for messages.

    Every method raises NcclError, naming this rank, when NCCL says no, is not done after
    ``timeout`` seconds, or found an error since; the communicator is aborted by then. ``family``
    lists those that are open of all that came of one start, this one and its splits too;
    ``device`` is its GPU, as ``job.gpu`` counts, None if that is not known.
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
        self._settling = False  # a thread waits for it, and asks for errors itself
        self._broken: tuple[int, str] | None = None  # NCCL's code and words
        self.rank, self.size = library.place(handle)
        self._family.append(self)
        _WATCHDOG.open.add(self)

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

    def all_reduce(
        self, send: Any, receive: Any = None, *, op: str = "sum", stream: int | None = None
    ) -> None:
        """receive (send itself if None) = op over the ranks' send; equal counts on all ranks.

        The sum of bool is whether any is true, as in torch.
        """
        source, target = self._pair(send, receive)
        if source.count != target.count:
            raise ValueError(f"all_reduce: {source.count} elements sent, {target.count} received")
        code = _code(op, source.dtype)
        where = current_stream(source.device) if stream is None else stream
        addresses, call = (source.address, target.address), "ncclAllReduce"
        words = (*addresses, source.count, source.code, code, self._open(), where)
        self._settle(self._run(call, self._library.call, call, *words), call)

    def split(self, color: int | None, key: int = 0, *, name: str = "") -> Communicator | None:
        """The ranks with my color, by key and then rank; None for color None.

        Collective: every rank of this communicator calls it. It uses no new id.
        """
        child = ctypes.c_void_p()
        number = NO_COLOR if color is None else color
        call = "ncclCommSplit"
        code = self._run(call, self._library.split, self._open(), number, key, child)
        self._settle(code, call)
        if color is None:
            return None
        return self._child(child, name or f"{self.name}/{color}", "ncclCommSplit")

    def check(self) -> None:
        """Raises NcclError if the communicator broke since (a peer died, a link went down)."""
        self.look()
        self._open()

    def look(self) -> None:
        """Abort it if NCCL has found an error since. The watchdog calls this once a second."""
        with _LOCK:
            if self.closed or self._settling:
                return
            state = self._library.state(self._handle)
            if state in (0, IN_PROGRESS):
                return
            self._broken = state, self._library.why(state)
            handle = self._let_go()
        words = ("ncclCommAbort", handle)  # it may take long, and others want to be looked at
        threading.Thread(
            target=self._library.call, args=words, name="nccl-abort", daemon=True
        ).start()

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
        if self.closed and self._broken is None:
            return
        self._open()
        call = "ncclCommFinalize"
        self._settle(self._run(call, self._library.call, call, self._handle), call)
        code = self._library.call("ncclCommDestroy", self._let_go())
        if code != IN_PROGRESS:
            self._check(code, "ncclCommDestroy")

    def _let_go(self) -> ctypes.c_void_p:
        """The handle, to one thread only; the communicator is closed from then on."""
        with _LOCK:
            handle, self._handle = self._handle, ctypes.c_void_p()
            if self in self._family:
                self._family.remove(self)
            _WATCHDOG.open.discard(self)
        return handle

    def _child(self, handle: ctypes.c_void_p, name: str, call: str) -> Communicator:
        """The communicator that ``call`` has begun to make from this communicator."""
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
        if self._broken is not None:
            code, why = self._broken
            what = f"{self._who}: {self.name}: asynchronous error"
            raise NcclError(f"{what}: {why}", code=code)
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

    def _run(self, name: str, call: Callable[..., int], *words: Any) -> int:
        """NCCL's answer; a call that is late ends, as this communicator is aborted."""
        late = False

        def abort() -> None:
            nonlocal late
            late = True
            self.abort()

        with _LOCK:
            self._open()
        code = _WATCHDOG.run(self.timeout, abort, call, *words)
        if self._broken is not None:
            self._open()
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
            with _LOCK:
                handle, self._settling = self._open(), True
            finish(self._library, handle, code, what, self.timeout)
        except BaseException:
            self.abort()
            raise
        finally:
            self._settling = False

    def _check(self, code: int, call: str) -> None:
        if code:
            why = self._library.why(code)
            raise NcclError(f"{self._who}: {self.name}: {call}: {why}", code=code)


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
        op = "max"  # a sum of bytes would be 2, which is not a bool; torch does the same
    try:
        return OPERATIONS[op]
    except KeyError:
        raise ValueError(f"no reduction {op!r}: one of {', '.join(OPERATIONS)}") from None
