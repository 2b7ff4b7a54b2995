"""How far a run is: what each event changes in the picture, and what CPU a rank uses."""

from __future__ import annotations

import pytest
from cases import cases

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import NodeSampled, RankSample, RanksStalled
from dispatcher.core.events.run_events import Entry, Event
from dispatcher.core.events.verdicts import Interrupted
from dispatcher.jobs import registry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.monitor.run_picture import Picture, picture_of
from dispatcher.output.run_state import (
    CHECKED,
    CONNECTED,
    CONNECTING,
    ENDED,
    LOST,
    RUNNING,
    WAITING,
    CpuShares,
    RunState,
)
from dispatcher.plan.job.placement import FIRST

FACTS = ev.Facts("h", 1, "3.12", 8, 0, ("10.0.0.1",), "m")
GONE = Failure(Kind.LOST, "x")


class Run:
    def __init__(self, count: int = 3) -> None:
        self.now = 100.0
        self.state = RunState(["n"] * count, lambda: self.now)

    def happens(self, *events: Event) -> Picture:
        for event in events:
            self.state.event(Entry(1, 0.0, event))
        return picture_of(self.state)


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
    run.state.output(0, 1, b"a\nb\nc")
    run.now = 107.5
    found = run.happens()
    assert (found.lines, found.seconds, found.since_line) == (2, 7.5, 2.5)


def sample(at: float, *cpu: float) -> NodeSampled:
    ranks = tuple(RankSample(rank, "R", used, 1, 1, 1) for rank, used in enumerate(cpu))
    return NodeSampled(0, at, ranks)


def test_the_time_left_follows_one_rank_of_the_attempt() -> None:
    run = Run()
    run.state.progressed(3, "step 1/9", (1, 9))
    run.now += 10
    run.state.progressed(0, "step 1/9", (1, 9))  # another is a little behind
    run.state.progressed(3, "step 3/9", (3, 9))
    run.state.progressed(3, "saved", None)
    found = run.happens()
    assert (found.reached, found.left) == ("saved", 30.0)
    found = run.happens(ev.RanksPlaced(4, "a", 1, restart=1))
    assert (found.reached, found.left) == ("saved", None)


def test_silent_ranks_until_they_write_or_end() -> None:
    run = Run()
    run.happens(*(ev.RankSpawned(0, rank, 7) for rank in range(4)))
    found = run.happens(RanksStalled((3, 1), 60.0), RanksStalled((0,), 90.0))
    assert (found.silent, found.silent_for, found.idle) == ((0, 1, 3), 60.0, ())
    run.happens(sample(10.0, 1.0, 1.0, 1.0, 1.0), sample(20.0, 1.0, 1.05, 9.0, 1.2))
    assert run.happens().idle == (0, 1)  # half of a hundredth is nothing, two are something
    run.state.output(1, 1, b"x")
    assert run.happens(ev.RankExited(0, 3, 0)).silent == (0,)
    assert run.happens().silent_for == 90.0
    again = run.happens(ev.RanksPlaced(4, "a", 1, 1))
    assert (again.silent, again.silent_for) == ((), 0.0)


def test_an_attempt_knows_nothing_of_the_one_before_it() -> None:
    """Neither at its beginning, nor by late news of ranks that are gone."""
    run = Run(2)
    run.happens(ev.NodeReady(0, FACTS), ev.RanksPlaced(2, "a", 1),
                ev.RankSpawned(0, 0, 7), ev.RankSpawned(1, 1, 8), RanksStalled((0,), 9.0),
                sample(1.0, 1.0, 1.0), sample(2.0, 2.0, 2.0))  # fmt: skip
    run.state.output(0, 1, b"old")
    assert run.state.phase == "running"
    run.happens(ev.NodeLost(1, GONE), ev.JobStopping("NodeFailed"))
    assert (run.state.ranks[1].state, run.state.counts["lost"]) == ("lost", 1)
    assert run.state.phase == "stopping"
    run.happens(ev.NodeReady(0, FACTS, attempt=1), ev.RanksPlaced(1, "a", 1, 1))
    fresh = RunState()
    fresh._begin(1)
    for name in ("world_size", "ranks", "counts", "silent", "tails", "stopping"):
        assert getattr(run.state, name) == getattr(fresh, name), name
    assert (run.state.shares.of, run.state.phase) == ({}, "starting")
    run.happens(ev.RankSpawned(0, 0, 9, attempt=1), ev.RankExited(0, 0, -15))
    assert (run.state.ranks[0].alive, run.state.phase) == (True, "running")
    run.happens(ev.RankExited(0, 0, 0, attempt=1))
    assert (run.state.ranks[0].state, run.state.phase) == ("done", "stopping")


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


PLACED = ev.RanksPlaced(2, "n1", 29500)
UP = [ev.RankSpawned(0, 0, 10), ev.RankSpawned(0, 1, 11)]
GATHERED = ev.NodeReady(0, FACTS, attempt=1)
AGAIN = [ev.RankSpawned(0, 0, 12, attempt=1), ev.RankSpawned(0, 1, 13, attempt=1)]
DONE = [ev.RankExited(0, 0, 0), ev.RankExited(0, 1, 0)]
STOP = ev.JobStopping("x")
RESTART = ev.RunRestarting(Interrupted(2), 1, 1, 0.0)


@cases(
    ("events", "phase"),
    [
        ([], "connecting"), ([ev.NodeConnecting(0)], "connecting"), ([PLACED], "starting"),
        ([PLACED, UP[0]], "starting"),
        ([PLACED, UP[0], DONE[0]], "starting"),  # it was quick; the other is still to come
        ([PLACED, *UP], "running"),
        ([PLACED, UP[0], DONE[0], UP[1]], "running"),
        ([PLACED, *UP, DONE[1]], "running"),
        ([PLACED, *UP, ev.RankSpawned(0, 1 << 20, 14), *DONE], "running"),  # one was spawned
        ([PLACED, *UP, *DONE], "stopping"), ([PLACED, *UP, STOP], "stopping"), ([STOP], "stopping"),
        ([PLACED, UP[0], STOP, UP[1]], "stopping"), ([PLACED, *UP, STOP, RESTART], "restarting"),
        ([PLACED, *UP, STOP, RESTART, PLACED], "starting"),
        ([PLACED, *UP, STOP, RESTART, PLACED, *AGAIN], "running"),
        ([PLACED, *UP, STOP, RESTART, GATHERED, PLACED, *AGAIN, *DONE], "running"),  # late words
    ],
)  # fmt: skip
def test_what_it_is_doing(events: list[Event], phase: str) -> None:
    run = Run()
    run.happens(*events)
    assert run.state.phase == phase
    assert phase in registry.PHASES


def test_where_ranks_are() -> None:
    run = Run()
    run.state.hosts = ["n1", "n2", "n3"]
    assert (run.state.home(0), run.state.host_of(0), run.state.program_of(0)) == ((3, 0), "?", "")
    run.happens(ev.RanksPlaced(3, "n1", 1, parts=(("actor", 1), ("learner", 2))),
                ev.RankSpawned(1, 0, 7), ev.RankSpawned(1, 2, 8), ev.RankSpawned(9, 1, 9),
                ev.RankSpawned(1, FIRST, 9))  # fmt: skip
    assert [run.state.home(rank) for rank in (0, 2, FIRST)] == [(1, 0), (1, 1), (1, 0)]
    assert (run.state.host_of(2), run.state.host_of(1)) == ("n2", "?")
    programs = [run.state.program_of(rank) for rank in (0, 1, 2, 3, FIRST)]
    assert programs == ["actor", "learner", "learner", "", ""]
