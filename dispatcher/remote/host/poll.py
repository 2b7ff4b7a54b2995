"""Waits for descriptors, and calls a function for each that is ready."""

from __future__ import annotations

import os
import select
from _signal import SIGCHLD, set_wakeup_fd  # type: ignore[import-not-found]
from _signal import signal as on_signal
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: gets the second, and the events of ``epoll`` that its descriptor has
    Call = Callable[[float, int], Any]


def read_ready(fd: int, size: int) -> bytes | None:
    """Up to ``size`` bytes that are there now; None for nothing yet, b"" at the end."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Poll:
    """Descriptors and what to call for each. act: takes the result of each call."""

    def __init__(self, act: Callable[[Any], object] = bool) -> None:
        self.calls: dict[int, Call] = {}
        self._act = act
        self.epoll = select.epoll()

    def add(self, fd: int, call: Call, events: int = select.EPOLLIN) -> None:
        """Wait for one of ``events`` of ``fd``, too; an error or the end always counts."""
        self.calls[fd] = call
        self.epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Wait for other ``events`` of ``fd``."""
        self.epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Wait no more for ``fd``, if we do; call this before it is closed."""
        if self.calls.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def on_child(self, reap: Callable[[], object]) -> None:
        """Call ``reap`` when a child has ended, and wake up at every signal with a handler."""
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_in, False)
        os.set_blocking(wake_out, False)
        set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        on_signal(SIGCHLD, lambda *_: None)  # the descriptor reports it

        def woken(now: float, events: int) -> None:
            read_ready(wake_in, 4096)
            reap()

        self.add(wake_in, woken)

    def turn(self, seconds: float = -1.0) -> None:
        """Wait until something is ready, for ``seconds`` at most, and make the calls for it."""
        for fd, events in self.epoll.poll(seconds):
            call = self.calls.get(fd)  # an earlier call may have removed it
            if call is not None:
                self._act(call(monotonic(), events))
