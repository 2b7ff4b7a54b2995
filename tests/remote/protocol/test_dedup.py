"""Output sent once: whatever ranks write, and however it is cut, each one's bytes come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.protocol.dedup import LEAST, LINES, Deduplicator, Window
from dispatcher.remote.protocol.frames import (
    OUTPUT,
    OUTPUT_LIMIT,
    Decoder,
    Frame,
    WireError,
    encode,
)
from dispatcher.runner.run.output_intake import dedup_body
from remote.driver import Agent

SIZE = 64 << 10
TEXTS = (
    b"\n", b"ab\n", b"step 17 loss 0.25\n", b"\rhalf of it", b"a" * LEAST + b"\n",
    b"a" * (LEAST - 1) + b"b\n", b"aaaaaaaaaa" * 9 + b"\n",
    b"/lib/site-packages/x.py:12: UserWarning: not for the first time\n",
    b"/lib/site-packages/x.py:99: FutureWarning: in a later version\n",
)  # fmt: skip


class Ends:
    """Both ends of a link, and what came out of it for each rank and stream."""

    def __init__(self, size: int = SIZE) -> None:
        self.equal = Deduplicator(size)
        self.decoder = Decoder()
        self.body = dedup_body(size)
        self.got: dict[tuple[int, int], bytes] = {}
        self.crossed = 0

    def write(self, rank: int, stream: int, data: bytes) -> list[Frame]:
        sent = self.equal.encode(OUTPUT, data, rank, stream)
        assert len(sent) <= len(encode(OUTPUT, data, rank, stream))
        self.crossed += len(sent)
        frames = self.decoder.feed(sent)
        for frame in frames:
            assert (frame.rank, frame.stream) == (rank, stream)
            key = rank, stream
            self.got[key] = self.got.get(key, b"") + self.body(frame)
        assert len(self.equal.window.held) <= 1.5 * self.equal.window.size
        assert len(self.equal.lines) <= len(self.equal.known) <= self.equal.window.size
        return frames


writes = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([1, 2]),
        st.lists(st.sampled_from(TEXTS), min_size=1, max_size=14),
        st.integers(1, 900),
    ),
    max_size=40,
)


@given(writes, st.sampled_from([1, 64, 150, 400, 800, SIZE]))
def test_each_rank_s_bytes_come_out_in_order(
    steps: list[tuple[int, int, list[bytes], int]], size: int
) -> None:
    ends = Ends(size)
    wrote: dict[tuple[int, int], bytes] = {}
    sent: dict[tuple[int, int], int] = {}
    for rank, stream, lines, limit in steps:  # some of what was written is read at a time
        key = rank, stream
        wrote[key] = wrote.get(key, b"") + b"".join(lines)
        at = sent.get(key, 0)
        data = wrote[key][at : at + limit]
        sent[key] = at + len(data)
        ends.write(rank, stream, data)
    for key, data in wrote.items():
        if sent[key] < len(data):
            ends.write(*key, data[sent[key] :])
    assert ends.got == wrote


def text(step: int) -> bytes:
    return b"".join(b"step %d: what all ranks say of it, line %d\n" % (step, n) for n in range(9))


def test_ranks_that_take_turns_to_be_first_send_it_once() -> None:
    ends = Ends()
    for step in range(40):
        for turn in range(8):
            ends.write((step + turn) % 8, 1, text(step))
    once = sum(len(text(step)) for step in range(40))
    assert set(ends.got.values()) == {b"".join(map(text, range(40)))}
    assert ends.crossed <= once + 40 * 8 * 36


def test_a_line_of_one_s_own_does_not_end_it() -> None:
    ends = Ends()
    for step in range(40):
        for turn in range(8):
            rank = (step + turn) % 8
            own = b"step %d: rank %d took %d ms\n" % (step, rank, 7 * rank + step)
            ends.write(rank, 1, own + text(step) if step % 2 else text(step) + own)
    every = sum(map(len, ends.got.values()))
    assert ends.crossed * 3 < every


def test_a_flood_of_lines_that_only_begin_alike_stays_in_few_frames() -> None:
    ends = Ends()
    begin = b"b" * (LEAST + 4)
    for rank in range(8):
        data = b"".join(begin + b"%d %d\n" % (rank, n) for n in range(1000))[:OUTPUT_LIMIT]
        assert len(ends.write(rank, 1, data)) <= 2 * LINES + 2


def test_the_window_is_all_that_can_be_pointed_at() -> None:
    window = Window(8)
    window.add(b"0123456789")
    assert window.at(2, 8) == b"23456789"
    assert window.at(9, 1) == b"9"
    for place, length in ((1, 2), (2, 9), (9, 2), (10, 1), (5, 0), (1 << 64 - 1, 1), (0, 1 << 31)):
        with pytest.raises(WireError, match=f"{length} bytes at {place}"):
            window.at(place, length)
    window = Window(1 << 20)
    window.add(bytes(1 << 20))
    with pytest.raises(WireError):
        window.at(0, OUTPUT_LIMIT + 1)


class Opened(Decoder):
    """Gives SAME frames as the OUTPUT frames they stand for; counts what came."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.body = dedup_body(SIZE)

    def feed(self, data: bytes) -> list[Frame]:
        self.size += len(data)
        frames = super().feed(data)
        for frame in frames:
            if frame.stream and frame.kind != 3:
                frame.body, frame.kind = self.body(frame), OUTPUT
        return frames


def test_an_agent_points_at_it_over_attempts(agent: Agent) -> None:
    agent.decoder = opened = Opened()
    for attempt in range(2):
        agent.prepare(attempt=attempt, equal=SIZE)
        agent.start(*[["seq", "1000", "6000"]] * 4)
        expected = b"".join(b"%d\n" % n for n in range(1000, 6001))
        assert [agent.text(rank) for rank in range(4)] == [expected] * 4
        for rank in range(4):
            agent.status(rank)
            agent.text(rank, 2)
        assert opened.size < 1.5 * len(expected) * (attempt + 1)
        agent.order("sweep")
        agent.report("swept")
        agent.reports.clear()
        agent.output.clear()
        agent.counts.clear()
    agent.finish()
