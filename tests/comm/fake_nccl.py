"""NCCL's calls over MPI and CPU memory: the communicators' logic and data, without a GPU.

It takes the place of ``library.Library`` in ranks started by mpiexec. With ``blocking`` a call
returns when it is done; else it answers "in progress" a few times before, as NCCL does. It can be
told to fail or to hang on a rank; an abort ends what hangs.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from dispatcher.comm.nccl.library import IN_PROGRESS, NO_COLOR, UniqueId

_SIZES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 7: 4, 8: 8}
_POLLS = 3


class FakeNccl:
    """hang, fail: this rank's start never ends, or fails; calls: the names of all calls made."""

    version = 23007
    on_host = True
    path = "fake"

    def __init__(self, mpi: Any, *, hang: bool = False, fail: bool = False) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD  # a copy would wait here for the other ranks, as NCCL does not
        self._open: dict[int | None, Any] = {}
        self._left: dict[int | None, int] = {}
        self._broken: dict[int | None, int] = {}
        self._hang, self._fail = hang, fail
        self._blocking, self._aborted = True, threading.Event()
        self.calls: list[str] = []
        self.ids: list[UniqueId] = []

    def unique_id(self) -> UniqueId:
        self.calls.append("unique_id")
        return UniqueId(bytes([self._world.rank]) * 128)

    def init_rank(
        self,
        handle: ctypes.c_void_p,
        size: int,
        ids: list[UniqueId],
        rank: int,
        *,
        blocking: bool = True,
    ) -> int:
        self.calls.append("init_rank")
        self.ids, self._blocking = list(ids), blocking
        assert (rank, size) == (self._world.rank, self._world.size)
        answer = self._new(handle, self._world)
        if blocking and self._hang:
            self._aborted.wait()
        return 2 if blocking and self._fail else answer

    def _new(self, handle: ctypes.c_void_p, communicator: Any) -> int:
        number = 1000 + len(self._open)
        handle.value = number
        self._open[number] = communicator
        self._left[number] = 10**9 if self._hang else _POLLS
        if self._fail:
            self._broken[number] = 2
        return self._answer

    @property
    def _answer(self) -> int:
        return 0 if self._blocking else IN_PROGRESS

    def state(self, handle: ctypes.c_void_p) -> int:
        self._left[handle.value] -= 1
        if self._left[handle.value] > 0:
            return IN_PROGRESS
        return self._broken.get(handle.value, 0)

    def break_now(self, handle: ctypes.c_void_p, code: int) -> None:
        self._broken[handle.value] = code

    def split(self, parent: ctypes.c_void_p, color: int, key: int, child: ctypes.c_void_p) -> int:
        self.calls.append("split")
        self._left[parent.value] = _POLLS
        number = self._mpi.UNDEFINED if color == NO_COLOR else color
        made = self._open[parent.value].Split(number, key)
        if color != NO_COLOR:
            self._new(child, made)
        return self._answer

    def place(self, handle: ctypes.c_void_p) -> tuple[int, int]:
        communicator = self._open[handle.value]
        return communicator.rank, communicator.size

    def why(self, code: int) -> str:
        return {2: "unhandled system error: a cable is out"}.get(code, f"code {code}")

    def call(self, name: str, *arguments: Any) -> int:
        self.calls.append(name)
        if name in ("ncclCommAbort", "ncclCommDestroy", "ncclCommFinalize"):
            assert arguments[0].value in self._open
            if name == "ncclCommAbort":
                self._aborted.set()
            return 0
        assert name == "ncclAllReduce"
        self._left[arguments[-2].value] = _POLLS
        self._all_reduce(self._open[arguments[-2].value], *arguments[:5])
        return self._answer

    def _memory(self, address: int, count: int, code: int) -> list[Any]:
        kind = {1: "UINT8_T", 2: "INT32_T", 4: "INT64_T", 7: "FLOAT", 8: "DOUBLE"}[code]
        raw = (ctypes.c_char * (count * _SIZES[code])).from_address(address)
        return [memoryview(raw).cast("B"), getattr(self._mpi, kind)]

    def _all_reduce(
        self, comm: Any, source: int, target: int, count: int, code: int, op: int
    ) -> None:
        operation = [self._mpi.SUM, self._mpi.PROD, self._mpi.MAX, self._mpi.MIN][op]
        send = self._memory(source, count, code)
        comm.Allreduce([bytes(send[0]), send[1]], self._memory(target, count, code), operation)
