"""Bytes between the thread that reads a connection and a link's owner: none is lost."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.transport.base import RecvBuffer


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 30), min_size=1))
def test_all_comes_out_in_order(pieces: list[bytes], limits: list[int]) -> None:
    buffer = RecvBuffer()
    for piece in pieces:
        buffer.feed(piece)
    whole, at = b"".join(pieces), 0
    assert len(buffer) == len(whole)
    while at < len(whole):
        limit = limits[at % len(limits)]
        data = buffer.take(limit)
        assert data == whole[at : at + limit]
        at += limit
    assert (buffer.take(1), buffer.spent) == (None, False)
    buffer.close()
    assert (buffer.take(1), buffer.spent) == (b"", True)


def test_the_owner_is_told() -> None:
    buffer, told = RecvBuffer(), threading.Event()
    buffer.watch(told.set)
    assert not told.is_set()
    buffer.feed(b"")
    assert not told.is_set()
    buffer.feed(b"x")
    assert told.is_set()
    told.clear()
    buffer.close()
    assert told.is_set()
    late = threading.Event()
    buffer.watch(late.set)
    assert late.is_set()


def test_waiting() -> None:
    buffer = RecvBuffer()
    with pytest.raises(TimeoutError):
        buffer.wait(1, 0.01)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(buffer.wait(10, None)))
    thread.start()
    buffer.feed(b"here")
    thread.join(10)
    assert got == [b"here"]
    buffer.close()
    assert buffer.wait(1, None) == b""
