"""What both loops share: the sinks' thread, signals, the inbox, the gate to connect."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

import pytest
from cases import cases
from rig import wait_for

from dispatcher.core.events.run_events import TICK, Entry, NodeHeard, SignalReceived, Sink
from dispatcher.model.failure import Failure, Kind
from dispatcher.runner.loop import ConnectGate, EventLoop, SinkThread, Stop, pass_over, signals_to


class Recorder(Sink):
    def __init__(self) -> None:
        self.told: list[object] = []

    def event(self, entry: Entry) -> None:
        self.told.append(entry.seq)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self.told.append((rank, stream, data))

    def close(self) -> None:
        self.told.append("closed")


class Broken(Recorder):
    def output(self, rank: int, stream: int, data: bytes) -> None:
        raise ValueError("no")


def test_everything_in_order_to_every_sink_and_credit_after() -> None:
    sinks = [Recorder(), Broken(), Recorder()]
    taken: list[tuple[int, int]] = []
    failed: list[Sink] = []
    feed = SinkThread(sinks, lambda *told: taken.append(told), lambda sink, _: failed.append(sink))
    feed.start()
    feed.event(Entry(1, 0.0, NodeHeard(0)))
    feed.output(4, 9, 1, b"abc")
    feed.event(Entry(2, 0.0, NodeHeard(0)))
    feed.output(5, 9, 2, b"de")
    assert feed.finish(lambda: False)
    assert sinks[0].told == sinks[2].told == [1, (9, 1, b"abc"), 2, (9, 2, b"de"), "closed"]
    assert taken == [(4, 3), (5, 2)]
    assert failed == [sinks[1]]
    assert sinks[1].told == [1]


def test_a_stuck_sink_can_be_left() -> None:
    release = threading.Event()

    class Stuck(Sink):
        def output(self, rank: int, stream: int, data: bytes) -> None:
            release.wait(30)

    feed = SinkThread([Stuck()], lambda *told: None, lambda *told: None)
    feed.start()
    feed.output(0, 0, 1, b"x")
    assert not feed.finish(lambda: True)
    release.set()


def test_a_sink_is_asked_again_as_long_as_it_wants() -> None:
    class Drawn(Sink):
        def __init__(self) -> None:
            self.left = 3
            self.ticks: list[float] = []
            self.done = threading.Event()

        def tick(self, now: float) -> bool:
            self.ticks.append(now)
            self.left -= 1
            if not self.left:
                self.done.set()
            return self.left > 0

    drawn, other = Drawn(), Recorder()
    feed = SinkThread([drawn, other], lambda *told: None, lambda *told: None)
    feed.start()
    assert drawn.ticks == []  # nothing has happened
    feed.event(Entry(1, 0.0, NodeHeard(0)))
    assert drawn.done.wait(60)
    feed.output(0, 0, 1, b"x")  # something happens: it is asked once more
    wait_for(lambda: len(drawn.ticks) == 4, 20, "it is asked after that")
    assert feed.finish(lambda: False)
    assert all(later - before >= TICK for before, later in pairwise(drawn.ticks))


def test_a_sink_that_cannot_close_leaves_the_others() -> None:
    class Stays(Recorder):
        def close(self) -> None:
            raise OSError("no")

    stays, good, failed = Stays(), Recorder(), list[tuple[Sink, str]]()
    feed = SinkThread(
        [stays, good], lambda *told: None, lambda sink, error: failed.append((sink, str(error)))
    )
    feed.start()
    assert feed.finish(lambda: False)
    assert (good.told, failed) == (["closed"], [(stays, "no")])


# -- signals ----------------------------------------------------------------------------


@pytest.fixture
def unchanged() -> Iterator[None]:
    """SIGUSR1 and SIGUSR2 are after the test what they were before."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("unchanged")
def test_signals_are_told_and_given_back() -> None:
    told: list[int] = []
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    both = (signal.SIGUSR1, signal.SIGUSR2)
    with suppress(KeyError), signals_to(told.append, both):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)  # who started us wants us to survive it
        raise KeyError
    assert told == [signal.SIGUSR1]
    assert [signal.getsignal(number) for number in both] == [signal.SIG_DFL, signal.SIG_IGN]


@pytest.mark.usefixtures("unchanged")
def test_signals_that_are_passed_over_do_nothing() -> None:
    told: list[int] = []
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    pass_over((signal.SIGUSR1, signal.SIGUSR2))
    signal.raise_signal(signal.SIGUSR1)
    with signals_to(told.append, (signal.SIGUSR1, signal.SIGUSR2)):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
    assert told == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN


@cases(
    ("orders", "count"),
    [([False], 1), ([False, False], 1), ([True], 2), ([False, True], 2), ([True, True, False], 2)],
)
def test_a_program_may_stop_a_run_and_then_kill_it(orders: list[bool], count: int) -> None:
    told: list[SignalReceived] = []
    stop = Stop(told.append)
    for now in orders:
        stop(now=now)
    kills = [SignalReceived(signal.SIGINT), SignalReceived(signal.SIGKILL)]
    assert told == kills[:count]


def test_only_the_first_stop_may_say_what_ranks_get_first() -> None:
    told: list[SignalReceived] = []
    stop = Stop(told.append)
    for _ in range(2):
        stop(first=signal.SIGUSR1)
    stop(now=True)
    assert told == [
        SignalReceived(signal.SIGINT, first=signal.SIGUSR1),
        SignalReceived(signal.SIGKILL),
    ]


# -- the inbox --------------------------------------------------------------------------


class Loop(EventLoop):
    def __init__(self, n_hosts: int = 1) -> None:
        self.heard = Recorder()
        super().__init__([self.heard], lambda sink, error: None, n_hosts)

    def _taken(self, node: int, nbytes: int) -> None: ...


def test_what_is_in_the_inbox_comes_together_and_in_order() -> None:
    loop = Loop()
    events = [NodeHeard(number) for number in range(3)]
    for event in events:
        loop.tell(event)
    assert loop._wait(None) == events
    assert loop._wait(time.monotonic() - 1) == []  # it is due
    assert loop._wait(time.monotonic() + 0.01) == []
    loop.tell(events[0])
    assert loop._wait(time.monotonic() - 1) == [events[0]]


def test_who_wants_to_leave_is_heard_among_late_news() -> None:
    loop = Loop()
    assert not loop._asks_to_leave()
    for event in (NodeHeard(0), SignalReceived(signal.SIGPIPE), SignalReceived(signal.SIGHUP)):
        loop.tell(event)
    assert not loop._asks_to_leave()
    for event in (NodeHeard(0), SignalReceived(2), NodeHeard(1)):
        loop.tell(event)
    assert loop._asks_to_leave()
    assert loop._wait(time.monotonic()) == []  # nobody will look at those any more


@cases(
    ("hosts", "credit"), [(1, 1 << 20), (64, 1 << 20), (128, 512 << 10), (1024, 64 << 10),
    (9999, 64 << 10)],
)  # fmt: skip
def test_the_more_hosts_the_less_output_of_each_may_wait(hosts: int, credit: int) -> None:
    assert Loop(hosts)._credit == credit


# -- the gate ---------------------------------------------------------------------------


def entering(gate: ConnectGate, host: int) -> threading.Event:
    entered = threading.Event()

    def enter() -> None:
        gate.enter(host)
        entered.set()

    threading.Thread(target=enter, daemon=True).start()
    return entered


@cases("how", ["reached", "given up", "failed"])
def test_who_is_past_the_gate_lets_the_next_one_in(how: str) -> None:
    gate = ConnectGate(1, 60.0)
    first = gate.enter(0)
    assert first.number == 1
    assert 50 < first.until - time.monotonic() <= 60
    second = entering(gate, 1)
    assert not second.wait(0.05)
    if how == "reached":
        gate.reached(0)
    elif how == "given up":
        gate.given_up(0)
    else:
        assert isinstance(gate.failed(0, Failure(Kind.AUTH, "no")), Failure)
    assert second.wait(60)
