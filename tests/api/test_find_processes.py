"""Leftovers of runs: what is said of them, who is looked at, and over this machine."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from cases import cases

from dispatcher.api import exec_session, find_processes
from dispatcher.api.find_processes import (
    LONGEST,
    ROUNDS,
    FinalCleanup,
    Look,
    look_by,
    summary,
)
from dispatcher.bootstrap.shell import SweptProcess
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import CheckOrphans
from dispatcher.core.events.exec_events import Exited
from dispatcher.core.events.run_events import Entry, NodeCleared
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.model.host import Host
from dispatcher.model.paths import new_run_id
from dispatcher.plan.exec_plan import ExecLimits, ExecPlan
from dispatcher.transport.process.command import LocalTransport

RUN = "20260131-142501-k3f9x2"
LOST = Failure(Kind.LOST, "gone")
KILLED, EXITED = Ending(None, "KILL"), Ending(1)


def tagged(what: str, name: str = "python", pid: int | None = 7) -> SweptProcess:
    return SweptProcess("n1", RUN, what, pid, name)


@cases(
    ("found", "whats", "lines"),
    [
        ({"n1": []}, ["found"], []),
        ({"n1": [tagged("found")]}, ["killed"], []),
        ({"n1": [tagged("killed")]}, ["killed"], ["n1: killed 1 process: python 1"]),
        ({"n1": [tagged("killed"), tagged("killed", "agent", 8), tagged("killed", "python", 9)],
          "n2": [tagged("killed", "agent"), tagged("killed"), tagged("killed")]},
         ["killed"], ["n[1-2]: killed 3 processes: agent 1, python 2"]),
        ({"n1": [tagged("killed")], "n2": [tagged("killed", "sh")]}, ["killed"],
         ["n1: killed 1 process: python 1", "n2: killed 1 process: sh 1"]),
        ({"n1": [tagged("removed", "/tmp", None), tagged("killed")]}, ["killed", "removed"],
         ["n1: killed 1 process: python 1", "n1: removed 1 folder in /tmp"]),
        ({"n1": [tagged("found", "/tmp", None), tagged("found", "/var/tmp", None),
                 tagged("found", "/tmp", None)]}, ["found"],
         ["n1: found 3 folders in /tmp, /var/tmp"]),
        ({"n1": [tagged("left", "a\x1b")]}, ["left", "kept"],
         ["n1: error: could not kill 1 process: a\\x1b 1"]),
        ({"n1": [tagged("kept", "/tmp", None)]}, ["left", "kept"],
         ["n1: error: could not remove 1 folder in /tmp"]),
    ],
)  # fmt: skip
def test_in_words(found: dict[str, Any], whats: Sequence[str], lines: list[str]) -> None:
    assert summary(found, *whats) == lines


# -- the end of a run --------------------------------------------------------------------


class Looks:
    """What looks at hosts find, in the place of hosts."""

    def __init__(self) -> None:
        self.found: dict[str, list[SweptProcess]] = {}
        self.failures: list[str] = []
        self.calls: list[tuple[list[str], list[str], dict[str, Any]]] = []

    def __call__(
        self, transport_for: Any, hosts: Sequence[Host], run_ids: Sequence[str], **how: Any
    ) -> Look:
        self.calls.append(([host.name for host in hosts], list(run_ids), how))
        return Look({host.name: self.found.get(host.name, []) for host in hosts}, self.failures)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(find_processes, "look_by", looks)
    return looks


class Cleanup:
    def __init__(self) -> None:
        self.told: list[ev.Event] = []
        transport: Any = None
        hosts = [Host("n1"), Host("n2"), Host("n3")]
        self.one = FinalCleanup(hosts, RUN, transport, self.told.append)

    def event(self, *events: ev.Event) -> None:
        for event in events:
            self.one.event(Entry(0, 0.0, event))

    @property
    def left(self) -> list[str]:
        return [host.name for host in self.one.hosts]


@cases(
    ("events", "left"),
    [
        ([], []),
        ([ev.NodeBooted(1, 0)], []),
        ([ev.NodeBooted(1, 0), ev.NodeLost(1, LOST, KILLED)], ["n2"]),
        ([ev.NodeLost(1, LOST, KILLED)], []),  # no agent was at work there
        ([ev.NodeBooted(1, 0), ev.NodeLost(1, LOST, EXITED)], []),
        ([ev.NodeBooted(1, 0), ev.NodeLost(1, LOST)], []),
        ([ev.NodeBooted(1, 0), ev.NodeDying(1, "x"), ev.NodeLost(1, LOST, KILLED)], []),
        ([ev.NodeBooted(1, 0), ev.NodeLost(1, LOST, KILLED), NodeCleared(1, 0)], []),
        ([ev.NodeBooted(1, 0), ev.NodeLost(1, LOST, EXITED), ev.NodeLost(1, LOST, KILLED)], []),
        ([ev.NodeBooted(2, 0), ev.NodeBooted(0, 0), ev.NodeLost(2, LOST, KILLED),
          ev.NodeLost(0, LOST, KILLED)], ["n1", "n3"]),
    ],
)  # fmt: skip
def test_which_hosts_have_nobody_to_clean_up(events: list[ev.Event], left: list[str]) -> None:
    cleanup = Cleanup()
    cleanup.event(*events)
    assert cleanup.left == left


def test_at_the_end_they_are_looked_at(looks: Looks) -> None:
    cleanup = Cleanup()
    assert cleanup.one.clean(()) == []
    assert looks.calls == []
    for host in (1, 2):
        cleanup.event(ev.NodeBooted(host, 0), ev.NodeLost(host, LOST, KILLED))
    looks.found = {
        "n2": [tagged("killed"), tagged("removed", "/tmp", None), tagged("left", "D")],
        "n3": [tagged("kept", "/tmp", None)],
    }
    looks.failures = ["n3: gone"]
    handled: Any = ("signals",)
    assert cleanup.one.clean(handled) == [
        "note: n2: killed 1 process: python 1, left behind",
        "note: n2: removed 1 folder in /tmp, left behind",
        "n2: error: could not kill 1 process: D 1",
        "n3: error: could not remove 1 folder in /tmp",
        "n3: gone",
    ]
    assert looks.calls == [(["n2", "n3"], [RUN], {"kill": True, "handled": handled})]


@pytest.mark.parametrize(
    ("found", "failures", "told"),
    [
        ([], [], [NodeCleared(1, 0)]),
        ([tagged("killed"), tagged("killed", "sh", 8), tagged("removed", "/tmp", None)], [],
         [NodeCleared(1, 2)]),
        ([tagged("killed"), tagged("left", "sh", 8)], [], []),
        ([], ["n2: unreachable"], []),
    ],
)  # fmt: skip
def test_a_look_between_two_attempts(
    looks: Looks,
    found: list[SweptProcess],
    failures: list[str],
    told: list[ev.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(find_processes, "REPLY_TIMEOUT", 60.0)
    looks.found, looks.failures = {"n2": found}, failures
    cleanup = Cleanup()
    cleanup.one.check_orphans(CheckOrphans(1, 5.0))
    (thread,) = cleanup.one._looks
    assert (thread.name, thread.daemon) == ("look:n2", True)
    cleanup.one.clean(())  # waits for it
    assert not thread.is_alive()
    assert cleanup.told == told
    limits = ExecLimits(connect=5.0, command=LONGEST, total=5.0 + ROUNDS)
    how = {"kill": True, "limits": limits, "handled": ()}
    assert looks.calls == [(["n2"], [RUN], how)]


def test_a_look_that_takes_long_is_not_waited_for(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_processes, "REPLY_TIMEOUT", 0.1)
    over = threading.Event()
    cleanup = Cleanup()
    monkeypatch.setattr(cleanup.one, "_look", lambda look: over.wait(30))
    cleanup.one.check_orphans(CheckOrphans(1, 5.0))
    assert cleanup.one.clean(()) == []
    over.set()
    cleanup.one._looks[0].join(60)


# -- over this machine ---------------------------------------------------------------------


def test_a_machine_without_leftovers() -> None:
    transport = LocalTransport()
    seen = look_by(lambda host: transport, [Host("localhost")], [new_run_id()], kill=False)
    assert (seen.found, seen.failures) == ({"localhost": []}, [])
    transport.close()


def test_no_host_is_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[ExecPlan] = []

    class Runner:
        def __init__(self, plan: ExecPlan, *others: object, **more: object) -> None:
            plans.append(plan)
            self.tell = None

        def run(self, handled: object) -> list[object]:
            return [Exited(0)]

    monkeypatch.setattr(exec_session, "ExecRunner", Runner)
    for limits in (None, ExecLimits(command=3.0)):
        look_by(lambda host: LocalTransport(), [Host("n1")], [RUN], kill=False, limits=limits)
    assert [plan.limits.command for plan in plans] == [LONGEST, 3.0]


def test_a_host_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(LocalTransport):
        def open(self, *given: Any, **more: Any) -> Any:
            return Failure(Kind.REFUSED, "nobody listens")

    transport = Refuses()
    hosts = [Host("n1"), Host("n2")]
    limits = ExecLimits(connect=60.0)
    seen = look_by(lambda host: transport, hosts, [RUN], kill=True, limits=limits, handled=())
    assert seen.found == {"n1": [], "n2": []}
    assert any("n[1-2]" in line and "connection refused" in line for line in seen.failures)
