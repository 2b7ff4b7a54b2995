"""Streams over real relays of two levels: each gets its own bytes, and waits for no other."""

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
from dispatcher.transport.base import Link, Target
from dispatcher.transport.process.command import LocalTransport
from dispatcher.transport.tree.branch import Branch, Stream
from dispatcher.transport.tree.tree_transport import payload

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


TOLD = st.lists(st.sampled_from([0, 1, 700, 32 << 10, 90_000]), max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(TOLD, TOLD, TOLD))
def test_every_stream_gets_its_bytes_in_order(two: Two, told: tuple[list[int], ...]) -> None:
    texts = [[os.urandom(size) for size in sizes] for sizes in told]
    near, below = two
    streams = [branch.stream(("cat",), "n1") for branch in (near, below, below)]
    threads = write_all(streams, texts)
    assert read_all(streams) == [b"".join(each) for each in texts]
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
    text = os.urandom(500_000)  # more than may be under way
    threads = write_all([slow, *streams], [[text]] * 3)
    assert read_all(streams) == [text, text]
    assert threads[0].is_alive()
    os.kill(int(pid), signal.SIGCONT)
    assert read_all([slow]) == [text]


def test_what_waits_for_a_link_goes_in_few_writes() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # each write is told
    with ours, theirs:
        relay = tree_relay.TreeRelay(os.dup(theirs.fileno()), theirs.fileno())
        for number in range(3):
            relay._send(number, mux.OUTPUT, b"key")
        relay._send(9, mux.OUTPUT, bytes(mux.LARGEST))
        relay._send(1, mux.MORE_INPUT, mux.COUNT.pack(7))
        relay._write()
        writes = [mux.Decoder().feed(ours.recv(1 << 20)) for _ in range(2)]
        os.close(relay._come)
    assert writes[0] == [
        (1, mux.MORE_INPUT, mux.COUNT.pack(7)),
        *((number, mux.OUTPUT, b"key") for number in range(3)),
    ]
    assert writes[1] == [(9, mux.OUTPUT, bytes(mux.LARGEST))]
