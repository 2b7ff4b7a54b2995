"""A communicator's life in one process: waiting, deadlines, aborts, and what it refuses."""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases

from dispatcher.comm import Buffer, Communicator, NcclError
from dispatcher.comm.nccl.communicator import as_buffer, current_stream
from dispatcher.comm.nccl.library import IN_PROGRESS


class Calls:
    """A library that gives its answers in turn: ``states`` to a test, ``seen`` to the watchdog."""

    on_host = False

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.states: list[int] = []
        self.seen: list[int] = []
        self.code = 0
        self.made: list[tuple[Any, ...]] = []
        self.asked: list[int | None] = []
        self.blocks, self.aborted = "", threading.Event()

    def state(self, handle: ctypes.c_void_p) -> int:
        self.asked.append(handle.value)
        watched = threading.current_thread().name == "nccl-watch"
        states = self.seen if watched else self.states
        return states.pop(0) if states else IN_PROGRESS

    def split(self, parent: object, color: int, key: int, child: ctypes.c_void_p) -> int:
        self.made.append(("split", color, key))
        child.value = None if color == -1 else 8
        return IN_PROGRESS

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


def test_a_call_waits_until_it_is_queued(calls: Calls, communicator: Communicator) -> None:
    calls.code, calls.states = IN_PROGRESS, [IN_PROGRESS, IN_PROGRESS, 0]
    communicator.all_reduce(SOME, op="max", stream=5)
    name, send, receive, count, kind, op, handle, stream = calls.made[0]
    assert (name, send, receive, count, kind, op) == ("ncclAllReduce", 0x1000, 0x1000, 8, 7, 2)
    assert (handle.value, stream) == (7, 5)
    assert calls.states == []


@cases("op, code", [("sum", 2), ("max", 2), ("prod", 1), ("min", 3)])
def test_a_reduction_of_bool_is_a_bool(op: str, code: int) -> None:
    made(calls := Calls()).all_reduce(Buffer(0x1000, 8, "bool"), op=op)
    assert [(call[4], call[5]) for call in calls.made] == [(1, code)]


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
        assert caught.value.code == IN_PROGRESS
        assert calls.names == ["ncclAllReduce", "ncclCommAbort"]
        assert hasty.closed

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
    for words in ((elsewhere,), (SOME, elsewhere)):
        with pytest.raises(ValueError, match=r"world: the memory is on gpu 0, .* is of gpu 3"):
            one.all_reduce(*words)
    one.all_reduce(Buffer(0x1000, 8, device=3))
    one.all_reduce(SOME)  # nobody knows where that is
    assert calls.names == ["ncclAllReduce"] * 2
    calls.states = [0, 0]
    child = one.split(0)
    assert child is not None
    assert child.device == 3


def test_a_refusal_aborts_in_nccls_words(calls: Calls, communicator: Communicator) -> None:
    calls.code = 4
    with pytest.raises(NcclError, match="ncclAllReduce: reason 4") as caught:
        communicator.all_reduce(SOME)
    assert caught.value.code == 4
    assert communicator.closed


def test_an_asynchronous_error_is_found(calls: Calls, communicator: Communicator) -> None:
    calls.states = [0, IN_PROGRESS, 6]
    communicator.check()
    communicator.check()
    assert not communicator.closed
    with pytest.raises(NcclError, match="asynchronous error: reason 6"):
        communicator.check()
    assert calls.names == ["ncclCommAbort"]
    communicator.abort()
    assert calls.names == ["ncclCommAbort"]


def test_an_error_that_comes_while_nobody_asks_is_told_by_the_next_call(
    calls: Calls, communicator: Communicator
) -> None:
    """As of a lost peer while the program waits for its stream: the abort ends the wait."""
    calls.seen = [0, 6]
    communicator.all_reduce(SOME)  # from here on the watchdog looks
    assert calls.aborted.wait(30)
    reduce = partial(communicator.all_reduce, SOME)
    for call in (reduce, communicator.check, communicator.close):
        with pytest.raises(NcclError, match="world: asynchronous error: reason 6") as caught:
            call()
        assert caught.value.code == 6
    assert calls.names == ["ncclAllReduce", "ncclCommAbort"]


def test_an_error_ends_a_call_that_waits(calls: Calls, communicator: Communicator) -> None:
    calls.blocks, calls.seen = "ncclAllReduce", [6]
    with pytest.raises(NcclError, match="world: asynchronous error: reason 6"):
        communicator.all_reduce(SOME)
    assert calls.names == ["ncclAllReduce", "ncclCommAbort"]


def test_a_split_waits_for_parent_and_child(calls: Calls, communicator: Communicator) -> None:
    calls.states = [IN_PROGRESS, 0, IN_PROGRESS, 0]
    child = communicator.split(3, 9, name="tp")
    assert child is not None
    assert (child.name, child.rank, child.size) == ("tp", 1, 4)
    assert calls.made == [("split", 3, 9)]
    calls.states = [0]
    assert communicator.split(None) is None  # it takes part all the same
    assert calls.made[1:] == [("split", -1, 0)]
    calls.states = [2]
    with pytest.raises(NcclError, match=r"world: ncclCommSplit: reason 2"):
        communicator.split(0)
    assert calls.names[-1] == "ncclCommAbort"
    assert repr(communicator) == "Communicator(world: closed)"


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


@cases(
    "given, why",
    [
        ({"receive": Buffer(0x2000, 32)}, "all_reduce: 8 elements sent, 32 received"),
        ({"op": "mean"}, "no reduction 'mean'"),
        ({"send": Buffer(1, 8, "bool"), "op": "avg"}, "no average of bool"),
        ({"receive": Buffer(1, 8, "int8")}, "send is float32, receive is int8"),
    ],
)
def test_what_fits_not_is_refused_before_nccl_is_called(given: dict[str, Any], why: str) -> None:
    communicator = made(calls := Calls())
    with pytest.raises((ValueError, TypeError), match=why):
        communicator.all_reduce(**{"send": SOME, **given})
    assert (calls.made, communicator.closed) == ([], False)


def test_each_word_has_its_place(calls: Calls, communicator: Communicator) -> None:
    one, other = Buffer(0x1000, 8, "int64"), Buffer(0x3000, 8, "int64")
    communicator.all_reduce(one, other, op="min", stream=9)
    (call,) = calls.made
    words = tuple(getattr(word, "value", word) for word in call)  # the handle is 7
    assert words == ("ncclAllReduce", 0x1000, 0x3000, 8, 4, 3, 7, 9)


def test_without_a_stream_it_is_the_current_one(
    calls: Calls, communicator: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {None: 5, 2: 6}
    monkeypatch.setattr("dispatcher.comm.nccl.communicator.current_stream", streams.__getitem__)
    communicator.all_reduce(SOME)
    communicator.all_reduce(Buffer(0x1000, 8, device=2))
    assert [call[-1] for call in calls.made] == [5, 6]


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


class Array:
    """As cupy's and numba's."""

    def __init__(self, **interface: object) -> None:
        usual = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3}
        self.__cuda_array_interface__ = {**usual, **interface}


class Tensor:
    """As torch's: on a GPU unless told otherwise."""

    dtype = "torch.bfloat16"

    def __init__(self, *, cuda: bool = True, gaps: bool = False) -> None:
        self.is_cuda, self.gaps = cuda, gaps
        self.device = SimpleNamespace(index=2)

    def is_contiguous(self) -> bool:
        return not self.gaps

    def data_ptr(self) -> int:
        return 4096

    def numel(self) -> int:
        return 7


class TestMemory:
    @cases(
        "thing, buffer",
        [
            (Array(), Buffer(4096, 6)),
            (Array(typestr="<i8", shape=()), Buffer(4096, 1, "int64")),
            (Array(typestr="|b1", shape=(3, 0, 2)), Buffer(4096, 0, "bool")),
            (Tensor(), Buffer(4096, 7, "bfloat16", 2)),
            (SOME, SOME),
        ],
    )
    def test_it_is_taken_from_tensors_arrays_and_pointers(
        self, thing: object, buffer: Buffer
    ) -> None:
        assert as_buffer(thing) == buffer

    @cases(
        "thing, why",
        [
            (Array(strides=(4, 8)), "not contiguous"),
            (Array(typestr="<c16"), "no type '<c16'"),
            (Tensor(gaps=True), r"give tensor.contiguous\(\)"),
            (Tensor(cuda=False), "nccl needs it on a gpu"),
            ([1.0], "no device memory: list"),
        ],
    )
    def test_and_from_nothing_else(self, thing: object, why: str) -> None:
        with pytest.raises((TypeError, ValueError), match=why):
            as_buffer(thing)

    @cases(
        "words, why",
        [((4096, 6, "complex64"), "no type 'complex64'"), ((0, 6), "6 elements at address 0x0"),
         ((4096, -1), "-1 elements")],
    )  # fmt: skip
    def test_what_is_no_buffer(self, words: tuple[Any, ...], why: str) -> None:
        with pytest.raises((TypeError, ValueError), match=why):
            Buffer(*words)
        assert Buffer(0, 0).count == 0

    @pytest.mark.torch
    def test_a_tensor_of_torch(self) -> None:
        torch = pytest.importorskip("torch")
        tensor = torch.zeros(3, 4, dtype=torch.float64)
        assert as_buffer(tensor, on_host=True) == Buffer(tensor.data_ptr(), 12, "float64")

    def test_types_are_those_of_nccl_h(self) -> None:
        codes = {
            "int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
            "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10,
            "float8_e5m2": 11,
        }  # fmt: skip
        assert {name: Buffer(4096, 3, name).code for name in codes} == codes

    @cases("torch, stream", [(None, 0), (False, 0), (True, 77)])
    def test_the_current_stream_is_torchs(self, torch: bool | None, stream: int) -> None:
        def current(device: int | None) -> SimpleNamespace:
            assert device == 2
            return SimpleNamespace(cuda_stream=77)

        cuda = SimpleNamespace(is_available=lambda: torch, current_stream=current)
        module = None if torch is None else SimpleNamespace(cuda=cuda)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "torch", module)
            assert current_stream(2) == stream
