"""When ranks last wrote, if it must be told: by a clock that the test moves."""

from __future__ import annotations

import pytest

from dispatcher.runner.run import liveness
from dispatcher.runner.run.liveness import Flow


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(liveness, "time", clock)
    return clock


def test_news_are_told_once_with_their_age(clock: Clock) -> None:
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
