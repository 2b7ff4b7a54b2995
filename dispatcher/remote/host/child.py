"""Children of the agent for pieces of its work; it kills those that take too long."""

from __future__ import annotations

import os
import select
from _signal import SIGKILL  # type: ignore[import-not-found]
from time import monotonic

from dispatcher.remote.host import proctree
from dispatcher.remote.host.process import reset_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def become(parent: int, keep: set[int], work: Callable[[], None], what: str) -> NoReturn:
    """In a fresh child: do ``work`` with nothing of the parent's but ``keep``, and end.

    keep: descriptors; 0 to 2 are kept too. what: names it in the last words of a failure.
    """
    try:
        reset_signals()
        if proctree.signal_with_parent(parent, SIGKILL):
            for fd in {*map(int, os.listdir("/proc/self/fd"))} - keep - {0, 1, 2}:
                try:
                    os.close(fd)
                except OSError:
                    pass  # the descriptor that listed the folder
            work()
    except Exception as error:  # noqa: BLE001 - its exit code shows it; this adds the reason
        text = "%s: %s: %s\n" % (what, type(error).__name__, error)
        os.write(2, text.encode("utf-8", "backslashreplace"))
    finally:
        os._exit(1)


def start_child(work: Callable[[int], None], what: str) -> tuple[int, int]:
    """Do ``work`` in a child; its pid, and the end to read of a pipe whose other end ``work`` gets.

    what: see ``become``. Raises: OSError where there is no room for one more.
    """
    parent = os.getpid()
    out, into = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            become(parent, {into}, lambda: work(into), what)
    except OSError:
        os.close(out)
        raise
    finally:
        os.close(into)
    return pid, out


def work_within(seconds: float, work: Callable[[Callable[[bytes], object]], bytes]) -> bytes:
    """Do ``work`` in a child and return its data; after ``seconds`` kill it, as it may hang.

    work: is called with a function that sends data at once; its result is sent last, after a NUL.
    """

    def answer(into: int) -> None:
        os.dup2(into, 1)
        os.dup2(into, 2)  # else a reader of our errors would wait for the child's end
        last = b"\0" + work(lambda data: os.write(1, data))
        while last:
            last = last[os.write(1, last) :]

    try:
        pid, out = start_child(answer, "look")
    except OSError:  # no rank can be started either, which says more
        return b"\0\0" + work(len)
    told, more, until = b"", b"-", monotonic() + seconds
    while more and select.select([out], [], [], max(0.0, until - monotonic()))[0]:
        more = os.read(out, 1 << 16)
        told += more
    os.close(out)
    os.kill(pid, SIGKILL)
    return told
