"""Output sent once: whatever ranks write, and however it is cut, each one's bytes come out."""

from __future__ import annotations

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.protocol import dedup
from dispatcher.remote.protocol.dedup import (
    FEWEST,
    FIRST,
    LEAST,
    LINES,
    LONGEST,
    Deduplicator,
    Window,
    line_at,
)
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


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 40), st.data())
def test_the_last_bytes_stay_where_they_are(
    sizes: list[int], size: int, data: st.DataObject
) -> None:
    window, whole = Window(size), b""
    for number, count in enumerate(sizes):
        piece = bytes([number]) * count
        window.add(piece)
        whole += piece
    assert (window.begin, window.end) == (max(0, len(whole) - size), len(whole))
    assert len(window.held) <= 1.5 * size + 30
    place, length = data.draw(st.integers(0, 1200)), data.draw(st.integers(1, 40))
    if window.begin <= place <= len(whole) - length:
        assert window.at(place, length) == whole[place : place + length]
    else:
        with pytest.raises(WireError):
            window.at(place, length)


def test_the_next_line() -> None:
    window = Window(10)
    window.add(b"lost...\nab\ncd\n\nefg")  # of which nothing before "ab" is held
    assert [window.line_after(place) for place in (8, 10, 11, 14, 15)] == [11, 11, 14, 15, 18]


def alike(held: bytes, data: bytes, least: int, before: int = 0) -> int:
    window = Window(1 << 20)
    window.add(bytes(before) + held)
    return window.alike(memoryview(data), before, least)


@cases(
    ("held", "data", "least", "same"),
    [
        (b"one line\nsecond", b"one line\nsecond and more", 99, 15),  # all that is held
        (b"one line\nsecond", b"one", 99, 3),  # all that there is
        (b"one line\nsecond", b"one line\nseco!!", 9, 9),  # whole lines
        (b"one line\nsecond", b"one line\nseco!!", 10, 0),
        (b"one line\nsecond", b"one line!", 4, 0),
        (b"one line\nsecond", b"!ne line\nsecond", 1, 0),
        (b"", b"x", 1, 0),
        (b"a\nb\nc\nd", b"a\nb\nc\n!", 1, 6),
        (b"x" * LONGEST + b"a", b"x" * LONGEST + b"b", 9, LONGEST),  # a long line by a part of it
        (b"x" * (LONGEST - 1) + b"a", b"x" * (LONGEST - 1) + b"b", 9, 0),
    ],
)
@cases("before", [0, 7])
def test_how_much_is_alike(held: bytes, data: bytes, least: int, same: int, before: int) -> None:
    assert alike(held, data, least, before) == same


@given(st.integers(0, 700), st.integers(1, 60), st.integers(0, 9))
def test_no_more_and_no_less_is_alike(size: int, least: int, lines: int) -> None:
    begin = (b"y" * (size // lines) + b"\n" if lines else b"y" * 700) * 700
    begin = begin[:size]
    found = alike(begin + b"a" * 9, begin + b"b" * 9, least)
    expected = size if size >= LONGEST else begin.rfind(b"\n") + 1
    assert found == (expected if size >= least and expected >= least else 0)


@cases(
    ("data", "at", "line"),
    [
        (b"a long line that is whole and not short\nnext\n", 0, 40),
        (b"short\nand what follows it, as far as it counts\n", 0, LEAST),
        (b"x" * 300, 0, LONGEST),
        (b"x" * 300, 100, 200),
        (b"x" * (LONGEST - 1) + b"\n...", 0, LONGEST),
        (b"end", 0, 3),
    ],
)
def test_what_a_line_is_known_by(data: bytes, at: int, line: int) -> None:
    assert line_at(data, at) == data[at : at + line]


def test_lines_that_left_the_window_are_forgotten() -> None:
    one = Deduplicator(200)
    for number in range(50):
        one.encode(OUTPUT, b"%03d is a line that nobody else has written\n" % number, 0, 1)
        assert all(one.window.begin <= place for place in one.lines.values())
        assert list(one.lines.values()) == [place for place, _ in one.known]
    assert one.lines


def test_no_more_lines_are_known_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "MOST", 3)
    one = Deduplicator(SIZE)
    lines = [b"%03d is a line that nobody else has written\n" % number for number in range(9)]
    for line in lines:
        one.encode(OUTPUT, line, 0, 1)
    assert list(one.lines) == lines[-3:]
    one.encode(OUTPUT, lines[-3], 1, 2)  # known, so pointed at
    assert list(one.lines) == lines[-3:]


def test_of_a_frame_its_first_lines_are_known_and_some_of_the_others() -> None:
    one = Deduplicator(SIZE)
    lines = [b"%04d is a line that nobody else has written\n" % number for number in range(200)]
    one.encode(OUTPUT, b"".join(lines), 0, 1)
    known = [lines.index(line) for line in one.lines]
    assert known[:FIRST] == list(range(FIRST))
    gaps = [b - a for a, b in zip(known[FIRST - 1 :], known[FIRST:], strict=False)]
    assert len(gaps) > 2
    assert all(dedup.SPACING <= len(lines[0]) * gap < dedup.SPACING + 90 for gap in gaps)


def test_few_lines_are_looked_up_after_chunks_of_which_nothing_was_found() -> None:
    """A rank that writes what nobody else does costs no more and more."""
    one = Deduplicator(SIZE)
    asked: list[bytes] = []

    class Lines(dict[bytes, int]):
        def get(self, line: bytes, default: int = -1) -> int:  # type: ignore[override]
            asked.append(line)
            return super().get(line, default)

    one.lines = Lines()
    one.encode(OUTPUT, b"the first to write, of whom all is new\n", 9, 1)
    counts = []
    for turn in range(6):
        lines = [b"%d %03d is a line that nobody else has written\n" % (turn, n) for n in range(99)]
        asked.clear()
        one.encode(OUTPUT, b"".join(lines), 0, 1)
        counts.append(len(asked))
        one.encode(OUTPUT, b"and another %d that is as new as all the others\n" % turn, 9, 1)
    assert counts == [LINES, LINES // 2, LINES // 4, FEWEST, FEWEST, FEWEST]


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
