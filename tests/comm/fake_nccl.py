"""NCCL's calls over MPI and CPU memory: the communicators' logic and data, without a GPU.

It takes the place of ``library.Library`` in ranks started by mpiexec. It answers "in
progress" a few times before each call is done, as NCCL does without blocking, and
can be told to fail or to hang on a rank.
"""

from __future__ import annotations

import ctypes
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
        self._world = mpi.COMM_WORLD.Dup()
        self._open: dict[int | None, Any] = {}
        self._left: dict[int | None, int] = {}
        self._broken: dict[int | None, int] = {}
        self._group: list[Any] = []
        self._grouped = False
        self._hang, self._fail = hang, fail
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
        self.ids = list(ids)
        if size == 1:
            return self._new(handle, self._mpi.COMM_SELF)
        assert (rank, size) == (self._world.rank, self._world.size)
        return self._new(handle, self._world)

    def _new(self, handle: ctypes.c_void_p, communicator: Any) -> int:
        number = 1000 + len(self._open)
        handle.value = number
        self._open[number] = communicator
        self._left[number] = 10**9 if self._hang else _POLLS
        if self._fail:
            self._broken[number] = 2
        return IN_PROGRESS

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
        return IN_PROGRESS

    def shrink(self, parent: ctypes.c_void_p, lost: list[int], child: ctypes.c_void_p) -> int:
        self.calls.append("shrink")
        self._left[parent.value] = _POLLS
        left = self._open[parent.value].group.Excl(lost)
        return self._new(child, self._open[parent.value].Create_group(left))

    def place(self, handle: ctypes.c_void_p) -> tuple[int, int]:
        communicator = self._open[handle.value]
        return communicator.rank, communicator.size

    def why(self, code: int) -> str:
        return {2: "unhandled system error: a cable is out"}.get(code, f"code {code}")

    def call(self, name: str, *arguments: Any) -> int:
        self.calls.append(name)
        if name == "ncclGroupStart":
            self._grouped = True
            return 0
        if name == "ncclGroupEnd":
            self._mpi.Request.Waitall(self._group)
            self._group, self._grouped = [], False
            return 0
        if name in ("ncclCommAbort", "ncclCommDestroy", "ncclCommFinalize"):
            assert arguments[0].value in self._open
            return 0
        communicator = self._open[arguments[-2].value]
        self._left[arguments[-2].value] = _POLLS
        getattr(self, "_" + name.removeprefix("nccl").lower())(communicator, *arguments)
        return IN_PROGRESS

    def _memory(self, address: int, count: int, code: int) -> list[Any]:
        kind = {1: "UINT8_T", 2: "INT32_T", 4: "INT64_T", 7: "FLOAT", 8: "DOUBLE"}[code]
        raw = (ctypes.c_char * (count * _SIZES[code])).from_address(address)
        return [memoryview(raw).cast("B"), getattr(self._mpi, kind)]

    def _allreduce(
        self, comm: Any, source: int, target: int, count: int, code: int, op: int, *_: object
    ) -> None:
        operation = [self._mpi.SUM, self._mpi.PROD, self._mpi.MAX, self._mpi.MIN][op]
        send = self._memory(source, count, code)
        comm.Allreduce([bytes(send[0]), send[1]], self._memory(target, count, code), operation)

    def _broadcast(
        self, comm: Any, source: int, target: int, count: int, code: int, root: int, *_: object
    ) -> None:
        ctypes.memmove(target, source, count * _SIZES[code])
        comm.Bcast(self._memory(target, count, code), root)

    def _allgather(
        self, comm: Any, source: int, target: int, count: int, code: int, *_: object
    ) -> None:
        comm.Allgather(
            self._memory(source, count, code), self._memory(target, count * comm.size, code)
        )

    def _reducescatter(
        self, comm: Any, source: int, target: int, count: int, code: int, op: int, *_: object
    ) -> None:
        assert op == 0
        comm.Reduce_scatter_block(
            self._memory(source, count * comm.size, code), self._memory(target, count, code)
        )

    def _send(self, comm: Any, address: int, count: int, code: int, peer: int, *_: object) -> None:
        request = comm.Isend(self._memory(address, count, code), peer)
        self._group.append(request) if self._grouped else request.Wait()

    def _recv(self, comm: Any, address: int, count: int, code: int, peer: int, *_: object) -> None:
        request = comm.Irecv(self._memory(address, count, code), peer)
        self._group.append(request) if self._grouped else request.Wait()
