"""What many are told crosses a link once, and each is told all of it: real relays, two levels."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rig import wait_for

from dispatcher.bootstrap import payload as bootstrap
from dispatcher.model.failure import Failure
from dispatcher.remote import tree_relay
from dispatcher.remote.protocol import mux
from dispatcher.transport.base import Common, Link, LinkClosed, Target
from dispatcher.transport.process.command import LocalTransport
from dispatcher.transport.tree.branch import CACHE_SIZE, Branch, ChunkCache
from dispatcher.transport.tree.stream import Stream
from dispatcher.transport.tree.tree_transport import payload

from ..far_link import FarLink
from .test_stream import branch_to

#: a relay on an inner host, and one below it
Two = tuple[Branch, Branch]


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    local = LocalTransport()

    def open_link() -> Link | Failure:
        return local.open(Target("localhost"), bootstrap.command(), time.monotonic() + 40)

    near = Branch("n1", payload(), open_link)
    words = ("/bin/sh", "-c", bootstrap.command())
    below = Branch("n2", payload(), lambda: near.stream(words, "n2"))
    assert below.wait(60) is None
    yield near, below
    below.close()
    near.close()
    local.close()


def record(text: bytes) -> bytes:
    return b"%08d\n%b" % (len(text), text)


def records(data: bytes) -> list[bytes]:
    found = []
    while data:
        end = 9 + int(data[:9])
        assert end <= len(data)
        found.append(data[9:end])
        data = data[end:]
    return found


def write_all(streams: Sequence[Stream], told: Sequence[Sequence[bytes]]) -> list[threading.Thread]:
    """Each stream is written its own, by a thread of its own."""

    def write(stream: Stream, texts: Sequence[bytes]) -> None:
        for text in texts:
            stream.write(text)
        stream.end_input()

    pairs = zip(streams, told, strict=True)
    threads = [threading.Thread(target=write, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    return threads


def read_all(streams: Sequence[Stream]) -> list[bytes]:
    """All that each says until it ends."""
    said = [bytearray() for _ in streams]
    left = set(range(len(streams)))
    rang = threading.Event()
    for stream in streams:
        stream.watch(rang.set)
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline
        rang.wait(1.0)
        rang.clear()
        for at in sorted(left):
            while (data := streams[at].read(1 << 20)) is not None:
                said[at] += data
                if not data:
                    left.discard(at)
                    break
    return [bytes(one) for one in said]


SIZES = st.sampled_from([0, 1, 700, (32 << 10) - 9, 90_000])
#: what all may be told; then, for each stream, numbers of those and sizes of what is its own
TOLD = st.lists(st.one_of(st.integers(0, 2), st.tuples(SIZES)), max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(SIZES, SIZES, SIZES), st.tuples(TOLD, TOLD, TOLD))
def test_every_stream_gets_its_bytes_in_order_whole_and_once(
    two: Two, sizes: tuple[int, ...], told: tuple[list[int | tuple[int]], ...]
) -> None:
    all_are_told = [Common(record(b"%d" % number * size)) for number, size in enumerate(sizes)]
    texts = [
        [all_are_told[one] if isinstance(one, int) else record(b"x" * one[0]) for one in stream]
        for stream in told
    ]
    near, below = two
    streams = [branch.stream(("cat",), "n1") for branch in (near, below, below)]
    for stream in streams:
        stream.pulse(record(b"ping"), 0.003, lambda: None)
    threads = write_all(streams, texts)
    for said, expected in zip(read_all(streams), texts, strict=True):
        assert [one for one in records(said) if one != b"ping"] == [text[9:] for text in expected]
    for thread, stream in zip(threads, streams, strict=True):
        thread.join(60)
        stream.close()
    assert near.failure is below.failure is None


def test_one_that_is_stopped_holds_back_no_other(two: Two) -> None:
    near, below = two
    slow = below.stream(("sh", "-c", "echo $$; kill -STOP $$; exec cat"), "n2")
    pid = bytearray()

    def is_told() -> bool:
        pid.extend(slow.read(100) or b"")
        return pid.endswith(b"\n")

    wait_for(is_told)
    streams = [near.stream(("cat",), "n1"), below.stream(("cat",), "n2")]
    text = Common(os.urandom(500_000))  # more than may be under way
    threads = write_all([slow, *streams], [[text]] * 3)
    assert read_all(streams) == [text, text]
    assert threads[0].is_alive()
    os.kill(int(pid), signal.SIGCONT)
    assert read_all([slow]) == [text]


class Model:
    """What a relay makes of the bytes it reads: those of each stream."""

    def __init__(self) -> None:
        self.streams: dict[int, bytearray] = {}
        self._frames = mux.Frames()
        self._kept: dict[int, bytes] = {}

    def feed(self, data: bytes) -> None:
        for number, kind, body in self._frames.feed(data):
            if kind == tree_relay.KEEP:
                self._kept[number] = body
            elif kind in (mux.INPUT, tree_relay.KEPT):
                kept = kind == tree_relay.KEPT
                text = self._kept[mux.COUNT.unpack(body)[0]] if kept else body
                self.streams.setdefault(number, bytearray()).extend(text)


def test_each_link_carries_it_once_however_many_levels() -> None:
    far = FarLink()
    near = Branch("n1", b"", lambda: far)
    inner: list[Stream] = []

    def open_link() -> Link:
        inner.append(near.stream(["relay"], "n2"))
        return inner[0]

    below = Branch("n2", b"", open_link)
    streams = [branch.stream(["cat"], "n1") for branch in (near, below) for _ in range(32)]
    wait_for(lambda: inner)
    text = Common(os.urandom(70_000))
    write_all(streams, [[text]] * 64)
    first, second, size = Model(), Model(), 0
    relay = first.streams[inner[0]._channel] = bytearray()
    told = [*first.streams.values(), *second.streams.values()]

    def is_told() -> bool:
        nonlocal size, told
        data = far.take_written()
        size += len(data)
        first.feed(data)
        second.feed(bytes(relay))
        relay.clear()
        told = [one for one in (*first.streams.values(), *second.streams.values()) if one]
        return len(told) == 64 and all(len(one) == len(text) for one in told)

    wait_for(is_told)
    assert all(bytes(one) == bytes(text) for one in told)
    assert size < len(text) + 64 * 100  # else it would be 64 times as many
    below.close()
    near.close()


class Standing(FarLink):
    """A link that takes nothing until it is told to go."""

    def __init__(self) -> None:
        super().__init__()
        self.goes = threading.Event()

    def write(self, data: bytes) -> None:
        assert self.goes.wait(60)
        super().write(data)


def test_what_waits_for_a_link_is_not_what_lies_there_later() -> None:
    far = Standing()
    branch = Branch("n1", b"", lambda: far)
    texts = [Common(os.urandom(mux.INPUT_WINDOW)) for _ in range(6)]  # more than a relay keeps
    streams = [branch.stream(["cat"], "n1") for _ in texts]
    for thread in write_all(streams, [[text] for text in texts]):
        thread.join(60)
    far.goes.set()
    model = Model()

    def is_told() -> bool:
        model.feed(far.take_written())
        return sum(map(len, model.streams.values())) == sum(map(len, texts))

    wait_for(is_told)
    assert [bytes(model.streams[number + 1]) for number in range(6)] == list(map(bytes, texts))
    branch.close()


def test_a_relay_that_is_lost_in_the_midst_of_it_frees_who_writes() -> None:
    far = FarLink()
    branch = branch_to(far)
    stream = branch.stream(["cat"], "n1")
    failed = threading.Event()

    def write() -> None:
        try:
            stream.write(Common(bytes(1 << 20)))
        except LinkClosed:
            failed.set()

    threading.Thread(target=write, daemon=True).start()
    wait_for(lambda: len(far.written) > 200_000)
    far.end()
    assert failed.wait(60)
    branch.close()


@given(st.lists(st.integers(0, CACHE_SIZE + 8), max_size=200))
def test_what_lies_in_a_place_is_what_was_put_there_last(wanted: list[int]) -> None:
    pieces = [bytes(3) + b"%d" % number for number in range(CACHE_SIZE + 9)]
    cache, lying, sent = ChunkCache(), dict[int, bytes](), 0
    for number in wanted:
        place, is_new = cache.place(pieces[number])
        if is_new:
            lying[place] = pieces[number]
            sent += 1
        assert lying[place] is pieces[number]
    assert len(lying) <= CACHE_SIZE
    if len(set(wanted)) <= CACHE_SIZE:
        assert sent == len(set(wanted))


def test_what_waits_for_a_link_goes_in_few_writes() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # each write is told
    with ours, theirs:
        relay = tree_relay.Relay(os.dup(theirs.fileno()), theirs.fileno())
        for number in range(3):
            relay._send(number, mux.OUTPUT, b"key")
        relay._send(9, mux.OUTPUT, bytes(mux.LARGEST))
        relay._send(1, mux.MORE_INPUT, mux.COUNT.pack(7))
        relay._write()
        writes = [mux.Frames().feed(ours.recv(1 << 20)) for _ in range(2)]
        os.close(relay._come)
    assert writes[0] == [
        (1, mux.MORE_INPUT, mux.COUNT.pack(7)),
        *((number, mux.OUTPUT, b"key") for number in range(3)),
    ]
    assert writes[1] == [(9, mux.OUTPUT, bytes(mux.LARGEST))]
