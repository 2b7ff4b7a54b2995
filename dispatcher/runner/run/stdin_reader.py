"""The launcher's own standard input, on its way to the ranks that read it.

A thread reads while every node has room (``WINDOW``); docs/design/stdin.md says when it does not.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from errno import EIO

from dispatcher.core.events import run_events as ev
from dispatcher.model.errors import reason
from dispatcher.model.paths import in_front
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.remote.protocol.frames import INPUT, OUTPUT_LIMIT, encode

#: bytes of input that one agent may have under way
WINDOW = 512 << 10
#: seconds between two looks at a terminal that another job has
TURN = 0.5
#: seconds to wait for the thread; one that shares its input with another reader may be stuck
JOIN_LIMIT = 0.2


class StdinReader:
    """Reads ``fd`` for a run and hands frames to ``send(node, frame)``, from its own thread.

    ``observe`` must get every event of the run; ``taken`` is called with credit. tell: takes an
    event.
    """

    def __init__(
        self, send: Callable[[int, bytes], None], tell: Callable[[ev.Event], None], fd: int = 0
    ) -> None:
        self._send = send
        self._tell = tell
        self._fd = fd
        self._lock = threading.Lock()
        self._readers: dict[int, set[int]] = {}  # node -> ranks that still read
        self._taken: dict[int, int] = {}  # node -> bytes taken by all its readers
        self._left: dict[int, int] = {}  # rank that reads no more -> bytes it has read
        self._total = 0  # bytes that this end has read
        self._closed = False
        self._wake_in, self._wake = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._run, name="stdin", daemon=True)

    # -- called by other threads ----------------------------------------------------

    def observe(self, event: ev.Event, plan: JobPlan, host_at: Callable[[int], int] = int) -> None:
        """Begin with the first rank that runs; forget who is gone. host_at: node -> its host."""
        match event:
            case ev.RankSpawned() if self._thread.ident is None and not self._closed:
                # every node's order to start is on its way by now, and input stays behind it
                for node in plan.nodes:
                    readers = {rank for rank in node.ranks if plan.reads_stdin(rank)}
                    if readers:
                        host = host_at(node.index)
                        self._readers[host] = readers
                        self._taken[host] = 0
                self._thread.start()
            case ev.InputClosed(node, rank, taken):
                self._leave(node, rank, taken)
            case ev.NodeLost(node):
                self._drop(node)

    def taken(self, node: int, nbytes: int) -> None:
        """All readers of ``node`` have taken ``nbytes`` more."""
        with self._lock:
            if node in self._taken:
                self._taken[node] += nbytes
        self._poke()

    def close(self) -> list[ev.Event]:
        """Read no more; returns events about bytes that no rank took. Idempotent."""
        if self._closed:
            return []
        self._closed = True
        self._poke()
        if self._thread.ident is not None:
            self._thread.join(JOIN_LIMIT)
        if not self._thread.is_alive():
            with self._lock:
                os.close(self._wake_in)
                os.close(self._wake)
                self._wake = -1
        short = {rank: self._total - n for rank, n in self._left.items() if n < self._total}
        if not short:
            return []
        return [ev.InputLeft(tuple(sorted(short)), max(short.values()), self._total)]

    def _leave(self, node: int, rank: int, taken: int) -> None:
        with self._lock:
            readers = self._readers.get(node, set())
            if rank in readers:
                self._left[rank] = taken
                readers.discard(rank)
        if not readers:
            self._drop(node)

    def _drop(self, node: int) -> None:
        with self._lock:
            self._readers.pop(node, None)
            self._taken.pop(node, None)
        self._poke()

    def _poke(self) -> None:
        with self._lock:
            try:
                if self._wake >= 0:
                    os.write(self._wake, b".")
            except BlockingIOError:
                pass  # it has been woken often enough

    # -- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        # a read from the background then fails, instead of stopping the launcher
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
        while (credit := self._credit()) is not None:
            if not self._wait(credit > 0):
                continue
            try:
                data = os.read(self._fd, min(credit, OUTPUT_LIMIT))
            except OSError as error:
                if error.errno == EIO and not in_front(self._fd):
                    self._wait(False, TURN)
                    continue
                self._tell(ev.InputBroken(reason(error)))
                data = b""
            self._pass_on(data)
            if not data:
                return

    def _credit(self) -> int | None:
        """Bytes that may be read now; None when no reader is left."""
        with self._lock:
            if self._closed or not self._taken:
                return None
            return WINDOW - (self._total - min(self._taken.values()))

    def _wait(self, for_input: bool, seconds: float | None = None) -> bool:
        """Sleep until there is something to do; whether there is input to be read."""
        poller = select.poll()  # of the two only poll(2) takes plain files
        poller.register(self._wake_in, select.POLLIN)
        if for_input:
            poller.register(self._fd, select.POLLIN)
        found = dict(poller.poll(None if seconds is None else seconds * 1000))
        if self._wake_in in found:
            os.read(self._wake_in, 4096)
        return self._fd in found

    def _pass_on(self, data: bytes) -> None:
        frame = encode(INPUT, data)
        with self._lock:
            self._total += len(data)
            nodes = list(self._taken)
        for node in nodes:
            self._send(node, frame)
