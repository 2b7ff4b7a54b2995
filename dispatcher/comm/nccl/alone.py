"""The communicator of a group of one rank: nothing, until it is used."""

from __future__ import annotations

import ctypes

from dispatcher.comm.errors import NcclError
from dispatcher.comm.nccl.communicator import OPEN_GROUP, Communicator
from dispatcher.comm.nccl.library import IN_PROGRESS, UniqueId


class Alone(Communicator):
    """A communicator of this rank only, as ``of`` is otherwise; it starts when it is first used.

    Nothing of it is collective, so a group of one rank costs nothing until then.
    """

    def __init__(self, of: Communicator, name: str) -> None:
        self._library, self._who, self._family = of._library, of._who, of._family
        self._handle = ctypes.c_void_p()
        self._blocking = of._blocking  # NCCL takes no two ways in one group
        self._unused = True
        self.name, self.timeout, self.device = name, of.timeout, of.device
        self.rank, self.size = 0, 1
        self._family.append(self)

    @property
    def closed(self) -> bool:
        return not self._unused and super().closed

    def _open(self) -> ctypes.c_void_p:
        if self._unused:
            if OPEN_GROUP.depth:  # where NCCL would start it at the end only
                raise NcclError(
                    f"{self._who}: {self.name}: starts with its first call, in no group"
                )
            self._unused = False
            call, ids = "ncclCommInitRank", [self._library.unique_id()]
            code = self._run(call, self._start, ids)
            if code not in (0, IN_PROGRESS):
                self.abort()
                raise self._error(code, call)
            self._settle(code, call)
        return super()._open()

    def _start(self, ids: list[UniqueId]) -> int:
        return self._library.init_rank(self._handle, 1, ids, 0, blocking=self._blocking)

    def _let_go(self) -> ctypes.c_void_p:
        self._unused = False
        return super()._let_go()

    def close(self) -> None:
        if self._unused:
            self.abort()
        super().close()
