"""A command at the far end of a channel: what it may say, and what its link makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.failure import Ending, Failure
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.mux import COUNT, Frames, Malformed
from dispatcher.transport.base import LinkClosed
from dispatcher.transport.mux_link import MuxLink
from dispatcher.transport.pool.daemon_socket import LIST, fields, message


class Plain(MuxLink):
    """A link whose command says how it ended in one byte."""

    def _ending_of(self, body: bytes) -> tuple[Ending, Failure | None]:
        return Ending(body[0]), None


class Wire:
    """A connection that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[tuple[int, int, bytes]] = []

    def send(self, channel: int, kind: int, body: bytes = b"") -> None:
        self.said.append((channel, kind, body))

    def forget(self, channel: int) -> None:
        self.said.append((channel, -1, b""))


KINDS = st.integers(0, 20)
BODIES = st.one_of(st.binary(max_size=5), st.integers(0, 1 << 18).map(bytes))


@given(st.lists(st.tuples(KINDS, BODIES), max_size=30))
def test_what_the_far_end_says_is_bounded(said: list[tuple[int, bytes]]) -> None:
    link = Plain(Wire(), 7)
    try:
        for kind, body in said:
            link.take(kind, body)
    except (Malformed, IndexError):
        pass
    assert sum(map(len, link._held.values())) <= mux.OUTPUT_WINDOW + mux.ERRORS_WINDOW
    assert link._input_credit.left <= mux.INPUT_WINDOW


def test_a_link_says_what_it_takes_and_how_it_ends() -> None:
    wire = Wire()
    link = Plain(wire, 7)
    link.write(b"in")
    for _ in range(4):
        link.take(mux.OUTPUT, bytes(mux.LARGEST))
    assert len(link.read(1 << 20) or b"") == 4 * mux.LARGEST
    link.end_input()
    with pytest.raises(LinkClosed):
        link.write(b"more")
    for kind, body in ((mux.OUTPUT_END, b""), (mux.ERRORS_END, b""), (mux.ENDED, b"\3")):
        link.take(kind, body)
    assert (link.gone(), link.read(1), link.errors_ended()) == (True, b"", True)
    assert link.ending(0.0) == Ending(3)
    link.close()
    assert wire.said == [
        (7, mux.INPUT, b"in"), (7, mux.MORE_OUTPUT, COUNT.pack(4 * mux.LARGEST)),
        (7, mux.INPUT_END, b""), (7, -1, b""),
    ]  # fmt: skip


def test_a_link_that_is_closed_before_its_end_tells_the_far_end() -> None:
    wire = Wire()
    Plain(wire, 7).close()
    assert wire.said == [(7, mux.CLOSE, b""), (7, -1, b"")]


def test_messages_of_the_pool_are_objects() -> None:
    assert [*Frames().feed(message(LIST, 7, a=1))] == [(7, LIST, b'{"a": 1}')]
    for body in (b"", b"[]", b"[" * 100_000, b"\xff"):
        with pytest.raises(Malformed):
            fields(body)
