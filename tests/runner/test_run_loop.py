"""A whole run by its loop, on hosts that are played: which order each decision becomes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import pytest
from cases import cases
from rig import wait_for

from dispatcher.bootstrap import payload
from dispatcher.core.events import run_events as ev
from dispatcher.core.events import verdicts
from dispatcher.core.events.run_events import Event, Sink
from dispatcher.core.events.verdicts import Verdict
from dispatcher.model.failure import Kind
from dispatcher.model.host import Host, Hostlist
from dispatcher.plan.job.job_plan import plan_job
from dispatcher.plan.job.request import Limits, Program, Request
from dispatcher.runner.run import run_loop
from dispatcher.transport.base import Target
from runner.played import INT, Agent, Order, Played, agents_with, plan_of


def test_a_run_from_its_first_order_to_its_last() -> None:
    played = Played(plan_of())
    verdict = played.run()
    assert (verdict.cause, verdict.exit_code) == (None, 0)
    first, second = played.agents
    assert first.types() == ["prepare", "start_ranks", "finish"]
    assert second.types() == ["prepare", "probe", "start_ranks", "finish"]
    heard = played.heard
    assert heard.text == {(rank, 1): b"hello from %d\n" % rank for rank in range(4)}
    assert [entry.seq for entry in heard.entries] == [*range(1, len(heard.entries) + 1)]
    assert all(0 <= entry.t < 60 for entry in heard.entries)
    assert heard.of(ev.RunFinished) == [ev.RunFinished(0, "ok")]
    assert isinstance(heard.entries[-1].event, ev.RunFinished)
    assert heard.closed
    assert all(agent.closed.wait(60) for agent in played.agents)
    assert [played.runner.home(rank) for rank in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [played.runner.host_of(rank) for rank in (1, 2)] == ["n0", "n1"]


def test_what_the_agents_are_told_first() -> None:
    plan = plan_of(limits=Limits(heartbeat=3.0, lease=20.0, lifeline_grace=2.0))
    played = Played(plan)
    played.run()
    first, second = (agent.order("prepare") for agent in played.agents)
    for order in (first, second):
        assert (order["run_id"], order["attempt"], order["cwd"]) == (plan.run_id, 0, b"/w")
        assert (order["heartbeat"], order["lease"], order["lifeline_grace"]) == (3.0, 20.0, 2.0)
        assert order["credit"] == 1 << 20
    assert (first["node"], second["node"]) == (0, 1)
    assert (first["reserve"], second["reserve"]) == (0, None)  # the ranks meet on the first
    assert first["token"] == second["token"]
    assert len(first["token"]) == 16
    probe = played.agents[1].order("probe")
    assert (probe["addresses"], probe["port"]) == (["10.0.0.1"], 4000)
    other = Played(plan)
    other.run()
    assert other.agents[0].order("prepare")["token"] != first["token"]
    starts = [p.agents[0].order("start_ranks")["pmi"]["name"] for p in (played, other)]
    assert starts[0] != starts[1]


@cases(
    ("name", "agent_python", "first"),
    [("played", None, []), ("local", None, [sys.executable]), ("local", "/opt/py", ["/opt/py"]),
     ("played", "/opt/py", ["/opt/py"])],
)  # fmt: skip
def test_how_an_agent_is_started(name: str, agent_python: str | None, first: list[str]) -> None:
    hosts = (Host("n0", slots=1, user="me", port=2222, python="/own/python"), Host("n1", slots=1))
    request = Request(Hostlist(hosts), Program("module", ("m",)), "/w", python="python9")
    plan = plan_job(request, "20260131-142501-k3f9x2")
    played = Played(plan, agent_python=agent_python)
    played.hosts.name = name
    played.run()
    assert sorted(played.hosts.opened, key=str) == sorted(
        [
            (Target("n0", "me", 2222), payload.command(first, ["/own/python"], plan.run_id)),
            (Target("n1", None, None), payload.command(first, ["python9"], plan.run_id)),
        ],
        key=str,
    )
    assert first == [] or f'n="{first[0]} ' in played.hosts.opened[0][1]


def _one_fails(agent: Agent, order: Order) -> None:
    agent.spawned(order)
    if agent.number == 0:
        agent.exits(1, 3)


def test_a_failure_ends_the_others() -> None:
    verdict = (played := Played(plan_of(), *agents_with(2, start_ranks=_one_fails))).run()
    assert isinstance(verdict.cause, verdicts.RankFailed)
    assert (verdict.exit_code, verdict.cause.rank) == (3, 1)
    assert verdict.statuses == {0: -15, 1: 3, 2: -15, 3: -15}
    for agent in played.agents:
        signals = [(o["signum"], o["ranks"]) for o in agent.orders if o["type"] == "signal_ranks"]
        assert signals == [(signal.SIGTERM, None), (signal.SIGCONT, None)]
    assert played.heard.of(ev.RunFinished) == [ev.RunFinished(3, "RankFailed")]
    assert played.heard.of(ev.JobStopping) == [ev.JobStopping("RankFailed")]


def test_ranks_that_outlive_their_grace_are_swept() -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        agent.exits(0, 1)

    def deaf(agent: Agent, order: Order) -> None: ...

    agents = agents_with(1, start_ranks=start, signal_ranks=deaf)
    verdict = Played(plan_of(1, limits=Limits(grace=0.1)), *agents).run()
    assert agents[0].types() == [
        "prepare",
        "start_ranks",
        "signal_ranks",
        "signal_ranks",
        "sweep",
        "finish",
    ]
    assert verdict.statuses == {0: 1, 1: -9}


def test_a_host_that_cannot_be_reached_is_in_the_verdict() -> None:
    played = Played(plan_of(2), Agent(0))
    verdict = played.run()
    assert isinstance(verdict.cause, verdicts.Rejected)
    assert verdict.cause.failures[1].kind is Kind.REFUSED
    assert played.agents[0].types() == ["prepare", "finish"]
    assert verdict.exit_code == 125


def test_a_signal_to_dispatch_goes_to_the_ranks() -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        if agent.number == 1:
            played.runner.tell(ev.SignalReceived(signal.SIGUSR1))
            played.runner.tell(INT)

    played = Played(plan_of(), *agents_with(2, start_ranks=start))
    verdict = played.run()
    assert verdict.cause == verdicts.Interrupted(2)
    signals = [o["signum"] for o in played.agents[0].orders if o["type"] == "signal_ranks"]
    assert signals == [signal.SIGUSR1, signal.SIGINT, signal.SIGCONT]


def test_a_host_that_takes_nothing_keeps_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        for _ in range(3):
            played.runner.tell(INT)

    def deaf(agent: Agent, order: Order) -> None:
        assert agent.closed.wait(60)

    monkeypatch.setattr(run_loop, "JOIN_LIMIT", 0.4)
    before = set(threading.enumerate())
    played = Played(plan_of(1), *agents_with(1, start_ranks=start, signal_ranks=deaf))
    assert played.run().cause == verdicts.Interrupted(2)
    assert played.agents[0].closed.is_set()
    wait_for(lambda: set(threading.enumerate()) <= before, 20, "its threads have ended")


def test_the_process_s_own_signals_are_heard_while_it_runs() -> None:
    before = signal.getsignal(signal.SIGINT)

    def start(agent: Agent, order: Order) -> None:
        agent.spawned(order)
        os.kill(os.getpid(), signal.SIGINT)

    played = Played(plan_of(1), *agents_with(1, start_ranks=start))
    verdict = played.runner.run()
    assert verdict.cause == verdicts.Interrupted(2)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_sink_that_fails_is_left_out_and_told_of() -> None:
    class Broken(Sink):
        def output(self, rank: int, stream: int, data: bytes) -> None:
            raise ValueError("no")

    broken, failed = Broken(), list[Sink]()
    played = Played(plan_of(1), sinks=[broken], sink_failed=lambda sink, _: failed.append(sink))
    assert played.run().cause is None
    assert failed == [broken]
    assert len(played.heard.text) == 2


def test_a_verdict_that_is_known_already_is_only_told() -> None:
    known: list[Event] = [ev.NodeNoticed(0, "before")]
    played = Played(plan_of())
    given = Verdict(verdicts.Impossible("no room"), 2, 4)
    assert played.run(verdict=given, known=known) is given
    assert [entry.event for entry in played.heard.entries] == [
        *known, ev.RunFinished(2, "Impossible"),
    ]  # fmt: skip
    assert played.hosts.opened == []


def test_a_bug_of_ours_leaves_nobody_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> bytes:
        raise KeyError("a bug")

    monkeypatch.setattr(run_loop, "start_order", broken)
    before = set(threading.enumerate())
    played = Played(plan_of())
    with pytest.raises(KeyError, match="a bug"):
        played.run()
    assert all(agent.closed.wait(60) for agent in played.agents)
    assert played.heard.closed
    wait_for(lambda: set(threading.enumerate()) <= before, 20, "its threads have ended")


def test_the_plan_is_closed_once_gpus_were_counted() -> None:
    agents = agents_with(2)
    for agent in agents:
        agent.facts["gpus"] = 3
    hosts = Hostlist((Host("n0"), Host("n1")))
    request = Request(hosts, Program("command", ("prog",)), "/w", nproc_per_node="gpu")
    played = Played(plan_job(request, "20260131-142501-k3f9x2"), *agents)
    assert played.run().cause is None
    assert played.runner.plan.world_size == 6
    assert [len(agent.order("start_ranks")["ranks"]) for agent in agents] == [3, 3]
