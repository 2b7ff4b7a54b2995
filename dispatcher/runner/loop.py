"""Shared parts of the loops of runs and fan-out commands: inbox, sinks, signals, links to hosts.

Events wait in the inbox of an ``EventLoop``, are numbered and stamped, and go to the sinks on the
sinks' own thread. A signal handler only puts an event into the inbox. A host gets new credit for
output only for bytes that every sink has taken; docs/design/output.md gives the reason.

A link is given one item at a time, and says until when it needs nothing. One thread looks after all
hosts that are reached by a call (``Transport.call``: kept connections); each other has its own.
"""

from __future__ import annotations

import abc
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from dispatcher.core.connect import ConnectAttempt, ConnectPolicy
from dispatcher.core.events.run_events import TICK, Entry, Event, SignalReceived, Sink
from dispatcher.model.failure import Failure, Kind
from dispatcher.transport.base import Link

#: output bytes that may wait for the sinks: of all hosts, and of one at most and at least
CREDIT_TOTAL, CREDIT_MOST, CREDIT_LEAST = 64 << 20, 1 << 20, 64 << 10

#: seconds the threads of all hosts together may take to end
JOIN_LIMIT = 2.0

#: longest wait (s) of a loop that gets signals: the kernel may give a signal to any thread, but its
#: Python handler runs in the main thread, and only when that wakes
POLL = 0.25

#: (node, rank, stream, data)
_Output = tuple[int, int, int, bytes]

#: bytes of the largest block that is kept for the next use when it is freed
_LARGEST_BLOCK = 1 << 20


class SinkThread:
    """A queue to ``sinks``, drained by its own thread from ``start`` to ``finish``.

    taken: called with (node, number of bytes) that all sinks have. failed: called once with the
    exception of a sink, which is then left out. told: called with each event that all sinks have.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        taken: Callable[[int, int], None],
        failed: Callable[[Sink, Exception], None],
        told: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._sinks = list(sinks)
        self._taken = taken
        self._failed = failed
        self._told = told
        self._queue: queue.SimpleQueue[_Output | Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sinks", daemon=True)

    def add(self, *sinks: Sink) -> None:
        """Give the queue to ``sinks``, too; before ``start``."""
        self._sinks += sinks

    def start(self) -> None:
        """Start the thread."""
        keep_freed_memory()
        self._thread.start()

    def finish(self, give_up: Callable[[], bool]) -> bool:
        """Let the sinks take what is queued and close; False if given up before.

        give_up: asked ten times a second, since a terminal that is paused takes nothing.
        """
        self._queue.put(None)
        while self._thread.is_alive():
            self._thread.join(timeout=0.1)
            if self._thread.is_alive() and give_up():
                return False
        return True

    def event(self, entry: Entry) -> None:
        """Queue an event for the sinks; from any thread."""
        self._queue.put(entry)

    def output(self, node: int, rank: int, stream: int, data: bytes) -> None:
        """Queue output for the sinks; from any thread."""
        self._queue.put((node, rank, stream, data))

    def _run(self) -> None:
        next_tick, ticking = 0.0, False
        while True:
            now = time.monotonic()
            if ticking and now >= next_tick:
                ticking, next_tick = self._tell_all(lambda sink: sink.tick(now)), now + TICK  # noqa: B023
            try:
                item = self._queue.get(timeout=max(0.0, next_tick - now) if ticking else None)
            except queue.Empty:
                continue
            ticking = True
            if item is None:
                break
            self._take(item)
        self._tell_all(lambda sink: sink.close())

    def _take(self, item: _Output | Entry) -> None:
        if isinstance(item, Entry):
            self._tell_all(lambda sink: sink.event(item))
            self._told(item.event)
        else:
            node, rank, stream, data = item
            self._tell_all(lambda sink: sink.output(rank, stream, data))
            self._taken(node, len(data))

    def _tell_all(self, tell: Callable[[Sink], object]) -> bool:
        """Call ``tell`` for each sink; whether one of them returned True."""
        again = False
        for sink in self._sinks:
            try:
                again = tell(sink) is True or again
            except Exception as error:  # noqa: BLE001 - one bad sink must not end the others
                self._leave_out(sink, error)
        return again

    def _leave_out(self, sink: Sink, error: Exception) -> None:
        self._sinks = [other for other in self._sinks if other is not sink]
        self._failed(sink, error)


def keep_freed_memory() -> None:
    """Let glibc keep freed buffers of up to 1 MiB, and 2 MiB in all of each thread.

    It learns that by seeing a larger block freed (mallopt(3)); docs/design/output.md.
    """
    bytes(_LARGEST_BLOCK)


class EventLoop(abc.ABC):
    """The base of both loops. sinks: get its events; sink_failed: see ``SinkThread``."""

    def __init__(
        self, sinks: Sequence[Sink], sink_failed: Callable[[Sink, Exception], None], n_hosts: int
    ) -> None:
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._feed = SinkThread(sinks, self._taken, sink_failed, self._told)
        self.add = self._feed.add
        self._credit = min(CREDIT_MOST, max(CREDIT_LEAST, CREDIT_TOTAL // n_hosts))
        self._seq = 0
        self._began = time.monotonic()
        self._overslept = 0.0  # seconds that the last wait took too long: we were stopped
        self._slept = 0.0  # the same, with the seconds in which the machine itself was stopped

    def tell(self, event: Event) -> None:
        """Put ``event`` into the inbox; from any thread or signal handler."""
        self._inbox.put(event)

    def _wait(self, due: float | None) -> list[Event]:
        """All that is in the inbox, once there is something; [] at ``due`` or after ``POLL``."""
        began, booted = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        wait = POLL if due is None else min(max(0.0, due - began), POLL)
        try:
            arrived = [self._inbox.get(timeout=wait)]
        except queue.Empty:
            arrived = []
        self._overslept = max(0.0, time.monotonic() - began - wait)
        self._slept = time.clock_gettime(time.CLOCK_BOOTTIME) - booted - wait
        return arrived + [self._inbox.get() for _ in range(self._inbox.qsize() if arrived else 0)]

    def _record(self, event: Event) -> None:
        """Number and stamp ``event``, and send it to the sinks."""
        self._seq += 1
        self._feed.event(Entry(self._seq, round(time.monotonic() - self._began, 6), event))

    @abc.abstractmethod
    def _taken(self, node: int, nbytes: int) -> None:
        """All sinks have taken ``nbytes`` of ``node``; from their thread."""

    def _told(self, event: Event) -> None:  # noqa: B027 - commands of a fan-out tell no floods
        """All sinks have ``event``; from their thread."""

    def _asks_to_leave(self) -> bool:
        """Whether a key was pressed, or TERM came, after the end; empties the inbox."""
        came = [self._inbox.get() for _ in range(self._inbox.qsize())]
        signums = {event.signum for event in came if isinstance(event, SignalReceived)}
        return not signums <= {signal.SIGHUP, signal.SIGPIPE}  # the reader left: sinks end by that


@contextmanager
def signals_to(tell: Callable[[int], None], signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Call ``tell(number)`` for each of ``signals`` that arrives; at the end restore the handlers.

    A signal that is ignored stays so, because our parent wants us to survive it (nohup(1), ``&``).
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
    """Let ``signals`` do nothing from here on; ``signals_to`` may still pass them on."""
    for signum in signals:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, lambda signum, frame: None)


class Stop:
    """Ctrl-C by a program: ``stop()``, or ``stop(now=True)``, which kills.

    tell: puts an event into the inbox. Both wait until the ranks are seen to be dead. by: the
    command that orders it.
    """

    def __init__(self, tell: Callable[[SignalReceived], None], by: str = "") -> None:
        self._tell = tell
        self._by = by
        self._orders = 0

    def __call__(self, *, now: bool = False, first: int | None = None) -> None:
        """End the job. first: the signal that its ranks get first, 0 for the run's own; None: as
        Ctrl-C does it.
        """
        if not self._orders:
            self._tell(SignalReceived(signal.SIGINT, self._by, None if now else first))
        if now and self._orders < 2:
            self._tell(SignalReceived(signal.SIGKILL, self._by))
        self._orders = max(self._orders, 1 + now)

    def ordered(self, way: str) -> None:
        """As another shell orders it: "stop", "kill" or the number of the first signal."""
        self(now=way == "kill", first=int(way) if way.isdigit() else None)


class ConnectGate:
    """``core.connect`` for the threads of a run's hosts: ``most`` of them connect at once.

    Each has ``seconds`` from its first attempt on. A host is past the gate once its link is open.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._policy = ConnectPolicy(most, seconds, chance)
        self._room = threading.Condition()

    def enter(self, host: int) -> ConnectAttempt:
        """Wait for room; the attempt to make then."""
        with self._room:
            self._room.wait_for(lambda: self._policy.can_begin)
            return self._policy.begin(host, time.monotonic())

    def reached(self, host: int) -> None:
        """``host`` is connected."""
        with self._room:
            self._policy.reached(host)
            self._room.notify(2)  # its own room, and the growth of the window

    def failed(self, host: int, failure: Failure) -> float | Failure:
        """Seconds after which to ``enter`` again; or the failure that is final."""
        with self._room:
            self._room.notify()
            return self._policy.failed(host, failure, time.monotonic())

    def anew(self, host: int) -> None:
        """Let ``host`` be reached again, in the time of a first attempt."""
        with self._room:
            self._policy.anew(host)

    def given_up(self, host: int) -> None:
        """Count ``host`` as given up: no thread connects to it any more."""
        with self._room:
            self._policy.given_up(host)
            self._room.notify()


def chance() -> float:
    """A random number from 0 to 1; needed only where hosts drop connections."""
    import random

    return random.random()  # noqa: S311 - it spreads attempts, nothing is secret


#: items of a link: something can be read; it must close
READABLE, CLOSE = object(), object()


class HostLink(abc.ABC):
    """The link to one host. Any thread may call ``post``, ``wake``, ``close``, ``break_off``."""

    name: str
    #: whether nothing that we do can take long, once the host has been called
    never_blocks = False

    def __init__(self) -> None:
        self.link: Link | None = None  # once it is open
        self.over = False  # nothing is left to do but ``leave``
        self.stopping = False  # nothing that happens from now on is news
        #: takes what is for ``step``
        self.post: Callable[[object], None] = lambda item: None
        self._readable = False

    def close(self) -> None:
        """Ask the thread to close the link and end."""
        self.stopping = True
        self.post(CLOSE)

    def break_off(self) -> None:
        """Close the link now, so that a write which the host does not take ends."""
        if self.link is not None:
            self.link.close()

    def wake(self) -> None:
        """Let ``step`` have ``READABLE``, unless it is to get that anyway."""
        if not self._readable:
            self._readable = True
            self.post(READABLE)

    def call(self) -> bool:
        """Call the host without waiting; False where it takes ``open``."""
        return False

    @abc.abstractmethod
    def open(self) -> None:
        """Connect, or report why not; may wait."""

    @abc.abstractmethod
    def step(self, item: object) -> bool:
        """Do what ``item`` (None: it is time) calls for; False: it takes ``open`` after all."""

    @abc.abstractmethod
    def due(self) -> float | None:
        """When to call ``step`` though there is nothing for it; None: never."""

    @abc.abstractmethod
    def lose(self, failure: Failure) -> None:
        """The link is over: report why."""

    def failed(self, error: Exception) -> None:
        """End it after a bug in dispatch, which must not look like a silent host."""
        self.lose(Failure(Kind.PROTOCOL, f"internal error: {type(error).__name__}: {error}"))

    def leave(self) -> None:
        """Close what is open."""
        self.over = self.stopping = True
        self.break_off()


_CALL = object()


class HostExecutor:
    """Serves links, and knows their threads."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[HostLink, object] | None] = queue.SimpleQueue()
        self._here: set[HostLink] = set()  # links on our thread
        self._due: dict[HostLink, float] = {}  # when to look at each of them
        self._links: list[HostLink] = []
        self._threads: list[tuple[threading.Thread, Callable[[], None]]] = []
        self._ours: threading.Thread | None = None

    def serve(self, link: HostLink) -> None:
        """Begin ``link``; returns at once."""
        self._links.append(link)
        if not link.never_blocks:
            self._apart(link)
            return
        link.post = lambda item: self._inbox.put((link, item))
        if self._ours is None:
            self._ours = threading.Thread(target=self._run, name="links", daemon=True)
            self._threads.append((self._ours, lambda: None))
            self._ours.start()
        self._inbox.put((link, _CALL))

    def close(self, seconds: float) -> None:
        """Close all links, and wait ``seconds`` at most for their threads to end; after half of it
        break off the rest: a host that takes nothing keeps its thread in a write.
        """
        half, end = time.monotonic() + seconds / 2, time.monotonic() + seconds
        for link in self._links:
            link.close()
        self._inbox.put(None)
        for thread, break_off in self._threads:
            thread.join(timeout=max(0.0, half - time.monotonic()))
            if thread.is_alive() and time.monotonic() < end:
                break_off()
        for thread, _ in self._threads:
            thread.join(timeout=max(0.0, end - time.monotonic()))

    # -- a thread for one -----------------------------------------------------------------

    def _apart(self, link: HostLink) -> None:
        own: queue.SimpleQueue[object] = queue.SimpleQueue()
        link.post = own.put
        thread = threading.Thread(target=_alone, args=(link, own), name=link.name, daemon=True)
        self._threads.append((thread, link.break_off))
        thread.start()

    # -- a thread for all -----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            due = min(self._due.values(), default=None)
            wait = None if due is None else max(0.0, due - time.monotonic())
            items: list[tuple[HostLink, object] | None] = []
            try:
                items.append(self._inbox.get(timeout=wait))
            except queue.Empty:
                pass
            items += [self._inbox.get() for _ in range(self._inbox.qsize())]
            now = time.monotonic()
            late = [link for link, when in self._due.items() if when <= now]
            items += [(link, None) for link in late]
            for one in items:
                if one is None:
                    return
                self._step(*one)

    def _step(self, link: HostLink, item: object) -> None:
        if item is not _CALL and link not in self._here:
            if not link.over:
                link.post(item)  # it has its own thread by now
            return
        self._here.add(link)
        stays = True
        try:
            stays = link.call() if item is _CALL else link.step(item)
        except Exception as error:  # noqa: BLE001 - the others go on
            link.failed(error)
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._ours)))
        due = None if link.over or not stays else link.due()
        if due is None:
            self._due.pop(link, None)
        else:
            self._due[link] = due
        if link.over or not stays:
            self._here.discard(link)
        if link.over:
            link.leave()
        elif not stays:
            self._apart(link)


def _alone(link: HostLink, inbox: queue.SimpleQueue[object]) -> None:
    try:
        link.open()
        while not link.over:
            due = link.due()
            try:
                item = inbox.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
            except queue.Empty:
                item = None
            link.step(item)
    except Exception as error:
        link.failed(error)
        raise
    finally:
        link.leave()
