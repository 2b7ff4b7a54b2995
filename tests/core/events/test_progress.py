"""How far a rank has come, out of a line, and when it will be done."""

from __future__ import annotations

import re

import pytest
from cases import cases

from dispatcher.core.events.progress import RECENT, Pace, part_of, time_left


@cases(
    ("pattern", "line", "part"),
    [
        (r"step \d+", "step 120/1000 loss 2", (120, 1000)),  # the total is after the match
        (r"step \d+/\d+", "step 120/1000", (120, 1000)),
        (r"step .*", "step 120 of 1000", (120, 1000)),
        (r"step .*", "step 120 / 1000", (120, 1000)),
        (r"\d+%", " 12%|#   | 12/99", (12, 100)),
        (r"\d+", "12.5% done", (12.5, 100)),
        (r".*it/s", "12%|#| 12/99 [1.2it/s", (12, 99)),  # finer than percent
        (r"step \d+", "step 12 (epoch 3/10)", None),  # begins after the match
        (r"step \d+", "step 12", None),
        (r"step \d+", "step 12/", None),
        (r".*", "2026/01/31 loss 3", None),
        (r".*", "step 7/3", None),
        (r".*", "step 0/0", None),
        (r".*", "step " + "9" * 400 + "/" + "9" * 401, None),
        (r"(?P<total>\d+) steps, at (?P<done>\d+)", "900 steps, at 12", (12, 900)),
        (r"at (\d+), (?P<total>\d+) in all", "at 12, 900 in all", (12, 900)),
        (r"all (?P<total>\d+): \d+", "all 900: 12", (12, 900)),
        (r"all (?P<total>\w+): \d+", "all x: 12", None),
        (r"all (?P<total>\d+)", "all 900", None),
        (r"step (\d+)( of (?P<total>\d+))?", "step 12", None),
    ],
)
def test_a_part(pattern: str, line: str, part: tuple[float, float] | None) -> None:
    match = re.search(pattern.encode(), line.encode())
    assert match is not None
    assert part_of(match) == part


@cases(
    ("seen", "now", "left"),
    [
        ([], 5, None),
        ([(0, 10)], 5, None),
        ([(0, 10), (5, 10)], 5, None),
        ([(0, 10), (10, 20)], 10, 80),
        ([(0, 10), (10, 20)], 15, 75),  # half a step later
        ([(0, 10), (5, 15), (10, 20)], 40, 320),  # a pause: 40 s for 10
        ([(0, 0), (10, 100)], 10, 0),
        ([(0, 0), (10, 99)], 15, 0),  # it should be done by now
        ([(0, 0), (10, 50)], 9, 10),  # a clock that goes back
    ],
)
def test_the_time_left(seen: list[tuple[float, float]], now: float, left: float | None) -> None:
    assert time_left(seen, 100, now) == (None if left is None else pytest.approx(left))


def test_a_pace_follows_the_recent_rate() -> None:
    pace = Pace(0)
    for at in range(100):
        pace.take(at, at, 10_000)  # one a second
    assert pace.left(99) == pytest.approx(9_901)
    for at in range(100, 1000):
        pace.take(at, at * 2, 10_000)  # two a second
    assert pace.left(999) == pytest.approx(4_001)
    assert len(pace._seen) <= RECENT + 2


def test_readings_close_together_take_no_room() -> None:
    pace = Pace(0)
    for at in range(5000):
        pace.take(at / 100, at, 10_000)
    assert len(pace._seen) <= 52
    assert pace.left(49.99) == pytest.approx(50.01)


def test_a_rate_is_known_of_a_job_that_has_done_all() -> None:
    pace = Pace(0)
    rates = [pace.rate]
    for at, done in ((0, 10), (10, 60), (18, 100)):
        pace.take(at, done, 100)
        rates.append(pace.rate)
    assert rates == [None, None, 5, 5]


@cases("again", [(1, 100), (60, 200)])
def test_less_done_or_another_total_begins_a_new_count(again: tuple[float, float]) -> None:
    pace = Pace(0)
    pace.take(0, 10, 100)
    pace.take(10, 50, 100)
    assert pace.left(10) == 12.5
    pace.take(20, *again)
    assert pace.left(20) is None
