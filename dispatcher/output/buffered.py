"""Sinks that wrap another sink, to filter its input or to buffer it.

The ranks get new credit only when every sink has taken their bytes. ``BufferedSink`` takes at once,
and feeds its sink on another thread. Bytes beyond a bound are left out and counted exactly
(``sink.gap``), or without ``drop`` the sinks' thread waits. Only events that divide output
(``DIVIDERS``) pass: a host can send any number of others, and the queue would have no limit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dispatcher.core.events.run_events import TICK, Counts, Entry, OutputEnded, RanksPlaced, Sink
from dispatcher.model.names import plural

#: bytes that may wait in memory, and the memory of a chunk beside its bytes
LIMIT = 4 << 20
OVERHEAD = 256
#: lines of dispatch itself that may wait
MOST_LINES = 1000
#: events on which sinks of output, a screen and files, act: in their place among the bytes
DIVIDERS = OutputEnded, RanksPlaced
#: seconds by which a wait ends late if dispatch itself was stopped
PAUSE = 0.2


class BufferedSink(Sink):
    """Feeds ``sink`` from its own thread, called ``name``.

    drop: leave out the excess, or else wait. stall_limit: leave bytes out only after the sink has
    done nothing for this many seconds. pace: a number that changes while the sink goes on in a
    single call.
    """

    def __init__(
        self,
        sink: Sink,
        name: str,
        *,
        limit: int = LIMIT,
        drop: bool = True,
        stall_limit: float = 0.0,
        pace: Callable[[], int] = lambda: 0,
    ) -> None:
        self._sink = sink
        self._limit = limit
        self._drop = drop
        self._stall_limit = stall_limit
        self._pace = pace
        self._seen = 0
        self._moved = time.monotonic()  # when the sink last took something, or was done with it
        self._cond = threading.Condition()
        #: (method of ``sink``, its arguments), in order
        self._waiting: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._size = 0
        self._lines = 0
        self._lines_lost = 0
        self._gap: dict[tuple[int, int], int] | None = None
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- on the sinks' thread -----------------------------------------------------------

    def output(self, rank: int, stream: int, data: bytes) -> None:
        cost = len(data) + OVERHEAD
        with self._cond:
            self._raise()
            # a gap that has begun lasts until there is room again for a good deal
            limit = self._limit if self._gap is None else self._limit // 2
            if not self._drop:
                while self._size + cost > self._limit and self._size:
                    self._cond.wait()
                    self._raise()
                self._put("output", (rank, stream, data), cost)
            elif self._size + cost <= limit or self._waits_for_sink(cost):
                self._gap = None
                self._put("output", (rank, stream, data), cost)
            else:
                if self._gap is None:
                    self._gap = {}
                    self._put("gap", (self._gap,))
                self._gap[rank, stream] = self._gap.get((rank, stream), 0) + len(data)

    def event(self, entry: Entry) -> None:
        if not isinstance(entry.event, DIVIDERS):
            return
        with self._cond:
            self._raise()
            self._put("event", (entry,))

    def say(self, line: str) -> None:
        with self._cond:
            if self._lines < MOST_LINES:
                self._lines += 1
                self._put("say", (line,))
            else:
                self._lines_lost += 1

    def close(self) -> None:
        with self._cond:
            self._closed = True
            self._cond.notify()
        self._thread.join()
        self._raise()

    def _waits_for_sink(self, cost: int) -> bool:
        """Wait for a slow sink; False when it does nothing, or there is a gap already."""
        self._moved = time.monotonic()  # from now on: earlier time does not count
        while self._gap is None and self._size + cost > self._limit:
            seen, self._seen = self._seen, self._pace()
            if self._seen != seen:
                self._moved = time.monotonic()
            left = self._moved + self._stall_limit - time.monotonic()
            if left <= 0:
                return False
            until = time.monotonic() + left
            self._cond.wait(timeout=left)
            self._raise()
            if time.monotonic() > until + PAUSE:  # dispatch was stopped, and so was the sink
                self._moved = time.monotonic()
        return self._gap is None

    def _put(self, method: str, arguments: tuple[Any, ...], cost: int = 0) -> None:
        self._waiting.append((method, arguments))
        self._size += cost
        self._cond.notify()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # -- on its own thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._follow()
            self._sink.close()
        except Exception as error:  # noqa: BLE001 - raised again on the sinks' thread
            with self._cond:
                self._error = error
                self._waiting.clear()
                self._cond.notify()

    def _follow(self) -> None:
        next_tick, ticking = 0.0, True
        while True:
            now = time.monotonic()
            if now >= next_tick:
                ticking, next_tick = self._sink.tick(now), now + TICK
            with self._cond:
                if not self._waiting and not self._closed:
                    self._cond.wait(timeout=max(0.0, next_tick - now) if ticking else None)
                if not self._waiting:
                    if self._closed:
                        return
                    continue
                method, arguments = self._take()
                self._moved = time.monotonic()
            ticking = True
            getattr(self._sink, method)(*arguments)
            if method == "output":
                with self._cond:
                    self._size -= len(arguments[2]) + OVERHEAD
                    self._moved = time.monotonic()
                    self._cond.notify()

    def _take(self) -> tuple[str, tuple[Any, ...]]:
        """Take the next call for the sink, under the lock."""
        method, arguments = self._waiting.popleft()
        if method == "gap":
            if arguments[0] is self._gap:
                self._gap = None
        elif method == "say":
            self._lines -= 1
            if self._lines == 0 and self._lines_lost:
                lost, self._lines_lost = self._lines_lost, 0
                self._lines += 1
                self._put("say", (f"... {plural(lost, 'more note')} not shown",))
        return method, arguments


class Filtered(Sink):
    """Passes output and its end on to ``sink`` only where ``wanted(rank, stream)``."""

    def __init__(self, sink: Sink, wanted: Callable[[int, int], bool]) -> None:
        self._sink = sink
        self._wanted = wanted

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if self._wanted(rank, stream):
            self._sink.output(rank, stream, data)

    def gap(self, missing: Counts) -> None:
        wanted = {key: count for key, count in missing.items() if self._wanted(*key)}
        if wanted:
            self._sink.gap(wanted)

    def event(self, entry: Entry) -> None:
        event = entry.event
        if not isinstance(event, OutputEnded) or self._wanted(event.rank, event.stream):
            self._sink.event(entry)

    def say(self, line: str) -> None:
        self._sink.say(line)

    def tick(self, now: float) -> bool:
        return self._sink.tick(now)

    def close(self) -> None:
        self._sink.close()
