"""Both machines, told anything at any time: what hosts report or make up, losses, signals, time.

What a host says is read by ``runner.run.reports``, as in a run, so it may lie about all but which
host it is and which ranks are its own; that is the edge's to hold (``tests/runner``).
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterable
from typing import Any

from fuzzing.choices import Choices
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from runner.test_reports import GOOD

from dispatcher.core.events import actions as act
from dispatcher.core.events import exec_events, monitor_events, mpi_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.verdicts import Cause, RestartAsked, Verdict
from dispatcher.core.exec_machine import AskPassword, SendPassword
from dispatcher.core.hang_monitor import MonitoredRun
from dispatcher.core.run.run_machine import RunMachine
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.plan.job.job_plan import Change
from dispatcher.plan.job.request import Limits, Restarts
from dispatcher.remote.protocol.packing import PackError, pack
from dispatcher.runner.run import reports

from .conftest import facts, make_plan
from .test_exec_machine import DROPPED, MAX_FAIL, REFUSED, SERIAL, Table

GONE = Failure(Kind.UNREACHABLE, "no route to host")
N_HOSTS, SPARES = 3, 1
HOSTS = st.integers(0, N_HOSTS - 1)
#: what ends most runs comes after other things have happened
SELDOM = st.integers(0, 7).map(lambda number: number == 7)
#: a run that nobody answers any more ends in so many seconds and deadlines
MOST_SECONDS, MOST_TICKS = 3600.0, 300


class Hosts:
    """Hosts as the launcher's edge has them: what each was told, and what may come from it."""

    def __init__(self, run: RunMachine) -> None:
        self.ranks = {node: set(place.ranks) for node, place in enumerate(run.hosts.planned)}
        self.ordered = dict.fromkeys(self.ranks, 0)  # the attempt that it was told to prepare
        self.prepared = dict.fromkeys(self.ranks, -1)  # the attempt that it was ready for
        self.lost: set[int] = set()
        self.ready: set[int] = set()  # for the attempt under way
        self.started: dict[int, int] = {}  # rank -> host, of the attempt under way
        self.committed: dict[tuple[int, str, int], set[int]] = {}
        self.asked: set[tuple[int, int]] = set()  # node and rank that wanted a world


class AnyRun(RuleBasedStateMachine):
    """The whole run machine. Rules: J-1 to J-9 of ``core.run.attempt``, R-1 to R-7."""

    @initialize(
        restarts=st.sampled_from([0, 1, 3]),
        hang=st.sampled_from([0.0, 0.0, 600.0]),
        min_nodes=st.sampled_from([None, 1]),
        check=st.booleans(),
        good=st.booleans(),
    )
    def begin(
        self, restarts: int, hang: float, min_nodes: int | None, check: bool, good: bool
    ) -> None:
        rules = Restarts(most=restarts, min_nodes=min_nodes, delay=0.5)
        plan = make_plan(N_HOSTS, spares=SPARES, restarts=rules, limits=Limits(hang_timeout=hang))
        self.run = RunMachine(plan, check=check)
        self.machine = MonitoredRun(self.run)
        self.now = 0.0
        self.ended: Verdict | None = None
        self.interrupted = False
        self.told: list[ev.Event] = []  # by hosts, in the attempt under way
        self.cause: tuple[object, Cause] | None = None
        self.hosts = Hosts(self.run)
        self.do(self.run.begin())
        if good:
            self.all_ready()

    # -- the edge -----------------------------------------------------------------------------

    def do(self, actions: Iterable[act.Action]) -> None:
        hosts = self.hosts
        for action in actions:
            assert self.ended is None, f"J-5, R-1: {action} after the end"
            node = getattr(action, "node", None)
            if node is not None and not isinstance(
                action, act.CloseLink | act.CheckOrphans | act.OpenLink | act.StartRanks
                | act.SpawnRanks | act.ServePmix
            ):  # fmt: skip
                assert node not in hosts.lost, f"R-5: {action}"
            match action:
                case act.OpenLink(node, attempt):  # also of one that was lost
                    hosts.lost.discard(node)
                    hosts.ordered[node], hosts.prepared[node] = attempt, -1
                case act.Prepare(node, attempt):
                    hosts.ordered[node] = attempt
                    hosts.ready.clear()
                    hosts.started.clear()
                case act.StartRanks(plan, node):
                    assert not self.interrupted, "J-2, R-2"
                    at = self.run.host_at(node)
                    here = {self.run.host_at(place.index) for place in plan.nodes}
                    assert here <= hosts.ready, f"J-1: {here - hosts.ready} were never ready"
                    assert at not in hosts.lost, "R-5"
                    hosts.ranks[at] = set(plan.nodes[node].ranks)
                    hosts.started.update(dict.fromkeys(hosts.ranks[at], at))
                case act.SpawnRanks(node, world):
                    assert not self.interrupted, "J-2"
                    assert hosts.asked, "J-9: nobody has asked for a world"
                    at = self.run.host_at(node)
                    own = {world.number(r) for r, home in enumerate(world.nodes) if home == node}
                    hosts.ranks[at] |= own
                case act.ReleaseFence(nodes, world, fence, epoch):
                    assert set(nodes) == hosts.committed.get((world, fence, epoch)), "J-8"
                case act.Tell(ev.RunRestarting() as event):
                    most = self.run.plan.restarts.most
                    asked = isinstance(event.cause, RestartAsked)
                    assert asked or event.number - event.asked <= most, "R-6, R-7"
                case act.End(verdict):
                    self.ended = verdict
                    assert not isinstance(verdict.cause, RestartAsked), "R-7"
        job = self.run._job
        if self.cause is not None and self.cause[0] is job:
            asked = isinstance(self.cause[1], RestartAsked)
            assert asked or job.cause is self.cause[1], "J-3: another cause"
        if job.cause is not None:
            self.cause = job, job.cause

    def tell(self, host: int, *events: ev.Event) -> None:
        """``host`` says so, if its link is there; as ``AgentLink`` does it."""
        hosts = self.hosts
        for event in events:
            if host in hosts.lost:
                return
            if isinstance(event, ev.NodeReady):
                if not hosts.prepared[host] < event.attempt == hosts.ordered[host]:
                    self.lose(host, Failure(Kind.PROTOCOL, "ready for another attempt"))
                    return
                hosts.prepared[host] = event.attempt
                hosts.ready.add(host)
            elif isinstance(event, ev.OfAttempt):
                event = dataclasses.replace(event, attempt=max(0, hosts.prepared[host]))
            if isinstance(event, mpi_events.PmiCommitted):
                key = event.world, event.fence, event.epoch
                hosts.committed.setdefault(key, set()).add(host)
            if isinstance(event, mpi_events.PmiSpawnAsked):
                hosts.asked.add((host, event.rank))
            self.told.append(event)
            self.do(self.machine.handle(event, self.now))

    def lose(self, host: int, failure: Failure, ending: Ending | None = None) -> None:
        if host not in self.hosts.lost:
            self.hosts.lost.add(host)
            self.do(self.machine.handle(ev.NodeLost(host, failure, ending), self.now))

    def to_all(self, event: ev.Event) -> None:
        self.do(self.machine.handle(event, self.now))

    # -- what goes well -------------------------------------------------------------------------

    @rule()
    def all_ready(self) -> None:
        hosts = self.hosts
        for host in sorted(set(hosts.ranks) - hosts.lost):
            if hosts.prepared[host] < hosts.ordered[host]:
                port = 4000 if self.run.host_at(0) == host else None
                known = facts(host, port=port)
                self.tell(host, ev.NodeReady(host, known, attempt=hosts.ordered[host]))
        for host in sorted(hosts.ranks):
            self.tell(host, ev.NodeProbed(host, ("10.0.0.1", "10.0.0.2", "10.0.0.3")))
        for rank, host in sorted(hosts.started.items()):
            self.tell(host, ev.RankSpawned(host, rank, 100 + rank))

    @rule(which=st.integers(0, 7), status=st.sampled_from([0, 0, 0, 1, -9]))
    def exits(self, which: int, status: int) -> None:
        ranks = sorted((rank, host) for host, own in self.hosts.ranks.items() for rank in own)
        rank, host = ranks[which % len(ranks)]
        self.tell(host, ev.RankExited(host, rank, status))
        for stream in (1, 2):
            self.tell(host, ev.OutputEnded(host, rank, stream, 3, 3))

    @rule(status=st.sampled_from([0, 0, -15]))
    def all_exit(self, status: int) -> None:
        for which in range(sum(map(len, self.hosts.ranks.values()))):
            self.exits(which, status)

    @rule(left=st.sampled_from([(), (), (7,)]))
    def all_swept(self, left: tuple[int, ...]) -> None:
        for host in sorted(self.hosts.ranks):
            self.tell(host, ev.NodeSwept(host, 0, left))

    @rule(status=st.sampled_from([0, 1, 1]))
    def attempt_ends(self, status: int) -> None:
        """As it does in a good world; where there may be another, that begins."""
        self.all_ready()
        if not status:
            self.all_exit(0)
        else:
            self.exits(0, status)
            self.all_exit(-15)
        self.all_swept(())
        self.passes(2.0, True)

    # -- what does not --------------------------------------------------------------------------

    @rule(host=HOSTS, kind=st.sampled_from(sorted(GOOD)), data=st.binary(max_size=24))
    def reports(self, host: int, kind: str, data: bytes) -> None:
        """A report at any time, right in its form and about own ranks, or nearly so."""
        take = Choices(data)
        own = sorted(self.hosts.ranks[host]) or [0]
        value = self.of_this_run({"type": kind, **GOOD[kind]}, take, own)
        if kind == "pmi.committed":
            value |= {"world": take.below(2), "epoch": take.below(2)}
        if kind == "node.ready" and take.chance(128):
            value["attempt"] = self.hosts.ordered[host]
        if take.chance(40):
            value = take.changed(value)
        try:
            events = reports.read(host, frozenset(self.hosts.ranks[host]), pack(value))
        except (reports.ReportError, PackError) as error:
            self.lose(host, Failure(Kind.PROTOCOL, str(error)))
            return
        self.tell(host, *events)

    def of_this_run(self, value: Any, take: Choices, own: list[int]) -> Any:
        """The ranks of the examples (4 and 5) made ranks of the host."""
        if isinstance(value, dict):
            return {
                name: take.one(own) if name == "rank" else self.of_this_run(item, take, own)
                for name, item in value.items()
            }
        if isinstance(value, list) and value and type(value[0]) is int and value[0] in (4, 5):
            return [take.one(own), *(self.of_this_run(item, take, own) for item in value[1:])]
        if isinstance(value, list):
            return [self.of_this_run(item, take, own) for item in value]
        return value

    @rule(host=HOSTS, which=st.integers(0, 5), ended=st.booleans(), missing=st.booleans())
    def output_ends(self, host: int, which: int, ended: bool, missing: bool) -> None:
        own = sorted(self.hosts.ranks[host])
        if own:
            event = ev.OutputEnded(host, own[which % len(own)], 1 + ended, 3, 3 + missing)
            self.tell(host, event)

    @rule(host=HOSTS, over=st.booleans(), really=SELDOM)
    def is_lost(self, host: int, over: bool, really: bool) -> None:
        if really:
            self.lose(host, GONE, Ending(1) if over else None)

    @rule(really=SELDOM)
    def restart_is_asked(self, really: bool) -> None:
        if really and self.ended is None:
            self.do(self.run.restart(Change(), ev.RestartWanted(), self.now))

    @rule(host=HOSTS)
    def is_cleared(self, host: int) -> None:
        if host in self.hosts.lost:
            self.to_all(ev.NodeCleared(host, 2))

    @rule(
        signum=st.sampled_from([2, 15, 1, 9, 13]),
        really=SELDOM,
        other=st.sampled_from([10, 18, 20]),
    )
    def signalled(self, signum: int, really: bool, other: int) -> None:
        signum = signum if really else other
        self.interrupted = self.interrupted or really
        self.to_all(ev.SignalReceived(signum))

    @rule(seconds=st.none() | st.sampled_from([1.0, 30.0]))
    def stacks_wanted(self, seconds: float | None) -> None:
        self.to_all(monitor_events.StacksWanted())
        self.to_all(monitor_events.OutputSeen(seconds or 0.0, bool(seconds)))

    @rule(host=HOSTS)
    def progresses(self, host: int) -> None:
        own = sorted(self.hosts.ranks[host]) or [0]
        self.to_all(ev.RanksProgressed(host, own[0], attempt=max(0, self.hosts.prepared[host])))

    @rule(seconds=st.sampled_from([0.1, 1.0, 12.0, 700.0]), heard=st.booleans())
    def passes(self, seconds: float, heard: bool) -> None:
        end = self.now + seconds
        for _ in range(MOST_TICKS):
            due = self.machine.next_deadline()
            if self.ended is not None or due is None or due > end:
                break
            self.now = max(self.now, due)
            if heard:
                for host in sorted(set(self.hosts.ranks) - self.hosts.lost):
                    self.tell(host, ev.NodeHeard(host))
            self.do(self.machine.tick(self.now))
        self.now = end

    @precondition(lambda self: self.ended is None)
    @rule(seconds=st.sampled_from([0.5, 99.0]))
    def was_stopped(self, seconds: float) -> None:
        self.now += seconds
        self.machine.extend_deadlines(seconds)

    # -- what holds -----------------------------------------------------------------------------

    @invariant()
    def a_good_end_is_one(self) -> None:
        """J-6"""
        if self.ended is None or self.ended.exit_code:
            return
        said = {(e.rank, e.status) for e in self.told if isinstance(e, ev.RankExited)}
        assert {*self.ended.statuses.items()} <= said, "J-6: made up"
        assert set(self.ended.statuses.values()) <= {0}, "J-6"

    def teardown(self) -> None:
        """J-7: nobody answers any more, and time alone ends the run, in bounded steps."""
        if not hasattr(self, "machine"):
            return
        begun = self.now
        for host in range(N_HOSTS):
            self.lose(host, GONE)
        for _ in range(MOST_TICKS):
            due = self.machine.next_deadline()
            if self.ended is not None or due is None:
                break
            self.now = max(self.now, due)
            self.do(self.machine.tick(self.now))
        assert self.ended is not None, "J-7: it never ends"
        assert self.now - begun < MOST_SECONDS, "J-7"
        self.do(self.machine.handle(ev.SignalReceived(2), self.now))  # J-5: nothing more


class AnyCommand(RuleBasedStateMachine):
    """The machine of a fan-out command. Rules: E-1 to E-8 of ``core.exec_machine``."""

    HOSTS = 5

    @initialize(
        fanout=st.integers(1, 4),
        serial=SERIAL,
        max_fail=MAX_FAIL,
        delay=st.sampled_from([0.0, 3.0]),
        total=st.none() | st.floats(1.0, 30.0),
    )
    def begin(
        self,
        fanout: int,
        serial: int | str | None,
        max_fail: int | str | None,
        delay: float,
        total: float | None,
    ) -> None:
        self.fanout = fanout
        self.stopped = False
        self.asked = 0
        self.typing = 0
        self.table = Table(
            self.HOSTS,
            fanout=fanout,
            serial=serial,
            max_fail=max_fail,
            delay=0.0 if serial is None else delay,
            total=total,
            command=9.0,
        )

    def see(self, event: ev.Event) -> None:
        table = self.table
        before = set(table.connecting)
        if self.stopped:
            table.see(event)
            assert table.connecting <= before, "E-1"
            return
        match event:
            case ev.NodeBooted(node) if node in table.connecting:
                table.connecting.discard(node)
                table.running.add(node)
            case ev.NodeLost(node) | exec_events.CommandEnded(node):
                table.connecting.discard(node)
                table.running.discard(node)
        actions = table.rounds.handle(event, table.now)
        self.asked += sum(isinstance(action, AskPassword) for action in actions)
        for action in actions:
            assert not isinstance(action, SendPassword) or action.node in before, "E-6"
        table.take(actions)

    @rule(node=st.integers(0, HOSTS - 1), kind=st.sampled_from(["connecting", "booted", "ended",
          "password", "output", "dropped", "refused", "killed"]))  # fmt: skip
    def tells(self, node: int, kind: str) -> None:
        self.see({
            "connecting": ev.NodeConnecting(node), "booted": ev.NodeBooted(node, 0),
            "ended": exec_events.CommandEnded(node, 0), "dropped": ev.NodeLost(node, DROPPED),
            "refused": ev.NodeLost(node, REFUSED), "output": ev.OutputEnded(node, node, 1, 2, 3),
            "killed": exec_events.CommandEnded(node, None, "KILL"),
            "password": exec_events.PasswordAwaited(node),
        }[kind])  # fmt: skip

    @rule(given=st.booleans())
    def password(self, given: bool) -> None:
        self.see(exec_events.PasswordTold(given))

    @rule(began=st.booleans())
    def types(self, began: bool) -> None:
        self.typing = max(0, self.typing + (1 if began else -1))
        self.see(exec_events.Typing(began))

    @rule(signum=st.sampled_from([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]))
    def signalled(self, signum: int) -> None:
        self.see(ev.SignalReceived(signum))
        self.stopped = True

    @rule(seconds=st.floats(0.01, 40.0))
    def passes(self, seconds: float) -> None:
        self.table.wait(seconds)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "table"):
            return
        table = self.table
        assert len(table.connecting) <= self.fanout, "E-2"
        assert self.asked <= 2, "E-6: once, and once more where it was wrong"
        done = [event.node for event in table.told if isinstance(event, exec_events.HostDone)]
        assert len(done) == len(set(done)), "E-3"
        if table.result is not None:
            assert sorted(done) == list(range(self.HOSTS)), "E-3"

    def teardown(self) -> None:
        """E-5: it is interrupted, the user types no more, and time alone ends it."""
        if not hasattr(self, "table"):
            return
        for _ in range(self.typing):
            self.see(exec_events.Typing(False))
        self.signalled(signal.SIGINT)
        self.table.wait(60.0)
        assert self.table.result is not None, "E-5"
        self.holds()


TestAnyRun = AnyRun.TestCase
TestAnyCommand = AnyCommand.TestCase
