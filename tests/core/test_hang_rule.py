"""When a job hangs, from tables of what was seen; and what follows. No clock: seconds are told."""

from __future__ import annotations

import signal

from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.actions import GatherStacks, SignalRanks, Tell
from dispatcher.core.events.stack_frames import Frame, grouped
from dispatcher.core.hang_monitor import GATHER, MonitoredRun
from dispatcher.core.hang_rule import HangRule
from dispatcher.core.run.run_machine import RunMachine
from dispatcher.model.failure import Failure, Kind
from dispatcher.plan.job.request import Limits, Restarts

from .conftest import facts, make_plan

#: the limit of all jobs here, in seconds
S = 10


def seen(
    node: int,
    at: float,
    cpu: dict[int, float],
    gpus: tuple[mon.GpuSample, ...] = (),
    **more: object,
) -> mon.NodeSampled:
    own = (0,) if gpus else None
    ranks = tuple(mon.RankSample(rank, "S", used, 1, 1, 1, own, own) for rank, used in cpu.items())
    # the host's own clock shows something else
    return mon.NodeSampled(node, at + 1000, ranks, gpus, **more)  # type: ignore[arg-type]


class TestRule:
    """Two ranks on two hosts, a look every second; when a hang is seen first, if it is."""

    def first(
        self,
        cpu: object,
        *,
        gpus: object = lambda t: (),
        wrote: tuple[float, ...] = (),
        until: int = 40,
        **more: bool,
    ) -> int | None:
        hang = HangRule(S, 0.0, **more)
        for rank in (0, 1):
            hang.began(rank, rank, 0.0)
        for t in range(until):
            for when in wrote:
                if t - 1 < when <= t:
                    hang.wrote(when, progress=when % 1 == 0.5)
            for rank in (0, 1):
                hang.sampled(seen(rank, t, {rank: cpu(rank, t)}, gpus(t)), float(t))  # type: ignore[operator]
            if hang.hangs(float(t)):
                return t
        return None

    @cases(
        ("cpu", "when"),
        [
            (lambda rank, t: 5.0, 10),  # all sleep from the start
            (lambda rank, t: 0.01 * t, 10),  # threads that look at the clock
            (lambda rank, t: 0.2 if t > 4 else 0.0, 15),  # a fiftieth of a CPU is too much
            (lambda rank, t: min(t, 7), 17),  # all worked at first
            (lambda rank, t: t, None),  # all compute, or spin
            (lambda rank, t: t * rank, None),  # one computes
            (lambda rank, t: t * rank / 20, None),  # one does little: a twentieth of a CPU
            (lambda rank, t: t // 8 if rank else 0, None),  # one wakes now and then
            (lambda rank, t: min(t, 20) if rank else 0, 30),  # one went on for a while
            # what another process did is forgotten when that ends: they compute, or sleep
            (lambda rank, t: t + (3 * t if t < 12 else 0), None),
            (lambda rank, t: 3 * t if t < 12 else 0, 21),
        ],
    )  # fmt: skip
    def test_cpu(self, cpu: object, when: int | None) -> None:
        assert self.first(cpu) == when

    @cases(
        ("wrote", "when"),
        [((3.0,), 13), ((3.0, 12.9), 23), ((9.9, 19.8, 29.7, 39.6), None), ((3.25, 3.75), 14)],
    )
    def test_output(self, wrote: tuple[float, ...], when: int | None) -> None:
        assert self.first(lambda rank, t: 0.0, wrote=wrote) == when

    def test_progress_counts_alone_once_it_is_shown(self) -> None:
        def busy(rank: int, t: int) -> float:
            return float(t)

        lines = tuple(float(t) for t in range(40))
        assert self.first(busy, wrote=lines, shows_progress=True) is None
        assert self.first(busy, wrote=(4.5, *lines), shows_progress=True) == 15
        assert self.first(busy, wrote=(4.5, 12.5, *lines), shows_progress=True) == 23

    def test_a_file_that_changes_is_progress(self) -> None:
        hang = HangRule(S, 0.0, shows_progress=True)
        hang.began(0, 0, 0.0)
        for t in range(30):
            hang.sampled(seen(0, t, {0: t}, mark=min(t, 12)), float(t))
            assert hang.hangs(float(t)) == (t >= 22)

    def test_who_is_not_seen_is_not_still(self) -> None:
        hang = HangRule(S, 0.0)
        hang.began(0, 0, 0.0)
        hang.began(1, 1, 0.0)
        for t in range(20):
            hang.sampled(seen(0, t, {0: 0.0}), float(t))
            assert not hang.hangs(float(t))
        for t in range(20, 31):
            hang.sampled(seen(0, t, {0: 0.0}), float(t))
            hang.sampled(seen(1, t, {1: 0.0}), float(t))
            assert hang.hangs(float(t)) == (t >= 29)  # seen for the whole time but one period
        assert hang.hangs(34.0)  # three samples may be late
        assert not hang.hangs(34.1)
        assert not hang.hangs(40.0)  # its host has fallen silent
        hang.ended(1, 41.0)
        assert hang.due == 51.0

    def test_frequent_samples_cost_no_memory(self) -> None:
        hang = HangRule(S, 0.0)
        hang.began(0, 0, 0.0)
        for t in range(5000):
            hang.sampled(seen(0, t / 100, {0: 0.0}), t / 100)
        assert len(hang._used[0]) < 20
        assert hang.hangs(50.0)


SPY = b"""Process 12: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 12 (idle): "MainThread"
    wait (threading.py:324)
    load_batch (app/data.py:88)
    <module> (train.py:9)
Thread 14 (active): "worker"
    run (<frozen x>:3)
    native_thing (libtorch.so)
"""


class TestFrames:
    @cases(
        ("places", "states", "odd"),
        [
            ("wwwl", "SSSS", {3}),  # the others wait in a collective
            ("wl", "SS", {1}),
            ("wvl", "SSS", {2}),  # in two of them
            ("llll", "SSSS", set()),
            ("lm", "SS", set()),  # nobody can tell which
            ("lllm", "SSSS", {3}),
            ("wwwv", "SSSS", {3}),  # all wait, one elsewhere
            ("llmm", "SSSS", set()),
            ("llll", "SSTS", {2}),
            ("wwwl", "STSS", {1}),
        ],
    )
    def test_who_is_odd(self, places: str, states: str, odd: set[int]) -> None:
        known = {
            "w": (Frame("all_reduce", "/x/site-packages/torch/d.py", 1), Frame("step", "t.py", 2)),
            "v": (Frame("x", "/x/site-packages/y.py", 1), Frame("barrier", "d.py", 7)),
            "l": (Frame("wait", "/usr/lib/python3.11/t.py", 1), Frame("load", "t.py", 5)),
            "m": (Frame("load", "t.py", 6),),
        }
        groups = grouped({n: ("py-spy", states[n], known[place]) for n, place in enumerate(places)})
        assert {rank for group in groups if group.odd for rank in group.ranks} == odd
        by_rank = {rank: group for group in groups for rank in group.ranks}
        names = {"w": "all_reduce at d.py:1", "v": "barrier at d.py:7", "l": "load at t.py:5",
                 "m": "load at t.py:6"}  # fmt: skip
        for rank, place in enumerate(places):
            assert by_rank[rank].place == names[place]


class Played:
    """Two hosts with two ranks each; all ranks sleep unless it is said that they do not."""

    def __init__(self, hang: float = S, restarts: int = 0) -> None:
        limits = Limits(hang_timeout=hang)
        plan = make_plan(2, limits=limits, restarts=Restarts(most=restarts))
        self.machine = RunMachine(plan)
        self.run = MonitoredRun(self.machine)
        self.machine.begin()
        self.attempt = 0
        self.now = 0.0
        self.start()

    def start(self) -> None:
        for node in (0, 1):
            self.at(ev.NodeReady(node, facts(node, port=4000 + self.attempt), attempt=self.attempt))
        self.at(ev.NodeProbed(1, ("10.0.0.1",), attempt=self.attempt))
        for rank in range(4):
            self.at(ev.RankSpawned(rank // 2, rank, 100 + rank, attempt=self.attempt))

    def at(self, event: ev.Event) -> list[object]:
        return list(self.run.handle(event, self.now))

    def sleep(self, seconds: int) -> list[object]:
        """Time passes, with samples and ticks every second; what is ordered meanwhile."""
        done: list[object] = []
        for _ in range(seconds):
            self.now += 1.0
            for node in (0, 1):
                done += self.at(ev.NodeHeard(node))
                cpu = {2 * node: 0.0, 2 * node + 1: 0.0}
                sample = seen(node, self.now, cpu)
                done += self.at(
                    mon.NodeSampled(node, sample.at, sample.ranks, attempt=self.attempt)
                )
            done += self.run.tick(self.now)
        return done

    def answer(self, node: int, number: int = 1) -> list[object]:
        waits = b"Thread 1\n  barrier (d.py:1)\n"
        stacks = tuple(
            mon.RankStack(rank, 100 + rank, "S", "py-spy", SPY if rank == 3 else waits)
            for rank in (2 * node, 2 * node + 1)
        )
        return self.at(mon.NodeStacks(node, number, stacks, attempt=self.attempt))


def told(actions: list[object], kind: type) -> list[object]:
    return [a.event for a in actions if isinstance(a, Tell) and isinstance(a.event, kind)]


DOINGS = ("sleep", "ask", "answer", "lie", "write", "exit", "lose", "pause")


class TestHangMonitor:
    def test_ranks_that_hang_are_ended(self) -> None:
        world = Played()
        assert not told(world.sleep(S - 1), mon.RanksHung)
        done = world.sleep(3)
        assert [a for a in done if isinstance(a, GatherStacks)] == [
            GatherStacks(0, 1, 6.0, hung=True), GatherStacks(1, 1, 6.0, hung=True)
        ]  # fmt: skip
        assert len(told(done, mon.RanksHung)) == 1
        assert world.answer(0) == []
        done = world.answer(1)
        (gathered,) = told(done, mon.StacksGathered)
        assert [(group.ranks, group.odd) for group in gathered.groups] == [  # type: ignore[attr-defined]
            ((3,), True), ((0, 1, 2), False)
        ]  # fmt: skip
        assert SignalRanks(0, signal.SIGTERM) in done
        cause = world.machine._job.cause
        assert isinstance(cause, verdicts.Hung)
        assert (cause.rank, cause.node) == (3, 1)
        assert cause.exit_code == 124

    def test_a_hang_is_a_failure_that_is_tried_again(self) -> None:
        world = Played(restarts=1)
        world.sleep(S + 2)
        world.answer(0)
        world.answer(1)
        for rank in range(4):
            world.at(ev.RankExited(rank // 2, rank, -15))
            for stream in (1, 2):
                world.at(ev.OutputEnded(rank // 2, rank, stream, 0, 0))
        for node in (0, 1):
            world.at(ev.NodeSwept(node, 0))
        world.run.tick(world.now)
        assert world.machine.attempt == 1
        world.attempt = 1
        world.start()
        assert not told(world.sleep(S - 1), mon.RanksHung)
        done = world.sleep(3)
        assert GatherStacks(0, 2, 6.0, hung=True) in done
        assert told(done, mon.RanksHung)

    @given(st.lists(st.tuples(st.sampled_from(DOINGS), st.integers(0, 3)), max_size=40))
    def test_any_sequence_ends_in_one_answer_to_each_question(
        self, doings: list[tuple[str, int]]
    ) -> None:
        world = Played()
        done: list[object] = []
        for what, n in doings:
            number = world.run._monitor._number  # type: ignore[union-attr]
            match what:
                case "sleep":
                    done += world.sleep(1 + 4 * n)
                case "ask":
                    done += world.at(mon.StacksWanted())
                case "answer" | "lie":
                    done += world.answer(n % 2, number + (what == "lie"))
                case "write":
                    done += world.at(mon.OutputSeen(float(n)))
                case "exit":
                    done += world.at(ev.RankExited(n // 2, n, 0))
                case "lose":
                    done += world.at(ev.NodeLost(n % 2, Failure(Kind.LOST, "gone")))
                case "pause":
                    done += world.at(ev.NodePaused(n % 2))
        done += world.sleep(int(GATHER) + 1)
        asked = {a.number for a in done if isinstance(a, GatherStacks)}
        answered = [event.number for event in told(done, mon.StacksGathered)]  # type: ignore[attr-defined]
        assert len(answered) == len(set(answered))
        assert asked - set(answered) <= {max(asked, default=0)}
        ends = [event for event in told(done, ev.JobStopping) if event.why == "Hung"]  # type: ignore[attr-defined]
        assert len(ends) <= 1
