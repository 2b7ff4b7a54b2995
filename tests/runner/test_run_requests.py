"""What happens while ranks run: attempts, what ranks ask for, who looks on, Ctrl-Z, input."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.core.events import monitor_events as mon
from dispatcher.core.events import mpi_events, verdicts
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import CheckOrphans
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.job_plan import plan_job
from dispatcher.plan.job.placement import FIRST
from dispatcher.plan.job.request import Limits, Program, Request, Restarts
from dispatcher.runner import loop
from dispatcher.runner.run import liveness, run_loop
from runner.played import Agent, Order, Played, agents_with, plan_of

# -- attempts ---------------------------------------------------------------------------


#: what a host adds to stacks where there is neither NCCL nor torch
NOTHING: dict[str, Any] = {"flights": [], "recorders": [], "natives": [], "ras": b""}


def test_ranks_are_started_again_by_the_same_agents() -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        for rank, *_ in order["ranks"]:
            agent.writes(rank, b"loss 1\nstep 1 of 2\nstep 2 of 2\n")
            agent.exits(rank, 0 if agent.types().count("start_ranks") > 1 else 1)

    plan = plan_of(restarts=Restarts(most=1, progress_line=r"step \d"))
    played = Played(plan, *agents_with(2, start_ranks=start))
    verdict = played.run()
    assert (verdict.cause, len(verdict.attempts)) == (None, 1)
    assert len(played.hosts.opened) == 2
    for agent in played.agents:
        prepares = [order for order in agent.orders if order["type"] == "prepare"]
        assert [order["attempt"] for order in prepares] == [0, 1]
        starts = [order for order in agent.orders if order["type"] == "start_ranks"]
        counts = [dict(o["common"])[b"TORCHELASTIC_RESTART_COUNT"] for o in starts]
        assert counts == [b"0", b"1"]
        names = [order["pmi"]["name"] for order in starts]
        assert names[1] == names[0] + b"_r1"
        assert "sweep" in agent.types()
    progressed = played.heard.of(ev.RanksProgressed)  # once an attempt is enough
    assert [event.attempt for event in progressed] == [0, 1]
    assert progressed[0].rank in range(4)


def test_a_spare_takes_the_place_of_a_host_that_is_lost() -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        if agent.number == 1:
            agent.hangs_up()
        elif agent.types().count("start_ranks") > 1 or agent.number == 2:
            for rank, *_ in order["ranks"]:
                agent.exits(rank)

    hosts = tuple(Host(f"n{number}", slots=1) for number in range(3))
    request = Request(
        Hostlist(hosts), Program("command", ("prog",)), "/w", np=2, spares=1,
        restarts=Restarts(most=1),
    )  # fmt: skip
    plan = plan_job(request, "20260131-142501-k3f9x2")
    looked: list[CheckOrphans] = []

    def look(order: CheckOrphans) -> None:
        looked.append(order)
        played.runner.tell(ev.NodeCleared(order.node, 0))

    played = Played(plan, *agents_with(3, start_ranks=start), check_orphans=look)
    verdict = played.run()
    assert verdict.cause is None
    assert [played.runner.home(rank) for rank in (0, 1)] == [(0, 0), (2, 0)]
    assert played.runner.host_of(1) == "n2"
    assert played.agents[2].order("start_ranks")["ranks"][0][0] == 1
    (replaced,) = played.heard.of(ev.HostReplaced)
    assert (replaced.node, replaced.by, replaced.ranks) == (1, 2, (1,))
    assert {order.node for order in looked} <= {1}


# -- what ranks ask for -----------------------------------------------------------------


def _waits(agent: Agent, order: Order) -> None:
    agent.spawned(order)


def _exits_all(agent: Agent, order: Order) -> None:
    for rank in sorted(agent.living):
        agent.exits(rank)


def test_a_fence_opens_on_all_hosts_with_the_keys_of_all() -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        keys = b"keys %d" % agent.number
        agent.report("pmi.committed", world=0, fence="WORLD:0", epoch=0, keys=keys)

    agents = agents_with(2, start_ranks=start, release_fence=_exits_all)
    assert Played(plan_of(), *agents).run().cause is None
    for agent in agents:
        order = agent.order("release_fence")
        assert (order["world"], order["fence"], order["epoch"]) == (0, "WORLD:0", 0)
        assert sorted(order["keys"]) == [b"keys 0", b"keys 1"]


def test_hosts_are_asked_for_whom_a_fence_waits() -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        if agent.number == 0:
            agent.report("pmi.committed", world=0, fence="WORLD:0", epoch=0, keys=b"")
        else:
            agent.exits(2)

    def who(agent: Agent, order: Order) -> None:
        agent.report("pmi.waiting", never=[3], absent=[], seconds=order["seconds"])
        agent.exits(3, 1)

    agents = agents_with(2, start_ranks=start, ask_waiting=who)
    played = Played(plan_of(limits=Limits(mpi_stall_warning=0.2)), *agents)
    played.run()
    asked = agents[1].order("ask_waiting")
    assert {name: asked[name] for name in ("world", "fence", "epoch", "seconds")} == {
        "world": 0, "fence": "WORLD:0", "epoch": 0, "seconds": 0.2,
    }  # fmt: skip
    assert "ask_waiting" not in agents[0].types()
    (waiting,) = played.heard.of(mpi_events.PmiWaiting)
    assert (waiting.node, waiting.never, waiting.seconds) == (1, (3,), 0.2)


def test_a_rank_is_answered() -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        name = {"rank": 0, "service": b"s", "port": b"tag#0$"}
        agent.report("pmi.asked", verb="publish", **name)
        agent.report("pmi.asked", verb="lookup", **name)

    def answered(agent: Agent, order: Order) -> None:
        if order["line"].startswith(b"cmd=lookup"):
            _exits_all(agent, order)

    (agent,) = agents_with(1, start_ranks=start, answer_rank=_exits_all)
    assert Played(plan_of(1), agent).run().cause is None
    lines = [(o["rank"], o["line"]) for o in agent.orders if o["type"] == "answer_rank"]
    assert lines == [
        (0, b"cmd=publish_result rc=0\n"), (0, b"cmd=lookup_result rc=0 port=tag#0$\n"),
    ]  # fmt: skip


def test_pmix_is_served_where_a_rank_asks_for_it() -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        if agent.number == 1:
            agent.report("pmix.wanted")
        else:
            _exits_all(agent, order)

    agents = agents_with(2, start_ranks=start, serve_pmix=_exits_all)
    assert Played(plan_of(), *agents).run().cause is None
    order = agents[1].order("serve_pmix")
    assert (order["node"], order["hosts"]) == (1, [[b"n0", [0, 1]], [b"n1", [2, 3]]])
    assert "serve_pmix" not in agents[0].types()


def _enters_mpi(agent: Agent, order: Order) -> None:
    agent.spawned(order)
    agent.report("pmi.committed", world=0, fence="WORLD:0", epoch=0, keys=b"")


def _run_to_their_end(agent: Agent, order: Order) -> None:
    agent.spawned(order)
    _exits_all(agent, order)


def test_a_world_that_a_rank_spawns() -> None:
    def begun(agent: Agent, order: Order) -> None:
        if agent.number == 0:
            segments = [[2, [b"child", b"-x"], [[b"host", b"n1"], [b"wdir", b"/d"]]]]
            agent.report("pmi.spawn_asked", rank=1, segments=segments, preput=[[b"k", b"v"]])

    agents = agents_with(
        2,
        start_ranks=_enters_mpi,
        release_fence=begun,
        spawn_ranks=_run_to_their_end,
        answer_rank=_exits_all,
    )
    agents[1].facts["addresses"] = ["10.0.0.2", "10.9.9.9"]
    played = Played(plan_of(), *agents)
    assert played.run().cause is None
    assert "spawn_ranks" not in agents[0].types()
    order = agents[1].order("spawn_ranks")
    assert [(r[0], r[1], r[3]) for r in order["ranks"]] == [
        (FIRST, [b"child", b"-x"], b"/d"), (FIRST + 1, [b"child", b"-x"], b"/d"),
    ]  # fmt: skip
    assert dict(order["common"])[b"PMI_HOSTNAME"] == b"10.0.0.2"
    pmi = order["pmi"]
    start_name = agents[0].order("start_ranks")["pmi"]["name"]
    assert (pmi["world"], pmi["size"], pmi["name"]) == (1, 2, start_name + b"_1")
    assert pmi["preput"] == [[b"k", b"v"]]
    assert agents[0].order("answer_rank")["line"] == b"cmd=spawn_result rc=0\n"
    assert played.runner.home(FIRST + 1) == (1, 1)
    assert played.heard.of(mpi_events.WorldPlaced)[0].nodes == (1, 1)
    assert {event.rank for event in played.heard.of(ev.RankExited)} == {
        *range(4), FIRST, FIRST + 1,
    }  # fmt: skip


# -- looking on -------------------------------------------------------------------------


def test_where_the_ranks_are() -> None:
    class Asks(ev.Sink):
        """Asks once all ranks are known to run."""

        spawned = 0

        def event(self, entry: ev.Entry) -> None:
            self.spawned += isinstance(entry.event, ev.RankSpawned)
            if self.spawned == 4 and isinstance(entry.event, ev.RankSpawned):
                played.runner.tell(mon.SamplesWanted(2.0))
                played.runner.tell(mon.StacksWanted())

    def sample(agent: Agent, order: Order) -> None:
        if "stacks" in order:
            ranks = [[rank, 7, "S", "proc", b""] for rank in sorted(agent.living)]
            number = order["stacks"]["number"]
            agent.report("node.stacks", number=number, ranks=ranks, **NOTHING)
            agent.report("node.sampled", at=1.0, ranks=[], gpus=[], late=False)
            _exits_all(agent, order)

    agents = agents_with(2, start_ranks=_waits, sample=sample)
    played = Played(plan_of(), *agents, sinks=[Asks()])
    assert played.run().cause is None
    for agent in agents:
        often, gather = (o for o in agent.orders if o["type"] == "sample")
        assert (often["seconds"], "stacks" in often) == (2.0, False)
        assert set(often["parts"]) == {
            "dispatcher.remote.probe.sampler",
            "dispatcher.remote.probe.usage",
        }
        assert gather["stacks"]["number"] == 1
        assert 0 < gather["stacks"]["seconds"] < 10
        assert (gather["seconds"], len(gather["parts"])) == (2.0, 5)
    (gathered,) = played.heard.of(mon.StacksGathered)
    assert (gathered.number, gathered.late) == (1, ())
    assert len(played.heard.of(mon.NodeSampled)) == 2


def test_ranks_that_neither_write_nor_compute_hang() -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        agent.writes(0, b"a word\n")

    def sample(agent: Agent, order: Order) -> None:
        if "stacks" in order:
            ranks = [[rank, 7, "S", "proc", b""] for rank in sorted(agent.living)]
            agent.report("node.stacks", number=1, ranks=ranks, **NOTHING)
            return
        threading.Thread(target=sampled, args=(agent,), daemon=True).start()

    def sampled(agent: Agent) -> None:
        at = 0.0
        while not over.wait(0.1):
            at += 0.1
            ranks = [[rank, "S", 0.5, 1, 1, 1, None, None, None] for rank in (0, 1)]
            agent.report("node.sampled", at=at, ranks=ranks, gpus=[], late=False)

    over = threading.Event()
    (agent,) = agents_with(1, start_ranks=start, sample=sample)
    played = Played(plan_of(1, limits=Limits(hang_timeout=1.0)), agent)
    try:
        verdict = played.run()
    finally:
        over.set()
    assert isinstance(verdict.cause, verdicts.Hung)
    assert verdict.cause.seconds >= 1.0
    (hung,) = played.heard.of(mon.RanksHung)
    assert hung.seconds >= 1.0
    assert [o["signum"] for o in agent.orders if o["type"] == "signal_ranks"] == [15, 18]


def _writing(until: Callable[[int], bool]) -> Agent:
    """Of two ranks that compute next to nothing, one writes; until that is true of its lines."""

    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        threading.Thread(target=writes, args=(agent,), daemon=True).start()

    def writes(agent: Agent) -> None:
        for beat in range(600):
            time.sleep(0.1)
            ranks = [[rank, "S", 0.5, 1, 1, 1, None, None, None] for rank in (0, 1)]
            # by its clock twice as long: all that it tells is of the time that counts
            agent.report("node.sampled", at=0.2 * beat, ranks=ranks, gpus=[], late=False)
            agent.writes(0, b"step\n")  # a pause before this is one without samples, too
            if until(beat):
                break
        _exits_all(agent, {})

    return Agent(0, start_ranks=start)


def test_nor_where_we_do_not_run_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that waits for us then is judged by the output that has come before it."""
    late = list[float]()
    agent = _writing(lambda lines: bool(late))
    played = Played(plan_of(1, limits=Limits(hang_timeout=2.0)), agent)
    wait = played.runner._wait

    def sleepy(due: float | None) -> list[ev.Event]:
        arrived = wait(due)
        now = time.monotonic()
        if due is not None and due < now + 0.3 and _brings_samples(arrived):
            time.sleep(max(0.0, due - now))
            late.append(due)
        return arrived

    monkeypatch.setattr(played.runner, "_wait", sleepy)
    assert played.run().cause is None
    assert late
    assert played.heard.of(mon.RanksHung) == []


def _brings_samples(events: list[ev.Event]) -> bool:
    return any(isinstance(event, mon.NodeSampled) for event in events)


class Clock:
    """The loop's, which goes on while we are stopped."""

    thread_time = staticmethod(time.thread_time)

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def clock_gettime(self, which: int) -> float:
        return time.clock_gettime(which) + self.ahead


def test_hosts_are_heard_again_after_we_were_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they said meanwhile is in the links yet, and the threads that read those need a turn."""
    clock, agent = Clock(), Agent(0, start_ranks=Agent.spawned)
    for module in (loop, liveness, run_loop):
        monkeypatch.setattr(module, "time", clock)
    played = Played(plan_of(1), agent)  # lost after 20 s of silence
    get, steps = played.runner._inbox.get, count(1)

    def stopped(timeout: float | None = None) -> ev.Event:
        if timeout is None or not agent.living:
            return get(timeout=timeout)
        step = next(steps)
        clock.ahead += 25.0 if step == 29 else timeout
        if step <= 28:
            played.runner._beats.note(0)
        if step == 38:
            _exits_all(agent, {})
        return get(timeout=0.01)

    inbox = SimpleNamespace(get=stopped)
    for name in ("put", "empty", "qsize"):
        setattr(inbox, name, getattr(played.runner._inbox, name))
    monkeypatch.setattr(played.runner, "_inbox", inbox)
    assert played.run().cause is None
    assert [round(slept.seconds) for slept in played.heard.of(ev.LauncherSlept)] == [25]


# -- Ctrl-Z, input, sinks ---------------------------------------------------------------


def test_ctrl_z_stops_the_ranks_first_and_then_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []

    class Os:
        getpid = os.getpid
        urandom = os.urandom

        @staticmethod
        def kill(pid: int, signum: int) -> None:
            killed.append((pid, signum))

    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        if agent.number == 1:
            played.runner.tell(ev.SignalReceived(signal.SIGTSTP))

    monkeypatch.setattr(run_loop, "os", Os)
    agents = agents_with(2, start_ranks=start, resume_ranks=_exits_all)
    played = Played(plan_of(), *agents)
    assert played.run().cause is None
    assert killed == [(os.getpid(), signal.SIGSTOP)]
    for agent in agents:
        assert [t for t in agent.types() if t in ("pause_ranks", "resume_ranks")] == [
            "pause_ranks",
            "resume_ranks",
        ]
    assert ev.SignalReceived(signal.SIGCONT) in played.heard.of(ev.SignalReceived)


@pytest.fixture
def typed() -> Iterator[Callable[[bytes], None]]:
    """Takes what standard input shall bring, to its end."""
    kept, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    os.close(reading)

    def give(data: bytes) -> None:
        os.write(writing, data)
        os.close(writing)

    yield give
    os.dup2(kept, 0)
    os.close(kept)


def test_standard_input_goes_to_the_host_that_reads(typed: Callable[[bytes], None]) -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        if agent.number == 0:
            _exits_all(agent, order)

    def take(agent: Agent, order: Order) -> None:
        if not agent.input[-1]:
            agent.takes(sum(map(len, agent.input)))
            agent.report("input.closed", rank=3, taken=4)
            _exits_all(agent, order)

    typed(b"some words")
    agents = agents_with(2, start_ranks=start, input=take)
    played = Played(plan_of(stdin=3), *agents)
    assert played.run().cause is None
    assert (b"".join(agents[1].input), agents[1].input[-1]) == (b"some words", b"")
    assert agents[0].input == []
    assert played.heard.of(ev.InputLeft) == [ev.InputLeft((3,), 6, 10)]
    assert [
        o["stdin"] for o in (agents[0].order("start_ranks"), agents[1].order("start_ranks"))
    ] == [[], [3]]
