"""Equal output once: nothing lost, nobody's lines out of order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.output.text import fold
from dispatcher.output.text.fold import Folded, Folding, fold_numbers, gather, masked


def test_blocks() -> None:
    blocks = [("n1", b"a\n"), ("n2", b"b\n"), ("n3", b"a\n")]
    assert gather(blocks) == [(["n1", "n3"], b"a\n"), (["n2"], b"b\n")]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([3, 1, 2, 7], "1-3,7"), (range(64), "0-63")]
)
def test_numbers(numbers: list[int], text: str) -> None:
    assert fold_numbers(numbers) == text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"step 3 loss 2.31", b"step # loss #"),
        (b"lr=3e-4 x=-1", b"lr=# x=#"),
        (b"gpu01 sha1 v2", b"gpu01 sha1 v2"),
    ],
)
def test_mask(line: bytes, text: bytes) -> None:
    assert masked(line) == text
    assert masked(text) == text


def told(lines: list[Folded[int]]) -> list[tuple[list[int], bytes]]:
    return [(line.speakers, line.line) for line in lines]


def test_a_line_that_all_have_said_waits_no_longer() -> None:
    folding: Folding[int] = Folding(2)
    assert folding.add(0, b"x", 0.0) == []
    assert told(folding.add(1, b"x", 0.0)) == [([0, 1], b"x")]
    assert folding.waiting == 0


def test_a_line_that_only_some_said_comes_when_its_time_is_over() -> None:
    folding: Folding[int] = Folding(3, window=1.0)
    folding.add(0, b"x", 0.0)
    folding.add(2, b"x", 0.5)
    assert folding.due(0.9) == []
    assert told(folding.due(1.0)) == [([0, 2], b"x")]


def test_nobody_waits_for_who_has_left() -> None:
    folding: Folding[int] = Folding(2)
    folding.add(0, b"x", 0.0)
    folding.leave()
    assert told(folding.due(0.0)) == [([0], b"x")]


def test_streams_are_apart_and_numbers_masked_on_request() -> None:
    folding: Folding[int] = Folding(2, mask=True)
    folding.add(0, b"t 1.5", 0.0, kind=1)
    assert told(folding.add(1, b"t 1.7", 0.0, kind=1)) == [([0, 1], b"t #")]
    folding.add(0, b"t 1.5", 0.0, kind=1)
    folding.add(1, b"t 1.5", 0.0, kind=2)
    assert told(folding.finish()) == [([0], b"t 1.5"), ([1], b"t 1.5")]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MOST_LINES", 10)
    folding: Folding[int] = Folding(2)
    out = [line for n in range(100) for line in folding.add(0, b"%d" % n, 0.0)]
    assert len(out) == 90
    assert folding.waiting == 10


SAID = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b", b"c 1", b"c 2"]), st.floats(0, 0.2)),
    max_size=60,
)


@given(SAID, st.booleans())
def test_nothing_is_lost_and_every_order_kept(
    said: list[tuple[int, bytes, float]], mask: bool
) -> None:
    folding: Folding[int] = Folding(4, mask=mask)
    now, out = 0.0, []
    for who, line, pause in said:
        now += pause
        out += folding.add(who, line, now)
    out += folding.finish()
    for who in range(4):
        mine = [line for speaker, line, _ in said if speaker == who]
        shown = [group.line for group in out if who in group.speakers]
        if mask:
            mine, shown = [masked(line) for line in mine], [masked(line) for line in shown]
        assert shown == mine
    assert not folding._by_key
