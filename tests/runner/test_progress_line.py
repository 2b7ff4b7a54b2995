"""The line that shows progress, however its bytes are split."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.runner.run.liveness import MOST_PENDING, ProgressLine


@given(st.lists(st.integers(0, 40), max_size=8))
def test_any_split(cuts: list[int]) -> None:
    text = b"loss 3\nsaved step 12 of 40\r\nloss 2\n"
    seen: list[tuple[int, int]] = []
    watcher = ProgressLine(r"step \d+ of", lambda node, rank: seen.append((node, rank)))
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        watcher.feed(1, 5, 1, text[start:end])
        watcher.feed(1, 6, 2, b"step by")  # another stream between the pieces
    assert seen == [(1, 5)]


def test_lines_of_other_words_and_unfinished_ones_are_none() -> None:
    seen: list[tuple[int, int]] = []
    watcher = ProgressLine("^step", lambda node, rank: seen.append((node, rank)))
    watcher.feed(0, 0, 1, b"no step\nstep 1")
    assert seen == []
    watcher.feed(0, 0, 1, b"\n")
    assert seen == [(0, 0)]


def test_memory_is_bounded() -> None:
    watcher = ProgressLine("x", lambda node, rank: None)
    for _ in range(10):
        watcher.feed(0, 0, 1, b"." * (MOST_PENDING // 2))
    assert len(watcher._rests[0, 1]) <= MOST_PENDING
