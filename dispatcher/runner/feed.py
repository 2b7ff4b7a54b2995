"""The sinks' thread: what happened, in order, to every sink; credit back when it is told.

Output waits here in a queue whose size the credit of the agents bounds: a host
gets new credit only for bytes that every sink has taken.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from dispatcher.sinks.base import Sink, Stamped

#: (node, rank, stream, data), a stamped event, or None for the end
_Item = tuple[int, int, int, bytes] | Stamped | None


class Feed:
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

    def event(self, stamped: Stamped) -> None:
        self._queue.put(stamped)

    def output(self, node: int, rank: int, stream: int, data: bytes) -> None:
        self._queue.put((node, rank, stream, data))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Stamped):
                self._each(lambda sink, stamped=item: sink.event(stamped))  # type: ignore[misc]
            else:
                node, rank, stream, data = item
                self._each(
                    lambda sink, told=(rank, stream, data): sink.output(*told)  # type: ignore[misc]
                )
                self._taken(node, len(data))
        self._each(lambda sink: sink.close())

    def _each(self, tell: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                tell(sink)
            except Exception as error:  # noqa: BLE001 - one bad sink must not end the others
                self._sinks.remove(sink)
                self._failed(sink, error)
