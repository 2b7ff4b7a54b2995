"""Virtual time, and the launcher's own parts put into it: no thread, no clock, no network.

What is to happen stands in a heap by its time. Where the launcher waits (``EventLoop._wait``) the
world goes on: a host's turn is taken where the thread of all would have come to it, the sinks take
each event at once, and the gate lets hosts connect as the true one does. Processor time is counted
for the launcher alone: what scripted hosts do is taken off.

The launcher is one Python, so what it does for logins, bytes and wake-ups is one queue. With
``cores`` hosts share that many with it, as on the rig.
"""

from __future__ import annotations

import heapq
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from dispatcher.api import find_processes, run_session
from dispatcher.core.connect import ConnectAttempt, ConnectPolicy
from dispatcher.core.events import run_events as ev
from dispatcher.core.events.actions import CheckOrphans
from dispatcher.core.events.run_events import TICK, Entry
from dispatcher.model.failure import Failure
from dispatcher.model.host import Host
from dispatcher.output.files import journal, rank_logs  # noqa: F401 - they look at the clock
from dispatcher.runner import loop
from dispatcher.runner.loop import HostExecutor, HostLink
from dispatcher.runner.run import agent_link, run_loop
from dispatcher.transport.base import Link, Transport
from simulation.ways import Flat, Tree

if TYPE_CHECKING:
    from simulation.model import Model

#: seconds that a simulated run may take
LONGEST = 3600.0
#: seconds that who waits does wait: a clock goes on, however little is asked for
_LEAST = 1e-6
#: what the wall clock shows when a run begins, and the other one
EPOCH, BEGIN = 1.7e9, 1000.0


class Stuck(AssertionError):
    """The run waits, and nothing is to come."""


class Clock:
    """What the launcher's modules know as ``time``."""

    def __init__(self) -> None:
        self.now = BEGIN

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now - BEGIN

    def sleep(self, seconds: float) -> None:
        raise Stuck(f"somebody sleeps for {seconds} s")

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class World:
    """What is to happen, and when. dial: makes a link to a host, or says why there is none."""

    def __init__(self, model: Model, dial: Callable[[int], Link | Failure]) -> None:
        self.model = model
        self.clock = Clock()
        self.dial = dial
        self.login: Callable[[int], float] = lambda node: model.login
        self.way: Flat | Tree = Flat(self)
        self.theirs = 0.0  # processor time of scripted hosts
        self.sent = 0  # bytes that the launcher wrote to all links
        self.feed: Feed | None = None
        self._heap: list[tuple[float, int, bool, Callable[[], None]]] = []
        self._count = 0
        self._free = self.clock.now + model.first  # when the launcher has done what it has to do
        self._cores = [self.clock.now] * model.cores

    # -- time -----------------------------------------------------------------------------

    def at(self, when: float, do: Callable[[], None], *, theirs: bool = False) -> None:
        """``do`` at ``when``. theirs: a scripted host does it."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, theirs, do))

    def after(self, seconds: float, do: Callable[[], None], *, theirs: bool = False) -> None:
        """``do`` in so many seconds."""
        self.at(self.clock.now + seconds, do, theirs=theirs)

    def busy(self, seconds: float) -> float:
        """When the launcher has worked for so long, behind what it has to do already."""
        self._free = self._on_core(max(self.clock.now, self._free), seconds)
        return self._free

    def host_busy(self, seconds: float) -> float:
        """When a host has worked for so long."""
        return self._on_core(self.clock.now, seconds)

    def _on_core(self, begin: float, seconds: float) -> float:
        if not self._cores:
            return begin + seconds
        end = max(begin, heapq.heappop(self._cores)) + seconds
        heapq.heappush(self._cores, end)
        return end

    def go_on(self, has_news: Callable[[], bool], due: float | None) -> None:
        """Let things happen until the launcher has news, or ``due``. Raises: Stuck."""
        until = math.inf if due is None else due
        while not has_news() or (self._heap and self._heap[0][0] <= self.clock.now):
            when = self._heap[0][0] if self._heap else math.inf
            if until <= when or when == math.inf:
                if until == math.inf or until > BEGIN + LONGEST:
                    raise Stuck("nothing is to come")
                self._move(max(until, self.clock.now))
                return
            if when > BEGIN + LONGEST:
                raise Stuck("it does not come to an end")
            self._move(max(when, self.clock.now))
            _, _, theirs, do = heapq.heappop(self._heap)
            if theirs:
                self.theirs -= time.process_time()
            do()
            if theirs:
                self.theirs += time.process_time()

    def _move(self, when: float) -> None:
        """It becomes ``when``, with the sinks' ticks until then."""
        if self.feed is not None:
            self.feed.until(when)
        self.clock.now = when


class Feed(loop.SinkThread):
    """The sinks, which take at once and without a thread."""

    world: World

    def start(self) -> None:
        self._next_tick, self._ticking = self.world.clock.now + TICK, False
        self.world.feed = self

    def finish(self, give_up: Callable[[], bool]) -> bool:
        self._tell_all(lambda sink: sink.close())
        return True

    def event(self, entry: Entry) -> None:
        self._ticking = True
        self._take(entry)

    def output(self, node: int, rank: int, stream: int, data: bytes) -> None:
        self._ticking = True
        self._take((node, rank, stream, data))

    def until(self, when: float) -> None:
        """Tick as often as the thread would until ``when``."""
        clock = self.world.clock
        self._next_tick = max(self._next_tick, clock.now)
        while self._ticking and self._next_tick <= when:
            clock.now = max(clock.now, self._next_tick)
            now = clock.now
            self._ticking = self._tell_all(lambda sink: sink.tick(now))  # noqa: B023
            self._next_tick = now + TICK


class Gate(loop.ConnectGate):
    """The gate, whose hosts wait in a queue."""

    world: World

    def __init__(self, most: int, seconds: float) -> None:
        super().__init__(most, seconds)
        self._policy = ConnectPolicy(most, seconds, lambda: 0.5)
        self._waiting: deque[HostTurns] = deque()

    def ask(self, host: HostTurns) -> None:
        """Let ``host`` connect when there is room."""
        self._waiting.append(host)
        self.admit()

    def admit(self) -> None:
        """Let those connect for whom there is room."""
        while self._waiting and self._policy.can_begin:
            host = self._waiting.popleft()
            host.connect(self._policy.begin(host.node, self.world.clock.now))


class HostTurns(agent_link.AgentLink):
    """A host's link, whose turns are taken when something has come or is due."""

    world: World

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        assert isinstance(self.gate, Gate)
        self._queue = self.gate
        self._items: list[object] = []
        self.post = self._came
        self._called = False  # something has come
        self._wakes_at = math.inf

    def connect(self, attempt: ConnectAttempt) -> None:
        """Its turn to connect has come."""
        if self.stopping:
            self._end(None)
            return
        self.tell(ev.NodeConnecting(self.node, attempt.number))
        self.world.way.reach(self.node, self._answered)

    def _answered(self) -> None:
        opened = self.world.dial(self.node)
        if isinstance(opened, Failure):
            again = self.gate.failed(self.node, opened)
            if isinstance(again, Failure):
                self._end(again)
            else:
                self.world.after(again, lambda: self._queue.ask(self))
                self._queue.admit()
            return
        self.gate.reached(self.node)
        self._queue.admit()
        self.link = opened
        by = self.transport.name
        self.tell(ev.NodeConnected(self.node, opened.address, by, opened.steps))
        self._greet(opened)
        self._soon()

    def _came(self, item: object) -> None:
        self._items.append(item)
        self._soon()

    def _soon(self) -> None:
        """There is something to do."""
        if self.link is not None and not self._called:
            self._called = True
            self._wake_at(self.world.busy(self.world.model.launcher_turn))

    def _wake_at(self, when: float) -> None:
        if when < self._wakes_at:
            self._wakes_at = when
            self.world.at(when, self._woken)

    def _woken(self) -> None:
        if self.over or self._wakes_at > self.world.clock.now:
            return  # it was woken before, or is to be later
        self._wakes_at, self._called = math.inf, False
        items, self._items = self._items or [None], []
        for item in items:
            if not self.over:
                self.step(item)
        self._rest()

    def _rest(self) -> None:
        if self.over:
            self._end(None)
        elif self._items:
            self._soon()
        elif (due := self.due()) < self.world.clock.now + LONGEST:
            self._wake_at(max(self.world.clock.now + _LEAST, due))

    def _end(self, failure: Failure | None) -> None:
        self.over = True
        if failure is not None:
            self.lose(failure)
        self.leave()
        self._queue.admit()


class Executor(HostExecutor):
    """Lets hosts connect, and needs no thread."""

    def serve(self, link: HostLink) -> None:
        assert isinstance(link, HostTurns)
        link._queue.ask(link)

    def close(self, seconds: float) -> None: ...


class Way(Transport):
    """The way to all hosts; ``Gate`` and ``HostTurns`` go it."""

    name = "ssh"

    def open(self, *_: Any) -> Link | Failure:
        raise Stuck("nothing may wait for a connection")


class Runner(run_loop.Runner):
    """The run loop, which lets the world go on where it would wait."""

    world: World

    def _wait(self, due: float | None) -> list[ev.Event]:
        self.world.go_on(lambda: not self._inbox.empty(), due)
        return [self._inbox.get() for _ in range(self._inbox.qsize())]


class Cleanup(find_processes.FinalCleanup):
    """The last look, at hosts that nobody can reach any more."""

    def check_orphans(self, look: CheckOrphans) -> None: ...

    def clean(self, handled: Sequence[Any], also: Sequence[Host] = ()) -> list[str]:
        return []


@contextmanager
def launcher_in(world: World) -> Iterator[None]:
    """In this context runs are carried out in ``world``."""
    within = {"world": world}
    swaps: list[tuple[Any, str, type]] = [
        (loop, "SinkThread", Feed), (run_loop, "ConnectGate", Gate),
        (run_loop, "AgentLink", HostTurns), (run_loop, "HostExecutor", Executor),
        (run_session, "Runner", Runner),
        (run_session, "FinalCleanup", Cleanup),
    ]  # fmt: skip
    with ExitStack() as stack:
        for module, name, kind in swaps:
            own = type(name, (kind,), within)
            stack.enter_context(mock.patch.object(module, name, own))
        for name, known in [*sys.modules.items()]:
            if name.startswith("dispatcher.") and vars(known).get("time") is time:
                stack.enter_context(mock.patch.object(known, "time", world.clock))
        yield
