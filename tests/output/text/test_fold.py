"""Equal output once: nothing lost, nobody's lines out of order."""

from __future__ import annotations

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.output.text import fold
from dispatcher.output.text.fold import Folded, Folding, gather_blocks, masked


def test_blocks() -> None:
    blocks = [("n1", b"a\n"), ("n2", b"b\n"), ("n3", b"a\n")]
    assert gather_blocks(blocks) == [(["n1", "n3"], b"a\n"), (["n2"], b"b\n")]


@cases(
    ("line", "text"),
    [
        (b"step 3 loss 2.31", b"step # loss #"),
        (b"lr=3e-4 x=-1", b"lr=# x=#"),
        (b"gpu01 sha1 v2", b"gpu01 sha1 v2"),
        (b"\x1b[1;31m7 of 9\x1b[0m", b"\x1b[1;31m# of #\x1b[0m"),
        (b"\x1b[38:5:1m\x1b[m3", b"\x1b[38:5:1m\x1b[m#"),
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


def test_a_last_line_waits_for_all_who_may_say_it() -> None:
    """Each leaves after it, and the others have not said it yet."""
    folding: Folding[int] = Folding(4)
    for who in range(3):
        assert folding.add(who, b"done", 0.0) == []
        folding.leave()
    assert told(folding.add(3, b"done", 0.0)) == [([0, 1, 2, 3], b"done")]


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


def test_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MOST_BYTES", 10)
    folding: Folding[int] = Folding(2)
    assert folding.add(0, b"12345", 0.0) == []
    assert folding.add(0, b"67890", 0.0) == []  # just as much as may be
    assert told(folding.add(0, b"x", 0.0)) == [([0], b"12345")]
    assert told(folding.add(1, b"67890", 0.0)) == [([0, 1], b"67890")]
    assert folding.add(1, b"1234567", 0.0) == []  # what came out makes room


def test_a_line_said_twice_by_one_is_two() -> None:
    folding: Folding[int] = Folding(3, window=1.0)
    for who in (0, 0, 1):
        folding.add(who, b"x", 0.0)
    assert folding.waiting == 2
    assert told(folding.due(1.0)) == [([0, 1], b"x"), ([0], b"x")]


def test_who_leaves_is_not_waited_for_be_it_several() -> None:
    folding: Folding[int] = Folding(4)
    folding.leave(2)
    assert folding.add(0, b"x", 0.0) == []
    assert told(folding.add(1, b"x", 0.0)) == [([0, 1], b"x")]


def test_numbers_that_only_look_equal() -> None:
    folding: Folding[int] = Folding(2, mask=True)
    folding.add(0, b"n 1", 0.0)
    assert told(folding.add(1, b"n 1", 0.0)) == [([0, 1], b"n 1")]  # as they said it
    for line, shown in ((b"1.5e-3 x", b"# x"), (b"+4,-5", b"#,#"), (b"v1_2 a1", b"v1_2 a1")):
        assert masked(line) == shown


def test_hints_are_each_told_once_and_only_so_many() -> None:
    troubles = [
        fold.Trouble(f"n{n}", f"kind {n % 7}", "why", f"ssh n{n} {n % 7}" if n > 6 else None)
        for n in range(14)
    ]
    groups = fold.grouped(troubles)
    assert [(hosts, one.kind) for hosts, one in groups] == [
        ([f"n{n}", f"n{n + 7}"], f"kind {n}") for n in range(7)
    ]
    assert fold.hints(groups) == [f"  hint: ssh n{n + 7} {n}" for n in range(fold.MOST_HINTS)]
    same = [fold.Trouble(f"n{n}", f"k{n}", "why", f"ping n{n}", about="about") for n in range(3)]
    assert fold.hints(fold.grouped(same)) == ["  hint: ping n0"]
    asked: list[str] = []

    def advise(trouble: str) -> str | None:
        asked.append(trouble)
        return "better\x07" if trouble == "about" else None

    plain = [fold.Trouble("n9", "k9", "why")]
    assert fold.hints(fold.grouped([*same[:1], *plain]), advise) == ["  hint: better\\x07"]
    assert asked == ["about", "k9"]


def test_what_differs_by_host_is_taken_out_where_it_differs() -> None:
    (group,) = fold.grouped([fold.Trouble(f"n{n}", "k", f"n{n}: lost: n{n}: gone") for n in (1, 2)])
    assert (group[0], group[1].why) == (["n1", "n2"], "lost: gone")
    (alike,) = fold.grouped([fold.Trouble(f"n{n}", "k", "no\x07") for n in (1, 2)])
    assert alike[1].why == "no\\x07"


def test_what_differs_inside_of_a_colour_makes_no_other_sequence() -> None:
    troubles = [fold.Trouble(host, "k", f"\x1b[{host};31mA") for host in ("1", "2")]
    ((_, one),) = fold.grouped(troubles)
    assert one.why == "\\x1b[{host};31mA\x1b[0m"
