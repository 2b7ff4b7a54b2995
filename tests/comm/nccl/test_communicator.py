"""A communicator's life in one process: waiting, deadlines, aborts, and what it refuses."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any

import pytest
from cases import cases

from dispatcher.comm import Buffer, Communicator, NcclError
from dispatcher.comm.nccl.buffers import OPERATIONS
from dispatcher.comm.nccl.library import IN_PROGRESS


class Calls:
    """A library whose answers are given beforehand; ``states`` are the answers to come."""

    on_host = False

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.states: list[int] = []
        self.code = 0
        self.made: list[tuple[Any, ...]] = []
        self.asked: list[int | None] = []
        self.blocks, self.aborted = "", threading.Event()

    def state(self, handle: ctypes.c_void_p) -> int:
        self.asked.append(handle.value)
        return self.states.pop(0) if self.states else IN_PROGRESS

    def split(self, parent: object, color: int, key: int, child: ctypes.c_void_p) -> int:
        self.made.append(("split", color, key))
        child.value = None if color == -1 else 8
        return IN_PROGRESS

    def shrink(self, parent: object, lost: list[int], child: ctypes.c_void_p) -> int:
        self.made.append(("shrink", lost))
        child.value = 8
        return self.code

    def place(self, handle: object) -> tuple[int, int]:
        return 1, self.size

    def call(self, name: str, *arguments: object) -> int:
        self.made.append((name, *arguments))
        if name == self.blocks:
            assert self.aborted.wait(30)  # as a call that waits for a peer: an abort ends it
            return 6
        if name == "ncclCommAbort":
            self.aborted.set()
        return self.code

    def why(self, code: int) -> str:
        return f"reason {code}"

    @property
    def names(self) -> list[Any]:
        return [made[0] for made in self.made]


@pytest.fixture
def calls() -> Calls:
    return Calls()


def made(calls: Calls, number: int = 7, **more: Any) -> Communicator:
    library: Any = calls
    options = {"who": "rank 1 on n1", "timeout": 60.0, **more}
    return Communicator(library, ctypes.c_void_p(number), **options)


@pytest.fixture
def communicator(calls: Calls) -> Communicator:
    return made(calls)


@pytest.fixture
def hasty(calls: Calls) -> Communicator:
    """One that waits for nothing long."""
    return made(calls, timeout=0.2)


SOME = Buffer(0x1000, 8)
MORE = Buffer(0x2000, 32)


def test_a_call_waits_until_it_is_queued(calls: Calls, communicator: Communicator) -> None:
    calls.code, calls.states = IN_PROGRESS, [IN_PROGRESS, IN_PROGRESS, 0]
    communicator.all_reduce(SOME, op="max", stream=5)
    name, send, receive, count, kind, op, handle, stream = calls.made[0]
    assert (name, send, receive, count, kind, op) == ("ncclAllReduce", 0x1000, 0x1000, 8, 7, 2)
    assert (handle.value, stream) == (7, 5)
    assert calls.states == []


@pytest.mark.parametrize(
    ("op", "code"), [("sum", "max"), ("max", "max"), ("prod", "prod"), ("min", "min")]
)
def test_a_reduction_of_bool_is_a_bool(
    op: str, code: str, calls: Calls, communicator: Communicator
) -> None:
    four, one = Buffer(0x2000, 32, "bool"), Buffer(0x1000, 8, "bool")
    communicator.all_reduce(one, op=op)
    communicator.reduce_scatter(four, one, op=op)
    assert [(call[4], call[5]) for call in calls.made] == [(1, OPERATIONS[code])] * 2


def test_the_deadline_aborts(calls: Calls, hasty: Communicator) -> None:
    calls.code = IN_PROGRESS
    with pytest.raises(
        NcclError, match=r"rank 1 on n1: world: ncclAllReduce: not done after 0.2 s"
    ):
        hasty.all_reduce(SOME)
    assert calls.names == ["ncclAllReduce", "ncclCommAbort"]
    assert hasty.closed
    with pytest.raises(NcclError, match="the communicator is closed"):
        hasty.all_reduce(SOME)


class TestACallThatBlocks:
    """NCCL waits inside it for a peer: the watchdog aborts the communicator, which ends it."""

    def test_a_collective(self, calls: Calls, hasty: Communicator) -> None:
        calls.blocks = "ncclAllReduce"
        with pytest.raises(
            NcclError, match=r"world: ncclAllReduce: not done after 0.2 s"
        ) as caught:
            hasty.all_reduce(SOME)
        assert (caught.value.code, calls.asked) == (IN_PROGRESS, [])
        assert calls.names == ["ncclAllReduce", "ncclCommAbort"]
        assert hasty.closed

    def test_the_end_of_a_group_with_all_that_are_in_it(
        self, calls: Calls, hasty: Communicator
    ) -> None:
        calls.blocks, other = "ncclGroupEnd", made(calls, 9, name="tp")

        def fail() -> None:
            with hasty.group():
                other.send(SOME, 2)

        with pytest.raises(NcclError, match=r"world: ncclGroupEnd: not done after 0.2 s"):
            fail()
        assert (hasty.closed, other.closed) == (True, True)

    def test_the_last_word(self, calls: Calls, hasty: Communicator) -> None:
        calls.blocks = "ncclCommFinalize"
        with pytest.raises(NcclError, match=r"world: ncclCommFinalize: not done after 0.2 s"):
            hasty.close()
        assert calls.names == ["ncclCommFinalize", "ncclCommAbort"]

    def test_a_split(
        self, calls: Calls, hasty: Communicator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def split(*_: object) -> int:
            assert calls.aborted.wait(30)
            return 6

        monkeypatch.setattr(calls, "split", split)
        with pytest.raises(NcclError, match=r"world: ncclCommSplit: not done after 0.2 s"):
            hasty.split(0)
        assert hasty.closed


def test_memory_of_another_gpu_is_refused(calls: Calls) -> None:
    one, elsewhere = made(calls, device=3), Buffer(0x1000, 8, device=0)
    with pytest.raises(ValueError, match="world: the memory is on gpu 0, the communicator is of"):
        one.all_reduce(elsewhere)
    with pytest.raises(ValueError, match="gpu 3"):
        one.send(elsewhere, 0)
    one.send(Buffer(0x1000, 8, device=3), 0)
    one.all_reduce(SOME)  # nobody knows where that is
    with pytest.raises(ValueError, match="gpu 0"):
        one.all_reduce(SOME, elsewhere)
    assert calls.names == ["ncclSend", "ncclAllReduce"]
    calls.states = [0, 0]
    child = one.split(0)
    assert child is not None
    assert child.device == 3


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
    with pytest.raises(ValueError, match="no average of bool"):
        communicator.all_reduce(Buffer(1, 8, "bool"), op="avg")
    with pytest.raises(TypeError, match="send is float32, receive is int8"):
        communicator.all_reduce(SOME, Buffer(1, 8, "int8"))
    assert calls.made == []
    assert not communicator.closed


def test_each_call_has_its_arguments(calls: Calls, communicator: Communicator) -> None:
    one, four = Buffer(0x1000, 8, "int64"), Buffer(0x2000, 32, "int64")
    communicator.all_reduce(one, Buffer(0x3000, 8, "int64"), op="min", stream=9)
    communicator.broadcast(one, Buffer(0x3000, 8, "int64"), root=3, stream=9)
    communicator.all_gather(one, four, stream=9)
    communicator.reduce_scatter(four, one, op="avg", stream=9)
    communicator.send(one, 0, stream=9)
    communicator.recv(four, 3, stream=9)
    made = [
        tuple(getattr(word, "value", word) for word in call) for call in calls.made
    ]  # the handle is 7
    assert made == [
        ("ncclAllReduce", 0x1000, 0x3000, 8, 4, 3, 7, 9),
        ("ncclBroadcast", 0x1000, 0x3000, 8, 4, 3, 7, 9),
        ("ncclAllGather", 0x1000, 0x2000, 8, 4, 7, 9),
        ("ncclReduceScatter", 0x2000, 0x1000, 8, 4, 4, 7, 9),
        ("ncclSend", 0x1000, 8, 4, 0, 7, 9),
        ("ncclRecv", 0x2000, 32, 4, 3, 7, 9),
    ]


def test_without_a_stream_it_is_the_current_one(
    calls: Calls, communicator: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {None: 5, 2: 6}
    monkeypatch.setattr("dispatcher.comm.nccl.communicator.current_stream", streams.__getitem__)
    communicator.all_reduce(SOME)
    communicator.all_reduce(Buffer(0x1000, 8, device=2))
    communicator.send(Buffer(0x1000, 8, device=2), 0)
    communicator.recv(SOME, 0)
    assert [call[-1] for call in calls.made] == [5, 6, 6, 5]


@pytest.mark.parametrize("rank", [-1, 4])
def test_ranks_that_there_are_not(communicator: Communicator, calls: Calls, rank: int) -> None:
    for call in (communicator.send, communicator.recv):
        with pytest.raises(ValueError, match=f"world: no rank {rank} among 4"):
            call(SOME, rank)
    with pytest.raises(ValueError, match="no rank"):
        communicator.broadcast(SOME, root=rank)
    with pytest.raises(ValueError, match="all_reduce: 8 elements needed for 4 ranks, not 32"):
        communicator.all_reduce(SOME, MORE)
    with pytest.raises(ValueError, match="broadcast: 8 elements needed for 4 ranks, not 32"):
        communicator.broadcast(SOME, MORE)
    assert calls.made == []


class TestGroupThatFails:
    """Communicators of one thread share its group: all are waited for, and aborted together."""

    @pytest.fixture
    def other(self, calls: Calls) -> Communicator:
        return made(calls, 9, name="tp")

    def test_the_call_that_failed_is_named(
        self, calls: Calls, communicator: Communicator, other: Communicator
    ) -> None:
        def fail() -> None:
            with communicator.group():
                other.send(SOME, 2)
                calls.code = 4
                communicator.send(SOME, 0)

        with pytest.raises(NcclError, match="rank 1 on n1: world: ncclSend: reason 4"):
            fail()
        ends = ["ncclGroupEnd", "ncclCommAbort", "ncclCommAbort"]  # nothing is freed inside
        assert calls.names == ["ncclGroupStart", "ncclSend", "ncclSend", *ends]
        assert (communicator.closed, other.closed) == (True, True)
        calls.code = 0
        with made(calls, 11).group():  # and nothing is left of it
            pass

    def test_a_failure_that_the_program_passes_by_is_raised_at_the_end(
        self, calls: Calls, communicator: Communicator
    ) -> None:
        def fail() -> None:
            with communicator.group():
                calls.code = 4
                with contextlib.suppress(NcclError):
                    communicator.send(SOME, 0)
                calls.code = 0

        with pytest.raises(NcclError, match=r"world: ncclSend: reason 4"):
            fail()
        assert communicator.closed

    def test_every_communicator_is_waited_for(
        self, calls: Calls, communicator: Communicator, other: Communicator
    ) -> None:
        def fail() -> None:
            with communicator.group():
                calls.code = IN_PROGRESS
                communicator.send(SOME, 2)
                other.send(SOME, 2)

        calls.states = [0, IN_PROGRESS, 6]
        with pytest.raises(NcclError, match="rank 1 on n1: tp: ncclGroupEnd: reason 6"):
            fail()
        assert calls.asked == [7, 9, 9]
        assert (communicator.closed, other.closed) == (True, True)

    def test_what_the_program_raised_is_kept(
        self, calls: Calls, communicator: Communicator, other: Communicator
    ) -> None:
        def fail(code: int) -> None:
            with communicator.group():
                other.send(SOME, 2)
                calls.code = code
                communicator.send(SOME, 99)

        for code, closed in ((0, False), (4, True)):
            with pytest.raises(ValueError, match="world: no rank 99 among 4"):
                fail(code)
            assert other.closed == closed


def test_groups_within_groups_wait_at_the_end_of_the_outer(
    calls: Calls, communicator: Communicator
) -> None:
    calls.states = [0]
    with communicator.group():
        with communicator.group():
            calls.code = IN_PROGRESS
            communicator.send(SOME, 0)
        assert calls.states == [0]
    assert calls.states == []


def test_a_group_that_cannot_begin(calls: Calls, communicator: Communicator) -> None:
    calls.code = 3
    with pytest.raises(NcclError, match="ncclGroupStart: reason 3"), communicator.group():
        pytest.fail("it has begun")
    assert calls.names == ["ncclGroupStart"]


def test_a_split_has_a_name_and_the_parents_time(calls: Calls, communicator: Communicator) -> None:
    calls.states = [0, 0]
    child = communicator.split(3)
    assert child is not None
    assert (child.name, child.timeout) == ("world/3", 60.0)
    assert repr(child) == "Communicator(world/3: rank 1 of 4)"
    calls.states = [0, 5]
    with pytest.raises(NcclError, match="rank 1 on n1: tp: ncclCommSplit: reason 5") as caught:
        communicator.split(0, name="tp")
    assert caught.value.code == 5
    assert [words[1].value for words in calls.made if words[0] == "ncclCommAbort"] == [8]


def test_a_split_that_fails_aborts(calls: Calls, communicator: Communicator) -> None:
    calls.states = [2]
    with pytest.raises(NcclError, match=r"world: ncclCommSplit: reason 2"):
        communicator.split(0)
    assert calls.names == ["split", "ncclCommAbort"]
    assert repr(communicator) == "Communicator(world: closed)"


@pytest.mark.parametrize(("code", "fails"), [(0, False), (IN_PROGRESS, False), (3, True)])
def test_the_last_word_of_a_communicator(
    calls: Calls, communicator: Communicator, code: int, fails: bool
) -> None:
    really = calls.call

    def call(name: str, *arguments: object) -> int:
        return code if name == "ncclCommDestroy" else really(name, *arguments)

    calls.call = call  # type: ignore[method-assign]
    if fails:
        with pytest.raises(NcclError, match="ncclCommDestroy: reason 3"):
            communicator.close()
    else:
        communicator.close()
    assert communicator.closed


def test_a_state_that_is_well_is_no_error(calls: Calls, communicator: Communicator) -> None:
    calls.states = [0]
    communicator.check()
    assert not communicator.closed
    communicator.abort()
    with pytest.raises(NcclError, match="world: the communicator is closed"):
        communicator.check()


class TestShrink:
    def test_the_rest_goes_on_and_the_old_one_is_aborted(
        self, calls: Calls, communicator: Communicator
    ) -> None:
        calls.states = [0]
        rest = communicator.shrink([3, 0, 3])
        assert (rest.name, rest.timeout, rest.closed) == ("world without 0,3", 60.0, False)
        assert calls.made[0] == ("shrink", [0, 3])
        assert (calls.names[1:], communicator.closed) == (["ncclCommAbort"], True)
        assert rest in rest._family
        assert communicator not in rest._family

    def test_one_that_fails_says_so(self, calls: Calls, communicator: Communicator) -> None:
        calls.code = 6
        with pytest.raises(NcclError, match="rank 1 on n1: world: ncclCommShrink: reason 6"):
            communicator.shrink([0], name="rest")
        assert communicator.closed

    @cases("lost", [[], [1], [0, 1], [4], [-1]])
    def test_ranks_that_cannot_be_lost(self, lost: list[int]) -> None:
        calls = Calls()
        with pytest.raises(ValueError, match="world: "):
            made(calls).shrink(lost)
        assert calls.made == []
