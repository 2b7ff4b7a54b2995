"""Work on a thread of its own, and what it tells, for a program that looks on.

The program may be in any thread, and its signal handlers stay its own. So the loop of a run
gets a thread here, and the caller reads a queue of bounded length: who reads slowly holds
the ranks back, as behind a pipe, and nothing is lost. Whatever takes the caller out of its
``with`` block (``break``, its own error, Ctrl-C) ends the job on all hosts first.

The threads are daemons: a program that ends without waiting ends, and the hosts clean up.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from dispatcher.core.events.run_events import SignalReceived
from dispatcher.runner.inbox import LOOK, Stop

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
Told = TypeVar("Told")

#: things that may wait for the program, and bytes of them, unless a single thing has more
MOST_WAITING, MOST_BYTES = 256, 16 << 20


class Backstage(Generic[T, Told]):
    """``work`` on its own thread, once started; iterating gives what it ``put``.

    tell: lets the work know of a signal.
    """

    def __init__(self, work: Callable[[], T], tell: Callable[[SignalReceived], None]) -> None:
        self._work = work
        self._stop = Stop(tell)
        self._queue: queue.Queue[tuple[Told | None, int]] = queue.Queue(MOST_WAITING)
        self._given = self._read = 0  # bytes, each counted by one thread
        self._room = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._deaf = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    def stop(self, *, now: bool = False) -> None:
        """End the job as Ctrl-C does; now: kill. Comes back at once, from any thread."""
        self._stop(now=now)

    def wait(self) -> T:
        """The result, at the end. What was not read of ``put`` by then is left out.

        Raises: what the work raised, as a UsageError for a way to hosts that is not there.
        """
        self._deaf = True
        while not self._done.wait(LOOK):
            pass
        if self._error is not None:
            raise self._error
        return self._result[0]

    def __iter__(self) -> Iterator[Told]:
        while not (self._done.is_set() and self._queue.empty()):
            with contextlib.suppress(queue.Empty):
                told, size = self._queue.get(timeout=LOOK)
                self._read += size
                self._room.set()
                if told is None:
                    return
                yield told

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the job if it still runs, and wait for that; a further Ctrl-C kills."""
        interrupts = 0
        self._deaf = True
        if self._thread.ident is None:
            return  # never begun
        while not self._done.is_set():
            try:
                self.stop(now=interrupts > 0)
                self._done.wait(LOOK)
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1:
                    raise

    def start(self) -> Self:
        """Begin; itself."""
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._error = error
        finally:
            self.put(None)
            self._done.set()

    def put(self, told: Told | None, size: int = 0) -> None:
        """Tell the program, once there is room for it; None is the end. From our own threads.

        size: the bytes it takes, where these may be many.
        """
        while not self._deaf:
            self._room.clear()
            held = self._given - self._read
            if size and held and held + size > MOST_BYTES:
                self._room.wait(LOOK)
                continue
            with contextlib.suppress(queue.Full):
                self._queue.put((told, size), timeout=LOOK)
                self._given += size
                break
