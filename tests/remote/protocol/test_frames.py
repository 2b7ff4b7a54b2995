"""Frames: any chunking gives the same ones, and a bad header is refused before its body."""

from __future__ import annotations

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.remote.protocol.frames import (
    CONTROL,
    CONTROL_LIMIT,
    COUNT,
    ENDED,
    HEADER,
    INPUT,
    OUTPUT,
    OUTPUT_LIMIT,
    TAKEN,
    Decoder,
    Frame,
    WireError,
    encode,
)

ranks = st.integers(0, (1 << 32) - 1)
streams = st.sampled_from([1, 2])
frames = st.one_of(
    st.builds(Frame, st.just(CONTROL), st.just(0), ranks, st.binary(max_size=200)),
    st.builds(Frame, st.just(OUTPUT), streams, ranks, st.binary(min_size=1, max_size=200)),
    st.builds(Frame, st.just(ENDED), streams, ranks, st.integers(0, 1 << 40).map(COUNT.pack)),
    st.builds(Frame, st.just(INPUT), st.just(0), ranks, st.binary(max_size=200)),
    st.builds(Frame, st.just(TAKEN), st.just(0), ranks, st.integers(0, 1 << 40).map(COUNT.pack)),
)


def as_bytes(frame: Frame) -> bytes:
    return encode(frame.kind, frame.body, frame.rank, frame.stream)


@given(st.lists(frames, max_size=8), st.data())
def test_any_chunking_gives_the_same_frames(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(map(as_bytes, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    decoder = Decoder()
    heard = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        heard += decoder.feed(stream[start:end])
    assert list(map(as_bytes, heard)) == list(map(as_bytes, sent))
    assert decoder.pending == 0


@given(st.lists(frames, min_size=1, max_size=4))
def test_byte_by_byte_gives_the_same_frames(sent: list[Frame]) -> None:
    decoder = Decoder()
    heard = [f for byte in b"".join(map(as_bytes, sent)) for f in decoder.feed(bytes([byte]))]
    assert list(map(as_bytes, heard)) == list(map(as_bytes, sent))


@cases(
    ("kind", "stream", "size"),
    [
        (0, 0, 0),
        (6, 1, 12),
        (7, 0, 0),
        (INPUT, 1, 4),
        (INPUT, 0, OUTPUT_LIMIT + 1),
        (TAKEN, 1, 8),
        (TAKEN, 0, 4),
        (255, 255, 1),
        (CONTROL, 1, 10),
        (CONTROL, 0, CONTROL_LIMIT + 1),
        (CONTROL, 0, 0xFFFFFFFF),
        (OUTPUT, 0, 1),
        (OUTPUT, 3, 1),
        (OUTPUT, 1, 0),
        (OUTPUT, 1, OUTPUT_LIMIT + 1),
        (ENDED, 0, 8),
        (ENDED, 1, 7),
        (ENDED, 2, 9),
    ],
)
def test_a_bad_header_is_refused_before_its_body(kind: int, stream: int, size: int) -> None:
    decoder = Decoder()
    with pytest.raises(WireError, match=f"kind {kind}, stream {stream}, size {size}"):
        decoder.feed(HEADER.pack(kind, stream, 0, 0, size))


@given(frames, st.binary(max_size=300))
def test_garbage_raises_nothing_else(frame: Frame, data: bytes) -> None:
    """A frame before it comes out, one that claims more than is allowed never does."""
    decoder = Decoder()
    assert list(map(as_bytes, decoder.feed(as_bytes(frame)))) == [as_bytes(frame)]
    try:
        heard = decoder.feed(data)
    except WireError:
        return
    assert b"".join(map(as_bytes, heard)) == data[: len(data) - decoder.pending]
