"""When a fan-out command gives up a host, tries again or goes harder: second by second."""

from __future__ import annotations

import signal

import pytest
from cases import cases

from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import Action, Tell
from dispatcher.core.events.exec_events import Exited, Failed, Interrupted, NotStarted, TimedOut
from dispatcher.core.exec_machine import (
    CONNECT_SLACK,
    LAST_WAIT,
    MOST_UNSETTLED,
    AskPassword,
    CloseHost,
    ExecMachine,
    Finished,
    SendPassword,
    SignalCommand,
    StartCommand,
)
from dispatcher.core.interrupts import READER
from dispatcher.model.errors import InternalError
from dispatcher.model.failure import Failure, Kind
from dispatcher.model.host import Host
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan

DROPPED = Failure(Kind.DROPPED, "closed by the host", retryable=True)
REFUSED = Failure(Kind.REFUSED, "no sshd")
CTRL_C = ev.SignalReceived(signal.SIGINT)


def machine(hosts: int, *, plain: bool = False, **limits: object) -> ExecMachine:
    """At 100 s the first hosts are connected to."""
    found = tuple(Host(f"n{index}") for index in range(hosts))
    bounds = ExecLimits(**limits)  # type: ignore[arg-type]
    plan = ExecPlan(found, ("true",), limits=bounds, plain=plain)
    made = ExecMachine(plan, lambda: 0.5)
    starts = made.begin(100.0)
    assert {type(action) for action in starts} <= {StartCommand}
    return made


def done(node: int, outcome: exec_events.Outcome) -> list[Action]:
    """A host's part is over."""
    return [Tell(exec_events.HostDone(node, outcome)), CloseHost(node)]


def up(node: int) -> ev.Event:
    return ev.NodeBooted(node, 0)


class TestConnecting:
    def test_all_begin_at_once(self) -> None:
        plan = ExecPlan((Host("a"), Host("b")), ("true",), limits=ExecLimits(connect=7.0))
        made = ExecMachine(plan, lambda: 0.5)
        assert made.begin(100.0) == [StartCommand(0, 1, 7.0), StartCommand(1, 1, 7.0)]
        assert made.next_deadline() == 107.0 + CONNECT_SLACK

    def test_who_is_not_there_in_time_has_failed(self) -> None:
        made = machine(1, connect=7.0)
        assert made.tick(107.0 + CONNECT_SLACK - 0.1) == []
        late = Failed(Failure(Kind.TIMEOUT, "not ready within 7 s"))
        assert made.tick(107.0 + CONNECT_SLACK) == [*done(0, late), Finished((late,))]
        assert made.next_deadline() is None

    def test_who_waits_comes_before_who_never_came(self) -> None:
        made = machine(3, serial=1)
        assert made.handle(ev.NodeLost(0, DROPPED), 101.0) == [StartCommand(1, 1, 10.0)]
        assert made.tick(101.2) == []  # its time has come, there is no room
        assert made.handle(up(1), 102.0) == []
        ended = made.handle(exec_events.CommandEnded(1, 0), 103.0)
        assert ended == [*done(1, Exited(0)), StartCommand(0, 2, 7.0)]

    def test_late_words_change_nothing(self) -> None:
        made = machine(2)
        made.handle(up(0), 101.0)
        made.handle(exec_events.CommandEnded(0, 3), 102.0)
        for event in (
            up(0), ev.NodeLost(0, REFUSED), exec_events.CommandEnded(0, 0),
            exec_events.PasswordAwaited(0), ev.NodeConnecting(0), ev.NodeConnected(0, None, "x"),
            ev.OutputEnded(0, 0, 1, 0, 0),
        ):  # fmt: skip
            assert made.handle(event, 103.0) == []
        made.handle(up(1), 104.0)
        end = made.handle(exec_events.CommandEnded(1, None, "SEGV"), 105.0)[-1]
        assert end == Finished((Exited(3), exec_events.Killed("SEGV")))
        assert made.handle(CTRL_C, 106.0) == []
        assert made.tick(9999.0) == []

    def test_what_has_no_rule_is_our_bug(self) -> None:
        with pytest.raises(InternalError, match="exec machine: no rule for NodeDying"):
            machine(1).handle(ev.NodeDying(0, "x"), 101.0)

    @cases("how", ["ended", "lost"])
    def test_nothing_is_due_of_who_is_done(self, how: str) -> None:
        made = machine(2, command=5.0)
        made.handle(up(0), 101.0)
        made.handle(up(1), 103.0)
        assert made.next_deadline() == 106.0
        event = exec_events.CommandEnded(0, 0) if how == "ended" else ev.NodeLost(0, REFUSED)
        made.handle(event, 104.0)
        assert made.next_deadline() == 108.0


class TestCommand:
    def test_it_has_its_time_from_its_start(self) -> None:
        made = machine(1, command=5.0, grace=3.0)
        assert made.handle(up(0), 104.0) == []
        assert made.tick(108.9) == []
        assert made.tick(109.0) == [SignalCommand(0, "TERM")]
        assert made.tick(111.9) == []
        assert made.tick(112.0) == [SignalCommand(0, "KILL")]
        assert made.tick(112.0 + LAST_WAIT - 0.1) == []
        late = TimedOut("command", 5.0, ended=False)
        assert made.tick(112.0 + LAST_WAIT) == [*done(0, late), Finished((late,))]

    def test_the_end_of_a_command_sent_as_typed_is_not_seen(self) -> None:
        made = machine(1, plain=True, command=5.0)
        made.handle(up(0), 101.0)
        made.tick(106.0)
        late = TimedOut("command", 5.0, ended=False)
        gone = made.handle(exec_events.CommandEnded(0, None, "TERM"), 107.0)
        assert gone == [*done(0, late), Finished((late,))]

    @cases(
        ("end", "outcome"),
        [
            (exec_events.CommandEnded(0, 0), Exited(0)),
            (exec_events.CommandEnded(0, 1), TimedOut("command", 5.0)),
            (exec_events.CommandEnded(0, None, "TERM"), TimedOut("command", 5.0)),
            (ev.NodeLost(0, REFUSED), TimedOut("command", 5.0)),
        ],
    )
    def test_why_it_ended_is_why_it_was_stopped_unless_it_went_well(
        self, end: ev.Event, outcome: exec_events.Outcome
    ) -> None:
        made = machine(1, command=5.0)
        made.handle(up(0), 101.0)
        made.tick(106.0)
        assert made.handle(end, 107.0)[:2] == done(0, outcome)

    def test_the_first_reason_to_stop_it_stays(self) -> None:
        made = machine(1, command=5.0)
        made.handle(up(0), 101.0)
        made.tick(106.0)
        assert made.handle(CTRL_C, 107.0)[1:] == [SignalCommand(0, "INT")]
        assert made.handle(exec_events.CommandEnded(0, None, "INT"), 108.0)[:2] == done(
            0, TimedOut("command", 5.0)
        )

    def test_its_own_limit_does_not_start_anew_what_is_stopped(self) -> None:
        made = machine(1, command=5.0, grace=20.0)
        made.handle(up(0), 101.0)
        made.handle(CTRL_C, 102.0)
        assert made.next_deadline() == 122.0
        assert made.tick(106.0) == []


class TestAll:
    def test_time_is_up_for_all(self) -> None:
        assert machine(1, total=5.0).next_deadline() == 105.0
        made = machine(4, total=5.0, fanout=2, grace=3.0)
        made.handle(up(0), 101.0)  # now hosts 1 and 2 connect
        made.handle(ev.NodeLost(1, DROPPED), 104.95)
        assert made.tick(104.9) == []
        why = TimedOut("total", 5.0)
        left = NotStarted("time was up", 124)
        assert made.tick(105.0) == [
            Tell(exec_events.HostDone(3, left)), SignalCommand(0, "TERM"), *done(1, why),
            *done(2, why),
        ]  # fmt: skip
        assert made.next_deadline() == 108.0
        end = made.handle(exec_events.CommandEnded(0, 9), 106.0)
        assert end == [*done(0, why), Finished((why, why, why, left))]

    def test_nothing_is_due_when_all_is_over(self) -> None:
        made = machine(1, total=50.0)
        made.handle(ev.NodeLost(0, REFUSED), 101.0)
        assert made.next_deadline() is None
        assert made.tick(150.0) == []

    def test_after_so_many_failures_nobody_new_begins(self) -> None:
        made = machine(5, serial=2, max_fail=2)
        made.handle(ev.NodeLost(0, DROPPED), 101.0)  # comes again
        made.handle(ev.NodeLost(1, REFUSED), 101.0)
        left = NotStarted("stopped after 2 failed")
        assert made.handle(ev.NodeLost(2, REFUSED), 101.05) == [
            *done(2, Failed(REFUSED)), Tell(exec_events.HostDone(4, left)),
        ]  # fmt: skip
        assert made.tick(101.5) == [StartCommand(0, 2, 8.5)]
        assert made.handle(ev.NodeLost(3, REFUSED), 102.0) == done(3, Failed(REFUSED))
        made.handle(up(0), 103.0)
        end = made.handle(exec_events.CommandEnded(0, 0), 103.0)[-1]
        failed = Failed(REFUSED)
        assert end == Finished((Exited(0), failed, failed, failed, left))

    def test_ctrl_c_says_who_is_where(self) -> None:
        made = machine(5, serial=3)
        made.handle(up(1), 101.0)
        made.handle(ev.NodeLost(0, DROPPED), 101.0)  # host 3 comes in its place
        told, *rest = made.handle(CTRL_C, 101.0)
        assert told == Tell(exec_events.StatusAsked((2, 3), (1,), (0, 4)))
        why = Interrupted(2)
        assert rest == [
            Tell(exec_events.HostDone(4, NotStarted("interrupted", 130))), *done(0, why),
            SignalCommand(1, "INT"), *done(2, why), *done(3, why),
        ]  # fmt: skip

    def test_ctrl_c_climbs_with_a_pause_at_each_step(self) -> None:
        made = machine(1, grace=3.0)
        made.handle(up(0), 101.0)
        made.handle(CTRL_C, 102.0)
        assert made.tick(105.0) == [SignalCommand(0, "TERM")]
        assert made.tick(108.0) == [SignalCommand(0, "KILL")]
        assert made.next_deadline() == 108.0 + LAST_WAIT
        late = Interrupted(2, ended=False)
        assert made.tick(108.0 + LAST_WAIT)[:2] == done(0, late)

    def test_the_second_kills_and_the_third_leaves(self) -> None:
        made = machine(2, grace=3.0)
        made.handle(up(0), 101.0)
        made.handle(up(1), 101.0)
        made.handle(CTRL_C, 102.0)
        assert made.handle(CTRL_C, 102.5) == [SignalCommand(0, "KILL"), SignalCommand(1, "KILL")]
        assert made.next_deadline() == 102.5 + LAST_WAIT
        made.handle(exec_events.CommandEnded(0, None, "KILL"), 102.6)
        assert made.handle(ev.SignalReceived(signal.SIGTERM), 102.8) == []
        late = Interrupted(2, ended=False)
        assert made.handle(CTRL_C, 102.8) == [
            *done(1, late), Finished((Interrupted(2), late)),
        ]  # fmt: skip

    def test_ctrl_c_may_come_after_the_end_of_the_reader(self) -> None:
        for signum, first in ((signal.SIGINT, "INT"), (None, "TERM")):
            made = machine(1)
            made.handle(up(0), 101.0)
            assert made.handle(ev.SignalReceived(signal.SIGPIPE), 102.0) == []
            sent = made.handle(ev.SignalReceived(signum), 102.1) if signum else []
            sent += made.tick(102.0 + READER)
            assert [one for one in sent if isinstance(one, SignalCommand)] == [
                SignalCommand(0, first)
            ]

    def test_with_nobody_left_a_signal_is_the_end(self) -> None:
        made = machine(2, serial=1)
        actions = made.handle(ev.SignalReceived(signal.SIGHUP), 101.0)
        left = NotStarted("interrupted", 129)
        assert actions[-1] == Finished((Interrupted(1), left))


class TestPassword:
    def test_its_answer_has_the_time_of_a_connection(self) -> None:
        made = machine(2, connect=7.0)
        assert made.handle(exec_events.PasswordAwaited(0), 101.0) == [AskPassword()]
        assert made.next_deadline() == 107.0 + CONNECT_SLACK  # that of host 1
        assert made.handle(up(1), 102.0) == []
        assert made.next_deadline() is None
        told = made.handle(exec_events.PasswordTold(True), 500.0)
        assert told == [SendPassword(0, 7.0)]
        assert made.next_deadline() == 507.0 + CONNECT_SLACK
        assert made.handle(exec_events.PasswordTold(True), 501.0) == []  # told once

    def test_who_is_lost_meanwhile_needs_none(self) -> None:
        made = machine(2)
        made.handle(exec_events.PasswordAwaited(0), 101.0)
        made.handle(ev.NodeLost(0, REFUSED), 102.0)
        assert made.handle(exec_events.PasswordTold(True), 103.0) == []

    def test_who_is_dropped_meanwhile_is_asked_for_it_anew(self) -> None:
        made = machine(2)
        for node in range(2):
            made.handle(exec_events.PasswordAwaited(node), 101.0)
        assert made.handle(ev.NodeLost(0, DROPPED), 102.0) == []
        assert made.handle(exec_events.PasswordTold(True), 102.1) == [SendPassword(1, 10.0)]
        assert made.handle(ev.NodeLost(1, DROPPED), 102.2) == []  # which does not say it is wrong
        assert list(map(type, made.tick(103.0))) == [StartCommand] * 2
        again = [made.handle(exec_events.PasswordAwaited(node), 104.5) for node in range(2)]
        assert again == [[SendPassword(0, 10.0)], []]
        assert made.handle(up(0), 105.0) == [SendPassword(1, 10.0)]

    def test_one_host_tries_it_for_all(self) -> None:
        made = machine(3, connect=7.0)
        for node in range(3):
            made.handle(exec_events.PasswordAwaited(node), 101.0)
        assert made.handle(exec_events.PasswordTold(True), 102.0) == [SendPassword(0, 7.0)]
        assert made.handle(up(0), 103.0) == [SendPassword(1, 7.0), SendPassword(2, 7.0)]
        wrong = Failed(Failure(Kind.SUDO, "wrong password"))  # there it is another
        assert made.handle(exec_events.PasswordAwaited(2), 104.0) == done(2, wrong)

    def test_a_wrong_one_has_a_second_try_on_that_host(self) -> None:
        made = machine(2, connect=7.0)
        for node in range(2):
            made.handle(exec_events.PasswordAwaited(node), 101.0)
        made.handle(exec_events.PasswordTold(True), 102.0)
        assert made.handle(exec_events.PasswordAwaited(0), 103.0) == [AskPassword(again=True)]
        assert made.next_deadline() is None
        assert made.handle(exec_events.PasswordTold(True), 300.0) == [SendPassword(0, 7.0)]
        here, there = (
            Failed(Failure(Kind.SUDO, why))
            for why in ("wrong password", "not tried: the password was wrong on another host")
        )
        end = made.handle(exec_events.PasswordAwaited(0), 301.0)
        assert end == [*done(0, here), *done(1, there), Finished((here, there))]

    def test_who_is_lost_with_it_proves_nothing(self) -> None:
        made = machine(5, connect=7.0)
        for node in range(5):
            made.handle(exec_events.PasswordAwaited(node), 101.0)
        made.handle(exec_events.PasswordTold(True), 102.0)
        for node in range(MOST_UNSETTLED - 1):
            following = SendPassword(node + 1, 7.0)
            assert made.handle(ev.NodeLost(node, REFUSED), 103.0)[2:] == [following]
        failed = Failed(Failure(Kind.SUDO, "the first hosts that got the password failed with it"))
        assert made.handle(ev.NodeLost(2, REFUSED), 104.0)[2:-1] == [
            *done(3, failed), *done(4, failed),
        ]  # fmt: skip
