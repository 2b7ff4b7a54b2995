"""Signs of life of many commands at once: a real relay, and commands that answer, or do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from rig import wait_for

from dispatcher.bootstrap import payload as bootstrap
from dispatcher.model.failure import Failure
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.remote.protocol.mux import COUNT, INPUT, MORE_INPUT, Frames
from dispatcher.remote.tree_relay import PULSE
from dispatcher.transport.base import Link, Target
from dispatcher.transport.process.command import LocalTransport
from dispatcher.transport.tree.branch import Branch
from dispatcher.transport.tree.tree_transport import payload

from ..far_link import FarLink

#: says on one output what it reads, and gives a sign of life on the other for each ping
ANSWERS = "while read -r x; do echo $x; case $x in ping) printf '\\000' >&2;; esac; done"
DEAF = "echo hello >&2; exec sleep 1000"


@pytest.fixture
def branch() -> Iterator[Branch]:
    local = LocalTransport()

    def open_link() -> Link | Failure:
        return local.open(Target("localhost"), bootstrap.command(), time.monotonic() + 40)

    made = Branch("n1", payload(), open_link)
    yield made
    made.close()
    local.close()


def test_those_who_answer_are_heard_and_their_streams_stay_as_they_were(branch: Branch) -> None:
    words = [("sh", "-c", ANSWERS), ("sh", "-c", ANSWERS), ("sh", "-c", DEAF)]
    streams = [branch.stream(each, "n1") for each in words]
    heard: list[int] = []
    for number, stream in enumerate(streams):
        assert stream.pulse(b"ping\n", 0.05, partial(heard.append, number))
    wait_for(lambda: heard.count(0) >= 3 and heard.count(1) >= 3)
    assert 2 not in heard
    # a line longer than a frame, and pings all the while
    line = b"x" * 40_000 + b"\n"
    streams[0].write(line)
    said = bytearray()

    def has_line() -> bool:
        said.extend(streams[0].read(1 << 20) or b"")
        return line in said

    wait_for(has_line)
    assert set(bytes(said).replace(line, b"").split()) == {b"ping"}
    assert b"".join(stream.read_errors(100) for stream in streams[:2]) == b""
    wait_for(lambda: streams[2].read_errors(100) == b"hello\n")
    assert branch.failure is None


class Mute(FarLink):
    """Takes what it is told, says nothing but the marker."""

    def __init__(self) -> None:
        super().__init__(SYNC)
        self.told: list[tuple[int, int, bytes]] = []
        self._frames = Frames()

    def write(self, data: bytes) -> None:
        self.told += self._frames.feed(data)


def test_no_ping_comes_into_the_midst_of_a_write() -> None:
    link = Mute()
    branch = Branch("n1", b"", lambda: link)
    first, second = (branch.stream(("cat",), "n1") for _ in range(2))
    for stream in (first, second):
        stream.pulse(b"ping", 0.02, lambda: None)
    # nobody reads: it stands when the window is full
    writer = threading.Thread(target=lambda: first.write(b"x" * (1 << 18) + b"end"))
    writer.start()
    wait_for(lambda: sum(len(body) for _, kind, body in link.told if kind == INPUT) == 1 << 18)
    seen = len(link.told)
    asked = COUNT.pack(4) + b"ping"
    wait_for(lambda: link.told[seen:].count((0, PULSE, asked + COUNT.pack(2))) >= 3)
    assert not any(COUNT.pack(1) in body[8:] for _, kind, body in link.told[seen:] if kind == PULSE)
    first.take(MORE_INPUT, COUNT.pack(1 << 18))
    writer.join(60)
    wait_for(lambda: (1, INPUT, b"end") in link.told)
    after = link.told.index((1, INPUT, b"end"))
    # a ping of the other's may come before it
    wait_for(lambda: (0, PULSE, asked + COUNT.pack(1)) in link.told[after + 1 :])
    branch.close()
