"""Runs a job or a command on a thread while the program that started it goes on.

The program reads lines from a bounded queue, so that a slow reader holds the ranks back. If it
leaves its ``with`` block, the job ends.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from dispatcher.core.events.run_events import SignalReceived
from dispatcher.runner.loop import POLL, Stop

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Self

T = TypeVar("T")
Item = TypeVar("Item")

#: items that may wait for the program, and their bytes, unless a single item has more
MOST_WAITING, MOST_BYTES = 256, 16 << 20


class BackgroundRun(Generic[T, Item]):
    """Runs ``work`` on its own thread; iterating gives the items that it ``put``.

    tell: sends the work a signal.
    """

    def __init__(self, work: Callable[[], T], tell: Callable[[SignalReceived], None]) -> None:
        self._work = work
        self._stop = Stop(tell)
        self._queue: queue.Queue[tuple[Item | None, int]] = queue.Queue(MOST_WAITING)
        self._given = self._read = 0  # bytes, each counted by one thread
        self._room = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._deaf = False
        self._done = threading.Event()
        self._wake: Callable[[], None] = lambda: None  # after each thing that is put, and the end
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    def stop(self, *, now: bool = False) -> None:
        """End the job as Ctrl-C does; now: kill. Returns at once; from any thread."""
        self._stop(now=now)

    def wait(self) -> T:
        """Wait for the end and return the result; unread items are dropped.

        Raises: the error of the work, such as a UsageError for a transport that is not there.
        """
        self._deaf = True
        while not self._done.wait(POLL):
            pass
        if self._error is not None:
            raise self._error
        return self._result[0]

    def __iter__(self) -> Iterator[Item]:
        while not (self._done.is_set() and self._queue.empty()):
            with contextlib.suppress(queue.Empty):
                item, size = self._queue.get(timeout=POLL)
                self._read += size
                self._room.set()
                if item is None:
                    return
                yield item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the job if it still runs, and wait for its end; another Ctrl-C kills."""
        interrupts = 0
        self._deaf = True
        if self._thread.ident is None:
            return  # never begun
        while not self._done.is_set():
            try:
                self.stop(now=interrupts > 0)
                self._done.wait(POLL)
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1:
                    raise

    async def run_async(self, tell: Callable[[Item], None]) -> T:
        """Start, give ``tell`` each item on the asyncio loop, and return the result.

        When it is cancelled, or a callback fails, it ends the job first; cancelled again, it kills.
        """
        import asyncio

        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(news.set)

        self._wake = wake
        self.start()
        try:
            while not (self._done.is_set() and self._queue.empty()):
                await news.wait()
                news.clear()
                while not self._queue.empty():
                    item, size = self._queue.get_nowait()
                    self._read += size
                    self._room.set()
                    if item is not None:
                        tell(item)
                    await asyncio.sleep(0)  # else fast ranks would block other tasks
        except BaseException:
            self._deaf = True
            await self._end_async(news)
            raise
        return self.wait()

    async def _end_async(self, news: asyncio.Event) -> None:
        """End the job, and wait for its end. news: set at the end, and maybe before."""
        import asyncio

        cancelled = 0
        while True:
            news.clear()
            if self._done.is_set():
                return
            try:
                self.stop(now=cancelled > 0)
                await news.wait()
            except asyncio.CancelledError:
                cancelled += 1
                if cancelled > 1:
                    raise

    def start(self) -> Self:
        """Start the thread; return this object."""
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
            self._wake()

    def put(self, item: Item | None, size: int = 0) -> None:
        """Give the program ``item`` once there is room; None is the end. For the work's threads.

        size: its bytes, if they may be many.
        """
        while not self._deaf:
            self._room.clear()
            held = self._given - self._read
            if size and held and held + size > MOST_BYTES:
                self._room.wait(POLL)
                continue
            with contextlib.suppress(queue.Full):
                self._queue.put((item, size), timeout=POLL)
                self._given += size
                self._wake()
                break
