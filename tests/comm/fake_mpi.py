"""mpi4py's ``MPI`` for threads of one process: what ``Exchange`` uses of it, and nothing else.

``together(3, work)`` gives each of three threads its communicator. A send is done when it was
taken, as MPI's are that are too long for its buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dispatcher.comm.exchange import Exchange

T = TypeVar("T")

#: seconds after which threads that hang are given up
LIMIT = 60.0


class Aborted(Exception):
    """``MPI_Abort`` was called, which never returns; ``code`` is the job's."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Request:
    """A call under way: done once ``done`` says so."""

    def __init__(self, done: Callable[[], bool]) -> None:
        self._done = done

    def Test(self) -> bool:
        return self._done()


class Status:
    """Of whom a message is, and how long."""

    source = size = -1

    def Get_source(self) -> int:
        return self.source

    def Get_count(self, kind: str) -> int:
        assert kind == Mpi.BYTE
        return self.size


class Message:
    """One that was sent; ``taken`` when it was received."""

    def __init__(self, source: int, tag: int, data: bytes) -> None:
        self.source, self.tag, self.data = source, tag, data
        self.taken = False

    def Recv(self, target: list[Any]) -> None:
        buffer, kind = target
        assert kind == Mpi.BYTE
        buffer[:] = self.data
        self.taken = True


class Mpi:
    """The module ``mpi4py.MPI`` of ``size`` ranks; ``tags`` are those of all messages sent."""

    BYTE, INT64_T = "byte", "int64"
    ANY_SOURCE = -1
    Status = Status

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.RLock()
        self.boxes: dict[tuple[int, int], list[Message]] = {}
        self.calls: dict[tuple[int, int], dict[int, Any]] = {}
        self.tags: list[tuple[int, int, int]] = []  # communicator, receiver, tag
        self.aborted: list[int] = []
        self.initialized, self.finalized = True, False
        self.COMM_WORLD = Communicator(self, 0)

    def Is_initialized(self) -> bool:
        return self.initialized

    def Is_finalized(self) -> bool:
        return self.finalized

    def Get_library_version(self) -> str:
        return "Fake MPI 1.0 \nbuilt today"

    def rank(self, rank: int) -> Communicator:
        return Communicator(self, rank)


class Communicator:
    """The ranks of ``mpi`` as ``rank`` has them; ``number`` tells duplicates apart."""

    def __init__(self, mpi: Mpi, rank: int, number: int = 0) -> None:
        self.mpi, self.rank, self.number = mpi, rank, number
        self._calls = self._copies = 0

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.mpi.size

    def Abort(self, code: int) -> None:
        self.mpi.aborted.append(code)
        raise Aborted(code)

    def Isend(self, source: list[Any], to: int, tag: int) -> Request:
        data, kind = source
        assert kind == Mpi.BYTE
        assert 0 <= to < self.mpi.size
        message = Message(self.rank, tag, bytes(data))
        with self.mpi.lock:
            self.mpi.tags.append((self.number, to, tag))
            self.mpi.boxes.setdefault((self.number, to), []).append(message)
        return Request(lambda: message.taken)

    def Improbe(self, source: int, tag: int, status: Status) -> Message | None:
        with self.mpi.lock:
            box = self.mpi.boxes.setdefault((self.number, self.rank), [])
            for message in box:
                if message.tag == tag and source in (Mpi.ANY_SOURCE, message.source):
                    box.remove(message)
                    status.source, status.size = message.source, len(message.data)
                    return message
        return None

    def Idup(self) -> tuple[Communicator, Request]:
        self._copies += 1
        made = Communicator(self.mpi, self.rank, 100 * self.number + self._copies)
        return made, self._collective(None, lambda given: None)

    def Ibarrier(self) -> Request:
        return self._collective(None, lambda given: None)

    def Ibcast(self, target: list[Any], root: int) -> Request:
        buffer, kind = target
        assert kind == Mpi.BYTE

        def end(given: dict[int, Any]) -> None:
            assert len(buffer) == len(given[root])
            buffer[:] = given[root]

        return self._collective(bytes(buffer), end, {root, self.rank})

    def Iallgather(self, source: list[Any], target: list[Any]) -> Request:
        assert (source[1], target[1]) == (Mpi.INT64_T, Mpi.INT64_T)

        def end(given: dict[int, Any]) -> None:
            for rank in range(self.mpi.size):
                target[0][rank] = given[rank]

        return self._collective(source[0][0], end)

    def Iallgatherv(self, source: list[Any], target: list[Any]) -> Request:
        buffer, counts, kind = target
        assert (source[1], kind) == (Mpi.BYTE, Mpi.BYTE)

        def end(given: dict[int, Any]) -> None:
            assert counts == [len(given[rank]) for rank in range(self.mpi.size)]
            buffer[:] = b"".join(given[rank] for rank in range(self.mpi.size))

        return self._collective(bytes(source[0]), end)

    def _collective(
        self, mine: Any, end: Callable[[dict[int, Any]], None], needed: set[int] | None = None
    ) -> Request:
        self._calls += 1
        with self.mpi.lock:
            given = self.mpi.calls.setdefault((self.number, self._calls), {})
            given[self.rank] = mine

        def done() -> bool:
            with self.mpi.lock:
                if not (needed or set(range(self.mpi.size))) <= set(given):
                    return False
                end(given)
                return True

        return Request(done)


def threads(count: int, work: Callable[[int], T]) -> list[T | BaseException]:
    """What ``work(rank)`` gave or raised, in rank order, each in a thread of its own."""
    results: list[Any] = [AssertionError("it hung")] * count

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            results[rank] = error

    started = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(LIMIT)
    return results


def together(count: int, work: Callable[[Exchange], T], mpi: Mpi | None = None) -> list[Any]:
    """What ``work`` gave, or raised, on each of ``count`` ranks, in rank order."""
    made = mpi or Mpi(count)
    return threads(count, lambda rank: work(Exchange(made, made.rank(rank), f"rank {rank} on h")))
