"""A limit for calls that block: one thread looks at all of them, and acts on the late ones.

A blocking NCCL call waits for other ranks in places (the first collective of a kind connects to
them), and whoever waits inside it cannot look at a clock. The thread is started with the first
call, looks once a second, or ten times in the shortest limit, and costs a call two writes to a
dictionary.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_LONGEST, _SHORTEST = 1.0, 0.01  # seconds between two looks


class Watchdog:
    """``run(60, abort, call, ...)``: calls ``abort`` if the call takes longer than that."""

    def __init__(self) -> None:
        # a call for each thread that is inside one: its deadline, and what to do then, once
        self._calls: dict[int, tuple[float, Callable[[], None]]] = {}
        self._pause = _LONGEST
        self._sooner = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(
        self, seconds: float, late: Callable[[], None], call: Callable[..., T], *words: Any
    ) -> T:
        """``call(*words)``; ``late`` is called in another thread, and not waited for."""
        if self._thread is None or seconds < 10 * self._pause:
            self._start(max(_SHORTEST, seconds / 10))
        me = threading.get_ident()
        self._calls[me] = (time.monotonic() + seconds, late)
        try:
            return call(*words)
        finally:
            self._calls.pop(me, None)

    def _start(self, pause: float) -> None:
        with self._lock:
            self._pause = min(self._pause, pause)
            self._sooner.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="nccl-watch", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        while True:
            self._sooner.wait(self._pause)
            self._sooner.clear()
            now = time.monotonic()
            for thread, call in list(self._calls.items()):
                deadline, late = call
                if now > deadline and self._calls.get(thread) is call:
                    self._calls[thread] = (float("inf"), late)
                    threading.Thread(target=late, name="nccl-abort", daemon=True).start()
