"""Bars below each other: one block, whatever a program does with its cursor."""

from __future__ import annotations

import time

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.output.text.bar_block import MOST_BYTES, MOST_UP, BarBlock
from dispatcher.output.text.lines import CONTINUED, LINE_LIMIT, LineAssembler

UP = b"\x1b[A"


def tqdm(bars: int, steps: int) -> list[bytes]:
    """Each write of tqdm for bars that all take ``steps``."""
    return [
        part
        for step in range(1, steps + 1)
        for at in range(bars)
        for part in (b"\n" * at, b"\rbar %d: %d" % (at, step), UP * at)
        if part
    ]


def rich(bars: int, steps: int) -> list[bytes]:
    """Each write of rich for the same."""
    wipe = b"\r\x1b[2K" + b"\x1b[1A\x1b[2K" * (bars - 1)
    frames = [
        b"\n".join(b"bar %d: %d" % (at, step) for at in range(bars)) for step in range(1, steps + 1)
    ]
    return [b"\x1b[?25l", *(wipe + frame for frame in frames)]


@cases(
    ("chunks", "lines"),
    [
        (tqdm(2, 9), [b"bar 0: 9", b"bar 1: 9"]),
        (tqdm(5, 9), [b"bar %d: 9" % at for at in range(5)]),
        (rich(3, 9), [b"bar %d: 9" % at for at in range(3)]),
        # tqdm.write: wiped, a line, drawn again one row below
        ([*tqdm(2, 1), b"\r    \r\n\r    \r" + UP, b"a line\n", *tqdm(2, 2)],
         [b"a line", b"bar 0: 2", b"bar 1: 2"]),
        # a second bar that leaves nothing
        ([*tqdm(2, 4), b"\n\r      \r" + UP], [b"bar 0: 4"]),
        # lines of before, in the same chunk
        ([b"one\n\ntwo\n" + b"".join(tqdm(2, 4))], [b"one", b"", b"two", b"bar 0: 4", b"bar 1: 4"]),
        ([b"a\nb\n\x1b[2A1\x1b[K\n2\x1b[K\n\x1b[2F3\n4\n"], [b"3", b"4"]),
        ([b"a\nb\n\x1b[2A\x1b[J1\n"], [b"1"]),
        ([b"\ra\n\rb" + UP + b"\r\x1b[J\n"], []),
        ([b"\ra\n\rb" + UP + b"\x1b[1B\rc\x1b[?25h"], [b"a", b"c"]),
        # nothing was begun anew: text
        ([b"so\x1b[A\x1b[Kmuch\n"], [b"so\x1b[A\x1b[Kmuch"]),
    ],
)  # fmt: skip
def test_what_is_left_of_it(chunks: list[bytes], lines: list[bytes]) -> None:
    for cut in (chunks, [b"".join(chunks)], [bytes([one]) for one in b"".join(chunks)]):
        found = LineAssembler()
        block = b"".join(map(found.feed, cut)) + found.finish()
        shown = block.split(b"\n")[:-1]
        assert [line for line in shown if line in lines] == lines
        # what was a line before the program went back to it may stay one
        assert len(shown) <= 2 * len(lines) + 2


def test_its_state_is_all_its_bars() -> None:
    lines = LineAssembler()
    for chunk in tqdm(3, 4):
        lines.feed(chunk)
    assert lines.is_bar
    assert lines.rest.split(b"\n") == [b"bar 0: 4", b"bar 1: 4", b"bar 2: 4"]
    assert lines.state() == b"".join(b"bar %d: 4%s\n" % (at, CONTINUED) for at in range(3))


def test_it_ends_when_the_cursor_rests_below_it() -> None:
    lines = LineAssembler()
    for chunk in tqdm(2, 4):
        lines.feed(chunk)
    assert (lines.rested(), lines.rested()) == (b"", b"")  # it stands in the first bar
    shown = lines.feed(b"\n\n")
    assert lines.rested() == b""  # an arrow up may be under way
    assert shown + lines.rested() == b"bar 0: 4\nbar 1: 4\n"
    assert lines.feed(b"plain\n") == b"plain\n"
    assert not lines.is_bar


def test_it_ends_with_lines_below_it() -> None:
    lines = LineAssembler()
    text = b"".join(tqdm(2, 4)) + b"\n\none\ntwo\nthr"
    assert lines.feed(text) == b"bar 0: 4\nbar 1: 4\none\ntwo\n"
    assert lines.feed(b"ee\n") == b"three\n"


PARTS = [
    UP, b"\n", b"\r", b"x", b"\x1b", b"\x1b[", b"\x1b[99A", b"\x1b[K", b"\x1b[2K", b"\x1b[9B",
    b"\x1b[J", b"\x1b[31m", b"\x1b[?25l", b"\x1b[9", b"word " * 9,
]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=60), st.integers(1, 9))
def test_any_input_is_bounded_and_no_line_is_torn(parts: list[bytes], step: int) -> None:
    data = b"\r\n" + UP + b"".join(parts)
    lines = LineAssembler()
    for at in range(0, len(data), step):
        block = lines.feed(data[at : at + step])
        assert not block or block.endswith(b"\n")
        assert not lines.rest.endswith(b"\n")
    block = lines.finish()
    assert not block or block.endswith(b"\n")
    assert lines.rest == b""


def test_it_holds_no_more_than_it_must() -> None:
    block = BarBlock()
    block.feed((b"\x1b[99A" + b"\n" * 99) * 500)
    assert len(block._rows) <= MOST_UP + 1
    lines = LineAssembler()
    lines.feed(b"\ra\n\rb" + UP)
    for _ in range(40):
        lines.feed(b"\r" + b"x" * 4000 + b"\n" + b"y" * 4000 + UP)
    assert len(lines.rest) < MOST_BYTES
    shown = lines.feed(b"\r" + b"x" * (MOST_BYTES + LINE_LIMIT))
    assert lines.block is None
    assert max(map(len, shown.split(b"\n"))) <= LINE_LIMIT + len(CONTINUED)


def test_it_takes_time_as_its_input_is_long() -> None:
    def seconds(size: int) -> float:
        data = b"\r\n" + UP + (b"x\x1b[C\x1b[A\x1b" * size)[:size]
        began = time.process_time()
        LineAssembler().feed(data)
        return time.process_time() - began

    few = min(seconds(1 << 16) for _ in range(3))
    assert min(seconds(1 << 18) for _ in range(3)) < 16 * few + 0.1
