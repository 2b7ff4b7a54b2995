"""A command at the far end of a channel: what it may say, and what its link makes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from cases import cases
from hypothesis import example, given
from hypothesis import strategies as st
from rig import wait_for

from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol import mux
from dispatcher.remote.protocol.mux import COUNT, Decoder, Malformed
from dispatcher.transport.base import LinkClosed
from dispatcher.transport.mux_link import MuxLink
from dispatcher.transport.pool.daemon_socket import LIST, fields, json_frame


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
@example([(mux.MORE_INPUT, mux.COUNT.pack(1))])
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


def test_messages_of_the_pool_are_objects() -> None:
    assert [*Decoder().feed(json_frame(LIST, 7, a=1))] == [(7, LIST, b'{"a": 1}')]
    for body in (b"", b"[]", b"[" * 100_000, b"\xff"):
        with pytest.raises(Malformed):
            fields(body)


class Told:
    """Counts how often the owner was told that something is there."""

    def __init__(self, link: MuxLink) -> None:
        self.times = 0
        link.watch(self)

    def __call__(self) -> None:
        self.times += 1

    def again(self) -> bool:
        """Whether it was told since the last look."""
        seen, self.times = self.times, 0
        return bool(seen)


LOST = Failure(Kind.LOST, "the cable")


def test_the_owner_is_told_of_all_that_comes() -> None:
    link = Plain(Wire(), 7)
    told = Told(link)
    assert told.again()  # something may have come before
    for kind, body in (
        (mux.OUTPUT, b"x"), (mux.ERRORS, b"y"), (mux.OUTPUT_END, b""), (mux.ERRORS_END, b""),
        (mux.ENDED, b"\0"),
    ):  # fmt: skip
        link.take(kind, body)
        assert told.again(), kind
    for end in (link.close, lambda: Plain.lose(link, None)):
        end()
        assert told.again()


def test_a_connection_that_is_lost() -> None:
    wire = Wire()
    link = Plain(wire, 7)
    link.take(mux.OUTPUT, b"before")
    link.take(mux.ERRORS, b"too")
    link.lose(LOST)
    assert (link.gone(), link.failure(0), link.ending(0)) == (True, LOST, Ending(None))
    assert not link.errors_ended()
    assert [link.read(9), link.read(9), link.read_errors(9)] == [b"before", b"", b"too"]
    assert link.errors_ended()
    with pytest.raises(LinkClosed):
        link.write(b"x")
    link.end_input()
    assert wire.said == []
    link.close()
    assert wire.said == [(7, -1, b"")]  # there is nobody to tell


def test_a_connection_that_is_lost_after_the_end_changes_nothing() -> None:
    link = Plain(Wire(), 7)
    link.take(mux.ENDED, b"\5")
    link.lose(LOST)
    assert (link.ending(0), link.failure(0), link.read(1)) == (Ending(5), None, b"")


@cases(
    ("ends", "said"),
    [
        ((), [(7, mux.CLOSE, b""), (7, -1, b"")]),
        ((mux.OUTPUT_END, mux.ERRORS_END), [(7, mux.CLOSE, b""), (7, -1, b"")]),
        ((mux.ENDED, mux.OUTPUT_END), [(7, mux.CLOSE, b""), (7, -1, b"")]),
        ((mux.ENDED, mux.OUTPUT_END, mux.ERRORS_END), [(7, -1, b"")]),
    ],
)
def test_the_far_end_is_told_of_a_close_unless_it_has_told_all(
    ends: tuple[int, ...], said: list[tuple[int, int, bytes]]
) -> None:
    wire = Wire()
    link = Plain(wire, 7)
    for kind in ends:
        link.take(kind, b"\0" if kind == mux.ENDED else b"")
    link.close()
    link.close()
    assert wire.said == said
    assert (link.gone(), link.read(1), link.errors_ended()) == (True, b"", True)


def test_what_is_under_way_at_a_close_is_nobody_s() -> None:
    """The far end goes on until it hears of it, and others share the connection."""

    class Busy(Wire):
        def send(self, channel: int, kind: int, body: bytes = b"") -> None:
            super().send(channel, kind, body)
            for late in (mux.OUTPUT, mux.ERRORS, mux.OUTPUT_END, mux.ENDED, 99):
                link.take(late, b"")

    link = Plain(Busy(), 7)
    link.take(mux.OUTPUT, b"x")
    link.close()
    link.take(mux.OUTPUT, b"y")
    assert (link.read(9), link.ending(0)) == (b"", Ending(None))


@cases(("first", "again"), [(mux.OUTPUT_END, mux.OUTPUT), (mux.ERRORS_END, mux.ERRORS)])
def test_nothing_comes_after_an_end(first: int, again: int) -> None:
    link = Plain(Wire(), 7)
    link.take(first, b"")
    other = mux.ERRORS if again == mux.OUTPUT else mux.OUTPUT
    link.take(other, b"is another")
    with pytest.raises(Malformed):
        link.take(again, b"x")


def test_what_is_read_is_granted_again_and_no_more_after_the_end() -> None:
    wire = Wire()
    link = Plain(wire, 7)
    quarters = {mux.OUTPUT: mux.OUTPUT_WINDOW // 4, mux.ERRORS: mux.ERRORS_WINDOW // 4}
    for kind, more, read in (
        (mux.OUTPUT, mux.MORE_OUTPUT, link.read),
        (mux.ERRORS, mux.MORE_ERRORS, link.read_errors),
    ):
        size = quarters[kind]
        link.take(kind, bytes(size))
        assert len(read(size - 1) or b"") == size - 1
        assert wire.said == []  # not a frame for each line
        assert read(9) == b"\0"
        assert wire.said == [(7, more, COUNT.pack(size))]
        assert not read(9)
        link.take(kind, bytes(size))
        link.take(mux.OUTPUT_END if kind == mux.OUTPUT else mux.ERRORS_END, b"")
        assert len(read(size) or b"") == size
        assert len(wire.said) == 1
        wire.said.clear()


class Gone(Wire):
    def send(self, channel: int, kind: int, body: bytes = b"") -> None:
        raise LinkClosed("gone")


def test_a_connection_that_has_gone_is_told_to_who_writes_alone() -> None:
    link = Plain(Gone(), 7)
    link.take(mux.OUTPUT, bytes(mux.OUTPUT_WINDOW))
    assert len(link.read(mux.OUTPUT_WINDOW) or b"") == mux.OUTPUT_WINDOW
    with pytest.raises(LinkClosed):
        link.write(b"x")
    link.end_input()
    link.close()
    assert link.gone()


def test_input_waits_for_credit() -> None:
    wire = Wire()
    link = Plain(wire, 7)
    data = bytes(range(256)) * 1400  # more than the window, and no multiple of a frame
    writer = threading.Thread(target=link.write, args=(data,))
    writer.start()

    def sent() -> bytes:
        return b"".join(body for _, _, body in wire.said)

    wait_for(lambda: len(sent()) == mux.INPUT_WINDOW, 20, lambda: len(sent()))
    link.take(mux.MORE_INPUT, COUNT.pack(10))
    wait_for(lambda: len(sent()) == mux.INPUT_WINDOW + 10, 20, lambda: len(sent()))
    assert writer.is_alive()
    link.take(mux.MORE_INPUT, COUNT.pack(mux.INPUT_WINDOW))
    writer.join(60)
    assert sent() == data
    assert {(number, kind) for number, kind, _ in wire.said} == {(7, mux.INPUT)}
    assert max(len(body) for _, _, body in wire.said) == 32 << 10


@cases(
    "end", [MuxLink.close, MuxLink.end_input, lambda link: link.lose(None)],
    ids=["closed", "input ended", "lost"],
)  # fmt: skip
def test_a_writer_who_waits_is_freed(end: Callable[[MuxLink], None]) -> None:
    wire, freed = Wire(), threading.Event()
    link = Plain(wire, 7)

    def write() -> None:
        try:
            link.write(bytes(mux.INPUT_WINDOW + 1))
        except LinkClosed:
            freed.set()

    threading.Thread(target=write, daemon=True).start()
    wait_for(lambda: sum(len(body) for _, _, body in wire.said) == mux.INPUT_WINDOW)
    end(link)
    assert freed.wait(60)


@cases(
    ("ask", "end", "expected"),
    [
        (lambda link: link.ending(20), lambda link: link.take(mux.ENDED, b"\4"), Ending(4)),
        (lambda link: link.failure(20), lambda link: link.lose(LOST), LOST),
    ],
)
def test_the_end_is_waited_for(
    ask: Callable[[MuxLink], object], end: Callable[[MuxLink], None], expected: object
) -> None:
    link, got = Plain(Wire(), 7), list[object]()
    for seconds in (-1.0, 0.0, 0.01):
        assert (link.ending(seconds), link.failure(seconds)) == (Ending(None), None)
    waiting = threading.Thread(target=lambda: got.append(ask(link)))
    waiting.start()
    end(link)
    waiting.join(60)
    assert got == [expected]


@cases("kind", [mux.OPEN, mux.INPUT, mux.CLOSE, mux.MORE_OUTPUT, 99])
def test_what_a_far_end_does_not_say(kind: int) -> None:
    with pytest.raises(Malformed):
        Plain(Wire(), 7).take(kind, b"")


@cases(("kind", "window"), [(mux.OUTPUT, mux.OUTPUT_WINDOW), (mux.ERRORS, mux.ERRORS_WINDOW)])
def test_a_far_end_keeps_within_its_window(kind: int, window: int) -> None:
    link = Plain(Wire(), 7)
    link.take(kind, bytes(window))
    with pytest.raises(Malformed):
        link.take(kind, b"x")
