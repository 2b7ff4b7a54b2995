"""What is asked of hosts when ranks hang or somebody wants to know, and news that are nobody's."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from cases import cases

from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, CloseLink, GatherStacks, Tell
from dispatcher.core.hang_monitor import ASKERS, GATHER, LOOK, HangMonitor, MonitoredRun
from dispatcher.core.hang_rule import LEAST, HangRule
from dispatcher.core.run.run_machine import PAUSED, RunMachine
from dispatcher.model.failure import Failure, Kind
from dispatcher.plan.job.request import Limits, Restarts

from .conftest import facts, make_plan
from .run.world import started


@cases(
    ("told_at", "ago", "lost_at"),
    [(14.0, 0.0, 34.0), (14.0, 9.0, 25.0), (14.0, 14.0, 20.0), (3.0, 20.0, 20.0)],
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
    assert run.next_deadline() == 20.0
    assert run.handle(ev.NodesHeard((0, 1), (ago, 0.0)), told_at) == []
    assert run.next_deadline() == min(lost_at, told_at + 20.0)
    assert CloseLink(0) not in run.tick(lost_at - 0.1)
    assert CloseLink(0) in run.tick(lost_at)


@cases("hang_timeout", [0.0, 600.0])
@cases(
    "remark",
    [
        mon.RanksStalled((0,), 60.0),
        mon.NetworksDiffer((1,), "fell back to Socket"),
        mon.RanksApart("CPU", (3,), (1,), 98.0, 12.0, 10.0),
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


S = 10.0
WAITS = b"Thread 1\n  barrier (d.py:1)\n"
WORKS = b"Thread 1\n  load (t.py:5)\n"
GONE = Failure(Kind.LOST, "gone")


def watching(ranks: int = 2, *, attempt: int = 0, hang: float = S) -> HangMonitor:
    """Ranks run since 0 s, each on a host of its own."""
    monitor = HangMonitor(hang, shows_progress=False)
    for rank in range(ranks):
        assert monitor.handle(ev.RankSpawned(rank, rank, 7, attempt=attempt), 0.0) == []
    return monitor


def sampled(monitor: HangMonitor, now: float, *cpu: float, attempt: int = 0) -> list[Action]:
    """Each host tells how much CPU its rank has used."""
    actions: list[Action] = []
    for rank, used in enumerate(cpu):
        ranks = (mon.RankSample(rank, "S", used, 1, 1, 1),)
        actions += monitor.handle(mon.NodeSampled(rank, now, ranks, attempt=attempt), now)
    return actions + monitor.tick(now)


def asleep(monitor: HangMonitor, first: int, last: int, ranks: int = 2) -> list[Action]:
    actions: list[Action] = []
    for now in range(first, last + 1):
        actions += sampled(monitor, float(now), *[0.0] * ranks)
    return actions


def stacks(node: int, number: int, *ranks: int, text: bytes = WAITS) -> mon.NodeStacks:
    return mon.NodeStacks(
        node, number, tuple(mon.RankStack(rank, 7, "S", "py-spy", text) for rank in ranks)
    )


def asked(*hosts: int, number: int = 1, hung: bool = False) -> list[Action]:
    return [
        GatherStacks(host, number, LOOK, hung, place < ASKERS) for place, host in enumerate(hosts)
    ]


def gathered(actions: list[Action]) -> mon.StacksGathered:
    (found,) = [a.event for a in actions if isinstance(a, Tell)]
    assert isinstance(found, mon.StacksGathered)
    return found


class TestGathering:
    def test_all_hosts_with_ranks_are_asked_once(self) -> None:
        monitor = watching(3, hang=0.0)
        monitor.handle(ev.RankSpawned(1, 3, 8), 0.0)
        monitor.handle(ev.RankExited(2, 2, 0), 1.0)
        assert monitor.handle(mon.StacksWanted(), 2.0) == asked(0, 1)
        assert monitor.handle(mon.StacksWanted(), 3.0) == []  # V-1
        assert monitor.next_deadline() == 2.0 + GATHER
        assert monitor.handle(stacks(0, 1, 0), 4.0) == []
        found = gathered(monitor.handle(stacks(1, 1, 1, 3, text=WORKS), 4.0))
        assert (found.number, found.late) == (1, ())
        assert sorted(group.ranks for group in found.groups) == [(0,), (1, 3)]
        assert monitor.next_deadline() is None
        assert monitor.handle(mon.StacksWanted(), 5.0) == asked(0, 1, number=2)

    def test_an_answer_to_another_question_is_none(self) -> None:
        monitor = watching(hang=0.0)
        assert monitor.handle(stacks(0, 0, 0), 1.0) == []
        monitor.handle(mon.StacksWanted(), 2.0)
        for number in (0, 2):
            assert monitor.handle(stacks(0, number, 0), 3.0) == []
            assert monitor.handle(stacks(1, number, 1), 3.0) == []
        late = gathered(monitor.tick(2.0 + GATHER))
        assert (late.late, late.groups) == ((0, 1), ())

    def test_a_host_speaks_for_its_own_ranks(self) -> None:
        monitor = watching(hang=0.0)
        monitor.handle(mon.StacksWanted(), 2.0)
        monitor.handle(stacks(0, 1, 0, 1, 9, text=WORKS), 3.0)
        found = gathered(monitor.handle(stacks(1, 1, 1), 3.0))
        assert sorted((group.ranks, group.waits) for group in found.groups) == [
            ((0,), False), ((1,), True),
        ]  # fmt: skip

    def test_time_is_up_and_not_before(self) -> None:
        monitor = watching(hang=0.0)
        monitor.handle(mon.StacksWanted(), 2.0)
        monitor.handle(stacks(1, 1, 1), 3.0)
        assert monitor.tick(2.0 + GATHER - 0.1) == []
        monitor.extend_deadlines(5.0)
        assert monitor.tick(2.0 + GATHER) == []
        found = gathered(monitor.tick(7.0 + GATHER))
        assert (found.late, [group.ranks for group in found.groups]) == ((0,), [(1,)])

    def test_a_host_that_is_lost_meanwhile_answers_by_that(self) -> None:
        monitor = watching(hang=0.0)
        monitor.handle(mon.StacksWanted(), 2.0)
        assert monitor.handle(ev.NodeLost(5, GONE), 3.0) == []
        assert monitor.handle(ev.NodeLost(0, GONE), 3.0) == []
        found = gathered(monitor.handle(stacks(1, 1, 1), 3.0))
        assert [group.ranks for group in found.groups] == [(1,)]
        assert monitor.handle(mon.StacksWanted(), 4.0) == asked(1, number=2)

    def test_who_is_known_to_live_is_asked(self) -> None:
        monitor = HangMonitor(0.0, shows_progress=False, attempt=2, living={4: 1, 5: 0})
        assert monitor.handle(mon.StacksWanted(), 1.0) == asked(0, 1)
        monitor.handle(ev.RankExited(1, 4, 0, attempt=1), 1.0)  # of an old attempt
        late = mon.NodeStacks(1, 1, (mon.RankStack(4, 7, "S", "py-spy", WAITS),), attempt=2)
        assert monitor.handle(late, 2.0) == []
        found = gathered(monitor.handle(ev.NodeLost(0, GONE), 2.0))
        assert [group.ranks for group in found.groups] == [(4,)]


class TestHang:
    def test_it_is_told_when_it_is_due_and_all_are_asked(self) -> None:
        monitor = watching()
        assert monitor.next_deadline() == S
        assert not monitor.is_quiet(S - 0.1)
        assert monitor.is_quiet(S)
        assert asleep(monitor, 0, 9) == []
        assert asleep(monitor, 10, 10) == [Tell(mon.RanksHung(S)), *asked(0, 1, hung=True)]
        assert monitor.is_quiet(0.0)
        assert monitor.next_deadline() == 10.0 + GATHER
        assert monitor.handle(stacks(0, 1, 0, text=WORKS), 11.0) == []
        found = gathered(monitor.handle(stacks(1, 1, 1), 12.0))
        assert monitor.hung is not None
        assert (monitor.hung.seconds, monitor.hung.groups) == (S, found.groups)
        assert (monitor.hung.rank, monitor.hung.node) == (0, None)
        assert monitor.next_deadline() is None  # V-4
        monitor.hung = None
        assert asleep(monitor, 13, 40) == []

    @cases("how", ["output", "exit", "pause"])
    def test_a_sign_of_life_undoes_it_and_not_the_answer(self, how: str) -> None:  # V-3
        monitor = watching()
        asleep(monitor, 0, 10)
        if how == "output":
            monitor.handle(mon.OutputSeen(0.25), 10.5)
        elif how == "exit":
            monitor.handle(ev.RankExited(1, 1, 0), 10.25)
        else:
            monitor.handle(ev.NodePaused(0), 10.25)
        actions = monitor.handle(stacks(0, 1, 0), 11.0)
        actions += monitor.handle(stacks(1, 1, 1), 11.0)
        assert gathered(actions).number == 1
        assert monitor.hung is None
        assert monitor.next_deadline() == 10.25 + S

    def test_what_somebody_asked_for_ends_nothing(self) -> None:
        monitor = watching()
        asleep(monitor, 0, 5)
        monitor.handle(mon.StacksWanted(), 5.5)
        monitor.handle(stacks(0, 1, 0), 6.0)
        monitor.handle(stacks(1, 1, 1), 6.0)
        assert monitor.hung is None
        # and a hang that shows itself meanwhile has the answer that is on its way
        asleep(monitor, 6, 8)
        monitor.handle(mon.StacksWanted(), 9.5)
        assert asleep(monitor, 9, 10) == [Tell(mon.RanksHung(S))]

    def test_a_new_attempt_begins_anew(self) -> None:
        monitor = watching()
        asleep(monitor, 0, 10)
        assert sampled(monitor, 11.0, 0.0, attempt=1) == []  # before its ranks run
        assert monitor.handle(ev.RankSpawned(4, 7, 9, attempt=1), 12.0) == []
        assert monitor.next_deadline() == 12.0 + S
        assert monitor.handle(stacks(0, 1, 0), 12.5) == []
        assert monitor.handle(ev.RankSpawned(0, 0, 7), 12.5) == []  # late words of the old one
        assert monitor.handle(mon.StacksWanted(), 13.0) == asked(4, number=2)

    def test_time_in_which_we_were_stopped_counts_for_nobody(self) -> None:
        monitor = watching()
        asleep(monitor, 0, 9)
        monitor.extend_deadlines(60.0)
        assert monitor.tick(70.0) == []
        assert monitor.next_deadline() == 70.0 + S
        monitor.tick(71.0)  # once
        assert monitor.next_deadline() == 70.0 + S


class TestRanksThatWrite:  # V-6
    """All ranks sleep, but a thread of one writes a line every second."""

    WAITS = b'{"rank": 0, "groups": [["0", "", 2, [[%d, "all_reduce", false]]]]}'
    LATE = b'{"rank": 1, "groups": [["0", "", 2, [[3, "all_reduce", true]]]]}'

    def course(self, monitor: HangMonitor, first: int, last: int) -> list[Action]:
        actions: list[Action] = []
        for now in range(first, last + 1):
            monitor.handle(mon.OutputSeen(0.0), float(now))
            actions += sampled(monitor, float(now), 0.0, 0.0)
        return actions

    def answer(self, monitor: HangMonitor, number: int, now: float, step: int = 4) -> list[Action]:
        actions: list[Action] = []
        for rank, text in enumerate((self.WAITS % step, self.LATE)):
            said = replace(stacks(rank, number, rank), recorders=(mon.RankText(rank, text),))
            actions += monitor.handle(said, now)
        return actions

    def test_a_collective_that_stands_is_a_hang(self) -> None:
        monitor = watching()
        assert self.course(monitor, 0, 11) == asked(0, 1)
        assert self.answer(monitor, 1, 11.0) == []  # nobody is told yet
        assert self.course(monitor, 12, 19) == []
        assert self.course(monitor, 20, 20) == asked(0, 1, number=2, hung=True)
        told = [one.event for one in self.answer(monitor, 2, 20.5) if isinstance(one, Tell)]
        assert told[0] == mon.RanksHung(9.5 + S, writing=True)
        assert isinstance(told[1], mon.StacksGathered)
        assert monitor.hung is not None
        assert (monitor.hung.writing, monitor.hung.rank) == (True, 1)
        assert self.course(monitor, 22, 60) == []  # V-4

    def test_a_job_that_goes_on_is_none(self) -> None:
        monitor = watching()
        self.course(monitor, 0, 11)
        self.answer(monitor, 1, 11.0)
        self.course(monitor, 12, 21)
        assert self.answer(monitor, 2, 21.5, step=5) == []
        assert monitor.hung is None

    def test_ranks_without_a_collective_may_wait_for_anything(self) -> None:
        monitor = watching()
        self.course(monitor, 0, 11)
        for number in (1, 2):
            for rank in (0, 1):
                assert monitor.handle(stacks(rank, number, rank), 11.0) == []
            self.course(monitor, 12, 21)
        assert monitor.hung is None

    def test_a_job_that_works_is_not_asked(self) -> None:
        monitor = watching()
        for now in range(40):
            monitor.handle(mon.OutputSeen(0.0), float(now))
            assert sampled(monitor, float(now), 0.0, float(now)) == []

    def test_whoever_asks_meanwhile_is_answered(self) -> None:
        monitor = watching()
        self.course(monitor, 0, 11)
        assert monitor.handle(mon.StacksWanted(), 11.0) == []
        assert gathered(self.answer(monitor, 1, 11.5)).number == 1

    def test_gpus_that_all_wait_are_a_hang(self) -> None:
        monitor = watching(1)
        gpu = mon.GpuSample(0, 100.0, 7e10, 8e10, 120.0, 50.0, 700.0, 0.0)
        rank = mon.RankSample(0, "R", 0.0, 1, 1, 1, own=(0,), gpus=(0,))
        for now in range(24):
            monitor.handle(mon.OutputSeen(0.0), float(now))
            spun = replace(rank, cpu=float(now))
            monitor.handle(mon.NodeSampled(0, float(now), (spun,), (gpu,)), float(now))
            if now in (12, 22):
                monitor.handle(stacks(0, 1 + (now > 12), 0), float(now))
        assert monitor.hung is not None
        assert monitor.hung.writing


class TestHowOften:  # V-5
    def test_however_many_samples_come_all_ranks_are_judged_now_and_then(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judged: list[float] = []

        def hangs(rule: HangRule, now: float) -> bool:
            judged.append(now)
            return False

        monkeypatch.setattr(HangRule, "hangs", hangs)
        monitor = watching()
        for number in range(500):
            now = S + number / 100
            monitor.handle(mon.NodeSampled(0, now, ()), now)
            monitor.tick(now)
        assert judged[0] == S
        assert len(judged) <= 1 + 5 / LEAST
        due = monitor.next_deadline()
        assert due is not None  # the last samples may show it
        monitor.tick(due)
        assert judged[-1] == due
        assert monitor.next_deadline() is None
        monitor.tick(due + 1)
        assert judged[-1] == due

    def test_what_came_too_soon_to_be_judged_is_not_forgotten(self) -> None:
        monitor = watching()
        asleep(monitor, 0, 5)
        for now in range(6, 11):
            assert sampled(monitor, float(now), 0.0) == []  # rank 1's host is late
        ranks = (mon.RankSample(1, "S", 0.0, 1, 1, 1),)
        assert monitor.handle(mon.NodeSampled(1, 10.1, ranks), 10.1) == []
        assert monitor.tick(10.1) == []
        assert monitor.next_deadline() == 10.0 + LEAST
        hung = [Tell(mon.RanksHung(S + LEAST)), *asked(0, 1, hung=True)]
        assert monitor.tick(10.0 + LEAST) == hung


class TestDoubt:
    """Rank 1 computes, or spins, while rank 0 waits."""

    def course(self, monitor: HangMonitor, first: int, last: int) -> list[Action]:
        actions: list[Action] = []
        for now in range(first, last + 1):
            actions += sampled(monitor, float(now), 0.0, float(now))
        return actions

    def test_it_is_told_once_a_silence(self) -> None:
        monitor = watching()
        assert self.course(monitor, 0, 11) == []
        assert self.course(monitor, 12, 40) == [Tell(mon.RanksWait(12.0, (0,), (1,)))]
        monitor.handle(mon.OutputSeen(0.0), 40.5)
        assert self.course(monitor, 41, 60) == [Tell(mon.RanksWait(12.5, (0,), (1,)))]

    def test_who_works_no_more_is_not_called_busy(self) -> None:
        """It imports until 6 s, and the samples of the last 10 s still show that at 15 s."""
        monitor = watching()
        actions: list[Action] = []
        for now in range(20):
            actions += sampled(monitor, float(now), 0.0, min(float(now), 6.0))
        told = [one.event for one in actions if isinstance(one, Tell)]
        assert told == [mon.RanksHung(S)]  # and no sign means none of its CPU, either


def test_when_the_run_is_over_nobody_waits_for_the_monitor() -> None:
    machine = RunMachine(make_plan(1, 1, limits=Limits(hang_timeout=600.0)))
    run = MonitoredRun(machine)
    machine.begin()
    assert not run.is_quiet(0.0)
    run.handle(ev.NodeReady(0, facts(0)), 0.0)
    run.handle(ev.RankSpawned(0, 0, 7), 0.0)
    assert not run.is_quiet(599.0)
    assert run.is_quiet(600.0)
    run.handle(ev.RankExited(0, 0, 0), 1.0)
    for stream in (1, 2):
        run.handle(ev.OutputEnded(0, 0, stream, 0, 0), 1.0)
    run.handle(ev.NodeSwept(0, 0), 1.0)
    assert run.next_deadline() is None
    assert run.handle(mon.NodeSampled(0, 1.0, ()), 2.0) == []


@cases(("host", "due"), [(0, 14.0), (1, 10.0)])
def test_the_file_that_shows_progress_is_on_the_first_host(host: int, due: float) -> None:
    rules = Restarts(most=1, progress_file="x")
    machine = RunMachine(make_plan(2, 1, limits=Limits(hang_timeout=S), restarts=rules))
    run = MonitoredRun(machine)
    machine.begin()
    for node in (0, 1):
        run.handle(ev.NodeReady(node, facts(node)), 0.0)
    run.handle(ev.NodeProbed(1, ("10.0.0.1",)), 0.0)
    for rank in (0, 1):
        run.handle(ev.RankSpawned(rank, rank, 7 + rank), 0.0)
    for now in (1.0, 4.0):
        for heard in (0, 1):
            run.handle(ev.NodeHeard(heard), now)
        run.handle(mon.NodeSampled(host, now, (), mark=int(now)), now)
    assert run.next_deadline() == due


def test_nobody_watches_where_nobody_asked() -> None:
    machine = RunMachine(make_plan(1, 1))
    run = MonitoredRun(machine)
    machine.begin()
    run.handle(ev.NodeReady(0, facts(0)), 0.0)
    for unasked in (mon.NodeSampled(0, 1.0, ()), mon.NodeStacks(0, 1, ())):
        assert run.handle(unasked, 1.0) == []  # or one host that says such a thing ends the run
    assert not run.is_quiet(9999.0)
    run.extend_deadlines(5.0)
    assert run.next_deadline() == 25.0
    assert run.handle(mon.StacksWanted(), 1.0) == asked(0)
    run.extend_deadlines(5.0)
    assert run.next_deadline() == 1.0 + GATHER + 5.0


def test_between_two_attempts_no_rank_is_waited_for() -> None:
    world = started(2, spares=1, most=1)
    world.lose(1)
    world.killed(0, 1)
    world.sweep(0)
    assert world.run.state == PAUSED
    answer = MonitoredRun(world.run).handle(mon.StacksWanted(), world.now)
    assert answer == [Tell(mon.StacksGathered(1, ()))]


def test_a_host_that_was_lost_before_anybody_asked_is_not_asked() -> None:
    world = started(2)
    world.lose(0)
    assert MonitoredRun(world.run).handle(mon.StacksWanted(), world.now) == asked(1)


def test_ranks_that_do_not_end_can_be_asked_where_they_are() -> None:
    world = started(2)
    world.tell(ev.SignalReceived(signal.SIGTERM))
    run = MonitoredRun(world.run)
    assert run.handle(mon.StacksWanted(), world.now) == asked(0, 1)
    run.handle(mon.NodeStacks(0, 1, ()), world.now)
    (told,) = run.handle(mon.NodeStacks(1, 1, ()), world.now)
    assert told == Tell(mon.StacksGathered(1, ()))
