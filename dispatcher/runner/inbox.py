"""What has happened and the loop has not looked at yet.

Signals to dispatch become events here, and nothing else is done in a handler.
"""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from dispatcher.core.events.run_events import Event, SignalReceived


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
