"""Ranks that fall silent, and what drivers say of GPUs while ranks use them."""

from __future__ import annotations

from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import (
    GpuSample,
    GpuTroubled,
    NodeSampled,
    RankSample,
    RanksStalled,
)
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.monitor.notices import GpuNotes, StallDetector, gpu_text
from dispatcher.output.run_state import RunState


def sample(reasons: int | None = None, *xids: int) -> NodeSampled:
    """Rank 3 on host 1 uses GPU 1 of two; GPU 1 says so."""
    rank = RankSample(3, "R", 1.0, 1, 1, 1, own=(1,))
    quiet = GpuSample(0, 99.0, None, None, None, None)
    odd = GpuSample(1, 99.0, None, None, None, None, reasons=reasons, xids=xids)
    return NodeSampled(1, 1.0, (rank,), (quiet, odd))


def told(*events: ev.Event) -> list[ev.Event]:
    found: list[ev.Event] = []
    sink = GpuNotes(found.append)
    for event in events:
        sink.event(Entry(1, 1.0, event))
    return found


def test_each_is_told_once_an_attempt() -> None:
    twice = [sample(0x41, 79), sample(0x41, 79)]  # 0x1: idle, which is no trouble
    expected = [GpuTroubled(1, 1, (3,), 79, 0), GpuTroubled(1, 1, (3,), 0, 0x40)]
    assert told(*twice) == expected
    assert told(*twice, ev.RanksPlaced(8, "a", 1), *twice) == expected * 2
    assert told(sample(0x5), sample(None), sample(0)) == []


@cases(
    ("event", "text"),
    [
        (GpuTroubled(1, 1, (3,), 79, 0),
         "GPU 1 of n1 (rank 3): Xid 79 (GPU has fallen off the bus)"),
        (GpuTroubled(0, 2, (), 999, 0), "GPU 2 of n0: Xid 999"),
        (GpuTroubled(1, 1, (3,), 0, 0x40), "GPU 1 of n1 (rank 3): slowed down: hardware thermal"),
    ],
)  # fmt: skip
def test_its_words(event: GpuTroubled, text: str) -> None:
    assert gpu_text(event, ["n0", "n1"]) == text


def feed(event: ev.Event, *sinks: Sink) -> None:
    for sink in sinks:
        sink.event(Entry(1, 0.0, event))


def test_who_ends_or_writes_is_not_called_silent() -> None:
    now, told = [100.0], list[ev.Event]()
    state = RunState(["n1", "n2"], lambda: now[0])
    stall = StallDetector(state, 10.0, told.append)
    assert not stall.tick(0)  # nobody runs
    state.output(0, 1, b"early")  # before the news of its start
    assert not stall.tick(0)
    for rank in (2, 0, 1):
        feed(ev.RankSpawned(0, rank, 7), state, stall)
    assert stall.tick(0)
    now[0] = 105.0
    state.output(1, 1, b"x")
    now[0] = 110.0
    assert stall.tick(0)
    assert told == [RanksStalled((0, 2), 10.0)]
    feed(ev.RankExited(0, 1, 0), state, stall)
    assert not stall.tick(0)
    state.output(1, 1, b"late")
    now[0] = 200.0
    assert not stall.tick(0)
    assert len(told) == 1


def test_ranks_of_a_lost_host_are_not_called_silent() -> None:
    """Neither while the others end, nor in the next attempt, which may have fewer ranks."""
    now, told = [100.0], list[ev.Event]()
    state = RunState(["n1", "n2"], lambda: now[0])
    stall = StallDetector(state, 10.0, told.append)

    def happens(*events: ev.Event) -> set[int]:
        for event in events:
            feed(event, state, stall)
        return {*state.silent}

    happens(ev.RanksPlaced(2, "a", 1), ev.RankSpawned(0, 0, 7), ev.RankSpawned(1, 1, 7))
    assert happens(RanksStalled((1,), 10.0)) == {1}
    gone = Failure(Kind.LOST, "x")
    assert happens(ev.NodeLost(1, gone), ev.JobStopping("NodeFailed")) == set()
    now[0] = 120.0
    assert not stall.tick(0)
    happens(ev.RankExited(0, 0, -15), ev.RanksPlaced(1, "a", 1, 1), ev.RankSpawned(0, 0, 8))
    now[0] = 140.0
    assert stall.tick(0) is False
    assert told == [RanksStalled((0,), 10.0)]
