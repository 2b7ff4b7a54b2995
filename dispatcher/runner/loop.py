"""What the loops of a run and of a fan-out command share: their inbox, signals, the way to connect.

Signals to dispatch become events in the inbox, and nothing else is done in a handler.

The gate that the threads of a run's hosts pass to connect is ``core.connect`` for many threads. A
host is past it once its link is open: what sshd's MaxStartups counts are connections that
have yet to log in, so an agent that takes long to start holds up nobody.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from dispatcher.core.connect import Attempt, ConnectPolicy
from dispatcher.core.events.run_events import Event, SignalReceived
from dispatcher.model.failure import Failure


class Inbox:
    """Events in the order they came; ``put`` from any thread or signal handler."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        """Something happened."""
        self._events.put(event)

    def wait(self, due: float | None) -> list[Event]:
        """All there is, once there is something; [] when ``due`` or ``LOOK`` came before.

        due: a time of the monotonic clock.
        """
        wait = LOOK if due is None else min(max(0.0, due - time.monotonic()), LOOK)
        try:
            first = self._events.get(timeout=wait)
        except queue.Empty:
            return []
        return [first, *(self._events.get() for _ in range(self._events.qsize()))]

    def asks_to_leave(self) -> bool:
        """Whether a signal is in what nobody will look at any more; empties it."""
        asked = False
        while not self._events.empty():
            asked = isinstance(self._events.get(), SignalReceived) or asked
        return asked


#: longest wait (s) of a loop that is told of signals: the kernel may give one to any thread,
#: while its Python handler runs in the main one, and only when that wakes
LOOK = 0.25


@contextmanager
def signals_to(tell: Callable[[int], None], signals: Sequence[signal.Signals]) -> Iterator[None]:
    """``tell(number)`` for each of ``signals`` that arrives; afterwards all is as it was.

    A signal that is ignored stays so: who started us wants us to survive it (nohup(1), the
    ``&`` of a script, a shell's trap).
    """

    def handle(signum: int, frame: FrameType | None) -> None:
        tell(signum)

    before = {}
    for signum in signals:
        if signal.getsignal(signum) != signal.SIG_IGN:
            before[signum] = signal.signal(signum, handle)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def pass_over(signals: Sequence[signal.Signals]) -> None:
    """From here on ``signals`` do nothing, and ``signals_to`` may still be told of them."""
    for signum in signals:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, lambda signum, frame: None)


class Stop:
    """Ctrl-C by a program: ``stop()``, or ``stop(now=True)`` as the second one, which kills.

    tell: puts an event into the inbox. That second one may be the first that comes; there is
    never a third, which would leave before the ranks are seen to be dead.
    """

    def __init__(self, tell: Callable[[SignalReceived], None]) -> None:
        self._tell = tell
        self._orders = 0

    def __call__(self, *, now: bool = False) -> None:
        wanted = 2 if now else 1
        while self._orders < wanted:
            self._orders += 1
            self._tell(SignalReceived(signal.SIGINT))


class ConnectGate:
    """``most`` hosts connect at once; each has ``seconds`` from its first attempt on."""

    def __init__(self, most: int, seconds: float) -> None:
        self._policy = ConnectPolicy(most, seconds, chance)
        self._room = threading.Condition()

    def enter(self, host: int) -> Attempt:
        """Wait for room; the attempt to make then."""
        with self._room:
            self._room.wait_for(lambda: self._policy.has_room)
            return self._policy.begin(host, time.monotonic())

    def reached(self, host: int) -> None:
        """``host`` is connected."""
        with self._room:
            self._policy.reached(host)
            self._room.notify(2)  # its own room, and what the window has grown by

    def failed(self, host: int, failure: Failure) -> float | None:
        """Seconds after which to ``enter`` once more; None: ``failure`` is final."""
        with self._room:
            self._room.notify()
            return self._policy.failed(host, failure, time.monotonic())

    def given_up(self, host: int) -> None:
        """Nobody connects to ``host`` any more."""
        with self._room:
            self._policy.given_up(host)
            self._room.notify()


def chance() -> float:
    """A random number from 0 to 1; needed only where hosts drop connections."""
    import random

    return random.random()  # noqa: S311 - it spreads attempts, nothing is secret
