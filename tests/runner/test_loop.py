"""The sinks' thread: order, credit, and a sink that fails."""

from __future__ import annotations

import threading

from dispatcher.core.events.run_events import Entry, NodeHeard, Sink
from dispatcher.runner.loop import SinkThread


class Recorder(Sink):
    def __init__(self) -> None:
        self.told: list[object] = []

    def event(self, entry: Entry) -> None:
        self.told.append(entry.seq)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.told.append((rank, stream, data))

    def close(self) -> None:
        self.told.append("closed")


class Broken(Recorder):
    def output(self, rank: int, stream: int, data: bytes) -> None:
        raise ValueError("no")


def test_everything_in_order_to_every_sink_and_credit_after() -> None:
    sinks = [Recorder(), Broken(), Recorder()]
    taken: list[tuple[int, int]] = []
    failed: list[Sink] = []
    feed = SinkThread(sinks, lambda *told: taken.append(told), lambda sink, _: failed.append(sink))
    feed.start()
    feed.event(Entry(1, 0.0, NodeHeard(0)))
    feed.output(4, 9, 1, b"abc")
    feed.event(Entry(2, 0.0, NodeHeard(0)))
    feed.output(5, 9, 2, b"de")
    assert feed.finish(lambda: False)
    assert sinks[0].told == sinks[2].told == [1, (9, 1, b"abc"), 2, (9, 2, b"de"), "closed"]
    assert taken == [(4, 3), (5, 2)]
    assert failed == [sinks[1]]
    assert sinks[1].told == [1]


def test_a_stuck_sink_can_be_left() -> None:
    release = threading.Event()

    class Stuck(Sink):
        def output(self, rank: int, stream: int, data: bytes) -> None:
            release.wait(30)

    feed = SinkThread([Stuck()], lambda *told: None, lambda *told: None)
    feed.start()
    feed.output(0, 0, 1, b"x")
    assert not feed.finish(lambda: True)
    release.set()
