"""The machine of a fan-out command: its rules by example; ``test_any_order`` has any sequence."""

from __future__ import annotations

import signal

from hypothesis import strategies as st

from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, Tell
from dispatcher.core.exec_machine import (
    CONNECT_SLACK,
    CloseHost,
    ExecMachine,
    Finished,
    SendPassword,
    SignalCommand,
    StartCommand,
)
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan
from dispatcher.transport.base import PromptTimer

DROPPED = Failure(Kind.DROPPED, "closed by the host", retryable=True)
REFUSED = Failure(Kind.REFUSED, "no sshd")


class Table:
    """A machine with its clock, and what it has ordered."""

    def __init__(self, hosts: int, *, begin: float = 100.0, **limits: object) -> None:
        exec_plan = ExecPlan(
            tuple(Host(f"n{i}") for i in range(hosts)),
            ("true",),
            limits=ExecLimits(**limits),  # type: ignore[arg-type]
        )
        self.now = begin
        self.limits = exec_plan.limits
        self.batches = exec_plan.limits.batches(hosts)
        self.begun = [0] * hosts  # attempts
        self.done: set[int] = set()
        self.rounds = ExecMachine(exec_plan, lambda: 0.5)
        self.connecting: set[int] = set()
        self.running: set[int] = set()
        self.signals: list[tuple[int, str]] = []
        self.told: list[ev.Event] = []
        self.result: tuple[exec_events.Outcome, ...] | None = None
        self.take(self.rounds.begin(self.now))

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.result is None, "nothing is ordered after the end"
            match action:
                case StartCommand(node, attempt):
                    assert node not in self.connecting | self.running | self.done, "E-3"
                    self.begun[node] += 1
                    assert attempt == self.begun[node]
                    self.connecting.add(node)
                    assert self.before(node) <= self.done, "E-2"
                    at_once = self.limits.at_once(len(self.begun))
                    assert len(self.connecting | self.running) <= at_once, "E-2"
                case SignalCommand(node, name):
                    self.signals.append((node, name))
                case CloseHost(node):
                    self.connecting.discard(node)
                    self.running.discard(node)
                case Tell(event):
                    self.told.append(event)
                    if isinstance(event, exec_events.HostDone):
                        assert event.node not in self.done, "E-3"
                        self.done.add(event.node)
                case Finished(outcomes):
                    self.result = outcomes
                    left = [isinstance(one, exec_events.NotStarted) for one in outcomes]
                    assert left == [attempts == 0 for attempts in self.begun], "E-8"

    def before(self, node: int) -> set[int]:
        """The hosts of the batches before that of ``node``."""
        begun = 0
        for size in self.batches:
            if node < begun + size:
                break
            begun += size
        return set(range(begun))

    def see(self, *events: ev.Event) -> None:
        for event in events:
            match event:
                case ev.NodeBooted(node) if node in self.connecting:
                    self.connecting.discard(node)
                    self.running.add(node)
                case ev.NodeLost(node) | exec_events.CommandEnded(node):
                    self.connecting.discard(node)
                    self.running.discard(node)
            self.take(self.rounds.handle(event, self.now))

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.result is None:
            due = self.rounds.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.take(self.rounds.tick(self.now))
        self.now = end


def up(node: int) -> ev.Event:
    return ev.NodeBooted(node, 0)


def ended(node: int, code: int | None = 0, name: str | None = None) -> ev.Event:
    return exec_events.CommandEnded(node, code, name)


def test_all_go_well() -> None:
    table = Table(2)
    table.see(up(0), up(1), ended(1), ended(0))
    assert table.result == (exec_events.Exited(0), exec_events.Exited(0))


def test_kinds_are_kept_apart() -> None:
    table = Table(4)
    table.see(up(0), ended(0, 3), up(1), ended(1, None, "KILL"), ev.NodeLost(2, REFUSED), up(3))
    table.see(ev.NodeLost(3, Failure(Kind.LOST, "cut")))
    assert table.result == (
        exec_events.Exited(3),
        exec_events.Killed("KILL"),
        exec_events.Failed(REFUSED),
        exec_events.Failed(Failure(Kind.LOST, "cut")),
    )


def test_fan_out_bounds_connecting_and_serial_bounds_work() -> None:
    table = Table(5, fanout=2)
    assert table.connecting == {0, 1}
    table.see(up(0))
    assert table.connecting == {1, 2}
    table = Table(5, serial=2)
    table.see(up(0), up(1))
    assert (table.connecting, table.running) == (set(), {0, 1})
    table.see(ended(0))
    assert table.connecting == {2}


def test_a_drop_is_tried_again_and_narrows_the_fan_out() -> None:
    table = Table(8, fanout=4)
    table.see(ev.NodeLost(0, DROPPED))
    assert table.connecting == {1, 2, 3}  # a window of 2: nobody new
    table.see(up(1), up(2), up(3))
    table.wait(0.2)
    assert 0 not in table.connecting  # it waits for its turn
    table.see(up(4))
    assert 0 in table.connecting
    table.see(up(0), ended(0))
    assert not any(
        isinstance(event, exec_events.HostDone) and event.node == 1 for event in table.told
    )


def test_drops_end_at_the_connect_limit() -> None:
    table = Table(1, connect=3.0)
    for _ in range(20):
        if table.result is None:
            table.see(ev.NodeLost(0, DROPPED))
            table.wait(2.0)
    assert table.result == (exec_events.Failed(DROPPED),)


class TestBatches:
    """E-2 and E-8"""

    def test_each_begins_when_the_one_before_is_done(self) -> None:
        table = Table(7, serial="1,30%")
        assert table.connecting == {0}
        table.see(up(0), ended(0))
        assert table.connecting == {1, 2, 3}
        table.see(up(1), ended(1), up(2), ended(2, 1), ev.NodeLost(3, DROPPED))
        assert table.connecting == set()  # one is to be tried again
        table.wait(0.2)
        table.see(up(3), ended(3))
        assert table.connecting == {4, 5, 6}
        began = [one for one in table.told if isinstance(one, exec_events.BatchStarted)]
        assert began == [
            exec_events.BatchStarted(1, 3, (0,)),
            exec_events.BatchStarted(2, 3, (1, 2, 3)),
            exec_events.BatchStarted(3, 3, (4, 5, 6)),
        ]

    def test_a_pause_is_between_batches_only(self) -> None:
        table = Table(2, serial=1, delay=30.0)
        table.see(up(0), ended(0, 1))  # without canaries nothing follows from a failure
        assert table.rounds.next_deadline() == 130.0
        table.wait(29.0)
        assert table.connecting == set()
        table.wait(1.0)
        table.see(up(1), ended(1))
        assert table.result == (exec_events.Exited(1), exec_events.Exited(0))

    def test_nobody_follows_canaries_that_all_failed(self) -> None:
        table = Table(4, serial="2,1", delay=5.0)
        table.see(up(0), ended(0, 1), ev.NodeLost(1, REFUSED))
        why = exec_events.NotStarted("all of batch 1 failed")
        assert table.result is not None
        assert table.result[2:] == (why, why)
        assert exec_events.exit_code(table.result) == 3

    def test_how_many_may_fail_is_asked_of_those_that_are_no_canaries(self) -> None:
        table = Table(4, serial="1,1", max_fail=2)
        table.see(up(0), ended(0), up(1), ended(1, 1))
        assert table.connecting == {2}
        table.see(up(2), ended(2, 1))
        assert table.result is not None
        assert table.result[3] == exec_events.NotStarted("stopped after 2 failed")
        table = Table(4, serial="1,1", max_fail=2)
        table.see(up(0), ended(0, 1))
        assert table.result is not None
        assert table.result[1] == exec_events.NotStarted("all of batch 1 failed")

    def test_who_is_left_by_a_share_of_failures_is_who_never_began(self) -> None:
        table = Table(10, serial="1,5", max_fail="20%")
        table.see(up(0), ended(0), up(1), up(2), ended(1, 1), ended(2, 1))
        assert table.connecting == {3, 4, 5}  # at work, and so they stay
        table.see(up(3), up(4), up(5), ended(3), ended(4), ended(5, 1))
        assert table.result is not None
        assert table.result[6:] == (exec_events.NotStarted("stopped after 2 failed"),) * 4

    def test_no_batch_follows_when_the_rest_is_left_out(self) -> None:
        table = Table(7, serial="1,4", max_fail=1)
        table.see(up(0), ended(0), *map(up, range(1, 5)), ended(1, 1), ended(2))
        batches = [one.number for one in table.told if isinstance(one, exec_events.BatchStarted)]
        assert batches == [1, 2]  # though as many are done as these have: 0-2, 5, 6

    def test_ctrl_c_and_the_deadline_between_two(self) -> None:
        for event, code in ((ev.SignalReceived(signal.SIGINT), 130), (None, 124)):
            table = Table(2, serial=1, delay=30.0, total=20.0)
            table.see(up(0), ended(0), *filter(None, [event]))
            table.wait(20.0)
            assert table.result is not None
            assert exec_events.exit_code(table.result) == code


SERIAL = st.none() | st.integers(1, 3) | st.sampled_from(["34%", "1,2", "1,34%,3", "100%,1"])
MAX_FAIL = st.none() | st.integers(1, 3) | st.just("50%")


class TestTyping:
    """E-7"""

    def test_time_stands_still_for_who_connects(self) -> None:
        table = Table(3, connect=10.0, fanout=2, total=1000.0)
        for began, now in ((True, 101.0), (True, 150.0), (False, 200.0)):
            table.take(table.rounds.handle(exec_events.Typing(began), now))
            assert table.rounds.tick(now + 40.0) == []
            assert table.rounds.next_deadline() == 1100.0
        table.take(table.rounds.handle(exec_events.Typing(False), 301.0))
        assert table.rounds.next_deadline() == 310.0 + CONNECT_SLACK
        assert table.rounds.tick(311.9) == []
        table.take(table.rounds.tick(312.1))
        assert len([one for one in table.told if isinstance(one, exec_events.HostDone)]) == 2

    def test_a_login_has_time_of_its_own(self) -> None:
        table = Table(1, connect=10.0, login=120.0)
        assert table.rounds.next_deadline() == 230.0 + CONNECT_SLACK
        table.take(table.rounds.tick(230.0 + CONNECT_SLACK))
        assert table.result is not None
        assert "not ready within 130 s" in str(table.result[0])

    def test_the_clock_of_the_threads(self) -> None:
        now = [1.0]
        typing = PromptTimer(lambda: now[0])
        seen = []
        for began, at in ((True, 2.0), (True, 4.0), (False, 5.0), (False, 9.0), (True, 20.0)):
            now[0] = at
            typing.changed(began)
            seen.append(typing.seconds())
        now[0] = 21.0
        assert [*seen, typing.seconds()] == [0.0, 2.0, 3.0, 7.0, 7.0, 8.0]


class TestPassword:
    """E-6"""

    def test_who_wants_it_later_gets_it_at_once(self) -> None:
        table = Table(2)
        table.rounds.handle(exec_events.PasswordAwaited(0), 101.0)
        table.rounds.handle(exec_events.PasswordTold(True), 102.0)
        table.rounds.handle(ev.NodeBooted(0, 0), 102.5)
        assert table.rounds.handle(exec_events.PasswordAwaited(1), 103.0) == [SendPassword(1, 10.0)]

    def test_none_given(self) -> None:
        table = Table(2)
        table.rounds.handle(exec_events.PasswordAwaited(0), 101.0)
        table.take(table.rounds.handle(exec_events.PasswordTold(False), 102.0))
        table.take(table.rounds.handle(exec_events.PasswordAwaited(1), 103.0))
        assert table.result is not None
        for outcome in table.result:
            assert isinstance(outcome, exec_events.Failed)
            assert outcome.failure.kind is Kind.SUDO
