"""Which thread serves a host; and nothing that was said last is lost."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest
from rig import wait_for

from dispatcher.core.events import run_events as ev
from dispatcher.core.events.exec_events import CommandEnded
from dispatcher.model.failure import Ending, Failure, Kind
from dispatcher.remote.protocol.frames import SYNC
from dispatcher.runner.exec import command_link
from dispatcher.runner.exec.command_link import CommandLink
from dispatcher.runner.loop import HostExecutor
from dispatcher.transport.base import Call, Link, LinkClosed, PromptTimer, Target, Transport, Window

LIMIT = 60.0


class Played(Link):
    """A command that has ended and of which ``said`` comes, a piece each time it is rung."""

    tells_end = True

    def __init__(self, *said: bytes) -> None:
        self._said = list(said)
        self._ready: Callable[[], None] = lambda: None
        self.thread = ""
        self.closed = False

    def watch(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        ready()

    def ring(self) -> None:
        self._ready()

    def read(self, limit: int) -> bytes | None:
        self.thread = threading.current_thread().name
        return self._said.pop(0) if self._said else b""

    def read_errors(self, limit: int) -> bytes:
        return b""

    def write(self, data: bytes) -> None: ...

    def end_input(self) -> None: ...

    def gone(self) -> bool:
        return True

    def errors_ended(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def ending(self, timeout: float) -> Ending:
        return Ending(0)


class Piecewise(Played):
    """As ``Played``, but there is nothing between two pieces."""

    def read(self, limit: int) -> bytes | None:
        if not self._said:
            return None
        return self._said.pop(0) or None


class Answered(Call):
    until = time.monotonic() + 1000

    def __init__(self, answer: Link | Failure | Transport) -> None:
        self._answer = answer

    def watch(self, ready: Callable[[], None]) -> None:
        ready()

    def answer(self) -> Link | Failure | Transport | None:
        return self._answer

    def close(self) -> None: ...


class Way(Transport):
    """Answers calls with ``called``, and opens ``opened``."""

    def __init__(self, name: str, called: object = None, opened: object = None) -> None:
        self.name, self._called, self._opened = name, called, opened

    def open(
        self, target: Target, command: str, deadline: float, window: Window | None = None
    ) -> Link | Failure:
        assert isinstance(self._opened, Link)
        return self._opened

    def call(self, target: Target, command: str, deadline: float, opening: bytes) -> Call | None:
        if isinstance(self._called, Exception):
            raise self._called
        return Answered(self._called) if isinstance(self._called, (Link, Failure, Way)) else None


class Told:
    """What the commands of some hosts told."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        self.output: dict[int, bytes] = {}

    def command(self, node: int, transport: Transport, seconds: float = 60.0) -> CommandLink:
        return CommandLink(
            node=node, attempt=1, target=Target(f"n{node}"), transport=transport, opening=b"x",
            wrapper=None, sudo=False, window=None, seconds=seconds, credit=1 << 20, stdio=None,
            timer=PromptTimer(), tell=self.events.put, output=self._hear,
        )  # fmt: skip

    def _hear(self, node: int, stream: int, data: bytes) -> None:
        self.output[node] = self.output.get(node, b"") + data

    def last(self, count: int) -> dict[int, ev.Event]:
        """The last events of ``count`` hosts."""
        found: dict[int, ev.Event] = {}
        while len(found) < count:
            event = self.events.get(timeout=LIMIT)
            if isinstance(event, (CommandEnded, ev.NodeLost)):
                found[event.node] = event
        return found


def test_those_that_are_called_share_a_thread() -> None:
    told, executor = Told(), HostExecutor()
    links = [Played(SYNC + b"one\n"), Played(SYNC, b"two\n"), Played(SYNC + b"far\n")]
    lost = Failure(Kind.UNREACHABLE, "no route")
    executor.serve(told.command(0, Way("near", called=links[0])))
    executor.serve(told.command(1, Way("near", called=links[1])))
    executor.serve(told.command(2, Way("near", called=Way("far", opened=links[2]))))
    executor.serve(told.command(3, Way("near", called=lost)))
    ends = told.last(4)
    executor.close(LIMIT)
    assert told.output == {0: b"one\n", 1: b"two\n", 2: b"far\n"}
    assert ends[3] == ev.NodeLost(3, lost)
    assert [link.thread for link in links] == ["links", "links", "command:n2"]
    assert all(link.closed for link in links)


def test_a_bug_in_one_command_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    told, executor, bug = Told(), HostExecutor(), KeyError("a bug")
    executor.serve(told.command(0, Way("near", called=bug)))
    executor.serve(told.command(1, Way("near", called=Played(SYNC + b"one\n"))))
    ends = told.last(2)
    executor.close(LIMIT)
    assert reported == [bug]
    assert isinstance(ends[0], ev.NodeLost)
    assert "internal error: KeyError" in ends[0].failure.why
    assert ends[1] == CommandEnded(1, 0, None, held_open=False)


def test_last_words_are_waited_for_however_long_it_was_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(command_link, "time", clock)
    told, link = Told(), Piecewise(SYNC, b"", b"last words\n", b"")
    command = told.command(0, Way("far", opened=link))
    command.post = lambda item: None
    command.open()
    clock.now += 30.0  # the host takes its time; then all happens at once
    command.step(None)
    assert not command.over
    command.step(None)
    assert told.output == {0: b"last words\n"}
    assert not command.over
    clock.now += command_link.HELD_OPEN
    command.step(None)
    assert told.last(1) == {0: CommandEnded(0, 0, None, held_open=True)}


class Late(Call):
    """Has an answer from ``until`` on, and rings nobody."""

    def __init__(self, seconds: float, answer: Link | Failure) -> None:
        self.until = time.monotonic() + seconds
        self._answer = answer

    def watch(self, ready: Callable[[], None]) -> None: ...

    def answer(self) -> Link | Failure | Transport | None:
        return self._answer if time.monotonic() >= self.until else None

    def close(self) -> None: ...


class Calls(Way):
    def __init__(self, call: Call) -> None:
        super().__init__("near")
        self._call = call

    def call(self, target: Target, command: str, deadline: float, opening: bytes) -> Call | None:
        return self._call


class Silent(Played):
    """Says nothing, and goes on."""

    def watch(self, ready: Callable[[], None]) -> None: ...

    def read(self, limit: int) -> bytes | None:
        self.thread = threading.current_thread().name
        return None

    def gone(self) -> bool:
        return False

    def errors_ended(self) -> bool:
        return False


def test_hosts_are_looked_at_when_their_time_is_over() -> None:
    """Those on the thread for all, each at its own time, and those with one of their own."""
    told, executor = Told(), HostExecutor()
    lost = Failure(Kind.TIMEOUT, "late")
    executor.serve(told.command(0, Calls(Late(0.2, lost))))
    executor.serve(told.command(1, Calls(Late(0.05, Played(SYNC + b"one\n")))))
    executor.serve(told.command(2, Calls(Late(0.05, Silent())), seconds=0.2))
    executor.serve(told.command(3, Way("far", opened=Silent()), seconds=0.1))
    ends = told.last(4)
    executor.close(LIMIT)
    assert ends[0] == ev.NodeLost(0, lost)
    assert ends[1] == CommandEnded(1, 0, None, held_open=False)
    for node in (2, 3):
        end = ends[node]
        assert isinstance(end, ev.NodeLost)
        assert end.failure.kind is Kind.TIMEOUT
    assert told.output == {1: b"one\n"}


class Endless(Silent):
    """Its output never runs dry."""

    def watch(self, ready: Callable[[], None]) -> None:
        ready()

    def read(self, limit: int) -> bytes | None:
        return SYNC + bytes(limit)


def test_a_host_that_never_runs_dry_holds_up_no_other() -> None:
    told, executor = Told(), HostExecutor()
    told._hear = lambda node, stream, data: flood.taken(len(data))  # type: ignore[method-assign]
    flood = told.command(0, Way("near", called=Endless()))
    executor.serve(flood)
    executor.serve(told.command(1, Way("near", called=Played(SYNC + b"one\n"))))
    assert told.last(1) == {1: CommandEnded(1, 0, None, held_open=False)}
    flood.close()
    executor.close(LIMIT)
    assert executor._ours is not None
    assert not executor._ours.is_alive()


def test_what_comes_for_a_command_that_moved_to_its_own_thread_reaches_it() -> None:
    told, executor = Told(), HostExecutor()
    link = Silent()
    command = told.command(0, Way("near", called=Way("far", opened=link)))
    executor.serve(command)
    wait_for(lambda: command.link is link, LIMIT, "it is opened on a thread of its own")
    executor._inbox.put((command, None))  # as if somebody had rung before
    executor._inbox.put((command, "KILL"))
    command.close()
    executor.close(LIMIT)
    assert link.closed
    assert all(not thread.is_alive() for thread, _ in executor._threads)


def test_commands_that_are_over_are_not_waited_for() -> None:
    told, executor = Told(), HostExecutor()
    link = Silent()
    command = told.command(0, Calls(Late(0.0, link)))
    executor.serve(command)
    wait_for(lambda: command.link is link, LIMIT, "it is reached")
    command.close()
    wait_for(lambda: link.closed, LIMIT, "it is left")
    assert executor._due == {}
    assert not executor._here
    executor.close(LIMIT)
    assert executor._ours is not None
    assert not executor._ours.is_alive()


class Deaf(Silent):
    """Takes nothing that is written, until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written, self.is_free = threading.Event(), threading.Event()

    def write(self, data: bytes) -> None:
        self.is_written.set()
        assert self.is_free.wait(LIMIT)
        raise LinkClosed

    def close(self) -> None:
        super().close()
        self.is_free.set()


def test_a_host_that_takes_nothing_keeps_no_thread() -> None:
    told, executor, link = Told(), HostExecutor(), Deaf()
    command = told.command(0, Way("far", opened=link))
    executor.serve(command)
    assert link.is_written.wait(LIMIT)
    command.close()
    executor.close(0.4)
    assert link.closed
    (thread, _), *_ = executor._threads
    wait_for(lambda: not thread.is_alive(), LIMIT, "its thread ends")


def test_who_had_no_command_has_nobody_to_wait_for() -> None:
    executor = HostExecutor()
    executor.close(LIMIT)
    assert executor._ours is None


def test_a_bug_on_a_thread_of_its_own_is_told_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))

    class Broken(Silent):
        def watch(self, ready: Callable[[], None]) -> None:
            raise bug

    told, executor, bug, link = Told(), HostExecutor(), KeyError("x"), Played()
    broken = Broken()
    executor.serve(told.command(0, Way("far", opened=broken)))
    (end,) = told.last(1).values()
    executor.close(LIMIT)
    assert isinstance(end, ev.NodeLost)
    assert "internal error: KeyError" in end.failure.why
    assert reported == [bug]
    assert (broken.closed, link.closed) == (True, False)
