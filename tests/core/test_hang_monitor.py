"""What ``MonitoredRun`` does with news that are nobody's alone."""

from __future__ import annotations

import pytest

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import CloseLink
from dispatcher.core.events.monitor_events import NetworksDiffer, RanksApart, RanksStalled
from dispatcher.core.hang_monitor import MonitoredRun
from dispatcher.core.run.run_machine import RunMachine
from dispatcher.plan.job.request import Limits

from .conftest import facts, make_plan


@pytest.mark.parametrize(
    ("told_at", "ago", "lost_at"),
    [(14.0, 0.0, 29.0), (14.0, 9.0, 20.0), (14.0, 14.0, 15.0), (3.0, 20.0, 15.0)],
)
def test_beats_told_late_count_from_when_they_came(
    told_at: float, ago: float, lost_at: float
) -> None:
    machine = RunMachine(make_plan(2))
    run = MonitoredRun(machine)
    machine.begin()
    for node in (0, 1):
        run.handle(ev.NodeReady(node, facts(node)), 0.0)
    run.handle(ev.NodeProbed(1, ("10.0.0.1",)), 0.0)
    for rank in range(4):
        run.handle(ev.RankSpawned(rank // 2, rank, 1000 + rank), 0.0)
    assert run.next_deadline() == 15.0
    assert run.handle(ev.NodesHeard((0, 1), (ago, 0.0)), told_at) == []
    assert run.next_deadline() == min(lost_at, told_at + 15.0)
    assert CloseLink(0) not in run.tick(lost_at - 0.1)
    assert CloseLink(0) in run.tick(lost_at)


@pytest.mark.parametrize("hang_timeout", [0.0, 600.0])
@pytest.mark.parametrize(
    "remark",
    [
        RanksStalled((0,), 60.0),
        NetworksDiffer((1,), "fell back to Socket"),
        RanksApart("CPU", (3,), (1,), 98.0, 12.0, 10.0),
    ],
)
def test_what_sinks_find_out_is_decided_by_nobody(remark: ev.Remark, hang_timeout: float) -> None:
    machine = RunMachine(make_plan(2, limits=Limits(hang_timeout=hang_timeout)))
    run = MonitoredRun(machine)
    machine.begin()
    for node in (0, 1):
        assert run.handle(remark, 0.0) == []
        run.handle(ev.NodeReady(node, facts(node)), 0.0)
    run.handle(ev.NodeProbed(1, ("10.0.0.1",)), 0.0)
    for rank in range(4):
        run.handle(ev.RankSpawned(rank // 2, rank, 1000 + rank), 0.0)
    assert run.handle(remark, 1.0) == []
