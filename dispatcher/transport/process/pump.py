"""One thread that reads every child's pipes: ``Pump.add(fd, sink)``.

A sink that wants a pause returns False and is left out until ``resume``; the
kernel's pipe then fills and the child blocks. A pump never writes, and waits for no process.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from collections.abc import Callable

#: Takes the bytes just read (``b""`` at the end); returns False to be paused.
Sink = Callable[[bytes], bool]

_CHUNK = 65536


class Pump:
    """Reads descriptors from one named thread, started by the first ``add``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._orders: deque[Callable[[], None]] = deque()
        self._owned: set[int] = set()  # touched by the thread only
        self._selector: selectors.BaseSelector | None = None
        self._thread: threading.Thread | None = None
        self._read_end = self._wake = -1
        self._closing = False

    def add(self, fd: int, sink: Sink) -> None:
        """Read ``fd`` until its end and then close it; the pump owns it from here."""

        def order() -> None:
            assert self._selector is not None
            self._owned.add(fd)
            self._selector.register(fd, selectors.EVENT_READ, sink)

        os.set_blocking(fd, False)
        if not self._order(order):
            os.close(fd)

    def resume(self, fd: int, sink: Sink) -> None:
        """Read again a descriptor whose sink had asked for a pause."""

        def order() -> None:
            assert self._selector is not None
            if fd in self._owned and fd not in self._selector.get_map():
                self._selector.register(fd, selectors.EVENT_READ, sink)

        self._order(order)

    def drop(self, fd: int, last: Sink | None = None) -> None:
        """Close ``fd`` without waiting for its end; returns when it is closed.

        last: gets the bytes that the pipe holds already, up to one piece, and the end.
        """
        done = threading.Event()

        def order() -> None:
            if last is not None and fd in self._owned:
                try:
                    last(os.read(fd, _CHUNK))
                except OSError:
                    pass  # nothing there
                last(b"")
            self._forget(fd)
            done.set()

        if self._order(order) and threading.current_thread() is not self._thread:
            done.wait(0.5)

    def close(self) -> None:
        """Stop and join the thread; descriptors still held are closed. Idempotent."""
        with self._lock:
            thread, self._closing = self._thread, True
            if thread is not None and thread.is_alive():
                self._poke()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _order(self, order: Callable[[], None]) -> bool:
        """Run ``order`` on the pump's thread soon; False when the pump is closed."""
        with self._lock:
            if self._closing:
                return False
            if self._thread is None:
                self._start()
            self._orders.append(order)
            self._poke()
            return True

    def _poke(self) -> None:
        try:
            os.write(self._wake, b".")
        except OSError:
            pass  # enough pokes are under way already, or the thread is gone

    def _start(self) -> None:
        self._read_end, self._wake = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._wake, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read_end, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _forget(self, fd: int) -> None:
        assert self._selector is not None
        if fd not in self._owned:
            return  # it ended while the order to drop it was under way
        self._owned.remove(fd)
        try:
            self._selector.unregister(fd)
        except KeyError:
            pass  # paused
        os.close(fd)

    def _run(self) -> None:
        assert self._selector is not None
        while not self._closing:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._read_wake(key.fd)
                else:
                    self._read_one(key.fd, key.data)
            while self._orders:
                self._orders.popleft()()
        with self._lock:
            while self._orders:
                self._orders.popleft()()
            for fd in self._owned:
                os.close(fd)
            os.close(self._read_end)
            self._selector.close()
            os.close(self._wake)
            self._wake = -1

    def _read_wake(self, fd: int) -> None:
        try:
            os.read(fd, 4096)
        except BlockingIOError:
            pass

    def _read_one(self, fd: int, sink: Sink) -> None:
        assert self._selector is not None
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a pseudo-terminal ends with EIO
        wants_more = sink(data)
        if not data:
            self._forget(fd)
        elif not wants_more:
            self._selector.unregister(fd)
