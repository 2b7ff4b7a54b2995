"""The loop of a fan-out command: what hosts are told, what becomes of them, how it ends."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cases import cases

from dispatcher.bootstrap import shell
from dispatcher.core.events import exec_events
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.run_events import Entry, Sink
from dispatcher.model.failure import Ending, Failure
from dispatcher.model.host import Host
from dispatcher.plan.exec_plan import ExecPlan
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.runner.exec.exec_loop import ExecRunner
from dispatcher.runner.exec.stdio import StdioHandler
from dispatcher.transport.base import Link, Target, Transport, Window
from dispatcher.transport.process.command import LocalTransport
from runner.played import Command, Heard


class Terminal:
    """Stands for the user's terminal, which is given back by ``close``."""

    takes_output = False
    problem: str | None = None

    def __init__(self) -> None:
        self.given_back = threading.Event()

    def start(self, node: int, link: Link) -> None: ...

    def take_output(self, node: int, data: bytes) -> None: ...

    def finish(self, node: int) -> None: ...

    def close(self) -> None:
        self.given_back.set()


class Shown(Sink):
    """Output that takes its time on the way to the terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.after: list[bool] = []

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.after.append(self._terminal.given_back.wait(0.5))


def test_the_terminal_is_given_back_when_all_is_shown() -> None:
    """Or the last lines are written on a terminal that puts a CR before each LF once more."""
    terminal, transport = Terminal(), LocalTransport()
    shown = Shown(terminal)
    plan = ExecPlan((Host("localhost"),), ("echo", "last words"))
    try:
        runner = ExecRunner(plan, lambda host: transport, [shown], stdio=terminal)
        runner.run(())
    finally:
        transport.close()
    assert shown.after == [False]
    assert terminal.given_back.is_set()


# -- whole fan-outs on played hosts -----------------------------------------------------


class Hosts(Transport):
    """Each host's command is played by ``answer``, which is given the host and what came."""

    name = "played"

    def __init__(self, answer: Callable[[Played, bytes], None]) -> None:
        self._answer = answer
        self.links: dict[str, Played] = {}
        self.asked: list[tuple[Target, str, Window | None]] = []

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        self.asked.append((target, command, window))
        link = self.links[target.host] = Played(target.host, self._answer)
        return link


class Played(Command):
    """A command that hears everything that is written to it."""

    def __init__(self, name: str, answer: Callable[[Played, bytes], None]) -> None:
        super().__init__(lambda opening: None)
        self.host = name
        self.got: list[bytes] = []
        self._hear = answer
        self._ring: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        self.got.append(data)
        self._hear(self, data)

    def says(self, out: bytes) -> None:
        self._out.feed(out)

    def complains(self, errors: bytes) -> None:
        self._errors += errors
        self._ring()

    def watch(self, ready: Callable[[], None]) -> None:
        self._ring = ready
        super().watch(ready)
        ready()

    def ends(self, code: int | None = 0, signal: str | None = None) -> None:
        self._end(Ending(code, signal))


def echo(link: Played, data: bytes) -> None:
    link.says(SYNC + b"from " + link.host.encode())
    link.ends(0 if link.host != "n1" else 3)


def plan_of(count: int = 3, **fields: Any) -> ExecPlan:
    hosts = tuple(Host(f"n{number}", user="me", port=22 + number) for number in range(count))
    return ExecPlan(hosts, ("prog", "-v"), **fields)


def run(
    plan: ExecPlan, answer: Callable[[Played, bytes], None], **how: Any
) -> tuple[tuple[exec_events.Outcome, ...], Heard, Hosts]:
    heard, hosts = Heard(), Hosts(answer)
    runner = ExecRunner(plan, lambda host: hosts, [heard], **how)
    return runner.run(()), heard, hosts


def test_each_host_has_an_outcome_in_its_place() -> None:
    outcomes, heard, hosts = run(plan_of(tails=(("a",), ("b",), ("c",))), echo)
    assert outcomes == (exec_events.Exited(0), exec_events.Exited(3), exec_events.Exited(0))
    assert heard.text == {(node, 1): b"from n%d" % node for node in range(3)}
    assert sorted(target.port or 0 for target, _, _ in hosts.asked) == [22, 23, 24]
    assert {(target.user, command, window) for target, command, window in hosts.asked} == {
        ("me", shell.COMMAND, None)
    }
    for node, tail in enumerate("abc"):
        words = ("prog", "-v", tail)
        environment = [("DISPATCH_HOST", f"n{node}"), ("DISPATCH_INDEX", str(node)),
                       ("DISPATCH_COUNT", "3")]  # fmt: skip
        assert hosts.links[f"n{node}"].got == [shell.opening(words, environment)]
    done = heard.of(exec_events.HostDone)
    assert sorted(event.node for event in done) == [0, 1, 2]
    assert [entry.seq for entry in heard.entries] == [*range(1, len(heard.entries) + 1)]
    assert heard.closed


class Started(Sink):
    """Does something once the command has started."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def event(self, entry: Entry) -> None:
        if isinstance(entry.event, ev.NodeBooted):
            self._then()


def until_told(link: Played, data: bytes) -> None:
    """Runs until it is told to end."""
    if len(link.got) == 1:
        link.says(SYNC)
    else:
        link.ends(None, data.decode().strip())


def test_signals_to_dispatch_are_heard_while_it_runs() -> None:
    before = signal.getsignal(signal.SIGTERM)
    hosts, stop = Hosts(until_told), Started(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert ExecRunner(plan_of(1), lambda host: hosts, [stop]).run() == (
        exec_events.Interrupted(15),
    )
    assert signal.getsignal(signal.SIGTERM) is before


def sudo(link: Played, data: bytes) -> None:
    """Asks for a password, and takes one."""
    if data == b"secret\n":
        link.says(link.wrapper.ready)  # type: ignore[attr-defined]
    elif len(link.got) > 1:
        link.says(SYNC + b"I am root")
        link.ends(0)


class SudoHosts(Hosts):
    def open(self, target: Target, command: str, deadline: float, window: Any = None) -> Any:
        link = super().open(target, command, deadline, window)
        assert isinstance(link, Played)
        token = re.search(r"dispatch[0-9a-f]{16}", command)
        assert token
        link.wrapper = shell.wrapper(token[0], sudo="root")  # type: ignore[attr-defined]
        assert command == link.wrapper.command  # type: ignore[attr-defined]
        link.complains(link.wrapper.prompt)  # type: ignore[attr-defined]
        return link


@cases("given", [b"secret", None])
def test_sudo_s_password_is_asked_for_once(given: bytes | None) -> None:
    asked: list[bool] = []

    def ask(again: bool) -> bytes | None:
        asked.append(again)
        return given

    hosts, heard = SudoHosts(sudo), Heard()
    runner = ExecRunner(plan_of(2, sudo="root"), lambda host: hosts, [heard], ask=ask)
    outcomes = runner.run(())
    assert asked == [False]
    if given is None:
        assert [type(outcome).__name__ for outcome in outcomes] == ["Failed", "Failed"]
        assert heard.text == {}
    else:
        assert outcomes == (exec_events.Exited(0), exec_events.Exited(0))
        assert heard.text == {(node, 1): b"I am root" for node in range(2)}
        for link in hosts.links.values():
            assert (link.got[1], len(link.got)) == (b"secret\n", 3)
    assert len({command for _, command, _ in hosts.asked}) == 1


def test_a_wrong_password_is_sent_once_whatever_becomes_of_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second time the terminal fails, as one that hangs up may."""
    reported = threading.Event()  # the thread that asks may still be on its way there
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.set())

    def ask(again: bool) -> bytes | None:
        if again:
            raise OSError
        return b"wrong"

    def asks_again(link: Played, data: bytes) -> None:
        link.complains(link.wrapper.prompt)  # type: ignore[attr-defined]

    hosts = SudoHosts(asks_again)
    outcomes = ExecRunner(plan_of(2, sudo="root"), lambda host: hosts, [Heard()], ask=ask).run(())
    assert [type(outcome) for outcome in outcomes] == [exec_events.Failed, exec_events.Failed]
    assert sum(link.got.count(b"wrong\n") for link in hosts.links.values()) == 1
    assert reported.wait(60)


class Takes(StdioHandler):
    takes_output = True

    def __init__(self) -> None:
        self.taken: dict[int, bytes] = {}
        self.did: list[str] = []

    def start(self, node: int, link: Link) -> None:
        self.did.append("start")

    def take_output(self, node: int, data: bytes) -> None:
        self.taken[node] = self.taken.get(node, b"") + data

    def finish(self, node: int) -> None:
        self.did.append("finish")

    def close(self) -> None:
        self.did.append("close")


def test_who_talks_with_the_commands_takes_their_output() -> None:
    def answer(link: Played, data: bytes) -> None:
        link.complains(b"warning")
        link.says(SYNC + b"x" * (3 << 20))  # more than is under way at once
        link.ends(0)

    takes = Takes()
    outcomes, heard, _ = run(plan_of(1), answer, stdio=takes)
    assert outcomes == (exec_events.Exited(0),)
    assert takes.taken == {0: b"x" * (3 << 20)}
    assert heard.text == {(0, 2): b"warning"}
    assert takes.did == ["start", "finish", "close"]


def test_a_terminal_is_asked_for_with_its_size() -> None:
    def answer(link: Played, data: bytes) -> None:
        link.says(SYNC + b"out")
        link.ends(0)

    class Quiet(Hosts):
        def open(self, target: Target, command: str, deadline: float, window: Any = None) -> Any:
            link = super().open(target, command, deadline, window)
            assert isinstance(link, Played)
            token = re.search(r"dispatch[0-9a-f]{16}", command)
            assert token
            link.says(shell.wrapper(token[0], terminal=True).ready)
            return link

    hosts, heard = Quiet(answer), Heard()
    plan = plan_of(1, terminal=(100, 40), stdin=True)
    assert ExecRunner(plan, lambda host: hosts, [heard]).run(()) == (exec_events.Exited(0),)
    assert hosts.asked[0][2] == Window(100, 40)
    environment = plan.environment(0)
    assert hosts.links["n0"].got == [
        shell.opening(plan.words, environment, stdin=True, terminal=True)
    ]
    assert heard.text == {(0, 1): b"out"}
