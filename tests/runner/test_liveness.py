"""Signs of life: heartbeats, output and lines of progress, by a clock that the test moves."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events.run_events import NodesHeard
from dispatcher.runner.run import liveness
from dispatcher.runner.run.liveness import MOST_PENDING, Flow, Heartbeats, ProgressLine


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(liveness, "time", clock)
    return clock


def test_output_is_told_once_with_its_age(clock: Clock) -> None:
    seen = Flow()
    assert seen.news(clock.now) == []
    seen.given(0, 5)
    seen.taken(5)
    clock.now += 3
    seen.progressed()
    clock.now += 1
    assert seen.news(clock.now) == [(4.0, False), (1.0, True)]
    assert seen.news(clock.now) == []


def test_what_nobody_takes_counts_as_written_now(clock: Clock) -> None:
    """A paused reader holds the ranks back: their silence is ours."""
    seen = Flow()
    seen.given(0, 5)
    seen.given(1, 5)
    seen.taken(5)
    for _ in range(3):
        clock.now += 60
        assert seen.news(clock.now) == [(0.0, False)]
    clock.now += 1
    seen.taken(5)
    clock.now += 7
    assert seen.news(clock.now) == [(7.0, False)]
    assert seen.news(clock.now) == []


def test_each_heartbeat_is_told_once_with_its_age(clock: Clock) -> None:
    noted = Heartbeats()
    for node, clock.now in ((3, 10.0), (1, 11.0), (3, 12.0)):
        noted.note(node)
    assert noted.news(14.0) == NodesHeard((3, 1), (2.0, 3.0))
    assert noted.news(15.0) is None
    clock.now = 15.0
    noted.note(1)
    assert noted.news(15.0) == NodesHeard((1,), (0.0,))


@given(st.lists(st.integers(0, 40), max_size=8))
def test_a_line_of_progress_in_any_pieces(cuts: list[int]) -> None:
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
