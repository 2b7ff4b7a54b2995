"""The sinks' thread: what happened, in order, to every sink; credit back when it is told.

Output waits here in a queue whose size the credit of the agents bounds: a host
gets new credit only for bytes that every sink has taken. A sink that must not hold the
others back takes at once and follows on a thread of its own (``output.buffered``).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from dispatcher.core.events.run_events import BEAT, Entry, Sink

#: (node, rank, stream, data), an entry, or None for the end
_Item = tuple[int, int, int, bytes] | Entry | None

#: bytes of the largest block that is kept for the next use when it is freed
_KEPT = 1 << 20


class SinkThread:
    """A queue to ``sinks``, drained by a thread of its own from ``start`` to ``finish``.

    taken: called with (node, number of bytes) after all sinks have taken them.
    failed: called once with the exception of a sink; that sink is then left out.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        taken: Callable[[int, int], None],
        failed: Callable[[Sink, Exception], None],
    ) -> None:
        self._sinks = list(sinks)
        self._taken = taken
        self._failed = failed
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sinks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        keep_freed_memory()
        self._thread.start()

    def finish(self, give_up: Callable[[], bool]) -> bool:
        """Let the sinks take what is queued and close; False if given up before.

        give_up: asked ten times a second; a terminal that is paused takes nothing,
        and whoever waits for it must be able to leave.
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
        beat, ticking = 0.0, False
        while True:
            now = time.monotonic()
            if ticking and now >= beat:
                ticking, beat = self._tick(now), now + BEAT
            try:
                item = self._queue.get(timeout=max(0.0, beat - now) if ticking else None)
            except queue.Empty:
                continue
            ticking = True
            if item is None:
                break
            if isinstance(item, Entry):
                self._event(item)
            else:
                node, rank, stream, data = item
                self._output(rank, stream, data)
                self._taken(node, len(data))
        for sink in list(self._sinks):
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - as in _output
                self._leave_out(sink, error)

    def _output(self, rank: int, stream: int, data: bytes) -> None:
        for sink in self._sinks:
            try:
                sink.output(rank, stream, data)
            except Exception as error:  # noqa: BLE001 - one bad sink must not end the others
                self._leave_out(sink, error)

    def _event(self, entry: Entry) -> None:
        for sink in self._sinks:
            try:
                sink.event(entry)
            except Exception as error:  # noqa: BLE001 - as in _output
                self._leave_out(sink, error)

    def _tick(self, now: float) -> bool:
        again = False
        for sink in self._sinks:
            try:
                again = sink.tick(now) or again
            except Exception as error:  # noqa: BLE001 - as in _output
                self._leave_out(sink, error)
        return again

    def _leave_out(self, sink: Sink, error: Exception) -> None:
        self._sinks = [other for other in self._sinks if other is not sink]
        self._failed(sink, error)


def keep_freed_memory() -> None:
    """Let the C library keep freed buffers of up to 1 MiB, and 2 MiB in all of each thread.

    Left alone, glibc gives each buffer of 128 KiB back to the kernel, whose pages cost more than
    all we do with the bytes in them. It learns by seeing a larger block freed (mallopt(3)).
    """
    bytes(_KEPT)
