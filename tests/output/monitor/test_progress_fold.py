"""How far a run is: what each event changes in the picture, and what CPU a rank uses."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import NodeSampled, RankSample, RanksStalled
from dispatcher.core.events.run_events import Entry, Event
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.monitor import run_progress
from dispatcher.output.monitor.run_progress import (
    CHECKED,
    CONNECTED,
    CONNECTING,
    ENDED,
    LOST,
    RUNNING,
    WAITING,
    CpuShares,
    Picture,
    Progress,
    StallDetector,
    encode_picture,
)

FACTS = ev.Facts("h", 1, "3.12", 8, 0, ("10.0.0.1",), "m")
GONE = Failure(Kind.LOST, "x")


class Run:
    def __init__(self, count: int = 3) -> None:
        self.now = 100.0
        self.progress = Progress(count, lambda: self.now)

    def happens(self, *events: Event) -> Picture:
        for event in events:
            self.progress.event(Entry(1, 0.0, event))
        return self.progress.picture()


@cases(
    ("event", "state", "pending"),
    [
        (ev.NodeConnecting(1), CONNECTING, True),
        (ev.NodeConnected(1, None, "ssh"), CONNECTED, True),
        (ev.NodeReady(1, FACTS), CHECKED, False), (ev.RankSpawned(1, 0, 7), RUNNING, False),
        (ev.NodeSwept(1, 0), ENDED, False), (ev.NodeLost(1, GONE), LOST, False),
        (ev.NodeHeard(1), WAITING, True),
    ],
)  # fmt: skip
def test_the_state_of_a_host(event: Event, state: int, pending: bool) -> None:
    found = Run().happens(event)
    others = {WAITING: 2} if state != WAITING else {}
    assert found.hosts == {**others, state: 1 if others else 3}
    assert found.pending == ((0, 1, 2) if pending else (0, 2))


def test_the_states_of_ranks() -> None:
    run = Run()
    found = run.happens(*(ev.RankSpawned(0, rank, 7) for rank in range(4)))
    assert found.ranks == {"running": 4}
    found = run.happens(ev.RankExited(0, 0, 0), ev.RankExited(0, 1, 3), ev.RankExited(0, 2, -9),
                        ev.RankFailedToStart(0, 9, 2, "exec", "x"))  # fmt: skip
    assert found.ranks == {"done": 1, "failed": 3, "running": 1}
    assert (found.stopping, run.happens(ev.JobStopping("RankFailed")).stopping) == (
        None,
        "RankFailed",
    )
    again = run.happens(ev.RanksPlaced(4, "a", 1, 1))
    assert (again.ranks, again.stopping) == ({}, None)


def test_lines_and_the_time_since_the_last() -> None:
    run = Run()
    run.now = 105.0
    found = run.happens()
    assert (found.lines, found.seconds, found.since_line) == (0, 5.0, None)
    run.progress.output(0, 1, b"a\nb\nc")
    run.now = 107.5
    found = run.happens()
    assert (found.lines, found.seconds, found.since_line) == (2, 7.5, 2.5)


def sample(at: float, *cpu: float) -> NodeSampled:
    ranks = tuple(RankSample(rank, "R", used, 1, 1, 1) for rank, used in enumerate(cpu))
    return NodeSampled(0, at, ranks)


def test_silent_ranks_until_they_write_or_end() -> None:
    run = Run()
    run.happens(*(ev.RankSpawned(0, rank, 7) for rank in range(4)))
    found = run.happens(RanksStalled((3, 1), 60.0), RanksStalled((0,), 90.0))
    assert (found.silent, found.silent_for, found.idle) == ((0, 1, 3), 60.0, ())
    run.happens(sample(10.0, 1.0, 1.0, 1.0, 1.0), sample(20.0, 1.0, 1.05, 9.0, 1.2))
    assert run.happens().idle == (0, 1)  # half of a hundredth is nothing, two are something
    run.progress.output(1, 1, b"x")
    assert run.happens(ev.RankExited(0, 3, 0)).silent == (0,)
    assert run.happens().silent_for == 90.0
    again = run.happens(ev.RanksPlaced(4, "a", 1, 1))
    assert (again.silent, again.silent_for) == ((), 0.0)


def test_shares_of_a_cpu() -> None:
    shares = CpuShares()
    shares.take(sample(10.0, 5.0, 0.0))
    assert shares.of == {}
    shares.take(sample(12.0, 6.0, 0.0))
    assert shares.of == {0: 50.0, 1: 0.0}
    shares.take(sample(12.0, 9.0, 0.0))  # at the same moment nothing can be told
    assert shares.of == {0: 50.0, 1: 0.0}
    assert [shares.is_idle(rank) for rank in (0, 1, 2)] == [False, True, False]
    shares.forget(1)
    shares.forget(7)
    assert shares.of == {0: 50.0}
    shares.take(sample(14.0, 10.0, 3.0))
    assert shares.of == {0: 50.0}  # its process is new
    shares.take(sample(16.0, 8.0, 4.0))
    assert shares.of == {0: 0.0, 1: 50.0}


def test_a_state_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no states of hosts: "):
        Picture({9: 1}, (), {}, 0, 0.0, None)


def test_a_picture_for_others_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "MOST", 2)
    many: Any = (1, 2, 3)
    plain = encode_picture(
        Picture({RUNNING: 1, LOST: 2}, many, {}, 0, 0.0, None, many, 1.0, None, many)
    )
    assert [list(plain[name]) for name in ("pending", "silent", "idle")] == [[1, 2]] * 3
    assert plain["hosts"] == {str(RUNNING): 1, str(LOST): 2}


def test_who_ends_or_writes_is_not_called_silent() -> None:
    now, told = [100.0], list[Event]()
    stall = StallDetector(10.0, told.append, lambda: now[0])
    assert not stall.tick(0)  # nobody runs
    stall.output(0, 1, b"early")  # before the news of its start
    assert not stall.tick(0)
    for rank in (2, 0, 1):
        stall.event(Entry(1, 0.0, ev.RankSpawned(0, rank, 7)))
    assert stall.tick(0)
    now[0] = 105.0
    stall.output(1, 1, b"x")
    now[0] = 110.0
    assert stall.tick(0)
    assert told == [RanksStalled((0, 2), 10.0)]
    stall.event(Entry(1, 0.0, ev.RankExited(0, 1, 0)))
    assert not stall.tick(0)
    stall.output(1, 1, b"late")
    now[0] = 200.0
    assert not stall.tick(0)
    assert len(told) == 1


def test_ranks_of_a_lost_host_are_not_called_silent() -> None:
    """Neither while the others end, nor in the next attempt, which may have fewer ranks."""
    now, told = [100.0], list[Event]()
    stall = StallDetector(10.0, told.append, lambda: now[0])
    run = Run()

    def happens(*events: Event) -> Picture:
        for event in events:
            stall.event(Entry(1, 0.0, event))
        return run.happens(*events)

    happens(ev.RanksPlaced(2, "a", 1), ev.RankSpawned(0, 0, 7), ev.RankSpawned(1, 1, 7))
    assert happens(RanksStalled((1,), 10.0)).silent == (1,)
    assert happens(ev.NodeLost(1, GONE), ev.JobStopping("NodeFailed")).silent == ()
    now[0] = 120.0
    assert not stall.tick(0)
    happens(ev.RankExited(0, 0, -15), ev.RanksPlaced(1, "a", 1, 1), ev.RankSpawned(0, 0, 8))
    now[0] = 140.0
    assert stall.tick(0) is False
    assert told == [RanksStalled((0,), 10.0)]
