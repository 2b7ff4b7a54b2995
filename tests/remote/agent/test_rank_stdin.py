"""The ranks' standard input: every byte to every reader, at the pace of the slowest that lives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.agent.rank_stdin import PORTION, Stdin, unread
from dispatcher.remote.host.poll import Poll
from dispatcher.remote.protocol.frames import COUNT, INPUT, OUTPUT_LIMIT, TAKEN, encode
from remote.driver import Agent

#: bytes that a pipe takes before it is full
PIPE = 64 << 10


class Readers:
    """A ``Stdin`` whose ranks' ends are held by the test."""

    def __init__(self, *ranks: int) -> None:
        self.poll = Poll(self.note)
        self.stdin = Stdin(self.poll, list(ranks))
        self.ends = {rank: self.stdin.open(rank) for rank in ranks}
        self.credit = 0
        self.closed: dict[int, int] = {}

    def note(self, actions: list[Any]) -> None:
        for action in actions:
            if action[0] == "taken":
                self.credit += action[1]
            else:
                assert action[:2] == ("send", "input.closed")
                self.closed[action[2]["rank"]] = action[2]["taken"]

    def feed(self, data: bytes) -> None:
        self.note(self.stdin.feed(data))

    def turn(self) -> None:
        self.poll.turn(0)

    def leave(self, rank: int) -> None:
        os.close(self.ends.pop(rank))

    def close(self) -> None:
        for rank in list(self.ends):
            self.leave(rank)
        for rank in list(self.stdin.ends):
            self.stdin.close(rank)
        self.poll.epoll.close()


@pytest.fixture
def two() -> Iterator[Readers]:
    readers = Readers(0, 1)
    yield readers
    readers.close()


@given(st.data())
def test_any_order_of_feeding_and_reading_loses_nothing(data: st.DataObject) -> None:
    chunks = data.draw(st.lists(st.binary(min_size=1, max_size=40_000), max_size=8))
    readers = Readers(0, 1, 2)
    try:
        got = {0: b"", 1: b"", 2: b""}
        steps = data.draw(st.lists(st.sampled_from(["feed", 0, 1, 2, "turn"]), max_size=30))
        waiting = [*chunks, b""]
        for step in [*steps, *(["feed"] * (len(waiting)))]:
            if step == "feed" and waiting:
                readers.feed(waiting.pop(0))
            elif step == "turn":
                readers.turn()
            elif isinstance(step, int):
                os.set_blocking(readers.ends[step], False)
                try:
                    got[step] += os.read(readers.ends[step], data.draw(st.integers(1, 100_000)))
                except BlockingIOError:
                    pass
        while readers.stdin.ends:
            for rank in got:
                got[rank] += _now(readers.ends[rank])
            readers.turn()
        for rank in got:
            got[rank] += _now(readers.ends[rank])
        assert set(got.values()) == {b"".join(chunks)}
        assert readers.closed == {}
        assert readers.credit + readers.stdin.unpaid == len(b"".join(chunks))
        assert not readers.stdin.held
    finally:
        readers.close()


def _now(fd: int) -> bytes:
    os.set_blocking(fd, False)
    try:
        return os.read(fd, 1 << 20)
    except BlockingIOError:
        return b""


def test_the_slowest_living_reader_sets_the_pace(two: Readers) -> None:
    size = 400_000
    two.feed(bytes(size))
    taken = 0
    while taken < size:
        taken += len(_now(two.ends[0]))
        two.turn()
    held_back = two.credit
    assert held_back < size  # rank 1 has read nothing: its pipe is full
    two.leave(1)
    two.turn()
    assert two.closed == {1: 0}
    assert two.credit + two.stdin.unpaid == size
    assert not two.stdin.held


def test_what_lies_in_the_pipe_of_a_reader_that_left_was_not_taken(two: Readers) -> None:
    two.feed(b"x" * 1000)
    assert os.read(two.ends[0], 400) == b"x" * 400
    two.leave(0)
    two.turn()
    assert two.closed == {0: 400}
    assert unread(two.stdin.ends[1]) == 1000


def test_a_reader_that_leaves_is_seen_while_nothing_comes(two: Readers) -> None:
    two.leave(0)
    two.turn()
    assert two.closed == {0: 0}


def test_without_readers_all_is_dropped(two: Readers) -> None:
    two.note(two.stdin.ended(0) + two.stdin.ended(1) + two.stdin.ended(1))
    for _ in range(4):
        two.feed(bytes(PORTION))
    assert (two.credit, bytes(two.stdin.held)) == (4 * PORTION, b"")


def test_who_comes_late_reads_from_the_first_byte_that_is_still_held() -> None:
    readers = Readers(0)
    readers.stdin.readers.append(1)
    try:
        readers.feed(b"a" * PIPE)  # all that the pipe of 0 takes
        readers.feed(b"bc")
        readers.ends[1] = readers.stdin.open(1)
        assert _now(readers.ends[0]) == b"a" * PIPE
        readers.turn()
        readers.feed(b"d")
        readers.turn()
        assert (_now(readers.ends[0]), _now(readers.ends[1])) == (b"bcd", b"bcd")
        readers.feed(b"")
        assert (_now(readers.ends[0]), _now(readers.ends[1])) == (b"", b"")
        assert not readers.poll.calls
        assert not readers.stdin.ends
    finally:
        readers.close()


def test_a_reader_that_left_is_found_out_by_a_write(two: Readers) -> None:
    two.feed(b"first")
    assert _now(two.ends[0]) == b"first"
    two.leave(0)
    two.feed(b"second")
    assert two.closed == {0: 5}
    assert _now(two.ends[1]) == b"firstsecond"
    two.note(two.stdin.ended(0))
    two.stdin.close(0)
    assert two.closed == {0: 5}


def test_one_that_has_had_all_is_not_told_of(two: Readers) -> None:
    two.feed(b"all")
    two.feed(b"")
    two.note(two.stdin.ended(0) + two.stdin.ended(1))
    assert two.closed == {}
    assert _now(two.ends[0]) == b"all"


# -- real agents -----------------------------------------------------------------------------


def start(agent: Agent, readers: list[int], *argvs: list[str]) -> None:
    agent.prepare()
    ranks = [[rank, [word.encode() for word in argv], []] for rank, argv in enumerate(argvs)]
    agent.order("start_ranks", ranks=ranks, common=[], scrub=[], stdin=readers)
    agent.report("rank.spawned")


def credit(agent: Agent) -> int:
    return sum(COUNT.unpack(frame.body)[0] for frame in agent.frames if frame.kind == TAKEN)


def test_only_readers_are_given_it_and_the_end_is_the_end(agent: Agent) -> None:
    start(agent, [0, 2], ["cat"], ["cat"], ["cat"])
    assert agent.text(1) == b""
    agent.write(encode(INPUT, b"one\n") + encode(INPUT, b"\0two") + encode(INPUT, b""))
    assert agent.text(0) == agent.text(2) == b"one\n\0two"
    assert [agent.status(rank) for rank in range(3)] == [0, 0, 0]
    assert agent.found("input.closed") is None
    agent.finish()


def test_orders_pass_a_reader_that_takes_nothing(agent: Agent) -> None:
    start(agent, [0], ["sleep", "300"])
    for _ in range(8):
        agent.write(encode(INPUT, bytes(OUTPUT_LIMIT)))
    agent.order("odd")
    agent.report("node.noticed")
    assert credit(agent) < 8 * OUTPUT_LIMIT
    agent.order("signal_ranks", ranks=None, signum=15)
    assert agent.status() == -15
    assert agent.report("input.closed") == {"type": "input.closed", "rank": 0, "taken": 0}
    agent.until(lambda: credit(agent) == 8 * OUTPUT_LIMIT)
    agent.finish()


def test_input_without_readers_harms_nothing(agent: Agent) -> None:
    start(agent, [], ["cat"])
    agent.write(encode(INPUT, b"x"))
    assert agent.text() == b""
    agent.finish()
