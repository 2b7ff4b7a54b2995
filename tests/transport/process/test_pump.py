"""One thread that reads many descriptors: what it hands on, when it waits, what it closes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from rig import wait_for

from dispatcher.transport.process.pump import Pump


class Sink:
    """Takes what comes; wants no more after ``most`` pieces."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.pieces: list[bytes] = []
        self.most = most

    def __call__(self, data: bytes) -> bool:
        self.pieces.append(data)
        return len(self.pieces) < self.most


@pytest.fixture
def pump() -> Iterator[Pump]:
    made = Pump("test:pump")
    yield made
    made.close()
    wait_for(lambda: threads() == 0, 20, "its thread has ended, which the next test may count")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The end to be read, which is the pump's from then on, and the other."""
    ends = os.pipe()
    yield ends
    if is_open(ends[1]):
        os.close(ends[1])


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def threads() -> int:
    named = [thread for thread in threading.enumerate() if thread.name == "test:pump"]
    assert all(thread.daemon for thread in named)  # none keeps the process alive
    return len(named)


def is_long(pieces: list[bytes], count: int) -> bool:
    return len(pieces) == count


def settle(pump: Pump) -> None:
    """All orders before this have been carried out, and all that was there was read."""
    read, write = os.pipe()
    os.close(write)
    sink = Sink()
    pump.add(read, sink)
    wait_for(lambda: sink.pieces, 20, "the pump's next turn")


def test_all_is_handed_on_and_then_the_end_once(pump: Pump, pipe: tuple[int, int]) -> None:
    sink = Sink()
    pump.add(pipe[0], sink)
    for count, word in enumerate((b"one", b"two"), 1):
        os.write(pipe[1], word)
        wait_for(partial(is_long, sink.pieces, count), 20, "it was read")
    os.close(pipe[1])
    wait_for(lambda: not is_open(pipe[0]), 20, "it is closed")
    assert sink.pieces == [b"one", b"two", b""]
    settle(pump)
    assert sink.pieces[-2:] == [b"two", b""]


def test_a_terminal_that_has_gone_is_an_end(pump: Pump) -> None:
    """It reads as an error."""
    master, slave = os.openpty()
    sink = Sink()
    pump.add(master, sink)
    os.close(slave)
    wait_for(lambda: not is_open(master), 20, "it is closed")
    assert sink.pieces == [b""]


def test_one_thread_serves_all_and_only_when_there_is_one(pump: Pump) -> None:
    assert threads() == 0
    sinks, ends = [Sink() for _ in range(3)], [os.pipe() for _ in range(3)]
    for sink, (read, write) in zip(sinks, ends, strict=True):
        pump.add(read, sink)
        os.write(write, b"x")
    wait_for(lambda: all(sink.pieces for sink in sinks), 20, "all were read")
    assert threads() == 1
    for _, write in ends:
        os.close(write)
    wait_for(lambda: all(sink.pieces == [b"x", b""] for sink in sinks), 20, "all have ended")
    pump.close()
    wait_for(lambda: threads() == 0, 20, "the thread has ended")


def test_who_wants_no_more_is_left_alone_until_then(pump: Pump, pipe: tuple[int, int]) -> None:
    sink = Sink(most=1)
    pump.add(pipe[0], sink)
    os.write(pipe[1], b"one")
    wait_for(lambda: sink.pieces, 20, "the first")
    os.write(pipe[1], b"two")
    os.close(pipe[1])
    settle(pump)
    assert sink.pieces == [b"one"]
    sink.most = 9
    pump.resume(pipe[0], sink)
    wait_for(lambda: not is_open(pipe[0]), 20, "the end")
    assert sink.pieces == [b"one", b"two", b""]


@pytest.mark.parametrize("paused", [False, True])
def test_what_is_dropped_is_closed_at_once(pump: Pump, pipe: tuple[int, int], paused: bool) -> None:
    sink = Sink(most=1 if paused else 9)
    pump.add(pipe[0], sink)
    os.write(pipe[1], b"x")
    wait_for(lambda: sink.pieces, 20, "it was read")
    pump.drop(pipe[0])
    wait_for(lambda: not is_open(pipe[0]), 20, "it is closed")
    with pytest.raises(BrokenPipeError):
        os.write(pipe[1], b"y")
    pump.drop(pipe[0])  # is not the pump's any more
    settle(pump)
    assert sink.pieces == [b"x"]


@pytest.mark.parametrize(("lies", "pieces"), [(b"last words", [b"last words", b""]), (b"", [b""])])
def test_what_lies_there_is_handed_on_at_the_end(
    pump: Pump, pipe: tuple[int, int], lies: bytes, pieces: list[bytes]
) -> None:
    last, unheard, begin = Sink(), Sink(), os.pipe()

    def act(data: bytes) -> bool:
        """On the pump's thread, so that it reads nothing between the two."""
        if data:
            pump.add(pipe[0], unheard)
            os.write(pipe[1], lies)
            pump.drop(pipe[0], last)
            pump.drop(pipe[0], unheard)  # is not the pump's any more
        return True

    pump.add(begin[0], act)
    os.write(begin[1], b"x")
    os.close(begin[1])
    wait_for(lambda: not is_open(begin[0]), 20, "all has happened")
    assert not is_open(pipe[0])
    assert (last.pieces, unheard.pieces) == (pieces, [])


def test_closing_closes_all_and_ends_the_thread(pump: Pump) -> None:
    pump.close()  # nothing was started
    pump = Pump("test:pump")
    ends = [os.pipe() for _ in range(2)]
    sink = Sink(most=1)
    for read, write in ends:
        pump.add(read, sink)
        os.write(write, b"x")
    wait_for(lambda: len(sink.pieces) == 2, 20, "both were read")
    pump.close()
    pump.close()
    wait_for(lambda: threads() == 0, 20, "the thread has ended")
    assert not any(is_open(read) for read, _ in ends)
    late = os.pipe()
    pump.add(late[0], sink)
    assert not is_open(late[0])
    pump.resume(late[0], sink)
    pump.drop(late[1], sink)
    assert is_open(late[1])
    assert sink.pieces == [b"x", b"x"]
    for write in (late[1], *(write for _, write in ends)):
        os.close(write)
