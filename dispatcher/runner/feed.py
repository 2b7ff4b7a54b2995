"""The sinks' thread: what happened, in order, to every sink; credit back when it is told.

Output waits here in a queue whose size the credit of the agents bounds: a host
gets new credit only for bytes that every sink has taken.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from dispatcher.sinks.base import Sink, Stamped

#: (node, rank, stream, data), a stamped event, or None for the end
_Item = tuple[int, int, int, bytes] | Stamped | None


class Feed:
    """A queue to ``sinks``, drained by a thread of its own while the context is open.

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

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.put(None)
        self._thread.join()

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
