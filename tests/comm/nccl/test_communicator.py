"""A communicator's life in one process: waiting, deadlines, aborts, and what it refuses."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from dispatcher.comm import Buffer, Communicator, NcclError
from dispatcher.comm.nccl.library import IN_PROGRESS


class Calls:
    """A library whose answers are given beforehand; ``states`` are the answers to come."""

    on_host = False

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.states: list[int] = []
        self.code = 0
        self.made: list[tuple[Any, ...]] = []

    def state(self, handle: object) -> int:
        return self.states.pop(0) if self.states else IN_PROGRESS

    def split(self, parent: object, color: int, key: int, child: ctypes.c_void_p) -> int:
        self.made.append(("split", color, key))
        child.value = None if color == -1 else 8
        return IN_PROGRESS

    def place(self, handle: object) -> tuple[int, int]:
        return 1, self.size

    def call(self, name: str, *arguments: object) -> int:
        self.made.append((name, *arguments))
        return self.code

    def why(self, code: int) -> str:
        return f"reason {code}"

    @property
    def names(self) -> list[Any]:
        return [made[0] for made in self.made]


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def communicator(calls: Calls) -> Communicator:
    return Communicator(calls, ctypes.c_void_p(7), who="rank 1 on n1", timeout=0.2)  # type: ignore[arg-type]


SOME = Buffer(0x1000, 8)
MORE = Buffer(0x2000, 32)


def test_a_call_waits_until_it_is_queued(calls: Calls, communicator: Communicator) -> None:
    calls.code, calls.states = IN_PROGRESS, [IN_PROGRESS, IN_PROGRESS, 0]
    communicator.all_reduce(SOME, op="max", stream=5)
    name, send, receive, count, kind, op, handle, stream = calls.made[0]
    assert (name, send, receive, count, kind, op) == ("ncclAllReduce", 0x1000, 0x1000, 8, 7, 2)
    assert (handle.value, stream) == (7, 5)
    assert calls.states == []


def test_the_deadline_aborts(calls: Calls, communicator: Communicator) -> None:
    calls.code = IN_PROGRESS
    with pytest.raises(
        NcclError, match=r"rank 1 on n1: world: ncclAllReduce: not done after 0.2 s"
    ):
        communicator.all_reduce(SOME)
    assert calls.names == ["ncclAllReduce", "ncclCommAbort"]
    assert communicator.closed
    with pytest.raises(NcclError, match="the communicator is closed"):
        communicator.all_reduce(SOME)


def test_a_refusal_aborts_in_nccls_words(calls: Calls, communicator: Communicator) -> None:
    calls.code = 4
    with pytest.raises(NcclError, match="ncclBroadcast: reason 4") as caught:
        communicator.broadcast(SOME)
    assert caught.value.code == 4
    assert communicator.closed


def test_an_asynchronous_error_is_found(calls: Calls, communicator: Communicator) -> None:
    calls.states = [0, IN_PROGRESS, 6]
    communicator.check()
    communicator.check()
    with pytest.raises(NcclError, match="asynchronous error: reason 6"):
        communicator.check()
    assert calls.names == ["ncclCommAbort"]
    communicator.abort()
    assert calls.names == ["ncclCommAbort"]


def test_calls_in_a_group_wait_at_its_end(calls: Calls, communicator: Communicator) -> None:
    calls.states = [0]
    with communicator.group():
        calls.code = IN_PROGRESS
        communicator.send(SOME, 2)
        communicator.recv(MORE, 0)
    assert calls.names == ["ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"]
    assert calls.states == []


def test_a_split_waits_for_parent_and_child(calls: Calls, communicator: Communicator) -> None:
    calls.states = [IN_PROGRESS, 0, IN_PROGRESS, 0]
    child = communicator.split(3, 9, name="tp")
    assert child is not None
    assert (child.name, child.rank, child.size) == ("tp", 1, 4)
    assert calls.made == [("split", 3, 9)]


def test_who_is_in_no_part_takes_part_in_the_split(
    calls: Calls, communicator: Communicator
) -> None:
    calls.states = [0]
    assert communicator.split(None) is None
    assert calls.made == [("split", -1, 0)]


def test_closing_finishes_first(calls: Calls, communicator: Communicator) -> None:
    with communicator:
        pass
    assert calls.names == ["ncclCommFinalize", "ncclCommDestroy"]
    communicator.close()
    assert len(calls.made) == 2


def test_leaving_with_an_error_aborts(calls: Calls, communicator: Communicator) -> None:
    with pytest.raises(KeyError), communicator:
        raise KeyError
    assert calls.names == ["ncclCommAbort"]


def test_sizes_and_names_are_checked_before_nccl_is_called(
    calls: Calls, communicator: Communicator
) -> None:
    with pytest.raises(ValueError, match="all_gather: 32 elements needed for 4 ranks, not 8"):
        communicator.all_gather(SOME, Buffer(1, 8))
    with pytest.raises(ValueError, match="reduce_scatter: 32 elements needed for 4 ranks, not 8"):
        communicator.reduce_scatter(SOME, Buffer(1, 8))
    with pytest.raises(ValueError, match="no rank 4 among 4"):
        communicator.send(SOME, 4)
    with pytest.raises(ValueError, match="no reduction 'mean'"):
        communicator.all_reduce(SOME, op="mean")
    with pytest.raises(TypeError, match="send is float32, receive is int8"):
        communicator.all_reduce(SOME, Buffer(1, 8, "int8"))
    assert calls.made == []
    assert not communicator.closed
