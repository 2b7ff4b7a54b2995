"""How much a host may say besides output, what is in turn, and which notices pass."""

from __future__ import annotations

import math

import pytest
from cases import cases

from dispatcher.core.events import mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import NodeStacks
from dispatcher.runner.run import reports
from dispatcher.runner.run.reports import Notices, Quota, ReportError, Turns


def speak(quota: Quota, nbytes: int, seconds: float, every: float, took: float = 0.0) -> float:
    """Say so much every so often, as far as it is read; the seconds that it was held back."""
    now, end, held = 0.0, seconds, 0.0
    while now < end:
        quota.said("notices", nbytes, now, took)
        if quota.is_full:
            wait = quota.wait(now)
            held += wait
            now += wait
        now += every
    return held


@cases(
    ("nbytes", "seconds", "every"),
    [(40, 60.0, 0.002), (0, 60.0, 0.01), (1 << 20, 60.0, 2.0), (64 << 10, 60.0, 0.1)],
)
def test_what_honest_hosts_say_is_never_held_back(
    nbytes: int, seconds: float, every: float
) -> None:
    assert speak(Quota(), nbytes, seconds, every) == 0.0


@cases(("nbytes", "named"), [(0, "notices"), (40, "notices"), (64 << 10, "notices")])
def test_a_flood_is_held_back_and_then_ends_the_link(nbytes: int, named: str) -> None:
    quota = Quota()
    words = rf"a flood: [\d.]+ [KM]?i?B of {named} in [\d,]+ pieces within 5 s, more than any job"
    with pytest.raises(ReportError, match=words):
        speak(quota, nbytes, 60.0, 0.0)
    taken = quota._said["notices"] * (nbytes + reports.REPORT)
    assert taken <= reports.BURST + (reports.PATIENCE + 1) * reports.RATE + 2 * (
        nbytes + reports.REPORT
    )


def test_the_time_that_it_takes_to_read_counts() -> None:
    quota, took = Quota(), 0.001
    with pytest.raises(ReportError, match="a flood"):
        speak(quota, 100, 60.0, took, took)
    assert (
        quota._said["notices"] * took * 3
        <= (reports.BURST + (reports.PATIENCE + 2) * reports.RATE) / reports.SECOND * 3
    )


def test_a_pause_of_ours_is_no_flood_of_a_host() -> None:
    """Garbage that is collected while its report is read, for seconds, again and again."""
    assert speak(Quota(), 300, 60.0, 1.0, 3.0) == 0.0
    quota = Quota()
    quota.said("node.sampled", 300, 0.0, 60.0)
    assert quota._level <= (reports.DEAREST + 1) * (300 + reports.REPORT) < reports.BURST / 16


def test_a_burst_passes_if_it_is_left_alone_then() -> None:
    quota, now = Quota(), 0.0
    for _ in range(10):
        for _ in range(2 * reports.BURST // reports.REPORT):
            quota.said("reports", 0, now)
            now += quota.wait(now) if quota.is_full else 0.0
        now += reports.BURST / reports.RATE
    assert quota.wait(now) == 0.0


def test_what_the_sinks_have_not_taken_holds_the_host_back() -> None:
    quota = Quota()
    events = [ev.NodeNoticed(1, str(n)) for n in range(reports.MOST_WAITING // reports.REPORT)]
    for event in events:
        assert not quota.is_full
        quota.told(event, 0)
    assert quota.is_full
    assert quota.wait(1e9) == math.inf
    assert not quota.done(ev.NodeNoticed(1, "0"))  # equal, but not the one that waits first
    assert not quota.done(events[1])
    assert quota.done(events[0])
    assert quota.wait(1e9) == 0.0
    assert not quota.done(events[1])  # nobody waits any more


@cases(
    ("first", "second"),
    [
        (ev.RankSpawned(3, 6, 100), ev.RankSpawned(3, 6, 101)),
        (ev.RankSpawned(3, 6, 100), ev.RankFailedToStart(3, 6, 2, "exec", "x")),
        (ev.RankExited(3, 6, 0), ev.RankExited(3, 6, 1)),
        (ev.RankLeaked(3, 6), ev.RankLeaked(3, 6)),
        (ev.InputClosed(3, 6, 1), ev.InputClosed(3, 6, 2)),
    ],
)
def test_what_is_said_of_a_rank_once(first: ev.Event, second: ev.Event) -> None:
    turns = Turns()
    turns.check(first)
    turns.check(ev.RankExited(3, 7, 0))
    with pytest.raises(ReportError, match=r"of rank 6 for the second time"):
        turns.check(second)
    turns.begin()
    turns.check(second)  # of another attempt


@cases(
    "event",
    [ev.NodeProbed(3, ()), ev.NodeDying(3, "x"), mpi_events.PmixWanted(3),
     mpi_events.PmixFailed(3, "", ""), mpi_events.MpiFound(3, "", ""), ev.NodeSwept(3, 0)],
)  # fmt: skip
def test_what_a_host_says_a_few_times(event: ev.Event) -> None:
    turns = Turns()
    for _ in range(reports._FEW[type(event)]):
        turns.check(event)
    with pytest.raises(ReportError, match="more often than it can be"):
        turns.check(event)


def test_stacks_are_answers() -> None:
    turns, stacks = Turns(), NodeStacks(3, 1, (), b"", (), (), ())
    with pytest.raises(ReportError, match="stacks that were not asked for"):
        turns.check(stacks)
    turns.asked_for_stacks(ras=False)
    turns.check(stacks)
    with pytest.raises(ReportError, match="stacks that were not asked for"):
        turns.check(stacks)


def test_what_ras_says_is_taken_of_those_who_were_to_ask_it() -> None:
    turns, event = Turns(), NodeStacks(3, 1, (), b"DEAD")
    turns.asked_for_stacks(ras=False)
    with pytest.raises(ReportError, match="an answer of RAS, which was not asked for"):
        turns.check(event)
    turns.asked_for_stacks(ras=True)
    turns.check(event)


def test_a_flood_of_notices_is_counted() -> None:
    notices = Notices()
    many = [ev.NodeNoticed(3, f"n{n}") for n in range(1000)]
    assert notices.passed(3, many, 100.0) == many[: reports.AT_ONCE]
    others = [ev.RankLeaked(3, 6), mpi_events.PmiWaiting(3, (), (6,), 1.0)]
    assert notices.passed(3, others, 100.0) == others[:1]
    late = ev.NodeNoticed(3, "late")
    told = notices.passed(3, [late, late], 100.0 + reports.SECONDS)
    assert told == [ev.NodeNoticed(3, "981 more notices were left out"), late]
    assert notices.left_out(3) == [ev.NodeNoticed(3, "1 more notice was left out")]
    assert notices.left_out(3) == []
    assert notices.passed(3, many, 1e6)[:2] == many[:2]
