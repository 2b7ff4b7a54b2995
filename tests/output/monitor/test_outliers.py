"""Who uses its CPU or GPU unlike all others: tables of shares, and rounds of samples."""

from __future__ import annotations

import random

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.monitor_events import GpuSample, NodeSampled, RankSample, RanksApart
from dispatcher.core.events.run_events import Entry
from dispatcher.model.failure import Failure, Kind
from dispatcher.output.monitor.outliers import (
    BEHIND,
    ROUNDS,
    OutlierRounds,
    SampleOutliers,
    outlier_text,
    outliers,
)
from dispatcher.output.run_state import RunState

HOSTS = ["n1", "n2", "n3", "n4"]


@cases(
    ("usual", "noise", "odd", "ranks", "found"),
    [
        (12.0, 3.0, {5: 98.0}, 8, {5}),
        (100.0, 1.0, {5: 3.0}, 8, {5}),
        (100.0, 1.0, {4: 20.0, 5: 20.0}, 8, {4, 5}),
        (100.0, 1.0, {4: 20.0, 5: 20.0, 6: 20.0}, 8, set()),  # these have another part
        (800.0, 1.0, {5: 900.0}, 8, set()),  # far by deviations, but not by its share
        (50.0, 25.0, {5: 98.0}, 8, set()),  # all are spread like that
        (0.0, 0.0, {5: 20.0}, 8, set()),  # one that polls
        (12.0, 3.0, {1: 98.0}, 3, set()),
    ],
)
def test_who_is_apart(
    usual: float, noise: float, odd: dict[int, float], ranks: int, found: set[int]
) -> None:
    apart, random_ = OutlierRounds(), random.Random(7)
    for at in range(ROUNDS):
        told = apart.round(
            {rank: odd.get(rank, usual + random_.uniform(-noise, noise)) for rank in range(ranks)}
        )
        assert {one.rank for one in told} == (found if at == ROUNDS - 1 else set())


def test_only_rounds_in_a_row_and_one_way_count() -> None:
    apart = OutlierRounds()
    for share in (98.0, 98.0, 98.0, 98.0, 50.0, 98.0, 98.0, 98.0, 98.0, 1.0, 1.0, 1.0, 1.0):
        assert apart.round({**dict.fromkeys(range(7), 50.0), 7: share}) == []
    assert [one.rank for one in apart.round({**dict.fromkeys(range(7), 50.0), 7: 1.0})] == [7]


@given(st.dictionaries(st.integers(0, 99), st.floats(0, 1e6)), st.floats(0, 9), st.floats(0, 99))
def test_less_than_half_are_outliers(figures: dict[int, float], share: float, least: float) -> None:
    found = outliers(figures, share, fewest=4, least=least, sigmas=1.0)
    assert 2 * len(found) <= len(figures)
    assert {one.rank for one in found} <= figures.keys()


class Job:
    """Two ranks on each of four hosts, their samples, and what is told."""

    def __init__(self) -> None:
        self.told: list[ev.Event] = []
        self.state = RunState(HOSTS)
        self.sink = SampleOutliers(self.state, self.told.append)
        self.at = 0.0
        self.cpu = dict.fromkeys(range(8), 0.0)
        self.start()

    def start(self) -> None:
        self.happens(ev.RanksPlaced(8, "a", 1))
        for rank in range(8):
            self.happens(ev.RankSpawned(rank // 2, rank, 100 + rank))

    def happens(self, event: ev.Event) -> None:
        for sink in (self.state, self.sink):
            sink.event(Entry(1, self.at, event))

    def sample(self, node: int, gpus: tuple[float, ...] = ()) -> None:
        ranks = tuple(
            RankSample(rank, "R", self.cpu[rank], 1, 1, 1, ((rank + (node == 2)) % 2,))
            for rank in (2 * node, 2 * node + 1)
        )
        used = tuple(
            GpuSample(index, value, None, None, None, None) for index, value in enumerate(gpus)
        )
        self.happens(NodeSampled(node, self.at, ranks, used))

    def round(self, busy: dict[int, float], nodes: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        """Two seconds; ``busy``: the shares of ranks that do not use 12 % of a CPU."""
        self.at += 2.0
        for rank in self.cpu:
            self.cpu[rank] += 2.0 * busy.get(rank, 12.0) / 100
        for node in nodes:
            self.sample(node)


def test_a_rank_is_told_once_an_attempt() -> None:
    job = Job()
    for _ in range(ROUNDS):
        job.round({5: 98.0})  # the first sample has no share
    assert job.told == []
    for _ in range(ROUNDS):
        job.round({5: 98.0})
    (event,) = job.told
    assert isinstance(event, RanksApart)
    assert outlier_text(event, HOSTS) == (
        "rank 5 on n3: 98 % of a CPU for 10 s, where the median is 12 % "
        "(the others may wait for it)"
    )
    job.start()
    for _ in range(ROUNDS + 1):
        job.round({5: 98.0})
    assert len(job.told) == 2


def test_hosts_that_are_late_or_gone_hold_nobody_up() -> None:
    job = Job()
    job.happens(ev.NodeLost(0, Failure(Kind.LOST, "gone")))
    for _ in range(BEHIND * (ROUNDS + 1)):
        job.round({5: 98.0}, nodes=(1, 2))
    (event,) = job.told
    assert isinstance(event, RanksApart)
    assert event.ranks == (5,)


def test_one_host_s_many_samples_take_nothing_from_another_s_ranks() -> None:
    job = Job()
    for _ in range(ROUNDS + 1):
        job.round({5: 98.0})
        for _ in range(BEHIND):
            job.at += 0.1
            job.sample(0)
    (event,) = job.told
    assert isinstance(event, RanksApart)
    assert event.ranks == (5,)


def test_the_gpu_of_a_rank() -> None:
    job = Job()
    for _ in range(ROUNDS):
        job.at += 2.0
        for node in range(4):
            # the first GPU of n3 is that of its second rank; a third one belongs to nobody
            job.sample(node, (20.0 if node == 2 else 97.0, 97.0, 0.0))
    (event,) = job.told
    assert isinstance(event, RanksApart)
    assert (event.what, event.ranks) == ("GPU", (5,))
    assert outlier_text(event, HOSTS) == (
        "rank 5 on n3: 20 % of the GPU for 8 s, where the median is 97 %"
    )


@cases(
    ("figures", "how", "found"),
    [
        ([10, 10, 10, 15], {"share": 0.5}, [3]), ([10, 10, 10, 14.9], {"share": 0.5}, []),
        ([10, 10, 10, 5], {"share": 0.5}, [3]), ([10, 10, 10, 5.1], {"share": 0.5}, []),
        ([10, 10, 10, 13], {"share": 0.0, "least": 3.0}, [3]),
        ([10, 10, 10, 12.9], {"share": 0.0, "least": 3.0}, []),
        ([10, 10, 10], {"share": 0.5}, []), ([10, 10, 99], {"share": 0.5}, []),
        ([10, 11, 12, 13, 20], {"share": 0.0, "sigmas": 5.0}, [4]),
        ([10, 11, 12, 13, 19], {"share": 0.0, "sigmas": 5.0}, []),
        ([10, 10, 10, 30, 99, 1], {"share": 0.5}, [4, 3, 5]),
        ([10, 10, 10, 0, 20], {"share": 0.5}, [3, 4]), ([-10, -10, -10, -16], {"share": 0.5}, [3]),
        ([0, 0, 0, 0], {"share": 0.0}, []),
    ],
)  # fmt: skip
def test_who_is_away_from_the_median(
    figures: list[float], how: dict[str, float], found: list[int]
) -> None:
    seen = outliers(dict(enumerate(figures)), fewest=4, **how)
    assert [one.rank for one in seen] == found
    assert all(one.value == figures[one.rank] for one in seen)


def test_spawned_ranks_and_those_that_ended_are_not_compared() -> None:
    job = Job()
    spawned = 1 << 20
    job.happens(ev.RankSpawned(2, spawned, 9))
    job.happens(ev.RankExited(2, 5, 0))
    for _ in range(2 * ROUNDS):
        job.at += 2.0
        for node in range(4):
            for rank in (2 * node, 2 * node + 1):
                job.cpu[rank] += 1.8 if rank == 5 else 0.2
            ranks = tuple(
                RankSample(rank, "R", job.cpu[rank], 1, 1, 1, (0,))
                for rank in (2 * node, 2 * node + 1)
            )
            # of a spawned rank the GPU says nothing
            more = (RankSample(spawned, "R", 0.0, 1, 1, 1, (1,)),) if node == 2 else ()
            gpus = tuple(GpuSample(n, 97.0 - 90 * n, None, None, None, None) for n in range(2))
            job.happens(NodeSampled(node, job.at, (*ranks, *more), gpus))
    assert job.told == []


def test_what_nobody_knows_any_more_is_not_compared() -> None:
    """A GPU that does not answer, and samples of a host without ranks."""
    job = Job()
    for at in range(ROUNDS + 3):
        job.at += 2.0
        for node in range(4):
            silent = at >= 2 and node == 2
            job.sample(node, () if silent else (20.0 if node == 2 else 97.0, 97.0))
    assert job.told == []
    job.happens(NodeSampled(9, job.at, (), ()))
    assert job.told == []


def test_ranks_above_and_below_are_told_apart() -> None:
    job = Job()
    for _ in range(ROUNDS + 1):
        job.round({**dict.fromkeys(range(8), 100.0), 5: 250.0, 2: 10.0})
    assert [(event.ranks, round(event.share), round(event.usual)) for event in job.told
            if isinstance(event, RanksApart)] == [((5,), 250, 100), ((2,), 10, 100)]  # fmt: skip
