"""What counts as a sign of life, and which GPU only waits: from single samples."""

from __future__ import annotations

from dataclasses import replace

from cases import cases

from dispatcher.core.events.monitor_events import GpuSample, NodeSampled, RankSample
from dispatcher.core.hang_rule import LOW, POWER, TRAFFIC, WAITING, WORKING, HangRule, every

from .test_hang_rule import S, seen


def test_a_file_that_comes_and_goes_is_none() -> None:
    hang = HangRule(S, 0.0, shows_progress=True)
    hang.began(0, 0, 0.0)
    for t in range(30):
        hang.sampled(seen(0, t, {0: t}, mark=5 if t % 3 else None), float(t))
        assert not hang.hangs(float(t))


def test_signs_that_are_told_late_take_none_away() -> None:
    hang = HangRule(S, 2.0, shows_progress=True)
    hang.began(0, 0, 1.0)  # told late
    hang.ended(7, 9.0)  # of whom nobody knows
    assert hang.due == 12.0
    hang.wrote(5.0)
    hang.wrote(4.0)
    assert hang.due == 15.0
    hang.wrote(6.0, progress=True)
    hang.wrote(5.0, progress=True)
    hang.wrote(8.0)
    assert hang.due == 16.0
    hang.anew(20.0)
    assert hang.due == 30.0
    hang.ended(0, 21.0)
    assert hang.due is None


def test_a_line_shows_progress_only_where_the_user_said_so() -> None:
    hang = HangRule(S, 0.0)
    hang.began(0, 0, 0.0)
    hang.wrote(4.0, progress=True)
    for t in range(30):
        hang.sampled(seen(0, t, {0: t}), float(t))
        assert not hang.hangs(float(t))


def test_a_rank_that_begins_again_is_seen_anew() -> None:
    hang = HangRule(S, 0.0)
    hang.began(0, 0, 0.0)
    for t in range(9):
        hang.sampled(seen(0, t, {0: 0.0}), float(t))
    hang.began(0, 0, 0.0)
    assert hang.busy(10.0) == [0]
    hang.sampled(seen(0, 10, {0: 0.0, 9: 0.0}), 10.0)
    assert hang.busy(10.0) == [0]
    hang.ended(0, 10.0)
    assert hang.busy(10.0) == []


def test_another_host_s_word_of_a_rank_counts_for_nothing() -> None:
    hang = HangRule(S, 0.0)
    hang.began(0, 0, 0.0)
    for t in range(10):
        hang.sampled(seen(0, t, {0: 0.0}), float(t))
        hang.sampled(seen(1, t, {0: float(t)}), float(t))
    assert hang.busy(9.0) == []


def test_how_often_samples_are_needed() -> None:
    assert [every(seconds) for seconds in (1.0, 2.5, 10.0, 600.0)] == [0.25, 0.25, 1.0, 60.0]


#: watts that the GPU was seen to draw at work, and those that it may draw
MOST, LIMIT = 600.0, 700.0


@cases(
    ("used", "watts", "traffic", "limit", "at_work_before", "waits"),
    [
        (WAITING, POWER * MOST - 1, None, None, True, True),
        (WAITING, POWER * MOST, None, None, True, False),
        (WAITING - 1, 100.0, 0.0, LIMIT, True, False),
        (WAITING, POWER * MOST - 1, TRAFFIC, None, True, True),
        (WAITING, POWER * MOST - 1, TRAFFIC + 1, LIMIT, True, False),
        (100.0, None, 0.0, LIMIT, True, False),
        (100.0, LOW * LIMIT - 1, 0.0, LIMIT, False, True),
        (100.0, LOW * LIMIT, 0.0, LIMIT, False, False),
        (100.0, LOW * LIMIT - 1, None, LIMIT, False, False),
        (100.0, LOW * LIMIT - 1, 0.0, None, False, False),
        (WORKING, 100.0, 0.0, LIMIT, False, False),
        (WORKING - 1, 100.0, 0.0, LIMIT, False, None),
        (None, 100.0, 0.0, LIMIT, False, None),
    ],
)
def test_whether_a_gpu_only_waits(
    used: float | None,
    watts: float | None,
    traffic: float | None,
    limit: float | None,
    at_work_before: bool,
    waits: bool | None,
) -> None:
    """Its rank spins; waits: None where the GPU does nothing, so that the rank is taken to work."""
    hang = HangRule(S, 0.0)
    hang.began(0, 0, 0.0)
    if at_work_before:
        busy = GpuSample(0, 100.0, 1.0, 2.0, MOST, 40.0, LIMIT, 50.0)
        hang.sampled(NodeSampled(0, 0.0, (), (busy,)), 0.0)
    one = GpuSample(0, used, 1.0, 2.0, watts, 40.0, limit, traffic)
    for t in range(1, 31):
        ranks = (RankSample(0, "R", float(t), 1, 1, 1, (0,), (0,)),)
        hang.sampled(NodeSampled(0, float(t), ranks, (one,)), float(t))
        assert hang.hangs(float(t)) == (waits is True and t >= 11)
        assert hang.busy(float(t)) == ([] if waits is True and t >= 11 else [0])


def test_a_rank_waits_when_all_its_gpus_do() -> None:
    idle = GpuSample(1, 0.0, 1.0, 2.0, 70.0, 40.0, LIMIT, 0.0)
    waits = GpuSample(0, 100.0, 1.0, 2.0, 100.0, 40.0, LIMIT, 0.0)
    for own, still in (((0,), True), ((0, 1), False), ((), False), (None, False)):
        hang = HangRule(S, 0.0)
        hang.began(0, 0, 0.0)
        for t in range(12):
            ranks = (RankSample(0, "R", float(t), 1, 1, 1, own, (0, 1)),)
            hang.sampled(NodeSampled(0, float(t), ranks, (waits, idle)), float(t))
        assert hang.busy(11.0) == ([] if still else [0])


def test_whose_gpu_does_nothing_while_others_wait() -> None:
    """One who has nothing on it is not in the collective that the others are in."""
    idle, waits = (
        GpuSample(n, used, 1.0, 2.0, 100.0, 40.0, LIMIT, 0.0) for n, used in ((0, 0.0), (1, 100.0))
    )
    for gpus, late, named in (
        ((idle, waits), 0.0, (0,)), ((replace(waits, index=0), waits), 0.0, ()),
        ((idle,), 0.0, ()), ((idle, waits), 99.0, ()),
    ):  # fmt: skip
        hang = HangRule(S, 0.0)
        for rank in range(3):
            hang.began(rank, 0, 0.0)
        owned = enumerate(((0,), (1,), None))
        ranks = tuple(RankSample(rank, "S", 0.0, 1, 1, 1, own, own) for rank, own in owned)
        hang.sampled(NodeSampled(0, 1.0, ranks, gpus), 1.0)
        assert hang.idle_gpus(1.0 + late) == named
        hang.ended(0, 1.0)
        assert hang.idle_gpus(1.0) == ()


def test_a_rank_whose_gpus_nobody_has_seen_is_not_idle() -> None:
    waits = GpuSample(0, 100.0, 1.0, 2.0, 100.0, 40.0, LIMIT, 0.0)
    hang = HangRule(S, 0.0)
    for node, gpus in ((0, ()), (1, (waits,)), (2, (replace(waits, utilisation=0.0),))):
        hang.began(node, node, 0.0)
        ranks = (RankSample(node, "S", 0.0, 1, 1, 1, (0,), (0,)),)
        hang.sampled(NodeSampled(node, 1.0, ranks, gpus), 1.0)
    assert hang.idle_gpus(1.0) == (2,)
