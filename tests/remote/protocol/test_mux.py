"""The multiplexer: any pieces, any bytes, and credit that nobody may overdraw."""

from __future__ import annotations

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.mux import COUNT, Credit, Decoder, Malformed, frame

PARTS = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=300)), max_size=8
)


def fed(frames: Decoder, text: bytes, data: st.DataObject) -> list[tuple[int, int, bytes]]:
    """What ``text`` gives in pieces of any size."""
    found = []
    while text:
        size = data.draw(st.integers(1, len(text)))
        found += frames.feed(text[:size])
        text = text[size:]
    return found


@given(PARTS, st.data())
def test_any_pieces_give_the_same_frames(
    said: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    assert fed(Decoder(), b"".join(frame(*one) for one in said), data) == said


@given(st.binary(max_size=200), st.data())
def test_hostile_bytes_are_frames_or_malformed_and_never_held_without_bound(
    text: bytes, data: st.DataObject
) -> None:
    frames, size = Decoder(20), 0
    try:
        while text:
            piece = text[: data.draw(st.integers(1, len(text)))]
            size += len(piece)
            text = text[len(piece) :]
            size -= sum(mux.HEADER.size + len(body) for _, _, body in frames.feed(piece))
            assert size < mux.HEADER.size + 20
    except Malformed:
        pass


@cases(("frames", "most"), [(Decoder(), mux.LARGEST), (Decoder(10, {1: 99}), 99)])
def test_a_body_that_is_too_large_is_refused_before_it_comes(frames: Decoder, most: int) -> None:
    assert frames.feed(mux.HEADER.pack(7, 1, most)) == []
    assert frames.feed(bytes(most)) == [(7, 1, bytes(most))]
    with pytest.raises(Malformed):
        frames.feed(mux.HEADER.pack(7, 1, most + 1))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 150)), max_size=60))
def test_both_ends_count_the_same(steps: list[tuple[bool, int]]) -> None:
    ours, theirs, waiting = Credit(100), Credit(100), 0
    for sends, size in steps:
        if sends:
            size = min(size, ours.left)
            ours.use(size)
            theirs.use(size)
            waiting += size
        else:
            size = min(size, waiting)
            waiting -= size
            more = theirs.taken(size)
            if more:
                ours.grant(more)
        assert ours.left == theirs.left <= 100
        assert waiting <= 100
        assert ours.left or waiting > 75  # nobody waits for credit that is not about to come


@cases("body", [b"", b"xxxxx", COUNT.pack(1), COUNT.pack(2**32 - 1)])
def test_credit_is_not_given_for_nothing(body: bytes) -> None:
    with pytest.raises(Malformed):
        Credit(100).grant(body)
    with pytest.raises(Malformed):
        Credit(100).use(101)


def test_credit_is_granted_a_quarter_of_the_window_at_once() -> None:
    theirs, ours = Credit(100), Credit(100)
    theirs.use(60)
    ours.use(60)
    assert theirs.taken(24) == b""
    assert theirs.left == 40
    assert theirs.taken(1) == COUNT.pack(25)
    assert theirs.left == 65
    assert theirs.taken(24) == b""  # it counts from there
    ours.grant(COUNT.pack(25))
    assert ours.left == 65


def test_a_frame_is_its_head_and_its_body() -> None:
    assert frame(1, 2, b"xy") == b"\0\0\0\1" + b"\2" + b"\0\0\0\2" + b"xy"
    assert frame(1, 2) == b"\0\0\0\1" + b"\2" + b"\0\0\0\0"
